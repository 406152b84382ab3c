//! Tests of a mount whose server does not answer.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::{fs::FileExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Instant,
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process, kill_process_group},
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

/// Opens and writes as many files as the argument says, and waits.
const OPENS: &str = "for i in $(seq $1); do exec {fd}>$2-$i; echo data >&$fd; done; echo open; exec sleep 3600";

/// Starts a program that has so many files open, with data that the server may not have.
fn opener(files: u32, prefix: &Path) -> Child {
    let mut command = Command::new("bash");
    command.args(["-c", OPENS, "opens", &files.to_string()]).arg(prefix).stdout(Stdio::piped());
    let mut program = command.process_group(0).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "open\n");
    program
}

/// A dying process closes one file after the other, and each close waits for the mount.
#[test]
fn killed_process_with_many_open_files_ends_as_fast_as_with_one() {
    let test = "killed_process_with_many_open_files_ends_as_fast_as_with_one";
    const FILES: u32 = 150;
    const ATTEMPTS: u32 = 3;
    for (query, args) in [("&vers=3", &[][..]), ("&vers=4.2", &[]), ("&vers=4.2", &["--writeback"])] {
        let Some(world) = World::new(test, "tcp", "") else { return };
        let mounted = world.with_arguments("mounted", &["&timeo=3600s", query].concat(), args);
        let times = |attempt: u32| {
            let named = |(name, files)| opener(files, &mounted.at.join(format!("{name}{attempt}")));
            let mut programs = [("one", 1), ("many", FILES)].map(named);
            world.server.pause();
            let times = programs.each_mut().map(|program| {
                let killed = Instant::now();
                program.kill().unwrap();
                assert!(!wait(program).success());
                killed.elapsed()
            });
            world.server.signal(Signal::CONT);
            times
        };
        // If each file took as long as one, this would be a factor of 150 in each attempt. Other tests can delay a process.
        let attempts: Vec<_> = (0..ATTEMPTS).map(times).collect();
        assert!(
            attempts.iter().any(|[one, many]| *many < *one * 30),
            "{attempts:?} for 1 and {FILES} files, {query} {args:?}"
        );
        mounted.end();
        for number in 1..=FILES {
            let file = world.served.join(format!("many0-{number}"));
            common::until("the data must be sent", || fs::read(&file).unwrap() == b"data\n");
        }
        world.end();
    }
}

/// Returns the states of all threads of a process group, as proc(5) names them.
fn states_of_group(group: u32) -> Vec<(u32, char)> {
    let numbers = |path: &str| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    let mut states = Vec::new();
    for pid in numbers("/proc") {
        for thread in numbers(&format!("/proc/{pid}/task")) {
            let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap_or_default();
            let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
            let (state, _parent, its_group) = (fields.next(), fields.next(), fields.next());
            if let (Some(state), Some(its_group)) = (state, its_group)
                && its_group.parse() == Ok(group)
            {
                states.extend(state.chars().map(|state| (thread, state)));
            }
        }
    }
    states
}

#[test]
fn killed_programs_leave_no_thread_that_waits_for_the_server() {
    let test = "killed_programs_leave_no_thread_that_waits_for_the_server";
    for (query, args) in [("&vers=3", &[][..]), ("&vers=4.2", &[]), ("&vers=4.2", &["--writeback"])] {
        let Some(world) = World::new(test, "tcp", "") else { return };
        fs::create_dir_all(world.served.join("list/deep")).unwrap();
        fs::write(world.served.join("read"), pattern(3 << 20)).unwrap();
        let mounted = world.with_arguments("mounted", &["&timeo=3600s", query].concat(), args);
        let mut program = opener(20, &mounted.at.join("open"));
        let group = program.id();
        // Programs of each kind in the same group: they read, write through the page cache and beside it, list, create, and lock.
        let script = "echo ready; read; cat read & dd if=/dev/zero of=write bs=4k count=4096 & \
            dd if=/dev/zero of=direct bs=4k oflag=direct count=9 & ls -lR list & touch create/new & mv open-1 moved & flock open-2 true & wait";
        let mut others = Command::new("bash");
        others.args(["-c", script]).current_dir(&mounted.at).process_group(group as i32);
        let mut others = others.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut said = BufReader::new(others.stdout.take().unwrap());
        said.read_line(&mut String::new()).unwrap();
        world.server.pause();
        others.stdin.take().unwrap().write_all(b"\n").unwrap();
        longest_wait_at(&mounted.at, 2);
        assert!(states_of_group(group).len() > 5, "{:?}", states_of_group(group));
        kill_process_group(Pid::from_raw(group as i32).unwrap(), Signal::KILL).unwrap();
        for child in [&mut program, &mut others] {
            assert!(!wait(child).success());
        }
        // The orphans are reaped by another process, so they may remain as zombies.
        common::until("no program may wait for the server", || {
            states_of_group(group).iter().all(|(_, state)| *state == 'Z')
        });
        world.server.signal(Signal::CONT);
        drop(mounted);
        world.end();
    }
}

/// Waits until an operation has waited for so many seconds, and returns the process that waits for it.
fn longest_wait(world: &World, seconds: u64) -> u32 {
    longest_wait_at(&world.at, seconds)
}

fn longest_wait_at(mount: &Path, seconds: u64) -> u32 {
    let status = format!("--status={}", mount.display());
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
