//! Tests of `slipway serve` with a file system that hangs: a FUSE mount whose process is stopped.

use std::{fs, path::Path, sync::Arc, time::Duration};

use client::Mount;
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinSet;

use crate::common::{PATIENCE, Server, listen, mounted::World, pause, port::Port, wait};

/// Starts a server of `/hung`, which is the mount, and of `/free`, which is not.
fn serve(world: &World, port: &Port) -> Server {
    let (free, state) = (world.directory.path().join("free"), world.directory.path().join("state of the second"));
    fs::create_dir(&free).unwrap();
    let export = |name: &str, path: &Path| {
        format!("[[export]]\nname = '{name}'\npath = '{}'\nsquash = 'none'\n", path.display())
    };
    let config = [
        format!("[server]\nstate_dir = '{}'\nworkers = 1\n", state.display()),
        export("/hung", &world.at),
        export("/free", &free),
    ];
    let file = world.directory.path().join("slipway.toml");
    fs::write(&file, config.concat()).unwrap();
    let [flag, url] = listen("tcp", port);
    Server::start(&["--config", file.to_str().unwrap(), &flag, &url])
}

async fn connect(port: &Port, export: &str, version: &str) -> Mount {
    let mut switch = rpc::Switch::new();
    switch.register(Arc::new(rpc::TcpKind::new(Default::default(), buf::Pool::default())));
    let address = port.address();
    let query = format!("proto=tcp&mountport={}&mountproto=tcp&vers={version}&timeo=600s", address.port());
    Mount::connect(&format!("nfs://{address}{export}?{query}").parse().unwrap(), &switch).await.unwrap()
}

/// Returns the number of threads of a process with this name.
fn threads(process: u32, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|of| of.trim_end() == name).count()
}

#[tokio::test]
async fn a_stopped_fuse_server_stops_only_its_export() {
    let Some(world) = World::new("a_stopped_fuse_server_stops_only_its_export", "tcp", "") else { return };
    let port = Port::take();
    let mut server = serve(&world, &port);
    let (hung3, hung4) = (connect(&port, "/hung", "3").await, connect(&port, "/hung", "4.2").await);
    let (free3, free4) = (connect(&port, "/free", "3").await, connect(&port, "/free", "4.2").await);
    hung3.mkdir("before", 0o755).await.unwrap();
    assert!(world.served.join("before").is_dir());

    pause(&world.mount);
    let mut calls = JoinSet::new();
    for number in 0..100 {
        let hung = if number % 2 == 0 { hung3.clone() } else { hung4.clone() };
        calls.spawn(async move {
            match number % 5 {
                0 => drop(hung.stat("before").await),
                1 => drop(hung.statfs("").await),
                2 => drop(hung.read_dir("").await),
                _ => drop(hung.mkdir(format!("d{number}"), 0o755).await),
            }
        });
    }
    // One host uses three quarters of the threads.
    let full = async {
        while threads(server.child.id(), "export-0") < 24 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, full).await.expect("calls must hang in the threads of the export");

    for (name, free) in [("3", &free3), ("4.2", &free4)] {
        free.mkdir(name, 0o755).await.unwrap();
        free.write(format!("{name}/file"), "content").await.unwrap();
        free.statfs(name).await.unwrap();
    }
    connect(&port, "/free", "4.2").await.stat("3/file").await.expect("a new client must be served");

    // The server ends although the calls do not.
    server.signal(Signal::TERM);
    let ended = tokio::task::spawn_blocking(move || wait(&mut server.child)).await.unwrap();
    assert!(ended.success(), "{ended}");
    kill_process(Pid::from_child(&world.mount), Signal::CONT).unwrap();
    calls.abort_all();
    world.end();
}
