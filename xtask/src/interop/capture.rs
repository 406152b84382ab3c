//! Our own traffic before somebody else's decoder: captured on loopback, dissected by tshark, no frame malformed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Bench;
use super::lab::text;
use super::server::Server;
use crate::report::{Outcome, Report};
use crate::shell::{self, Daemon};

/// Captures a session of our client and our server over each transport.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    if !shell::is_root() {
        report.record("interop: capture", Outcome::Skipped("only root can capture on loopback".into()));
        return Ok(());
    }
    let directory = bench.fresh("capture")?;
    let export = directory.join("export");
    std::fs::create_dir_all(&export).map_err(|error| error.to_string())?;
    let exports = format!("[[export]]\nname = \"/export\"\npath = \"{}\"\nsquash = \"none\"\n", export.display());
    let server = Server::start(bench, &directory, &exports)?;
    for (transport, port) in [("tcp", server.tcp), ("rdma", server.rdma)] {
        report.step(&format!("interop: capture: {transport}"), || {
            let file = directory.join(format!("{transport}.pcap"));
            let session = capture(&file, port, || session(bench, transport, &server));
            match session.and_then(|()| dissect(&file, transport, port)) {
                Ok(frames) => Outcome::Passed { tests: frames },
                Err(why) => Outcome::Failed(why),
            }
        });
    }
    server.stop()
}

/// One of everything that the command line does, on a small tree.
fn session(bench: &Bench, transport: &str, server: &Server) -> Result<(), String> {
    let port = if transport == "rdma" { server.rdma } else { server.tcp };
    let at = |path: &str| {
        format!("nfs://127.0.0.1:{port}/export/{path}?proto={transport}&mountport={}&mountproto=tcp", server.tcp)
    };
    let tree = bench.fixture.tree.join("acpi");
    let remote = at(&format!("by-{transport}"));
    for arguments in [
        vec!["cp", "-r", &text(&tree), &remote],
        vec!["ls", "-lR", &remote],
        vec!["df", &remote],
        vec!["rm", "-r", &remote],
    ] {
        shell::capture(Command::new("timeout").arg("60").arg(&bench.slipway).args(arguments))?;
    }
    Ok(())
}

fn capture(file: &Path, port: u16, session: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let log = file.with_extension("log");
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-i", "lo", "-U", "-B", "65536", "-s", "0", "-Z", "root", "-w"]);
    tcpdump.arg(file).arg(format!("tcp port {port}"));
    let mut tcpdump = Daemon::start(&mut tcpdump, &log)?;
    let says = |words: &str| std::fs::read_to_string(&log).is_ok_and(|log| log.contains(words));
    if !shell::wait_until(Duration::from_secs(10), || says("listening on")) {
        return Err("tcpdump does not start".into());
    }
    session()?;
    // What is still in the kernel's ring.
    std::thread::sleep(Duration::from_secs(1));
    tcpdump.terminate()?;
    if says("packets dropped by kernel") && !says("\n0 packets dropped by kernel") {
        return Err("the capture has gaps: tcpdump dropped packets".into());
    }
    Ok(())
}

/// Counts the frames that tshark understood; `Err` if one is malformed or nothing was NFS.
fn dissect(file: &Path, transport: &str, port: u16) -> Result<u64, String> {
    let tshark = |filter: &str, field: &str| {
        let mut command = Command::new("tshark");
        command.args(["-n", "-2", "-r", &text(file), "-Y", filter, "-T", "fields", "-e", field]);
        if transport == "tcp" {
            command.args(["-d", &format!("tcp.port=={port},rpc")]);
        }
        shell::capture(&mut command)
    };
    let malformed = tshark("_ws.malformed", "frame.number")?;
    if let Some(first) = malformed.lines().next() {
        let count = malformed.lines().count();
        return Err(format!("{count} malformed frames in {}, the first is {first}", file.display()));
    }
    if transport == "rdma" && tshark("rpcordma", "frame.number")?.lines().count() == 0 {
        return Err("tshark sees no RPC-over-RDMA".into());
    }
    let programs = tshark("nfs", "frame.number")?;
    match programs.lines().count() {
        0 => Err("tshark sees no NFS".into()),
        frames => Ok(frames as u64),
    }
}
