//! A complete RPC client and server over the simulated fabric: wherever the connection is cut, every call is executed
//! once and its caller gets its result.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use buf::Buffer;
use bytes::Bytes;
use rdma::sim::{Cut, NetworkOptions, Sim};
use rpc::{
    Answering, Call, CallOptions, Client, ClientOptions, Drain, Hosts, Procedure, ReplyPlan, Server, Service,
    TransportKind,
};
use rpcrdma::{Options, RdmaKind};
use xdr::{Decode, Encode, Payload};

const PROGRAM: u32 = 0x2000_0001;
const DEPOSIT: u32 = 1;

type Data = Payload<{ 1 << 20 }>;

/// The arguments: the bytes deposited, and the number of bytes wanted back.
#[derive(Encode, Decode)]
struct Deposit {
    want: u32,
    data: Data,
}

/// The results: the sum of all deposits so far, and as many bytes as wanted.
#[derive(Encode, Decode)]
struct Receipt {
    sum: u64,
    deposits: u64,
    data: Data,
}

/// A service that sums its arguments: each deposit must count once.
#[derive(Default)]
struct Bank {
    sum: AtomicU64,
    deposits: AtomicU64,
}

impl Service for Bank {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        (procedure == DEPOSIT).then_some(Procedure { name: "DEPOSIT", idempotent: false })
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            let deposit = Deposit::decode(&mut call.arguments)?;
            call.arguments.finish()?;
            let worth = worth(&deposit.data.0.to_bytes().unwrap());
            let data = Bytes::from(vec![9; deposit.want as usize]).into();
            Ok(call.reply(&Receipt {
                sum: self.sum.fetch_add(worth, SeqCst) + worth,
                deposits: self.deposits.fetch_add(1, SeqCst) + 1,
                data,
            }))
        }))
    }
}

fn worth(data: &[u8]) -> u64 {
    data.iter().map(|&byte| u64::from(byte)).sum()
}

struct Run {
    messages: u64,
    cuts: u64,
}

/// Makes `count` deposits, some of them concurrently, over a fabric with these faults.
async fn run(sim: Sim, count: u32) -> Run {
    let kind = Arc::new(RdmaKind::new(Arc::new(sim.clone()), Options::default()));
    let bank = Arc::new(Bank::default());
    let server = Server::builder().shared(bank.clone()).build();
    let mut listener = kind.listen("10.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr();
    let connections = Arc::new(AtomicU64::new(0));
    let serving = tokio::spawn({
        let connections = connections.clone();
        async move {
            loop {
                let incoming = listener.accept().await.unwrap();
                let (server, connections) = (server.clone(), connections.clone());
                tokio::spawn(async move {
                    if let Ok(transport) = incoming.set_up(Hosts::all()).await {
                        connections.fetch_add(1, SeqCst);
                        server.serve(transport, Drain::never()).await;
                    }
                });
            }
        }
    });
    let options = ClientOptions { deadline: Duration::from_secs(3600), ..ClientOptions::new(PROGRAM, 1) };
    // The caller retries the first connection itself.
    let client = loop {
        if let Ok(client) = Client::connect(kind.clone(), at, options.clone()).await {
            break client;
        }
    };
    let calls = (0..count).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            let (len, want) = [(10, 0), (3000, 5000), (9000, 10), (70_001, 60_003)][number as usize % 4];
            let data = Bytes::from(vec![number as u8 + 1; len]);
            let deposit = Deposit { want: want as u32, data: data.clone().into() };
            let plan =
                ReplyPlan { inline_max: 100, payload_max: want, sink: Some(Buffer::zeroed(want).into()), locate: None };
            let answer = client.call::<Receipt>(DEPOSIT, &deposit, plan, CallOptions::default()).await.unwrap();
            assert_eq!(answer.results.data.0.to_bytes().unwrap(), vec![9; want]);
            worth(&data)
        })
    });
    let mut expected = 0;
    for call in calls.collect::<Vec<_>>() {
        expected += call.await.unwrap();
    }
    assert_eq!((bank.sum.load(SeqCst), bank.deposits.load(SeqCst)), (expected, u64::from(count)));
    serving.abort();
    Run { messages: sim.network().messages(), cuts: connections.load(SeqCst) - 1 }
}

#[simnet::test]
async fn call_is_executed_once_when_cut_at_any_message() {
    let whole = run(Sim::new(NetworkOptions::default()), 8).await;
    assert_eq!(whole.cuts, 0);
    for message in 0..whole.messages {
        for cut in [Cut::Before, Cut::After] {
            let sim = Sim::new(NetworkOptions::default());
            sim.network().cut_at(message, cut);
            run(sim, 8).await;
        }
    }
}

#[simnet::test]
async fn call_is_executed_once_with_random_cuts() {
    let mut cuts = 0;
    for seed in 0..20 {
        cuts +=
            run(Sim::new(NetworkOptions { seed, cut_probability: 0.02, ..NetworkOptions::default() }), 60).await.cuts;
    }
    assert!(cuts > 50, "{cuts} cuts");
}
