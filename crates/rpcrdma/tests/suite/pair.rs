//! Requester and responder against each other. For all sizes, thresholds and orders of requests, each message arrives
//! as it was sent. Wherever the connection is cut, no memory stays exposed, no buffer leaks, and every call ends.

use std::collections::BTreeMap;

use crate::common::*;
use buf::Buffer;
use proptest::prelude::*;
use rpc::ReplyPlan;
use rpcrdma::{CallId, Design, Event, Options};

#[derive(Clone, Debug)]
struct Exchange {
    call_words: usize,
    call_payload: usize,
    reply_words: usize,
    reply_payload: usize,
    /// The difference between the maximum and the actual length of the reply's payload.
    slack: usize,
    sink: bool,
    cancel: bool,
}

impl Exchange {
    fn call(&self, xid: u32) -> xdr::Message {
        message(xid, CALL, self.call_words, &bytes(xid, self.call_payload))
    }

    fn reply(&self, xid: u32) -> xdr::Message {
        message(xid, REPLY, self.reply_words, &bytes(xid + 1000, self.reply_payload))
    }

    fn plan(&self) -> ReplyPlan {
        let payload_max = self.reply_payload + self.slack;
        let sink = self.sink.then(|| Buffer::zeroed(payload_max).into());
        ReplyPlan { inline_max: 16 + 4 * self.reply_words, payload_max, sink, locate: None }
    }
}

fn any_exchange() -> impl Strategy<Value = Exchange> {
    let words = || prop_oneof![0..20usize, 240..270usize, 1000..1100usize, 1000..5000usize];
    let payload = || prop_oneof![0..20usize, 900..1100usize, 3900..4200usize, 10_000..70_000usize];
    (
        words(),
        payload(),
        words(),
        payload(),
        prop_oneof![Just(0), 0..5000usize],
        any::<bool>(),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(call_words, call_payload, reply_words, reply_payload, slack, sink, cancel)| Exchange {
            call_words,
            call_payload,
            reply_words,
            reply_payload,
            slack,
            sink,
            cancel,
        })
}

fn any_options() -> impl Strategy<Value = Options> {
    let inline = || prop_oneof![Just(1024), Just(4096), Just(8192)];
    let min_chunk = prop_oneof![Just(1), Just(512), Just(4096), Just(1 << 20)];
    let design = prop_oneof![Just(Design::ReadWrite), Just(Design::ReadRead)];
    (inline(), inline(), 1..6u32, min_chunk, any::<bool>(), design).prop_map(
        |(inline_send, inline_recv, credits, min_chunk, remote_invalidation, design)| Options {
            inline_send,
            inline_recv,
            credits,
            min_chunk,
            remote_invalidation,
            pull_max: 1 << 20,
            exposed_max: 100_000,
            design,
            ..Options::default()
        },
    )
}

/// Runs all exchanges concurrently and checks the outcome of each. Returns the number of requests.
fn run(client: Options, server: Options, exchanges: &[Exchange], order: u64, cut_at: Option<usize>) -> usize {
    let mut pair = Pair::new(client, server);
    pair.cut_at = cut_at;
    let mut calls: BTreeMap<u32, CallId> = BTreeMap::new();
    for (xid, exchange) in (1..).zip(exchanges) {
        let id = pair.client().connection.call(exchange.call(xid), exchange.plan());
        calls.insert(xid, id);
    }
    pair.nodes.iter_mut().for_each(Node::pump);
    for (xid, exchange) in (1..).zip(exchanges) {
        if exchange.cancel {
            pair.client().cancel(calls[&xid]);
        }
    }
    let mut bits = order;
    let pick = || {
        bits = bits.rotate_left(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1;
        bits >> 63 == 1
    };
    pair.run(pick, |side, call| {
        assert_eq!(side, SERVER);
        let xid = u32::from_be_bytes(*call.stream.first_chunk().unwrap());
        let exchange = &exchanges[xid as usize - 1];
        assert_eq!(payload_of(&call, xid, CALL, exchange.call_words), bytes(xid, exchange.call_payload));
        Some(exchange.reply(xid))
    });
    assert!(cut_at.is_some() || !pair.is_cut, "a node violated the protocol: {:?}", pair.nodes.map(|node| node.events));
    let events = std::mem::take(&mut pair.client().events);
    check(&mut pair, exchanges, &calls, events.into());
    let steps = pair.steps;
    if !pair.is_cut {
        pair.cut();
    }
    pair.nodes.iter_mut().for_each(Node::assert_no_leak);
    steps
}

fn check(pair: &mut Pair, exchanges: &[Exchange], calls: &BTreeMap<u32, CallId>, events: Vec<Event>) {
    let mut ended = BTreeMap::new();
    for event in events {
        match event {
            Event::Reply { id, result } => assert!(ended.insert(id.name(), result).is_none(), "a call must end once"),
            Event::Closed(_) => assert!(pair.is_cut),
            Event::Call { .. } => panic!("the server must not make calls"),
        }
    }
    for (xid, exchange) in (1..).zip(exchanges) {
        let result = ended.remove(&calls[&xid].name());
        match result {
            _ if exchange.cancel => assert!(result.is_none(), "a cancelled call must have no event"),
            Some(Ok(reply)) => {
                let payload = payload_of(&reply.message, xid, REPLY, exchange.reply_words);
                assert_eq!(payload, bytes(xid + 1000, exchange.reply_payload));
                let sink = reply.sink.map(|sink| sink.into_region_or_copy().len());
                assert_eq!(sink, exchange.plan().sink.map(|sink| sink.len()));
            }
            Some(Err(error)) => {
                assert!(pair.is_cut, "{error:?}");
                assert_eq!(error.sink.map(|sink| sink.len()), exchange.plan().sink.map(|sink| sink.len()));
            }
            None => panic!("call {xid} must end"),
        }
    }
    assert!(pair.client().regions.entries.is_empty());
}

/// A name for call IDs, which have no order.
trait Name {
    fn name(&self) -> String;
}

impl Name for CallId {
    fn name(&self) -> String {
        format!("{self:?}")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn messages_arrive_as_they_were_sent(
        client in any_options(),
        server in any_options(),
        exchanges in prop::collection::vec(any_exchange(), 1..12),
        order: u64,
    ) {
        run(client, server, &exchanges, order, None);
    }

    #[test]
    fn cut_connection_ends_every_call_and_leaks_no_buffer(
        client in any_options(),
        server in any_options(),
        exchanges in prop::collection::vec(any_exchange(), 1..8),
        order: u64,
        cut_at in 0..60usize,
    ) {
        run(client, server, &exchanges, order, Some(cut_at));
    }
}

#[test]
fn cut_before_each_request_of_a_call_with_all_lists() {
    let exchange = Exchange {
        call_words: 2000,
        call_payload: 70_000,
        reply_words: 2000,
        reply_payload: 60_001,
        slack: 7,
        sink: true,
        cancel: false,
    };
    // There are two Sends, four RDMA Reads or Writes, and invalidations; in the Read-Read design also RDMA_DONE.
    for (design, least) in [(Design::ReadWrite, 8), (Design::ReadRead, 10)] {
        let options = Options { design, ..Options::default() };
        let run = |exchange, cut_at| run(options.clone(), options.clone(), &[exchange], 1, cut_at);
        let steps = run(exchange.clone(), None);
        assert!(steps >= least, "{steps}");
        for cut_at in 0..steps {
            for cancel in [false, true] {
                run(Exchange { cancel, ..exchange.clone() }, Some(cut_at));
            }
        }
    }
}

#[test]
fn calls_in_both_directions_at_once() {
    let mut pair = Pair::new(Options::default(), Options::default());
    for xid in 1..=40 {
        pair.client()
            .call(message(xid, CALL, 1, &bytes(xid, 5000)), ReplyPlan { inline_max: 100, ..Default::default() });
        pair.server().call(message(xid, CALL, 2, &bytes(xid, 50)), ReplyPlan { inline_max: 100, ..Default::default() });
    }
    let mut turn = false;
    pair.run(
        || {
            turn = !turn;
            turn
        },
        |side, call| {
            let xid = u32::from_be_bytes(*call.stream.first_chunk().unwrap());
            let (words, len) = if side == SERVER { (1, 5000) } else { (2, 50) };
            assert_eq!(payload_of(&call, xid, CALL, words), bytes(xid, len));
            Some(message(xid, REPLY, 0, b""))
        },
    );
    for node in &mut pair.nodes {
        (0..40).for_each(|_| drop(node.next_reply().unwrap()));
        node.assert_no_leak();
    }
}
