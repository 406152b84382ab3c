//! Sends an exact number of GETATTRs, so that the instructions of one GETATTR can be counted.
//!
//! ```sh
//! cargo build --release -p slipway-transports --example count_calls
//! valgrind --tool=callgrind target/release/examples/count_calls serve tcp 127.0.0.1:20490
//! target/release/examples/count_calls call 'nfs://127.0.0.1:20490/memory?proto=tcp&vers=4.1' 16 6000
//! ```
//!
//! The server ends when it is interrupted (`kill -INT`). The client can run under valgrind instead. The last two
//! arguments are the number of concurrent GETATTRs and their total number. The cost of one GETATTR is the difference
//! between this run and a run with one GETATTR, divided by the number.

use std::{error::Error, time::Instant};

use buf::Pool;
use client::{CreateHow, Mount, SetAttr};
use rpc::{ServerBuilder, WorkerOptions, Workers};
use server::{Config, NfsServer, config::Settings};

/// Serves 64 MiB of memory with one worker until it is interrupted.
async fn serve(transport: &str, address: &str) -> Result<(), Box<dyn Error>> {
    let config = "[[export]]\nname = '/memory'\nbackend = 'memory'\nsquash = 'none'\nsize = '64 MiB'";
    let (state, pool) = (tempfile::tempdir()?, Pool::default());
    let nfs = NfsServer::open_with(&Config::parse(config)?, state.path(), &pool, Settings::default())?;
    let server = nfs.services().into_iter().fold(rpc::Server::builder(), ServerBuilder::shared).build();
    let workers = Workers::new(WorkerOptions { threads: 1, ..Default::default() })?;
    let kind = transports::for_server(&pool).find(transport).ok_or("no such transport")?;
    workers.listen(server, kind.listen(address.parse()?)?);
    tokio::spawn(nfs.upkeep());
    Ok(tokio::signal::ctrl_c().await?)
}

/// Sends `count` GETATTRs of one file, `in_flight` at a time, and prints the rate per second.
async fn call(url: &str, in_flight: usize, count: usize) -> Result<(), Box<dyn Error>> {
    let mount = Mount::connect(&url.parse()?, &transports::for_client()).await?;
    let root = mount.resolve("").await?.handle;
    mount.protocol().create(&root, b"file", CreateHow::Unchecked(SetAttr::default())).await?;
    let file = mount.open("file").await?;
    // CREATE leaves the file open at the server. It is closed when this write, its last user, has finished.
    file.write_at(0, bytes::Bytes::from(vec![7; 64 << 10])).await?;
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..in_flight {
        let (file, calls) = (file.clone(), count / in_flight + usize::from(task < count % in_flight));
        tasks.spawn(async move {
            for _ in 0..calls {
                file.stat().await?;
            }
            Ok::<_, client::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    println!("{url}: {:.0} GETATTRs a second", count as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// Runs the example.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", transport, address] => serve(transport, address).await,
        ["call", url, in_flight, count] => call(url, in_flight.parse()?, count.parse()?).await,
        _ => Err("usage: count_calls serve TRANSPORT ADDRESS | call URL IN_FLIGHT COUNT".into()),
    }
}
