//! Defines an RPC service and calls it over every transport.
//!
//! `cargo run -p slipway-transports --example rpc_service`

use std::{error::Error, ops::RangeInclusive};

use buf::Pool;
use rpc::{
    Answering, Call, CallOptions, Client, ClientError, ClientOptions, Procedure, ReplyPlan, Server, Service,
    WorkerOptions, Workers,
};
use xdr::{Decode, Encode};

#[derive(Encode, Decode)]
struct Pair {
    left: u64,
    right: u64,
}

/// The service of program 0x20000000, version 1: `uint64 ADD(pair) = 1`.
struct Adder;

impl Service for Adder {
    fn program(&self) -> u32 {
        PROGRAM
    }
    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }
    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        (procedure == 1).then_some(Procedure { name: "ADD", idempotent: true })
    }
    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            let Pair { left, right } = Decode::decode(&mut call.arguments)?;
            call.arguments.finish()?;
            Ok(call.reply(&left.wrapping_add(right)))
        }))
    }
}

/// Runs the example.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let workers = Workers::new(WorkerOptions { threads: 1, ..Default::default() })?;
    let server = Server::builder().service(Adder).build();
    let (serving, calling) = (transports::for_server(&Pool::default()), transports::for_client());
    // "auto" is only for clients.
    for name in serving.names().filter(|name| *name != "auto") {
        let listener = serving.find(name).ok_or(name)?.listen("127.0.0.1:0".parse()?)?;
        let address = listener.local_addr();
        workers.listen(server.clone(), listener);
        let client = Client::connect(calling.find(name).ok_or(name)?, address, ClientOptions::new(PROGRAM, 1)).await?;
        let pair = Pair { left: 40, right: 2 };
        let answer = client.call::<u64>(1, &pair, ReplyPlan::default(), CallOptions::default()).await;
        let sum = answer.map_err(ClientError::from)?.results;
        assert_eq!(sum, 42);
        println!("{name}: {sum}");
    }
    Ok(())
}

/// The program number. Numbers from 0x20000000 on are free for private use (RFC 5531 §13.1).
const PROGRAM: u32 = 0x2000_0000;
