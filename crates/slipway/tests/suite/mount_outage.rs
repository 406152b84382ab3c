//! Tests of a mount whose server does not answer.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::fs::FileExt,
    process::{Child, Command, Output, Stdio},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use crate::common::{
    self, finish, lines,
    mounted::{World, is_mounted, mount, pattern},
    ok, stderr, wait,
};

/// Opens and writes a file, and executes another program after a line of input. Perl's files have O_CLOEXEC.
const EXECUTES: &str = r#"
$| = 1;
open(my $file, ">", $ARGV[0]) or die $!;
syswrite($file, "data\n") or die $!;
print "written\n";
<STDIN>;
system("true") == 0 or die $!;
close($file) or die $!;
"#;

/// While execve closes files, the kernel lets nobody read some files of the process in proc(5). The mount examines processes that
/// wait for it, so it must not wait for one that waits for the mount.
#[test]
fn execve_that_closes_a_file_does_not_block_the_mount() {
    let test = "execve_that_closes_a_file_does_not_block_the_mount";
    if Command::new("perl").arg("-v").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED {test}: needs perl");
        return;
    }
    for query in ["&timeo=3600s", "&timeo=3600s&vers=4.2"] {
        let Some(world) = World::new(test, "tcp", query) else { return };
        let mut program = Command::new("perl");
        program.args(["-e", EXECUTES]).arg(world.at.join("file"));
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "written\n");
        world.server.pause();
        program.stdin.take().unwrap().write_all(b"\n").unwrap();
        // The mount has examined the process several times before an operation has waited for two seconds.
        let child = longest_wait(&world, 2);
        assert_ne!(child, program.id(), "the child must wait, in execve");
        assert_eq!(program.try_wait().unwrap(), None, "execve must wait for the server");
        world.server.signal(Signal::CONT);
        assert!(wait(&mut program).success(), "{query}");
        assert_eq!(fs::read(world.served.join("file")).unwrap(), b"data\n", "{query}");
        world.end();
    }
}

/// Waits until an operation has waited for so many seconds, and returns the process that waits for it.
fn longest_wait(world: &World, seconds: u64) -> u32 {
    let status = format!("--status={}", world.at.display());
    let mut pid = 0;
    common::until("an operation must wait", || {
        let found = lines(&ok(&["mount", &status, "--json"])).remove(0);
        let waits = &found["waits"][0];
        pid = waits["pid"].as_u64().unwrap_or(0) as u32;
        waits["since_s"].as_u64() >= Some(seconds)
    });
    pid
}

/// Commands that end a mount although its server does not answer.
const UNMOUNTS: [&[&str]; 4] = [&["fusermount3", "-u"], &["umount", "-f"], &["umount", "-l"], &["fusermount3", "-uz"]];

fn run(words: &[&str], world: &World) -> Output {
    let mut command = Command::new(words[0]);
    finish(command.args(&words[1..]).arg(&world.at).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Skips a command that this machine does not have.
fn has(words: &[&str], test: &str) -> bool {
    let has = Command::new(words[0]).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has {
        eprintln!("SKIPPED {test}: needs {}", words[0]);
    }
    has
}

/// Starts a program that reads a file, and returns when it waits for the server.
fn reader(world: &World) -> Child {
    let cat = Command::new("cat").arg(world.at.join("file")).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let cat = cat.unwrap();
    let at = format!("/proc/{}/wchan", cat.id());
    let waits = || fs::read_to_string(&at).is_ok_and(|at| at.contains("request_wait_answer"));
    common::until("the program must wait", waits);
    cat
}

#[test]
fn an_unused_mount_can_be_unmounted_while_the_server_is_away() {
    let test = "an_unused_mount_can_be_unmounted_while_the_server_is_away";
    for query in ["&timeo=3600s", "&timeo=3600s&vers=4.2"] {
        let Some(mut world) = World::new(test, "tcp", query) else { return };
        for words in UNMOUNTS.into_iter().filter(|words| has(words, test)) {
            world.server.pause();
            let output = run(words, &world);
            assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", stderr(&output));
            assert!(wait(&mut world.mount).success() && !is_mounted(&world.at), "{words:?}, {query}");
            world.server.signal(Signal::CONT);
            world.mount = mount(&[&world.server.url("tcp", ""), query].concat(), &world.at);
        }
        world.end();
    }
}

/// The kernel aborts the operations of a mount before it says that the mount is in use.
#[test]
fn forced_unmount_ends_a_mount_in_use_while_the_server_is_away() {
    let test = "forced_unmount_ends_a_mount_in_use_while_the_server_is_away";
    for query in ["&timeo=3600s", "&timeo=3600s&vers=4.2"] {
        let Some(mut world) = World::new(test, "tcp", query) else { return };
        fs::write(world.served.join("file"), pattern(3 << 20)).unwrap();
        let open = File::create(world.at.join("open")).unwrap();
        world.server.pause();
        let mut reads = reader(&world);
        if has(UNMOUNTS[0], test) {
            let output = run(UNMOUNTS[0], &world);
            assert_eq!((output.status.code(), stderr(&output).contains("busy")), (Some(1), true), "{output:?}");
            assert_eq!((reads.try_wait().unwrap(), world.mount.try_wait().unwrap()), (None, None), "both must go on");
        }
        let output = run(&["umount", "-f"], &world);
        // It has succeeded if the program and the mount were faster.
        assert!(matches!(output.status.code(), Some(0 | 32)), "{}: {}", output.status, stderr(&output));
        let said = finish_stderr(reads);
        assert!(said.contains("onnection"), "ECONNABORTED or ENOTCONN: {said}");
        assert!(wait(&mut world.mount).success());
        assert!(!is_mounted(&world.at), "the mount point must be free");
        assert_eq!(world.at.read_dir().unwrap().count(), 0);
        let errors = [open.write_all_at(b"late", 0), open.sync_all(), open.metadata().map(drop)];
        let errors = errors.map(|result| result.unwrap_err().raw_os_error());
        assert_eq!(errors, [Some(Errno::NOTCONN.raw_os_error()); 3], "{query}");
        world.server.signal(Signal::CONT);
    }
}

/// A program that uses a detached mount waits on. When it is killed, or the mount, nothing remains.
#[test]
fn lazy_unmount_lasts_until_the_last_program_ends() {
    let test = "lazy_unmount_lasts_until_the_last_program_ends";
    for query in ["&timeo=3600s", "&timeo=3600s&vers=4.2"] {
        let Some(mut world) = World::new(test, "tcp", query) else { return };
        fs::write(world.served.join("file"), pattern(3 << 20)).unwrap();
        for words in UNMOUNTS[2..].iter().filter(|words| has(words, test)) {
            for kill in [true, false] {
                world.server.pause();
                let mut reads = reader(&world);
                let output = run(words, &world);
                assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", stderr(&output));
                assert!(!is_mounted(&world.at), "{words:?}");
                assert_eq!(
                    (reads.try_wait().unwrap(), world.mount.try_wait().unwrap()),
                    (None, None),
                    "both must go on"
                );
                if kill {
                    reads.kill().unwrap();
                    assert!(!wait(&mut reads).success());
                } else {
                    kill_process(Pid::from_child(&world.mount), Signal::TERM).unwrap();
                    let said = finish_stderr(reads);
                    assert!(said.contains("onnection"), "ECONNABORTED or ENOTCONN: {said}");
                }
                assert!(wait(&mut world.mount).success(), "{words:?}, {query}");
                world.server.signal(Signal::CONT);
                world.mount = mount(&[&world.server.url("tcp", ""), query].concat(), &world.at);
            }
        }
        world.end();
    }
}

/// Waits for the end of a program, which must fail. Returns its standard error.
fn finish_stderr(mut program: Child) -> String {
    assert!(!wait(&mut program).success());
    std::io::read_to_string(program.stderr.take().unwrap()).unwrap()
}
