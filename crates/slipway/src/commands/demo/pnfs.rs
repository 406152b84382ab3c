//! `slipway demo pnfs`: a metadata server and four data servers, one of which is killed under load and made whole again.

use std::{
    path::PathBuf,
    sync::atomic::Ordering::Relaxed,
    thread::{self, ScopedJoinHandle, sleep},
    time::{Duration, Instant},
};

use client::{DataWays, Pnfs, Version};
use server::config::ByteSize;

use super::load::{self, BLOCK, Files, Gauges, Versions};
use crate::{
    cluster::{Cluster, Kind, Shape},
    counters::Traffic,
    exit::{Exit, Failure, Outcome},
    output::{self, Align, Table},
    pnfs::records::{CopyState, Service},
};

/// Kill a data server of a pNFS cluster under load, bring it back, heal, and verify every byte.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The demo needs neither root nor a network. It starts a metadata server and four data servers, each in a process of its own on
127.0.0.1. Each file has two copies on different data servers, and the client writes to both directly. Data servers must let the metadata
server give objects to other users, which the kernel permits only root to do with files. So they keep the objects in their memory, and
lose them when they are killed by SIGKILL: all copies there are made again from the other ones.

The demo then reads every file through the layouts, through the metadata server, and every copy of every file from its data
server. The exit code is 1 if a byte differs, an operation fails, or data pass through the metadata server before the failure.

Examples:
  slipway demo pnfs
  slipway demo pnfs --size 1G --files 16
  slipway demo pnfs --damage")]
pub struct Args {
    /// Bytes of all files together; each file has at least 1 MiB
    #[arg(long, default_value = "128M")]
    size: ByteSize,
    /// Number of files
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    files: u16,
    /// Seconds of load before the failure, and while the data server is away
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Change a byte of one copy before the check, which must then fail
    #[arg(long)]
    damage: bool,
    /// Directory in which a temporary directory is made, on a file system with extended attributes
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// The events, printed when they happen.
struct Timeline(Instant);

impl Timeline {
    fn event(&self, what: &str) {
        output::print(&format!("{:7.2} s  {what}\n", self.0.elapsed().as_secs_f64()));
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let count = usize::from(args.files);
    let files = Files { count, blocks: (args.size.0 as usize / count / BLOCK).max(1) };
    output::print(&format!(
        "A metadata server and {SERVERS} data servers in processes of their own; {count} files with two copies, {} altogether.\n\n",
        output::size(files.bytes())
    ));
    let timeline = Timeline(Instant::now());
    let shape = Shape {
        servers: SERVERS,
        mirrors: 2,
        stripes: 1,
        one_stripe: false,
        stripe_unit: None,
        threshold: None,
        // Copies can be made again where another copy was before, and old objects are removed later.
        kind: Kind::Nfs3(3 * files.bytes() + (64 << 20)),
        limit: None,
        transports: vec!["tcp".to_owned()],
        data_transport: None,
        dir: args.dir.clone().unwrap_or_else(std::env::temp_dir),
    };
    let cluster = Cluster::start(&shape)?;
    timeline.event("all servers run");
    let mut demo = Demo { cluster, files, timeline, pause: Duration::from_secs(args.seconds) };
    let (versions, before) = demo.live()?;
    demo.settle()?;
    if args.damage {
        demo.damage()?;
        demo.timeline.event("a byte of one copy was changed");
    }
    demo.timeline.event("every byte is being checked");
    let verified = demo.verify(&versions)?;
    output::print(&format!("\nBefore the failure, the traffic was:\n\n{}\n{verified}", traffic_table(&before)));
    Ok(Exit::Ok)
}

struct Demo {
    cluster: Cluster,
    files: Files,
    timeline: Timeline,
    pause: Duration,
}

/// The traffic of the metadata server, and of each data server.
type Traffics = (Traffic, Vec<Traffic>);

impl Demo {
    /// Writes the files, and uses them while a data server is killed and made whole again. Returns the versions of their blocks, and
    /// the traffic before the failure.
    fn live(&mut self) -> Result<(Versions, Traffics), Failure> {
        let mut url = self.cluster.url(0, Version::V4_2);
        url.options.deadline = DEADLINE;
        let versions = self.files.write(&url)?;
        self.timeline.event(&format!("{} files are written", self.files.count));
        let (files, gauges) = (self.files, Gauges::default());
        let (versions, before) = thread::scope(|scope| {
            let load = scope.spawn(|| files.use_all(&url, versions, &gauges));
            let story = self.story(&gauges, &load);
            gauges.stop.store(true, Relaxed);
            let versions = load.join().map_err(|_| Failure::failed("the load panicked"))?;
            // An error of the load is the cause of one of the story.
            versions.and_then(|versions| Ok((versions, story?)))
        })?;
        let DataWays { data_servers, server } = *gauges.ways.lock().expect("no holder panics");
        self.timeline.event(&format!(
            "the load ends: {} written and {} read directly, {} and {} through the metadata server",
            output::size(data_servers.write_bytes),
            output::size(data_servers.read_bytes),
            output::size(server.write_bytes),
            output::size(server.read_bytes),
        ));
        Ok((versions, before))
    }

    /// Waits for repairs after the load: a write that waited for the data server can be reported after the copy was made again.
    fn settle(&self) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        let mut told = false;
        loop {
            let repairs = self.cluster.repairs()?;
            if repairs.is_done() {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Failure::failed(format!(
                    "{} copies were not made again within {PATIENCE:?}",
                    repairs.copies
                )));
            }
            if !told {
                let what = "copies that the client has reported late are stale and made again";
                self.timeline.event(&format!("{what}: {}", repairs.copies));
                told = true;
            }
            sleep(LOOK);
        }
    }

    /// The events while the files are in use. Returns the traffic before the failure.
    fn story(&mut self, gauges: &Gauges, load: &Load<'_>) -> Result<Traffics, Failure> {
        self.timeline
            .event("the load begins: each file is written and read in random order, every write to stable storage");
        self.watch(gauges, load, self.pause)?;
        let before = (self.cluster.metadata_traffic()?, self.cluster.data_traffic()?);
        check_direct(&before)?;

        // One that has copies.
        let busiest = self.cluster.data_servers()?.into_iter().max_by_key(|server| server.objects);
        let victim = busiest.map_or(1, |server| server.id);
        self.cluster.kill(victim)?;
        self.timeline
            .event(&format!("data server {victim} was killed by SIGKILL; its memory with all its objects is gone"));
        let killed = Instant::now();
        self.wait(gauges, load, "the first stale mark", |cluster| Ok(cluster.repairs()?.copies > 0))?;
        self.timeline.event(&format!(
            "the client gives up the data server after {:.1} s of refused connections, and goes on with the other copies",
            killed.elapsed().as_secs_f64()
        ));
        self.watch(gauges, load, self.pause)?;
        let stale = self.cluster.repairs()?.copies;
        self.timeline.event(&format!("stale copies on data server {victim}, which have missed a write: {stale}"));

        self.cluster.restart(victim)?;
        self.timeline.event(&format!("data server {victim} is back at its address, without objects"));
        self.cluster.set(victim, Service::Lost)?;
        self.wait(gauges, load, "its objects to be examined", |cluster| {
            let servers = cluster.data_servers()?;
            Ok(servers.iter().any(|server| server.id == victim && server.examined))
        })?;
        self.timeline.event(&format!("ds lost {victim}: all copies that it had are stale"));
        self.cluster.set(victim, Service::Active)?;
        self.timeline.event(&format!("ds undrain {victim}: it is in service; resilvering, with the files in use"));
        self.wait(gauges, load, "resilvering", |cluster| Ok(cluster.repairs()?.is_done()))?;
        let copied = self.cluster.repairs()?.copied;
        self.timeline.event(&format!("healed: all copies are in sync, {} were copied", output::size(copied)));
        self.watch(gauges, load, Duration::from_secs(1))?;
        Ok(before)
    }

    /// Shows the load for some time.
    fn watch(&self, gauges: &Gauges, load: &Load<'_>, time: Duration) -> Result<(), Failure> {
        let end = Instant::now() + time;
        self.wait(gauges, load, "", |_| Ok(Instant::now() >= end))
    }

    /// Shows the load once a second until `done`.
    fn wait(
        &self,
        gauges: &Gauges,
        load: &Load<'_>,
        what: &str,
        done: impl Fn(&Cluster) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let counts = || [&gauges.written, &gauges.read].map(|count| count.load(Relaxed));
        let end = Instant::now() + PATIENCE;
        let (mut begun, mut before) = (Instant::now(), counts());
        while !done(&self.cluster)? {
            if load.is_finished() {
                return Err(Failure::failed("the load has failed"));
            }
            if Instant::now() > end {
                return Err(Failure::failed(format!("{what} did not end within {PATIENCE:?}")));
            }
            sleep(LOOK);
            let seconds = begun.elapsed().as_secs_f64();
            if seconds >= 1.0 {
                let now = counts();
                let [written, read] = [0, 1].map(|at| (now[at] - before[at]) as f64 / seconds / MIB);
                let longest = gauges.longest_us.swap(0, Relaxed) as f64 / 1e3;
                self.timeline.event(&format!(
                    "  load: {written:6.0} MiB/s written, {read:6.0} MiB/s read, longest operation {longest:.0} ms"
                ));
                (begun, before) = (Instant::now(), now);
            }
        }
        Ok(())
    }

    /// Reads every byte by each way. Returns a table.
    fn verify(&self, versions: &Versions) -> Result<String, Failure> {
        let right = Align::Right;
        let mut table =
            Table::new(&[("verified", Align::Left), ("bytes", right), ("wrong blocks", right), ("MDS traffic", right)]);
        let mut wrong = 0;
        let mut row = |what: &str, bytes: u64, found: u64, traffic: Traffic| {
            wrong += found;
            table.row(vec![what.to_owned(), output::size(bytes), found.to_string(), output::size(traffic.bytes())]);
        };
        for (what, version, pnfs) in [
            ("files, directly by layouts (NFSv4.2)", Version::V4_2, Pnfs::Auto),
            ("files, through the metadata server (NFSv3)", Version::V3, Pnfs::Off),
        ] {
            let mut url = self.cluster.url(0, version);
            url.options.pnfs = pnfs;
            let before = self.cluster.metadata_traffic()?;
            let (found, _) = self.files.check(&url, versions)?;
            row(what, self.files.bytes(), found, self.cluster.metadata_traffic()?.since(&before));
        }
        for (number, objects) in self.copies()? {
            let url = self.cluster.objects(number);
            let url = url.ok_or_else(|| Failure::failed(format!("data server {number} is away")))?;
            let before = self.cluster.metadata_traffic()?;
            let found = self.files.check_objects(&url, &objects, versions)?;
            let what = format!("copies on data server {number}: {}", objects.len());
            let bytes = objects.len() as u64 * self.files.bytes() / self.files.count as u64;
            row(&what, bytes, found, self.cluster.metadata_traffic()?.since(&before));
        }
        match wrong {
            0 => Ok(format!("{}\nEvery byte of every file and of every copy is right.\n", table.text())),
            wrong => Err(Failure::failed(format!("{wrong} blocks are wrong\n{}", table.text()))),
        }
    }

    /// Changes the first byte of the first copy of the first file.
    fn damage(&self) -> Result<(), Failure> {
        let objects = self.copies()?.into_iter().find_map(|(number, mut objects)| {
            objects.retain(|(file, _)| *file == 0);
            Some((number, objects.pop()?.1))
        });
        let (number, object) = objects.expect("a file must have a copy");
        let url = self.cluster.objects(number);
        let url = url.ok_or_else(|| Failure::failed(format!("data server {number} is away")))?;
        load::flip_first_byte(&url, &object)
    }

    /// Returns the files and objects on each data server.
    ///
    /// # Errors
    /// A file has not two copies in sync.
    fn copies(&self) -> Result<Vec<(u32, Vec<CopyOf>)>, Failure> {
        let mut objects: Vec<(u32, Vec<_>)> = (1..=SERVERS as u32).map(|number| (number, Vec::new())).collect();
        for file in 0..self.files.count {
            let name = Files::name(file);
            let copies = self.cluster.layout(&name)?.data.map(|data| data.copies).unwrap_or_default();
            if copies.len() != 2 || copies.iter().any(|copy| copy.state != CopyState::InSync) {
                return Err(Failure::failed(format!(
                    "{name}: its copies are {copies:?}, and two in sync were expected"
                )));
            }
            for copy in copies {
                objects[copy.server as usize - 1].1.push((file, copy.object));
            }
        }
        Ok(objects)
    }
}

/// A file, and the name of the object with a copy of it.
type CopyOf = (usize, String);

/// The thread with the load.
type Load<'a> = ScopedJoinHandle<'a, Result<Versions, Failure>>;

/// Checks that the data did not pass through the metadata server.
fn check_direct((metadata, data): &Traffics) -> Result<(), Failure> {
    let [through, directly] = [metadata.bytes(), data.iter().map(Traffic::bytes).sum()];
    if through > directly / 10 {
        let [through, directly] = [through, directly].map(output::size);
        let message =
            format!("the metadata server has moved {through}, and the data servers {directly}: data passed through it");
        return Err(Failure::failed(message));
    }
    Ok(())
}

fn traffic_table((metadata, data): &Traffics) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("server", Align::Left),
        ("READ and WRITE (NFSv3)", right),
        ("other calls", right),
        ("received", right),
        ("sent", right),
    ]);
    let named = data.iter().enumerate().map(|(at, traffic)| (format!("data server {}", at + 1), traffic));
    for (name, traffic) in [("metadata server".to_owned(), metadata)].into_iter().chain(named) {
        table.row(vec![
            name,
            traffic.data_calls.to_string(),
            traffic.other_calls.to_string(),
            output::size(traffic.call_bytes),
            output::size(traffic.reply_bytes),
        ]);
    }
    table.text()
}

/// The number of data servers.
const SERVERS: usize = 4;
/// The time after which the client gives up a data server that does not answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// The time between two looks at the state.
const LOOK: Duration = Duration::from_millis(100);
/// The maximum time for a repair.
const PATIENCE: Duration = Duration::from_secs(300);
const MIB: f64 = 1048576.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_through_the_metadata_server_are_noticed() {
        let traffic = |bytes| Traffic { call_bytes: bytes, ..Traffic::default() };
        assert!(check_direct(&(traffic(9), vec![traffic(50), traffic(50)])).is_ok());
        assert!(check_direct(&(traffic(11), vec![traffic(50), traffic(50)])).is_err());
    }
}
