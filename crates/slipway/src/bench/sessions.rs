//! `slipway bench sessions`: measures the server's memory for sessions, slots, opens and locks of NFSv4.1.
//!
//! Each transport has its own [`Counted`] server, which is also a data server of pNFS. Each session belongs to a separate client. First all
//! slots of all sessions have an outstanding request at once, whose reply the server caches. Then one client opens many files, with
//! a lock in each, and then with a second lock in half of them.
//!
//! All clients are in this process. Their memory is measured with the first transport only: later, memory is used again that the former clients
//! have freed.

use std::{future::ready, time::Instant};

use client::{Handle, LockRange, Mount, SetAttr, Version};
use futures_util::{StreamExt, TryStreamExt, future::try_join_all, stream};
use serde::Serialize;

use super::{
    claim,
    counted::{self, AT_ONCE, Counted},
};
use crate::{
    exit::{Failure, Outcome},
    output::{self, Align, Table},
    reach::{self, Reach},
};

/// The options of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Transports
    #[arg(short, long, value_delimiter = ',', default_values = ["tcp", "rdma"], value_parser = ["tcp", "rdma"])]
    transport: Vec<String>,
    /// Sessions, each of a separate client
    #[arg(long, default_value_t = 1_000)]
    sessions: usize,
    /// Requests on each slot
    #[arg(long, default_value_t = 5)]
    requests: usize,
    /// Files that one client opens and locks; 0 skips this
    #[arg(long, default_value_t = 40_000)]
    states: usize,
    /// Print the results as one line of JSON
    #[arg(long)]
    json: bool,
}

/// The result for one transport. Memory is resident bytes of the server's process.
#[derive(Debug, Serialize)]
struct Found {
    transport: String,
    sessions: usize,
    /// The number of slots of each session.
    slots: u32,
    start: u64,
    idle: u64,
    /// The bytes of this process for each client while the sessions are idle, if known.
    client_each: Option<u64>,
    /// The maximum while all slots were in use.
    peak: u64,
    /// The memory after that, with the cached replies of the slots.
    used: u64,
    requests: usize,
    requests_per_s: f64,
    states: Option<States>,
}

/// The server's memory with this many files.
#[derive(Debug, Serialize)]
struct States {
    files: usize,
    /// With no file open.
    closed: u64,
    /// With each file open and locked.
    locked: u64,
    /// With a second lock of the same owner in half of the files.
    locked_twice: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    if args.sessions == 0 {
        return Err(Failure::usage("--sessions: at least 1"));
    }
    counted::each(&args.transport, args.sessions, args.json, text, |transport| of_transport(args, transport))
}

fn of_transport(args: &Args, transport: &str) -> Result<Found, Failure> {
    let room = (64 << 20) + ((args.states + args.sessions) * FILE_ROOM) as u64;
    let mut server = Counted::start(transport, &[], args.sessions, room, &["--data-server"])?;
    server.url.options.version = Version::V4_1;
    reach::run(measure(args, &server, args.transport[0] == transport))
}

async fn measure(args: &Args, server: &Counted, is_first: bool) -> Result<Found, Failure> {
    let (start, start_here) = (server.resident().await?, counted::resident_here()?);
    let files = sessions(args, server).await?;
    let (idle, idle_here) = (server.resident().await?, counted::resident_here()?);
    let client_each = is_first.then(|| idle_here.saturating_sub(start_here) / args.sessions as u64);
    let slots = files.iter().filter_map(|(mount, _)| Some(mount.v4()?.slots())).min().unwrap_or(0);
    let begin = Instant::now();
    load(args, server, &files, slots).await?;
    let requests = args.sessions * slots as usize * args.requests;
    let requests_per_s = requests as f64 / begin.elapsed().as_secs_f64();
    // The kernel does not count every page at once.
    let (peak, used) = (server.peak()?.max(idle), server.resident().await?);
    let states = if args.states > 0 { Some(states(args, server, &files[0].0).await?) } else { None };
    let transport = server.url.options.proto.clone();
    let sessions = args.sessions;
    Ok(Found { transport, sessions, slots, start, idle, client_each, peak, used, requests, requests_per_s, states })
}

/// Creates the sessions, and a file in each.
async fn sessions(args: &Args, server: &Counted) -> Result<Vec<(Mount, Handle)>, Failure> {
    let reach = Reach::new();
    let make = async |number: usize| {
        let mount = reach.mount(&server.url).await?;
        let file = mount.create(number.to_string(), 0o644).await;
        let file = file.map_err(|error| reach::failure(&server.url, &error))?.handle().clone();
        Ok((mount, file))
    };
    stream::iter(0..args.sessions).map(make).buffer_unordered(AT_ONCE).try_collect().await
}

/// Uses all slots of all sessions at once, each `requests` times.
async fn load(args: &Args, server: &Counted, files: &[(Mount, Handle)], slots: u32) -> Result<(), Failure> {
    let all = files.iter().flat_map(|file| (0..slots).map(move |_| file));
    let each = all.map(async |(mount, file)| {
        for request in 0..args.requests {
            let set = SetAttr { mode: Some(0o600 + request as u32 % 64), ..SetAttr::default() };
            mount.protocol().setattr(file, set).await?;
        }
        Ok(())
    });
    try_join_all(each).await.map(drop).map_err(|error| reach::failure(&server.url, &error))
}

/// Measures the memory of opens and locks.
async fn states(args: &Args, server: &Counted, mount: &Mount) -> Result<States, Failure> {
    let failed = |error: client::Error| reach::failure(&server.url, &error);
    for dir in 0..args.states.div_ceil(DIR_FILES) {
        mount.mkdir(format!("d{dir}"), 0o755).await.map_err(failed)?;
    }
    let make = async |number: usize| {
        let file = mount.create(format!("d{}/{number}", number / DIR_FILES), 0o644).await?;
        Ok(file.handle().clone())
    };
    let made = stream::iter(0..args.states).map(make).buffer_unordered(AT_ONCE);
    let files: Vec<Handle> = made.try_collect().await.map_err(failed)?;
    let v4 = mount.v4().expect("mount must have version 4");
    let lock_all = async |files: &[Handle], offset| {
        let range = LockRange { offset, length: 1, exclusive: true };
        let locks = stream::iter(files).map(|file| v4.lock(file, b"owner", range)).buffer_unordered(AT_ONCE);
        let held = locks.try_fold(0, |held, denied| ready(Ok(held + usize::from(denied.is_none())))).await;
        match held.map_err(failed)? {
            held if held == files.len() => Ok(()),
            held => Err(Failure::failed(format!("only {held} of {} locks are held", files.len()))),
        }
    };
    let closed = server.resident().await?;
    lock_all(&files, 0).await?;
    let locked = server.resident().await?;
    // Half of the files, because a client can have 262,144 opens and locks. Not adjacent to the first lock, because the
    // server would merge them.
    lock_all(&files[..files.len() / 2], 2).await?;
    Ok(States { files: files.len(), closed, locked, locked_twice: server.resident().await? })
}

fn text(found: &[Found]) -> String {
    let right = Align::Right;
    let mut sessions = Table::new(&[
        ("transport", Align::Left),
        ("sessions × slots", right),
        ("start", right),
        ("idle", right),
        ("each", right),
        ("each client", right),
        ("maximum under load", right),
        ("after load", right),
        ("each slot", right),
        ("requests/s", right),
    ]);
    let mut states = Table::new(&[
        ("transport", Align::Left),
        ("files", right),
        ("closed", right),
        ("each open and locked", right),
        ("each further lock", right),
    ]);
    let each = |more: u64, less: u64, count: usize| output::size(more.saturating_sub(less) / count.max(1) as u64);
    for found in found {
        sessions.row(vec![
            found.transport.clone(),
            format!("{} × {}", found.sessions, found.slots),
            output::size(found.start),
            output::size(found.idle),
            each(found.idle, found.start, found.sessions),
            found.client_each.map_or("-".to_owned(), output::size),
            output::size(found.peak),
            output::size(found.used),
            each(found.used, found.idle, found.sessions * found.slots as usize),
            format!("{:.0}", found.requests_per_s),
        ]);
        if let Some(held) = &found.states {
            states.row(vec![
                found.transport.clone(),
                held.files.to_string(),
                output::size(held.closed),
                each(held.locked, held.closed, held.files),
                each(held.locked_twice, held.locked, held.files / 2),
            ]);
        }
    }
    let with_states = found.iter().any(|found| found.states.is_some());
    let states = if with_states { format!("\n{}", states.text()) } else { String::new() };
    let published = format!("Published: {} ({})", claim::OSU_MEMORY.text, claim::OSU_MEMORY.source);
    format!("{}\n{published}\n{states}", sessions.text())
}

/// The bytes of the server's file system for each file.
const FILE_ROOM: usize = 4 << 10;
/// The number of files in each directory.
const DIR_FILES: usize = 1_000;
