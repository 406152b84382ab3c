//! Connections that are cut at every byte of a message: each call is executed once, and succeeds.

use crate::common;
use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::common::{
    Host, add, echo,
    stream::{read, write_all},
};
use buf::Buffer;
use bytes::Bytes;
use rpc::{CallOptions, Client, ClientOptions, ReplyPlan};
use simnet::{Network, Stream, StreamListener};

/// The number of bytes in each direction after which a connection is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    to_server: usize,
    to_client: usize,
}

const WHOLE: Cut = Cut { to_server: usize::MAX, to_client: usize::MAX };

/// A proxy that forwards connections and cuts each as planned. A connection without a plan is not cut.
struct Proxy {
    address: SocketAddr,
    plan: Arc<Mutex<VecDeque<Cut>>>,
}

impl Proxy {
    fn start(network: &Network, server: SocketAddr) -> Self {
        let mut listener = StreamListener::bind(network, "127.0.0.1:0".parse().unwrap()).unwrap();
        let (network, address) = (network.clone(), listener.local_addr());
        let plan = Arc::new(Mutex::new(VecDeque::new()));
        let cuts = plan.clone();
        tokio::spawn(async move {
            loop {
                let near = listener.accept().await.unwrap();
                let cut = cuts.lock().unwrap().pop_front().unwrap_or(WHOLE);
                let network = network.clone();
                tokio::spawn(async move {
                    let far = Stream::connect(&network, server).await.unwrap();
                    // Both streams are closed when one direction ends.
                    tokio::select! {
                        biased;
                        () = forward(&near, &far, cut.to_server) => {}
                        () = forward(&far, &near, cut.to_client) => {}
                    }
                });
            }
        });
        Self { address, plan }
    }

    /// Plans cuts of the next connections.
    fn cut(&self, cuts: impl IntoIterator<Item = Cut>) {
        self.plan.lock().unwrap().extend(cuts);
    }
}

async fn forward(from: &Stream, to: &Stream, mut left: usize) {
    while left > 0 {
        match read(from, left.min(64 << 10)).await {
            Ok(bytes) if !bytes.is_empty() => {
                if write_all(to, &bytes).await.is_err() {
                    return;
                }
                left -= bytes.len();
            }
            _ => return,
        }
    }
}

fn client(host: &Host, proxy: &Proxy) -> Client {
    let options = ClientOptions {
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(20),
        ..host.options()
    };
    Client::new(host.kind.clone(), proxy.address, options)
}

/// Lengths in bytes of an `ADD` call and of its reply, with record marks and headers.
const ADD_CALL: usize = 4 + 24 + 16 + 8;
const ADD_REPLY: usize = 4 + 24 + 8;

#[simnet::test]
async fn call_is_executed_once_when_cut_at_any_byte_of_call_or_reply() {
    let host = Host::start();
    let proxy = Proxy::start(&host.network, host.address);
    let mut expected = 0;
    let in_call = (0..=ADD_CALL).map(|to_server| Cut { to_server, ..WHOLE });
    let in_reply = (0..=ADD_REPLY).map(|to_client| Cut { to_client, ..WHOLE });
    for cut in in_call.chain(in_reply) {
        // Two connections are cut, so that the retransmitted call is cut, too.
        proxy.cut([cut, cut]);
        let client = client(&host, &proxy);
        expected += 1;
        assert_eq!(add(&client, 1).await.unwrap(), expected, "{cut:?}");
        expected += 1;
        assert_eq!(add(&client, 1).await.unwrap(), expected, "after {cut:?}");
        proxy.plan.lock().unwrap().clear();
    }
    assert_eq!(host.counter.value(), expected);
}

#[simnet::test]
async fn concurrent_calls_survive_connections_that_keep_breaking() {
    let host = Host::start();
    let proxy = Proxy::start(&host.network, host.address);
    let sizes = (0..60usize).map(|i| 700 + i * 331);
    proxy.cut(sizes.enumerate().map(|(i, bytes)| match i % 2 {
        0 => Cut { to_server: bytes, ..WHOLE },
        _ => Cut { to_client: bytes, ..WHOLE },
    }));
    let client = client(&host, &proxy);
    let adders = (0..20).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut last = 0;
            for _ in 0..100 {
                let sum = add(&client, 1).await.unwrap();
                assert!(sum > last);
                last = sum;
            }
        })
    });
    for adder in adders.collect::<Vec<_>>() {
        adder.await.unwrap();
    }
    assert_eq!(host.counter.value(), 2000);
}

#[simnet::test]
async fn large_replies_arrive_complete_after_cuts() {
    let host = Host::start();
    let proxy = Proxy::start(&host.network, host.address);
    let len = 300_000;
    let mut sink = Buffer::zeroed(len);
    for cut in [1, 40, 60, 600, 4000, 100_000, 299_999, 300_030].map(|to_client| Cut { to_client, ..WHOLE }) {
        proxy.cut([cut, Cut { to_server: cut.to_client, ..WHOLE }]);
        let client = client(&host, &proxy);
        let data: Bytes = (0..len).map(|i| (i * cut.to_client % 251) as u8).collect::<Vec<_>>().into();
        let answer = echo(&client, data.clone(), Some(sink)).await.unwrap();
        assert!(answer.results.0.to_bytes().unwrap() == data, "{cut:?}");
        drop(answer.results);
        sink = Buffer::try_from(answer.sink.unwrap().into_region().unwrap()).unwrap();
        proxy.plan.lock().unwrap().clear();
    }
}

#[simnet::test]
async fn call_in_progress_when_connection_breaks_is_not_executed_again() {
    let host = Host::start();
    let proxy = Proxy::start(&host.network, host.address);
    // Each connection is cut after the call has been forwarded.
    proxy.cut([Cut { to_server: ADD_CALL - 8, ..WHOLE }; 5]);
    let client = client(&host, &proxy);
    let call = tokio::spawn(async move {
        client.call::<u64>(common::GATED_ADD, &(), ReplyPlan::default(), CallOptions::default()).await
    });
    host.counter.wait_for_gate(1).await;
    while !proxy.plan.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    host.counter.open_gate();
    assert_eq!(call.await.unwrap().unwrap().results, 1);
    assert_eq!((host.counter.at_gate(), host.counter.value()), (1, 1));
}

#[simnet::test]
async fn deadline_error_contains_last_transport_error() {
    let host = Host::start();
    let proxy = Proxy::start(&host.network, host.address);
    proxy.cut(std::iter::repeat_n(Cut { to_server: 10, ..WHOLE }, 1_000_000));
    let client = client(&host, &proxy);
    let options = CallOptions { deadline: Some(Duration::from_secs(2)), ..CallOptions::default() };
    let failed = client.call::<()>(0, &(), ReplyPlan::default(), options).await.map(drop).unwrap_err();
    assert!(failed.error.to_string().contains("connection lost"), "{}", failed.error);
}
