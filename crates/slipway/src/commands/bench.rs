//! `slipway bench`: compares transports and servers in one run. [`crate::bench`] makes the measurements. This file has
//! the subcommands, each of which is a list of points with a few options.

use clap::Subcommand;
use server::config::ByteSize;

use crate::{
    bench::{
        bare::{self, Bare, PeerArgs},
        connections, failover, html,
        plan::{self, Plan},
        pnfs,
        point::{Operation, Point},
        series::Axis,
        sessions,
        setup::{self, Common},
        text,
    },
    exit::{Exit, Outcome},
    output,
};

/// Measure transports and servers, side by side.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
One run measures every transport, and every value of an --axis, in turn. Rates are the median of the rounds. Without --url,
the command starts a server on 127.0.0.1 for each --backend, in a separate process, and also measures its CPU time. GB are
10^9 bytes. --html FILE writes plots, next to published figures.

The default congestion control of some machines is bbr, which paces even on loopback: compare under --congestion cubic.

Examples:
  slipway bench read --transport tcp,rdma
  slipway bench write --block 1M --in-flight 4 --congestion cubic
  slipway bench read --block 4K --in-flight 16 --random --backend memory,dir:/dev/shm
  slipway bench getattr --url nfs://server/export --in-flight 16 --json
  slipway bench sweep --congestion cubic --html sweep.html
  slipway bench small --transport tcp --axis vers=3,4.2
  slipway bench threads --transport rdma --axis crc=on,off
  slipway bench read --transport tcp --block 1M --axis xprtsec=none,tls --beside cipher
  slipway bench security --keytab nfs.keytab --axis sec=sys,krb5p
  slipway bench pnfs --html pnfs.html
  slipway bench baseline --backend dir:/dev/shm --congestion cubic")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// The measurement.
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
    /// Read files of 1 to 16 KiB one after the other, completely, by their paths
    Small(Small),
    /// Sequential READ and WRITE: blocks of 512 bytes to 1 MiB, 0 to 16 in flight
    ///
    /// Zero in flight is synchronous: a READ is sent when its data are needed, and a WRITE is on stable storage when it
    /// returns. A larger number is the depth of the client's read-ahead, and the number of outstanding UNSTABLE WRITEs.
    Sweep(Common),
    /// READ and WRITE of 128 KiB on 1 to 32 threads
    Threads(Common),
    /// The same on 1 to 8 threads, for each way of registration
    ///
    /// Without --axis, it uses --axis registration=per-io,fast,cache,pool.
    Registration(Common),
    /// Random READ and WRITE of 2, 4 and 8 KiB: with 16 threads, and with one
    Iops(Common),
    /// Transactions of a database, and the procedures of a build
    ///
    /// A transaction is a random READ of 8 KiB in seven of ten cases, else a WRITE and its COMMIT. A build looks up,
    /// opens and reads sources of 1 to 16 KiB, and creates, writes, commits, stats and removes objects: eight
    /// procedures for each source.
    Mixed(Common),
    /// READ next to loops without NFS, which show the limit of the machine
    ///
    /// send and sendfile answer over TCP from a separate process, pread reads the file in the client, memcpy copies
    /// memory. All four run unless --beside selects some.
    Baseline(Common),
    /// READ, WRITE and GETATTR with security flavours and TLS, next to the rate of their ciphers
    ///
    /// Without --axis, it compares TCP with xprtsec=none,tls, and with --keytab also sec=sys,krb5,krb5i,krb5p. Without
    /// --beside, it measures the cipher of TLS alone and at both ends of a connection, and with --keytab that of krb5p.
    Security(Common),
    /// The cost of idle connections: the server's memory, and the goodput of active connections
    Connections(connections::Args),
    /// The cost of sessions, slots, opens and locks of NFSv4.1: memory
    Sessions(sessions::Args),
    /// One session of NFSv4.1 over TCP and RDMA, while one or the other is cut repeatedly
    Failover(failover::Args),
    /// Clients of pNFS clusters with 1 to 16 data servers: throughput, creation, latency, BTIO
    Pnfs(pnfs::Args),
    /// Answer send and sendfile
    #[command(hide = true)]
    Peer(PeerArgs),
}

/// The options of READ and WRITE.
#[derive(Debug, clap::Args)]
struct Blocks {
    /// Bytes of a READ or WRITE, up to the server's maximum
    #[arg(short, long, default_value = "128K")]
    block: ByteSize,
    /// Use random offsets instead of sequential ones
    #[arg(long)]
    random: bool,
    #[command(flatten)]
    at_once: AtOnce,
    #[command(flatten)]
    common: Common,
}

/// The options of operations without data.
#[derive(Debug, clap::Args)]
struct Small {
    #[command(flatten)]
    at_once: AtOnce,
    #[command(flatten)]
    common: Common,
}

/// The options for concurrency.
#[derive(Clone, Copy, Debug, clap::Args)]
struct AtOnce {
    /// Outstanding operations for each thread
    #[arg(short = 'n', long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: u32,
    /// Client threads, each with its own connection and file
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let blocks = |name, operation, args: &Blocks| {
        let point = Point::new(operation, args.block.0 as usize, args.at_once.in_flight).threads(args.at_once.threads);
        measure(&args.common, &plan::single(name, if args.random { point.random() } else { point }))
    };
    let small = |name, operation, args: &Small| {
        let point = Point::new(operation, 1, args.at_once.in_flight).threads(args.at_once.threads);
        measure(&args.common, &plan::single(name, point))
    };
    match &args.what {
        What::Read(args) => blocks("read", Operation::Read, args),
        What::Write(args) => blocks("write", Operation::Write, args),
        What::Getattr(args) => small("getattr", Operation::Getattr, args),
        What::Create(args) => small("create", Operation::Create, args),
        What::Small(args) => small("small", Operation::Small, args),
        What::Sweep(common) => measure(common, &plan::sweep()),
        What::Threads(common) => measure(common, &plan::threads()),
        What::Registration(common) => {
            let mut common = common.clone();
            if common.axis.is_empty() {
                common.axis.push("registration=per-io,fast,cache,pool".parse().expect("axis must be valid"));
            }
            measure(&common, &plan::registration())
        }
        What::Iops(common) => measure(common, &plan::iops()),
        What::Mixed(common) => measure(common, &plan::mixed()),
        What::Baseline(common) => {
            let mut common = common.clone();
            if common.beside.is_empty() {
                common.beside = vec![Bare::Send, Bare::Sendfile, Bare::Pread, Bare::Memcpy];
            }
            measure(&common, &plan::baseline())
        }
        What::Security(common) => measure(&with_security(common), &plan::security()),
        What::Connections(args) => connections::run(args),
        What::Sessions(args) => sessions::run(args),
        What::Failover(args) => failover::run(args),
        What::Pnfs(args) => pnfs::run(args),
        What::Peer(args) => bare::peer(args).map(|()| Exit::Ok),
    }
}

/// Adds the series of `slipway bench security` that were not selected otherwise.
fn with_security(common: &Common) -> Common {
    let mut common = common.clone();
    let keytab = common.keytab.is_some();
    if common.transport.is_empty() && common.url.is_none() {
        common.transport.push("tcp".to_owned());
    }
    if common.axis.is_empty() {
        let axes = ["sec=sys,krb5,krb5i,krb5p", "xprtsec=none,tls"];
        let axes = axes.into_iter().skip(usize::from(!keytab));
        common.axis.extend(axes.map(|axis| axis.parse::<Axis>().expect("axis must be valid")));
    }
    if common.beside.is_empty() {
        common.beside =
            [Bare::Cipher, Bare::SendCipher, Bare::Kerberos].into_iter().take(2 + usize::from(keytab)).collect();
    }
    common
}

/// Measures a plan and prints the report.
fn measure(common: &Common, plan: &Plan) -> Outcome {
    let page = html::Page::open(common.html.as_deref())?;
    let report = setup::measure(common, plan)?;
    page.write(plan, &report)?;
    match common.json {
        true => output::json(&report),
        false => output::print(&text::report(plan, &report)),
    }
    Ok(Exit::Ok)
}
