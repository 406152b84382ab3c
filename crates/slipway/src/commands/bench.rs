//! `slipway bench`: what transports and servers achieve, side by side in one run. The instrument is [`crate::bench`];
//! here are its subcommands, each a table of points with a few options.

use std::fs;

use clap::Subcommand;
use server::config::ByteSize;

use crate::{
    bench::{
        bare::{self, Bare, PeerArgs},
        connections, failover, html,
        plan::{self, Plan},
        point::{Operation, Point},
        sessions,
        setup::{self, Common},
        text,
    },
    exit::{Exit, Failure, Outcome},
    output,
};

/// Measure transports and servers, side by side.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Everything is measured over every transport, and every value of an --axis, in one run: runs take turns, and rates are
the median of the rounds. Without --url, a server is started on 127.0.0.1 for each --backend, in a process of its own,
and its CPU time is measured, too. GB are 10^9 bytes. --html FILE draws it, beside what was published.

Some machines' default congestion control is bbr, which paces even on loopback: compare under --congestion cubic.

Examples:
  slipway bench read --transport tcp,rdma
  slipway bench write --block 1M --in-flight 4 --congestion cubic
  slipway bench read --block 4K --in-flight 16 --random --backend memory,dir:/dev/shm
  slipway bench getattr --url nfs://server/export --in-flight 16 --json
  slipway bench sweep --congestion cubic --html sweep.html
  slipway bench small --transport tcp --axis vers=3,4.2
  slipway bench threads --transport rdma --axis crc=on,off
  slipway bench baseline --backend dir:/dev/shm --congestion cubic")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// What is measured.
#[derive(Debug, Subcommand)]
enum What {
    /// One READ after the other
    Read(Blocks),
    /// One WRITE after the other: UNSTABLE, with a COMMIT at the end of each run
    Write(Blocks),
    /// One GETATTR after the other, of one file
    Getattr(Small),
    /// CREATE and REMOVE of the same name, one after the other
    Create(Small),
    /// One file of 1 to 16 KiB after the other, all of it, by its path
    Small(Small),
    /// READ and WRITE in order: blocks of 512 bytes to 1 MiB, none to 16 in flight
    ///
    /// None in flight is synchronous: a READ is asked for when it is wanted, a WRITE is on stable storage when it returns.
    /// More are the client's read-ahead, and so many UNSTABLE WRITEs at once.
    Sweep(Common),
    /// READ and WRITE of 128 KiB on 1 to 32 threads
    Threads(Common),
    /// The same on 1 to 8 threads, by the way that memory is registered
    ///
    /// Unless there is an --axis, it is registration=per-io,fast,cache,pool.
    Registration(Common),
    /// Random READ and WRITE of 2, 4 and 8 KiB: 16 threads, and one alone
    Iops(Common),
    /// Transactions of a data base, and the procedures of a build
    ///
    /// A transaction is, seven times of ten, a random READ of 8 KiB; else a WRITE and its COMMIT. A build looks sources of
    /// 1 to 16 KiB up, opens and reads them, makes, writes and commits objects, looks at them and removes them: eight
    /// procedures for each source.
    Mixed(Common),
    /// READ beside loops without NFS: what the machine itself can do
    ///
    /// send and sendfile answer over TCP from a process of their own, pread reads the file in the client, memcpy copies
    /// memory. All four, unless --beside says otherwise.
    Baseline(Common),
    /// What idle connections cost: the server's memory, and the goodput of others beside them
    Connections(connections::Args),
    /// What sessions, slots, opens and locks of NFSv4.1 cost: the server's memory
    Sessions(sessions::Args),
    /// One session of NFSv4.1 over TCP and RDMA, of which one or the other is cut again and again
    Failover(failover::Args),
    /// Answers send and sendfile
    #[command(hide = true)]
    Peer(PeerArgs),
}

/// READs and WRITEs.
#[derive(Debug, clap::Args)]
struct Blocks {
    /// Bytes of a READ or WRITE, up to what the server takes
    #[arg(short, long, default_value = "128K")]
    block: ByteSize,
    /// Offsets in random order rather than one after the other
    #[arg(long)]
    random: bool,
    #[command(flatten)]
    at_once: AtOnce,
    #[command(flatten)]
    common: Common,
}

/// Operations without data.
#[derive(Debug, clap::Args)]
struct Small {
    #[command(flatten)]
    at_once: AtOnce,
    #[command(flatten)]
    common: Common,
}

/// How much at once.
#[derive(Clone, Copy, Debug, clap::Args)]
struct AtOnce {
    /// Operations outstanding at once, for each thread
    #[arg(short = 'n', long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: u32,
    /// Client threads, each with a connection and a file of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
}

/// Measures.
pub fn run(args: &Args) -> Outcome {
    let blocks = |name, operation, args: &Blocks| {
        let point = Point::new(operation, args.block.0 as usize, args.at_once.in_flight).threads(args.at_once.threads);
        tell(&args.common, &plan::single(name, if args.random { point.random() } else { point }))
    };
    let small = |name, operation, args: &Small| {
        let point = Point::new(operation, 1, args.at_once.in_flight).threads(args.at_once.threads);
        tell(&args.common, &plan::single(name, point))
    };
    match &args.what {
        What::Read(args) => blocks("read", Operation::Read, args),
        What::Write(args) => blocks("write", Operation::Write, args),
        What::Getattr(args) => small("getattr", Operation::Getattr, args),
        What::Create(args) => small("create", Operation::Create, args),
        What::Small(args) => small("small", Operation::Small, args),
        What::Sweep(common) => tell(common, &plan::sweep()),
        What::Threads(common) => tell(common, &plan::threads()),
        What::Registration(common) => {
            let mut common = common.clone();
            if common.axis.is_empty() {
                common.axis.push("registration=per-io,fast,cache,pool".parse().expect("it is an axis"));
            }
            tell(&common, &plan::registration())
        }
        What::Iops(common) => tell(common, &plan::iops()),
        What::Mixed(common) => tell(common, &plan::mixed()),
        What::Baseline(common) => {
            let mut common = common.clone();
            if common.beside.is_empty() {
                common.beside = vec![Bare::Send, Bare::Sendfile, Bare::Pread, Bare::Memcpy];
            }
            tell(&common, &plan::baseline())
        }
        What::Connections(args) => connections::run(args),
        What::Sessions(args) => sessions::run(args),
        What::Failover(args) => failover::run(args),
        What::Peer(args) => bare::peer(args).map(|()| Exit::Ok),
    }
}

/// Measures a plan, and says what came of it.
fn tell(common: &Common, plan: &Plan) -> Outcome {
    let page = common.html.as_ref();
    let unwritable =
        |error: std::io::Error, path: &std::path::Path| Failure::usage(format!("--html: {}: {error}", path.display()));
    // That it cannot be written is better known before minutes have passed.
    page.map_or(Ok(()), |path| fs::write(path, "").map_err(|error| unwritable(error, path)))?;
    let report = setup::measure(common, plan)?;
    page.map_or(Ok(()), |path| fs::write(path, html::page(plan, &report)).map_err(|error| unwritable(error, path)))?;
    match common.json {
        true => output::json(&report),
        false => output::print(&text::report(plan, &report)),
    }
    Ok(Exit::Ok)
}
