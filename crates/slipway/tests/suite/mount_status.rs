//! Tests of `slipway mount --status`.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{self, fails, lines, mounted::World, ok, pause, run, wait};

#[test]
fn status_names_the_server_that_does_not_answer() {
    let Some(mut world) = World::new("status_names_the_server_that_does_not_answer", "tcp", "&timeo=3600s") else {
        return;
    };
    fs::write(world.served.join("file"), "content").unwrap();
    let status = |json: bool| {
        let status = format!("--status={}", world.at.display());
        if json { ok(&["mount", &status, "--json"]) } else { ok(&["mount", &status]) }
    };
    assert!(status(false).contains("no operation waits"));
    world.server.pause();
    let mut reads = std::process::Command::new("cat")
        .arg(world.at.join("file"))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let patience = Instant::now() + common::PATIENCE;
    let waits = loop {
        let found = lines(&status(true)).remove(0);
        if found["waits"][0]["operations"].as_u64().is_some() {
            break found["waits"][0].clone();
        }
        assert!(Instant::now() < patience, "{found}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let server = format!("127.0.0.1:{}", world.server.port("tcp"));
    assert_eq!((waits["server"].as_str(), waits["pid"].as_u64()), (Some(&*server), Some(reads.id().into())), "{waits}");
    assert!(waits["since_s"].as_u64() >= Some(1), "{waits}");
    assert!(status(false).contains(&format!("wait for {server}: 1, the oldest for")));
    let indirect = world.served.join("../mnt/");
    assert!(ok(&["mount", &format!("--status={}", indirect.display())]).contains("wait for"));
    world.server.signal(Signal::CONT);
    assert!(wait(&mut reads).success());
    world.terminate();
    let said = fails(1, &["mount", &format!("--status={}", world.at.display())]);
    assert!(said.contains("no slipway mount of this user is there"), "{said}");
    world.server.signal(Signal::TERM);
}

#[test]
fn status_of_a_process_that_does_not_run_is_an_error() {
    let Some(mut world) = World::new("status_of_a_process_that_does_not_run_is_an_error", "tcp", "") else { return };
    let status = format!("--status={}", world.at.display());
    let socket = format!("/run/slipway-mount/{}.sock", world.mount.id());
    let another = world.another("rdma", "");
    let process = Pid::from_child(&world.mount);
    pause(&world.mount);
    let said = fails(1, &["mount", &status]);
    assert!(said.contains(&socket) && said.contains("does not answer"), "{said}");
    let all = run(&["mount", "--status", "--json"]);
    let found = lines(std::str::from_utf8(&all.stdout).unwrap());
    assert!(found.iter().any(|mount| mount["directory"].as_str() == another.at.to_str()), "{all:?}");
    assert_eq!(all.status.code(), Some(1), "{all:?}");
    kill_process(process, Signal::KILL).unwrap();
    world.mount.wait().unwrap();
    assert!(Path::new(&socket).exists(), "a killed process leaves its socket");
    assert!(fails(1, &["mount", &status]).contains("no slipway mount of this user is there"));
    assert!(!Path::new(&socket).exists(), "the socket of a killed process must be removed");
    another.end();
    world.server.signal(Signal::TERM);
}

#[test]
fn status_excludes_a_mount() {
    for args in
        [&["--status", "nfs://host/export", "/mnt"][..], &["--status", "--soft"], &["--status=/mnt", "--retrans", "1"]]
    {
        assert!(fails(2, &[&["mount"], args].concat()).contains("cannot be used with"));
    }
    assert!(fails(2, &["mount", "--json", "nfs://host/export", "/mnt"]).contains("cannot be used with"));
    assert!(fails(2, &["mount", "--json"]).contains("--status"));
    let said = fails(2, &["mount", "-o", "soft,retrans=1001", "nfs://host/export", "/mnt"]);
    assert!(said.contains("-o retrans=1001: a number from 0 to 1000"), "{said}");
    let said = fails(1, &["mount", "--status=/nowhere/mnt"]);
    assert!(said.contains("/nowhere/mnt: No such file"), "{said}");
}
