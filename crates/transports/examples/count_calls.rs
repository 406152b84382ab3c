//! Executes an exact number of operations, so that the instructions and system calls of one can be counted.
//!
//! ```sh
//! cargo build --release -p slipway-transports --example count_calls
//! valgrind --tool=callgrind target/release/examples/count_calls serve tcp 127.0.0.1:20490
//! target/release/examples/count_calls call 'nfs://127.0.0.1:20490/memory?proto=tcp&vers=4.1' 16 6000
//! ```
//!
//! The server ends when it is interrupted (`kill -INT`). It serves memory, or the directory of a last argument. The client can
//! run under valgrind instead. Its last arguments are the number of concurrent operations, their total number, and the
//! operation: `getattr`, which is the default, `read` (4 KiB), `write` (128 KiB), or `create` (CREATE and REMOVE together). The cost of one
//! operation is the difference between this run and a run with one operation, divided by the number.
//!
//! With a directory, valgrind 3.19 can count `create` only, because it does not support `openat2` and `pwritev2`.
//! Build with `RUSTFLAGS=--cfg=rustix_use_libc` for that: rustix otherwise looks for the vDSO, which valgrind hides, and crashes.
//!

use std::{error::Error, sync::Arc, time::Instant};

use buf::{Pool, Rope};
use client::{CreateHow, File, Mount, SetAttr, StableHow};
use rpc::{ServerBuilder, WorkerOptions, Workers};
use server::{Config, NfsServer, config::Settings};

/// Serves a directory, or 64 MiB of memory, with one worker until it is interrupted.
async fn serve(transport: &str, address: &str, directory: Option<&str>) -> Result<(), Box<dyn Error>> {
    let export = match directory {
        None => "backend = 'memory'\nsize = '64 MiB'".to_owned(),
        Some(path) => format!("path = '{path}'"),
    };
    let config = format!("[[export]]\nname = '/memory'\nsquash = 'none'\n{export}");
    let (state, pool) = (tempfile::tempdir()?, Pool::default());
    let nfs = NfsServer::open_with(&Config::parse(&config)?, state.path(), &pool, Settings::default())?;
    let server = nfs.services().into_iter().fold(rpc::Server::builder(), ServerBuilder::shared).build();
    let workers = Workers::new(WorkerOptions { threads: 1, ..Default::default() })?;
    let kind = transports::for_server(&pool).find(transport).ok_or("no such transport")?;
    workers.listen(server, kind.listen(address.parse()?)?);
    tokio::spawn(nfs.upkeep());
    Ok(tokio::signal::ctrl_c().await?)
}

#[derive(Clone, Copy)]
enum Operation {
    GetAttr,
    Read,
    Write,
    Create,
}

/// Creates and removes a file with a name of its own, `count` times.
async fn create(mount: Arc<Mount>, name: String, count: usize) -> Result<(), client::Error> {
    for _ in 0..count {
        let how = CreateHow::Guarded(SetAttr { mode: Some(0o644), ..SetAttr::default() });
        mount.protocol().create(mount.root(), name.as_bytes(), how).await?;
        mount.protocol().remove(mount.root(), name.as_bytes()).await?;
    }
    Ok(())
}

/// Executes an operation on a file `count` times.
async fn repeat(mount: Arc<Mount>, file: File, operation: Operation, count: usize) -> Result<(), client::Error> {
    let mut memory = mount.pool().take(READ_LEN);
    let data = Rope::from(bytes::Bytes::from(vec![7; WRITE_LEN]));
    for _ in 0..count {
        match operation {
            Operation::Read => {
                let read;
                (read, memory) = file.read_at(0, memory).await;
                assert_eq!(read?, READ_LEN);
            }
            Operation::Write => {
                mount.protocol().write(file.handle(), 0, data.clone(), StableHow::Unstable).await?;
            }
            Operation::GetAttr => {
                file.stat().await?;
            }
            Operation::Create => unreachable!("CREATE uses no file"),
        }
    }
    Ok(())
}

/// Creates and opens a file of 64 KiB.
async fn prepare(mount: &Mount) -> Result<File, client::Error> {
    mount.protocol().create(mount.root(), b"file", CreateHow::Unchecked(SetAttr::default())).await?;
    let file = mount.open("file").await?;
    // CREATE leaves the file open at the server. It is closed when this write, its last user, has finished.
    file.write_at(0, bytes::Bytes::from(vec![7; 64 << 10])).await?;
    Ok(file)
}

/// Executes `count` operations, `in_flight` at a time, and prints the rate per second.
async fn call(url: &str, in_flight: usize, count: usize, operation: Operation) -> Result<(), Box<dyn Error>> {
    let mount = Arc::new(Mount::connect(&url.parse()?, &transports::for_client()).await?);
    let file = match operation {
        Operation::Create => None,
        _ => Some(prepare(&mount).await?),
    };
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..in_flight {
        let count = count / in_flight + usize::from(task < count % in_flight);
        match &file {
            None => tasks.spawn(create(mount.clone(), format!("made-{task}"), count)),
            Some(file) => tasks.spawn(repeat(mount.clone(), file.clone(), operation, count)),
        };
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    println!("{url}: {:.0} operations a second", count as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// Runs the example.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", transport, address] => serve(transport, address, None).await,
        ["serve", transport, address, directory] => serve(transport, address, Some(directory)).await,
        ["call", url, in_flight, count, ref operation @ ..] => {
            let operation = match operation {
                [] | ["getattr"] => Operation::GetAttr,
                ["read"] => Operation::Read,
                ["write"] => Operation::Write,
                ["create"] => Operation::Create,
                _ => return Err("the operations are getattr, read, write and create".into()),
            };
            call(url, in_flight.parse()?, count.parse()?, operation).await
        }
        _ => {
            Err("usage: count_calls serve TRANSPORT ADDRESS [DIRECTORY] | call URL IN_FLIGHT COUNT [OPERATION]".into())
        }
    }
}

/// The bytes of one READ.
const READ_LEN: usize = 4 << 10;
/// The bytes of one WRITE.
const WRITE_LEN: usize = 128 << 10;
