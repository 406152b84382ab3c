//! The command line: commands, global options, and the introduction in `--help`.

use clap::{Parser, Subcommand};

use crate::{
    commands::{
        bench, cat, clients, completions, cp, demo, df, doctor, ds, layout, ls, mkdir, mount, resilver, rm, serve,
        showmount, stat,
    },
    exit::Outcome,
    logging::{self, LogFormat},
};

/// NFS over RDMA in user space: a server, a client and their tools, without a kernel module.
#[derive(Debug, Parser)]
#[command(version, about, after_long_help = INTRODUCTION, max_term_width = 110)]
pub struct Cli {
    /// Options of the log
    #[command(flatten)]
    pub log: LogArgs,

    /// The command to run
    #[command(subcommand)]
    pub command: Command,
}

/// The options of the log.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Log more: once for info, twice for debug, three times for trace. RUST_LOG overrides it
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,

    /// Format of log lines on standard error; text by default
    #[arg(long, value_enum, global = true)]
    pub log_format: Option<LogFormat>,

    /// The log filter of a configuration file.
    #[arg(skip)]
    pub filter: Option<String>,
}

/// The commands, each in a file of `commands/`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve directories, or memory, over NFS
    Serve(serve::Args),
    /// List directories on servers
    Ls(ls::Args),
    /// Write files from servers to standard output
    Cat(cat::Args),
    /// Copy files and trees to, from and between servers
    Cp(cp::Args),
    /// Remove files and trees on servers
    Rm(rm::Args),
    /// Make directories on servers
    Mkdir(mkdir::Args),
    /// Show the attributes of files and directories on servers
    Stat(stat::Args),
    /// Show total and free space of exports
    Df(df::Args),
    /// Mount an export or a directory below it, for all programs
    Mount(mount::Args),
    /// List the exports of a server, or the clients that have mounted them
    Showmount(showmount::Args),
    /// List the clients of a server on this machine and their state, and evict a client
    Clients(clients::Args),
    /// List the data servers of a pNFS server on this machine, and take one out of service
    Ds(ds::Args),
    /// Show on which data servers the data of a file are
    Layout(layout::Args),
    /// Show how many copies of files a pNFS server on this machine still has to make
    Resilver(resilver::Args),
    /// Measure READ and WRITE from memory, copy trees over tcp, rdma and shm, and compare every byte
    Demo(demo::Args),
    /// Measure transports and servers, side by side
    Bench(Box<bench::Args>),
    /// Show which transports and mounts this machine supports, and what is missing
    Doctor(doctor::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

impl Command {
    /// Returns the name of the command, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Serve(_) => "serve",
            Command::Ls(_) => "ls",
            Command::Cat(_) => "cat",
            Command::Cp(_) => "cp",
            Command::Rm(_) => "rm",
            Command::Mkdir(_) => "mkdir",
            Command::Stat(_) => "stat",
            Command::Df(_) => "df",
            Command::Mount(_) => "mount",
            Command::Showmount(_) => "showmount",
            Command::Clients(_) => "clients",
            Command::Ds(_) => "ds",
            Command::Layout(_) => "layout",
            Command::Resilver(_) => "resilver",
            Command::Demo(_) => "demo",
            Command::Bench(_) => "bench",
            Command::Doctor(_) => "doctor",
            Command::Completions(_) => "completions",
        }
    }

    /// Runs the command.
    ///
    /// # Errors
    /// The command could not start, or had to stop. Failures of single files are in the [`Exit`](crate::exit::Exit).
    pub fn run(self, log: &LogArgs) -> Outcome {
        // `serve` starts the log itself, because its configuration file can set the filter.
        match &self {
            Command::Serve(_) => {}
            // The failures of data servers are part of the demo, which prints them in its own words.
            Command::Demo(args) if args.causes_failures() => {
                logging::start(&LogArgs { filter: Some("error".to_owned()), ..log.clone() })?;
            }
            _ => logging::start(log)?,
        }
        match self {
            Command::Serve(args) => serve::run(&args, log),
            Command::Ls(args) => ls::run(&args),
            Command::Cat(args) => cat::run(&args),
            Command::Cp(args) => cp::run(&args),
            Command::Rm(args) => rm::run(&args),
            Command::Mkdir(args) => mkdir::run(&args),
            Command::Stat(args) => stat::run(&args),
            Command::Df(args) => df::run(&args),
            Command::Mount(args) => mount::run(&args),
            Command::Showmount(args) => showmount::run(&args),
            Command::Clients(args) => clients::run(&args),
            Command::Ds(args) => ds::run(&args),
            Command::Layout(args) => layout::run(&args),
            Command::Resilver(args) => resilver::run(&args),
            Command::Demo(args) => demo::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Completions(args) => completions::run(&args),
        }
    }
}

const INTRODUCTION: &str = "\
Begin with:
  slipway demo                                      measure and copy with all transports, on this machine
  slipway serve /srv/data                           serve a directory; prints how to mount it
  slipway ls -l nfs://server/srv/data               list it from another machine, without mounting it
  slipway cp -r src 'nfs://server/srv/data?proto=rdma'
  slipway doctor                                    show what this machine supports

Servers are named by URLs: nfs://host[:port]/export/path?option=value&…  Options:
  vers=3|4.0|4.1|4.2|auto  the version of NFS       nconnect=N, addr=HOST:PORT,…  more connections (version 4)
  proto=tcp|udp|rdma|shm|auto  the transport        mountport=N, mountproto=…  the address of MOUNT, without rpcbind
  uid=N, gid=N, gids=… the identity of the caller   rsize=SIZE, wsize=SIZE     maximum READ and WRITE
  timeo=5s             longest time without an answer   readahead=SIZE, writebehind=SIZE
  nolock, nlmport=N    locks of version 3 on this machine; the port of the server's lock manager
  noacl                no POSIX ACLs: listings of slipway mount are faster
  dstimeo=1s           longest time for which a data server refuses connections (pNFS)
  and those of the transport: congestion=cubic, crc=on (rdma), …

Exit codes:
  0  everything was done
  1  some of it failed, or a server rejected it; standard error has the reasons
  2  the command line or a configuration file is wrong; nothing was done
  3  no server answers, or the server cannot listen on an address
  130  SIGINT ended cp, which has removed its temporary files; a shell reports the same if SIGINT kills another command
  143  the same for SIGTERM; serve and mount end normally on both signals, with code 0";
