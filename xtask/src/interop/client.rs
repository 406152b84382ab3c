//! The Linux kernel's client in the guest against our server on the host, over every transport that the kernel has.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use super::Bench;
use super::lab::Guest;
use super::server::Server;
use crate::report::{Outcome, Report};
use crate::shell;

/// Groups of mounts, of which a commit runs one. Each minor version has one transport in a group, because Linux detects that it is the same
/// server, and uses its existing connection.
const GROUPS: [&str; 3] = ["tcp,rdma,udp,memory,memory-4.2", "tcp-4.2,rdma-4.1,tcp-4.0", "rdma-4.2,rdma-4.0,tcp-4.1"];
/// The mounts over which the guest copies the whole tree to our disk.
const WITH_WHOLE_TREE: [&str; 4] = ["tcp", "rdma", "tcp-4.2", "rdma-4.2"];

/// Runs `guest/client.sh` against `slipway serve`, then checks the files on the host's disk.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let directory = bench.fresh("client")?;
    let export = directory.join("export");
    let squashed = directory.join("squashed");
    for tree in [&export, &squashed] {
        std::fs::create_dir_all(tree).map_err(|error| error.to_string())?;
    }
    bench.fixture.give(&export)?;
    shell::output("chmod", ["1777".as_ref(), squashed.as_os_str()])?;
    if !shell::is_root() {
        let why = "the server must be root to make device files and to act as its callers";
        report.record("interop: client", Outcome::Skipped(why.into()));
        return Ok(());
    }
    let exports = format!(
        "[[export]]\nname = \"/export\"\npath = \"{}\"\nsquash = \"none\"\n\n\
         [[export]]\nname = \"/squashed\"\npath = \"{}\"\n\n\
         [[export]]\nname = \"/memory\"\nbackend = \"memory\"\nsize = \"1 GiB\"\nsquash = \"none\"\n",
        export.display(),
        squashed.display()
    );
    let server = Server::start(bench, &directory, &exports)?;
    // Our own client copies the tree to the memory export.
    let memory = format!("nfs://127.0.0.1:{port}/memory/given?mountport={port}", port = server.tcp);
    shell::capture(Command::new(&bench.slipway).args(["cp", "-r"]).arg(export.join("given")).arg(&memory))?;
    let guest = Guest::new(bench, directory.join("guest"))?;
    let groups: Vec<&str> = bench.rotation.pick("client", &GROUPS, 1, report).into_iter().copied().collect();
    let mut variables = vec![
        ("MOUNTS", groups.join(" ")),
        ("SERVER", "10.0.2.2".into()),
        ("EXPORT", "/export".into()),
        ("SQUASHED", "/squashed".into()),
        ("MEMORY", "/memory".into()),
        ("TCP_PORT", server.tcp.to_string()),
        ("UDP_PORT", server.tcp.to_string()),
        ("RDMA_PORT", server.rdma.to_string()),
        ("MOUNT_PORT", server.tcp.to_string()),
        ("EXPORT_BYTES", size_of_file_system(&export)?),
    ];
    match &server.no_rpcbind {
        None => variables.push(("RPCBIND", "yes".into())),
        Some(why) => variables.push(("NO_RPCBIND", why.clone())),
    }
    guest.environment(&variables)?;
    let ended = guest.run("client.sh");
    guest.results("client", ended, report)?;
    let mounts = groups.iter().flat_map(|group| group.split(','));
    for mount in mounts.filter(|mount| WITH_WHOLE_TREE.contains(mount)) {
        report.step(&format!("interop: client: {mount}: what our disk holds"), || {
            match on_disk(bench, &export.join(format!("by-{mount}"))) {
                Ok(tests) => Outcome::Passed { tests },
                Err(why) => Outcome::Failed(why),
            }
        });
    }
    if server.no_rpcbind.is_none() {
        // This runs on the host, because rpcbind returns the host's address, which differs in the guest.
        report.step("interop: client: showmount asks rpcbind and lists", || {
            match shell::output("showmount", ["-e", "127.0.0.1"]) {
                Ok(exports) if exports.contains("/export") && exports.contains("/memory") => {
                    Outcome::Passed { tests: 1 }
                }
                Ok(exports) => Outcome::Failed(format!("showmount lists {exports}")),
                Err(why) => Outcome::Failed(why),
            }
        });
    }
    report.step("interop: client: our server drains and exits", || match server.stop() {
        Ok(()) => Outcome::Passed { tests: 1 },
        Err(why) => Outcome::Failed(why),
    });
    Ok(())
}

/// Runs the same checks with the guest as its own server. They must hold for Linux, so a failure above is a bug of
/// ours.
pub fn reference(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let guest = Guest::new(bench, bench.fresh("reference")?)?;
    let mounts = "tcp,rdma,udp tcp-4.2,rdma-4.1,tcp-4.0 rdma-4.2,rdma-4.0,tcp-4.1".to_owned();
    guest.environment(&[("SERVER", "knfsd".into()), ("MOUNTS", mounts), ("NO_RPCBIND", "knfsd has its own".into())])?;
    let ended = guest.run("client.sh");
    guest.results("reference", ended, report)
}

/// Checks the files directly, not through NFS. Returns the number of checks.
fn on_disk(bench: &Bench, directory: &Path) -> Result<u64, String> {
    bench.fixture.verify(&directory.join("tree"))?;
    let about = |name: &str| {
        let path = directory.join(name);
        std::fs::symlink_metadata(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let device = about("special/c")?;
    let hole = about("sparse/hole")?;
    let far = about("far/f")?;
    let owned = about("attr/f")?;
    let random = std::fs::read(&bench.fixture.random).map_err(|error| error.to_string())?;
    let large = std::fs::read(directory.join("large/f")).map_err(|error| error.to_string())?;
    let facts = [
        ("special/c is the device 1:3", device.file_type().is_char_device() && device.rdev() == 0x103),
        ("special/p is a fifo", about("special/p")?.file_type().is_fifo()),
        ("special/s is a socket", about("special/s")?.file_type().is_socket()),
        ("sparse/hole is sparse", hole.len() == 8 << 20 && hole.blocks() * 512 < 1 << 20),
        ("far/f ends beyond 4 GiB, and is sparse", far.len() == 5002 << 20 && far.blocks() * 512 < 64 << 20),
        ("attr/f has the owner it was given", (owned.uid(), owned.gid()) == (1234, 5678)),
        ("attr/f has the time it was given", owned.mtime() > 981_000_000),
        ("large/f is what was written", large == random),
        ("link/long is a link of 1000 bytes", about("link/long")?.len() == 1000),
        ("rename is empty", directory.join("rename").read_dir().is_ok_and(|mut entries| entries.next().is_none())),
    ];
    match facts.iter().find(|(_, holds)| !holds) {
        None => Ok(facts.len() as u64 + 1),
        Some((fact, _)) => Err(format!("not so: {fact}")),
    }
}

fn size_of_file_system(directory: &Path) -> Result<String, String> {
    let path = directory.as_os_str();
    let size = shell::output("df", ["-B1".as_ref(), "--output=size".as_ref(), path])?;
    Ok(size.lines().last().unwrap_or_default().trim().to_owned())
}
