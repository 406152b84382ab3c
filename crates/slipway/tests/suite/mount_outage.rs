//! Tests of a mount whose server does not answer.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use rustix::process::Signal;

use crate::common::{self, lines, mounted::World, ok, wait};

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
