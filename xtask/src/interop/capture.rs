//! Decodes our own traffic with an independent decoder: captured on loopback, dissected by tshark, without a malformed
//! frame.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Bench;
use super::lab::text;
use super::server::Server;
use crate::report::{Outcome, Report};
use crate::shell::{self, Daemon};

/// Captures sessions of our client and our server, with each version over each transport.
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
    let transports = [("tcp", server.tcp), ("rdma", server.rdma)];
    for (version, (transport, port)) in VERSIONS.into_iter().flat_map(|version| transports.map(|by| (version, by))) {
        report.step(&format!("interop: capture: {transport}: version {version}"), || {
            let file = directory.join(format!("{transport}-{version}.pcap"));
            let session = capture(&file, port, || session(bench, version, transport, &server));
            match session.and_then(|()| dissect(&file, version, transport, port)) {
                Ok(frames) => Outcome::Passed { tests: frames },
                Err(why) => Outcome::Failed(why),
            }
        });
    }
    server.stop()
}

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

/// Runs every command of the command line on a small tree.
fn session(bench: &Bench, version: &str, transport: &str, server: &Server) -> Result<(), String> {
    let port = if transport == "rdma" { server.rdma } else { server.tcp };
    let mut query = format!("proto={transport}&vers={version}");
    if version == "3" {
        query += &format!("&mountport={}&mountproto=tcp", server.tcp);
    }
    let at = |path: &str| format!("nfs://127.0.0.1:{port}/export/{path}?{query}");
    let tree = bench.fixture.tree.join("acpi");
    let here = format!("by-{transport}-{version}");
    let remote = at(&here);
    for arguments in [
        vec!["cp", "-r", &text(&tree), &remote],
        vec!["cat", &at(&format!("{here}/acpi_io.h"))],
        vec!["ls", "-lR", &remote],
        vec!["df", &remote],
        vec!["rm", "-r", &remote],
    ] {
        shell::capture(Command::new("timeout").arg("60").arg(&bench.slipway).args(arguments))?;
    }
    Ok(())
}

/// Captures what a session sends over TCP on the loopback.
pub fn capture(file: &Path, port: u16, session: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
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
    // Waits for the packets in the kernel's ring.
    std::thread::sleep(Duration::from_secs(1));
    tcpdump.terminate()?;
    if says("packets dropped by kernel") && !says("\n0 packets dropped by kernel") {
        return Err("the capture has gaps: tcpdump dropped packets".into());
    }
    Ok(())
}

/// Returns the number of frames of this version that tshark decodes. Returns an error if one is malformed, or if there
/// is none.
fn dissect(file: &Path, version: &str, transport: &str, port: u16) -> Result<u64, String> {
    let (field, value) =
        version.split_once('.').map_or(("rpc.programversion", version), |(_, minor)| ("nfs.minorversion", minor));
    let mut command = Command::new("tshark");
    command.args(["-n", "-2", "-r", &text(file), "-Y", "_ws.malformed || rpcordma || nfs", "-T", "fields"]);
    command.args(["-e", "frame.number", "-e", "_ws.malformed", "-e", "rpcordma.xid", "-e", field]);
    if transport == "tcp" {
        command.args(["-d", &format!("tcp.port=={port},rpc")]);
    }
    let dissected = shell::capture(&mut command)?;
    let frames: Vec<Vec<&str>> = dissected.lines().map(|line| line.split('\t').collect()).collect();
    let malformed: Vec<_> = frames.iter().filter(|frame| !frame[1].is_empty()).collect();
    if let Some(first) = malformed.first() {
        return Err(format!("{} malformed frames in {}, the first is {}", malformed.len(), file.display(), first[0]));
    }
    if transport == "rdma" && frames.iter().all(|frame| frame[2].is_empty()) {
        return Err("tshark sees no RPC-over-RDMA".into());
    }
    match frames.iter().filter(|frame| frame[3].split(',').any(|have| have == value)).count() {
        0 => Err(format!("tshark sees no NFS of version {version}")),
        frames => Ok(frames as u64),
    }
}
