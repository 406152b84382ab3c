//! The command line: commands, global options, and the help that teaches them.

use clap::{Parser, Subcommand};

use crate::{
    commands::{bench, cat, clients, completions, cp, demo, df, doctor, ls, mkdir, mount, rm, serve, showmount, stat},
    exit::Outcome,
    logging::{self, LogFormat},
};

/// NFS over RDMA in user space: a server, a client and their tools, without a kernel module.
#[derive(Debug, Parser)]
#[command(version, about, after_long_help = TEACH, max_term_width = 110)]
pub struct Cli {
    /// How much is logged, and how
    #[command(flatten)]
    pub log: LogArgs,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What is logged.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Say more in the log: once for info, twice for debug, three times for trace. RUST_LOG overrides it
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,

    /// How log lines are written to standard error; text unless said otherwise
    #[arg(long, value_enum, global = true)]
    pub log_format: Option<LogFormat>,

    /// The filter of a configuration file.
    #[arg(skip)]
    pub filter: Option<String>,
}

/// The commands; each is a file in `commands/`.
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
    /// Mount what a server exports, for every program
    Mount(mount::Args),
    /// Show what a server exports, or who has mounted it
    Showmount(showmount::Args),
    /// Show who holds what of a server on this machine, and evict a client
    Clients(clients::Args),
    /// Serve a fresh directory, copy trees in and out over tcp and rdma, and check every byte
    Demo(demo::Args),
    /// Measure transports and servers, side by side
    Bench(Box<bench::Args>),
    /// Say what this machine can do, and how it could do more
    Doctor(doctor::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

impl Command {
    /// The command's name, for messages.
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
            Command::Demo(_) => "demo",
            Command::Bench(_) => "bench",
            Command::Doctor(_) => "doctor",
            Command::Completions(_) => "completions",
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// It could not start, or had to stop; what failed on the way is in the [`Exit`](crate::exit::Exit).
    pub fn run(self, log: &LogArgs) -> Outcome {
        // A server's configuration file has a say in its log.
        if !matches!(self, Command::Serve(_)) {
            logging::start(log)?;
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
            Command::Demo(args) => demo::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Completions(args) => completions::run(&args),
        }
    }
}

const TEACH: &str = "\
Begin with:
  slipway demo                                      everything once, on this machine, checked
  slipway serve /srv/data                           serve a directory; it prints how to mount it
  slipway ls -l nfs://server/srv/data               look at it from elsewhere, without mounting
  slipway cp -r src 'nfs://server/srv/data?proto=rdma'
  slipway doctor                                    what this machine can do

Servers are named by URLs: nfs://host[:port]/export/path?option=value&…  Options:
  vers=3|4.0|4.1|4.2|auto  the version of NFS       nconnect=N, addr=HOST:PORT,…  more connections (version 4)
  proto=tcp|udp|rdma   the transport                mountport=N, mountproto=…  where MOUNT is, without rpcbind
  uid=N, gid=N, gids=… whom to act as               rsize=SIZE, wsize=SIZE     largest READ and WRITE
  timeo=5s             longest silence of a server  readahead=SIZE, writebehind=SIZE
  and those of the transport: congestion=cubic, crc=on (rdma), …

Exit codes:
  0  all of it has been done
  1  some of it failed, or a server refused it; standard error says what and where
  2  the command line or a configuration file is wrong; nothing was done
  3  no server answers, or an address cannot be listened at
  130  SIGINT ended cp, which has removed its temporary files; a shell shows the same if SIGINT kills another command
  143  the same for SIGTERM; for serve and mount both signals are a regular end, with code 0";
