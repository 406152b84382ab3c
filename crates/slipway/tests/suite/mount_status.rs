//! Tests of `slipway mount --status`.

use std::{
    fs,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::common::{self, fails, lines, mounted::World, ok, wait};

#[test]
fn status_names_the_server_that_does_not_answer() {
    let Some(mut world) = World::new("status_names_the_server_that_does_not_answer", "tcp", "&timeo=3600s") else {
        return;
    };
    fs::write(world.served.join("file"), "content").unwrap();
    let status = |json: bool| {
        let option = if json { "--status-json" } else { "--status" };
        ok(&["mount", &format!("{option}={}", world.at.display())])
    };
    assert!(status(false).contains("no operation waits"));
    world.server.signal(Signal::STOP);
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
    assert!(status(false).contains(&format!("wait for {server}; the oldest for")));
    world.server.signal(Signal::CONT);
    assert!(wait(&mut reads).success());
    world.terminate();
    let said = fails(1, &["mount", &format!("--status={}", world.at.display())]);
    assert!(said.contains("no slipway mount of this user is there"), "{said}");
    world.server.signal(Signal::TERM);
}
