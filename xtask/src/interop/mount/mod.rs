//! Real programs over `slipway mount`: test programs of file systems, SQLite, git, PostgreSQL, and outages of the server
//! under tar, PostgreSQL and a writer.
//!
//! Each cell is a program with a version and a transport, with its own mount and its own directory of one export.

mod outage;
mod postgres;
mod programs;
mod tools;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Bench;
use super::mounted::{self, Mounted};
use super::rotation::Rotation;
use super::server::{Server, Setup};
use crate::report::{Outcome, Report};
use crate::shell;

pub use tools::PACKAGES;

/// Runs the cells of this commit.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    if let Some(why) = mounted::obstacle() {
        report.record("interop: mount", Outcome::Skipped(why));
        return Ok(());
    }
    let mut suite = Suite::start(bench)?;
    for cell in bench.rotation.pick("mount", &cells(), CELLS, report) {
        let Cell { program, version, transport } = cell;
        report.step(&format!("interop: mount: {program} with version {version} over {transport}"), || {
            match suite.run(cell) {
                Ok(()) => Outcome::Passed { tests: 1 },
                Err(why) => Outcome::Failed(why),
            }
        });
    }
    suite.server.stop()
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    program: &'static str,
    version: &'static str,
    transport: &'static str,
}

/// Returns all cells. As many neighbours as there are programs are all programs, and have all versions and transports.
fn cells() -> Vec<Cell> {
    let cell = |number: usize| {
        let (program, round) = (number % PROGRAMS.len(), number / PROGRAMS.len());
        let version = (program + round) % VERSIONS.len();
        Cell {
            program: PROGRAMS[program].name,
            version: VERSIONS[version],
            transport: match PROGRAMS[program].options.contains(&PASSTHROUGH) {
                true => "shm",
                false => TRANSPORTS[(program + round) % TRANSPORTS.len()],
            },
        }
    };
    (0..PROGRAMS.len() * VERSIONS.len()).map(cell).collect()
}

/// A program of the suite.
struct Program {
    name: &'static str,
    /// The options of the mount.
    options: &'static [&'static str],
    run: fn(&mut Place) -> Result<(), String>,
}

const PROGRAMS: [Program; 15] = [
    Program { name: "pjdfstest", options: &["--allow-other"], run: programs::pjdfstest },
    Program { name: "fsx with memory maps", options: &[], run: programs::fsx },
    Program { name: "fsx with direct I/O and memory maps", options: &["--direct-io"], run: programs::fsx },
    Program { name: "fsx with data kept by the kernel", options: &["--writeback"], run: programs::fsx },
    Program { name: "fsx on a passed file", options: &[PASSTHROUGH], run: programs::fsx_passed },
    Program { name: "stress-ng", options: &[], run: programs::stress },
    Program { name: "SQLite's write-ahead log", options: &[], run: programs::sqlite },
    Program { name: "SQLite's write-ahead log with direct I/O", options: &["--direct-io"], run: programs::sqlite },
    Program {
        name: "SQLite's write-ahead log of a passed database",
        options: &[PASSTHROUGH],
        run: programs::sqlite_passed,
    },
    Program { name: "git", options: &[], run: programs::git },
    Program { name: "git with passed files", options: &[PASSTHROUGH], run: programs::git },
    Program { name: "setfacl and getfacl", options: &[], run: programs::acls },
    Program { name: OUTAGE, options: &["--allow-other"], run: outage::restart },
    Program { name: "PostgreSQL, killed with the server", options: &["--allow-other"], run: outage::postgres },
    Program { name: "signals while the server does not answer", options: &[], run: outage::signals },
];
/// The server passes files over shm only.
const PASSTHROUGH: &str = "--passthrough";
const OUTAGE: &str = "an outage of the server under tar, PostgreSQL and a writer";
const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];
const TRANSPORTS: [&str; 3] = ["tcp", "rdma", "shm"];
/// The number of cells of one run: each program once.
const CELLS: usize = PROGRAMS.len();

/// The server, and what all cells share.
struct Suite<'a> {
    bench: &'a Bench,
    server: Server,
    directory: PathBuf,
    scratch: Scratch,
    tools: tools::Tools,
}

/// The place in which the program of a cell runs.
struct Place<'a> {
    bench: &'a Bench,
    server: &'a mut Server,
    tools: &'a tools::Tools,
    version: &'static str,
    mount: Mounted,
    /// An empty directory of the mount.
    at: PathBuf,
    /// The same directory at the server.
    served: PathBuf,
    /// The directory for the logs of the cell.
    logs: PathBuf,
}

impl<'a> Suite<'a> {
    fn start(bench: &'a Bench) -> Result<Self, String> {
        let directory = bench.fresh("mount")?;
        let tools = tools::Tools::install(&bench.directory.join("tools"))?;
        let scratch = Scratch::create()?;
        let exports = format!(
            "[[listen]]\ntransport = \"shm\"\naddress = \"127.0.0.1:TCP\"\n\n\
             [[export]]\nname = \"/export\"\npath = \"{}\"\nsquash = \"none\"\npassthrough = true\n",
            scratch.export().display()
        );
        // The clients of a cell that has ended count as gone after a lease.
        let setup = Setup { server: "lease_s = 5", exports: &exports, ..Setup::default() };
        let server = Server::start_as(bench, &directory, &setup)?;
        Ok(Self { bench, server, directory, scratch, tools })
    }

    /// Mounts, runs the program in a directory of its own, and ends the mount.
    fn run(&mut self, cell: &Cell) -> Result<(), String> {
        let Cell { program, version, transport } = *cell;
        let found = PROGRAMS.iter().enumerate().find(|(_, known)| known.name == program);
        let (number, program) = found.expect("cells have known programs");
        let name = program.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        // The path of a socket has at most 107 bytes, so the name in the mount is short.
        let (logs, short) =
            (self.directory.join(format!("{name}-{version}-{transport}")), format!("{number}-{version}"));
        let served = self.scratch.export().join(&short);
        for directory in [&logs, &served] {
            std::fs::create_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        }
        let (tcp, rdma) = (self.server.tcp, self.server.rdma);
        let port = if transport == "rdma" { rdma } else { tcp };
        let timeo = if program.name == OUTAGE && self.bench.rotation != Rotation::All { outage::TIMEO } else { "" };
        let url = format!(
            "nfs://127.0.0.1:{port}/export?vers={version}&proto={transport}&mountproto=tcp&mountport={tcp}{timeo}"
        );
        let at = self.scratch.0.join("mnt");
        let mount = Mounted::start(&self.bench.slipway, &url, &at, program.options, &logs.join("mount.log"))?;
        let mut place = Place {
            bench: self.bench,
            server: &mut self.server,
            tools: &self.tools,
            version,
            at: mount.at.join(&short),
            mount,
            served,
            logs,
        };
        let ran = (program.run)(&mut place);
        let Place { mount, logs, .. } = place;
        let ended = mount.end();
        let removed = std::fs::remove_dir(&at).map_err(|error| format!("{}: {error}", at.display()));
        ran.and(ended).and(removed).map_err(|why| format!("{why} (see {})", logs.display()))
    }
}

impl Place<'_> {
    /// Runs a program to its end in the directory of the mount. Its output is in the log of its name. If it waits
    /// forever, it is killed.
    fn program(&self, program: &Path, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=20", LIMIT_S]).arg(program).args(arguments).current_dir(&self.at);
        let (succeeded, output) = shell::tee(&mut command, |_| false)?;
        let name = program.file_name().unwrap_or_default();
        std::fs::write(self.logs.join(name).with_extension("log"), &output).map_err(|error| error.to_string())?;
        if succeeded {
            return Ok(output);
        }
        let last: Vec<&str> = output.lines().rev().take(3).collect();
        Err(format!("{}: {}", name.display(), last.into_iter().rev().collect::<Vec<_>>().join(" | ")))
    }

    /// Runs a script of bash. It gets the arguments as `$1` and so on.
    fn script(&self, script: &str, arguments: &[&str]) -> Result<String, String> {
        self.program(Path::new("bash"), &[&["-xeuo", "pipefail", "-c", script, "script"], arguments].concat())
    }
}

/// A temporary directory with the mount points and the served directory. All users can search it, because some
/// programs act as several users, and where possible it is in memory, so that the time of a run does not depend on a
/// disk.
struct Scratch(PathBuf);

impl Scratch {
    fn create() -> Result<Self, String> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let scratch = Self(parent.join(format!("slipway-{}", std::process::id())));
        for directory in [scratch.0.clone(), scratch.export()] {
            let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
            std::fs::create_dir(&directory).map_err(failed)?;
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).map_err(failed)?;
        }
        Ok(scratch)
    }

    fn export(&self) -> PathBuf {
        self.0.join("export")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A mount that could not be ended is not below the served directory.
        let _ = std::fs::remove_dir_all(self.export());
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The seconds after which a program counts as waiting forever.
const LIMIT_S: &str = "600";

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_run_has_all_programs_and_versions_and_transports() {
        let cells = cells();
        for first in 0..cells.len() {
            let run: Vec<&Cell> = cells.iter().cycle().skip(first).take(CELLS).collect();
            let distinct =
                |of: fn(&Cell) -> &'static str| run.iter().map(|cell| of(cell)).collect::<HashSet<_>>().len();
            let found = (distinct(|cell| cell.program), distinct(|cell| cell.version), distinct(|cell| cell.transport));
            assert_eq!(found, (PROGRAMS.len(), VERSIONS.len(), TRANSPORTS.len()), "from cell {first}");
        }
        let all: HashSet<_> = cells.iter().map(|cell| (cell.program, cell.version)).collect();
        assert_eq!(all.len(), cells.len());
    }
}
