//! The checks of each transmission.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use gss::{
    GssClient, GssLimits, Service,
    mechanism::{Context, Initiator},
    window::WINDOW,
    wire::{self, Control, GssCredential, InitArgument, InitResult, MAXSEQ, RPCSEC_GSS},
};
use rpc::{
    AcceptStat, AuthStat, CallHeader, Client, OpaqueAuth, RejectStat, ReplyBody, ReplyHeader, ReplyPlan, Server,
    TcpKind, TcpOptions, Transport, TransportKind, security::ClientFlavor,
};
use xdr::{Decode, Decoder, Encode, Encoder, Message};

use crate::{
    rig::{ADD, Counter, PROGRAM, Rig, SECRET, SERVICES, add, alice, connect, echo, run, transport, who},
    toy::{ToyContext, ToyInitiator},
};

fn rig() -> Rig {
    Rig::new(GssLimits::default(), None)
}

fn pattern(len: usize) -> Bytes {
    (0..len as u64).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect::<Vec<_>>().into()
}

#[test]
fn payloads_are_placed_only_without_wrapping() {
    run(async || {
        let rig = rig();
        let mut clients = Vec::new();
        for way in rig.ways() {
            for service in SERVICES {
                let client = connect(way, &alice(service)).await;
                for len in [0, 1, 500, 8192, 1 << 20] {
                    let placed = echo(&client, &pattern(len)).await;
                    assert!(len < 1 << 20 || placed == (service == Service::None), "{service:?}, {}", way.0.name());
                }
                let number = [390_003, 390_004, 390_005][service as usize];
                assert_eq!(who(&client).await.unwrap(), format!("alice@TOY {number}"));
                clients.push(client);
            }
        }
        assert_eq!(rig.flavor.contexts(), clients.len());
    });
}

/// The parts of a transmission, for a test to change.
struct Parts {
    xid: u32,
    procedure: u32,
    credential: GssCredential,
    /// The verifier, if it is not the correct one.
    verifier: Option<OpaqueAuth>,
    /// The sequence number in the body.
    sequence: u32,
}

/// The context of a client, as a test can use it.
struct Known {
    context: ToyContext,
    handle: Bytes,
}

impl Known {
    /// Returns the context with which the client calls now.
    fn of(flavor: &GssClient) -> Self {
        let mut encoder = Encoder::default();
        [1, 0, 2, PROGRAM, 1, 0].into_iter().for_each(|word| encoder.u32(word));
        drop(flavor.begin(&mut encoder).expect("client must have a context"));
        let header = CallHeader::decode(&mut Decoder::new(&encoder.finish())).unwrap();
        let handle = GssCredential::from_body(&header.credential.body).unwrap().handle;
        Self { context: ToyContext::of(SECRET, b"alice@TOY"), handle }
    }

    fn parts(&self, service: Service, sequence: u32) -> Parts {
        let credential = GssCredential { control: Control::Data, sequence, service, handle: self.handle.clone() };
        Parts { xid: 0x1000 + sequence, procedure: ADD, credential, verifier: None, sequence }
    }

    /// Returns a transmission of ADD with these parts.
    fn message(&self, parts: &Parts) -> Message {
        let mut encoder = Encoder::default();
        [parts.xid, 0, 2, PROGRAM, 1, parts.procedure].into_iter().for_each(|word| encoder.u32(word));
        parts.credential.to_opaque().encode(&mut encoder);
        let verifier = parts.verifier.clone().unwrap_or_else(|| {
            let body = self.context.mic(encoder.written(0)).unwrap();
            OpaqueAuth { flavor: RPCSEC_GSS, body }
        });
        verifier.encode(&mut encoder);
        let body = 5u64.to_be_bytes();
        wire::wrap(&self.context, parts.credential.service, parts.sequence, &body, &mut encoder).unwrap();
        encoder.finish()
    }
}

fn plan() -> ReplyPlan {
    ReplyPlan { inline_max: 256, ..ReplyPlan::default() }
}

async fn reply(transport: &Arc<dyn Transport>, message: Message) -> ReplyBody {
    let reply = transport.clone().call(message, plan()).await.unwrap().message;
    ReplyHeader::decode(&mut Decoder::new(&reply)).unwrap().body
}

/// Returns the message that begins a context of Alice, as anybody on the network can see and repeat it.
fn first_token(xid: u32, service: u32) -> Message {
    let step = ToyInitiator::new("alice@TOY", SECRET).begin().unwrap().step(&[]).unwrap();
    let mut encoder = Encoder::default();
    [xid, 0, 2, PROGRAM, 1, 0].into_iter().for_each(|word| encoder.u32(word));
    // The credential: version, control, sequence, service, handle.
    let credential = [1, Control::Init as u32, 0, service, 0].map(u32::to_be_bytes).concat();
    OpaqueAuth { flavor: RPCSEC_GSS, body: credential.into() }.encode(&mut encoder);
    OpaqueAuth::NONE.encode(&mut encoder);
    encoder.raw(&Message::encode(&InitArgument(step.token)).stream);
    encoder.finish()
}

/// Begins a context with a token, and returns its handle.
async fn begin(transport: &Arc<dyn Transport>, message: Message) -> Bytes {
    let reply = transport.clone().call(message, plan()).await.unwrap().message;
    let mut decoder = Decoder::new(&reply);
    let header = ReplyHeader::decode(&mut decoder).unwrap();
    assert!(matches!(header.body, ReplyBody::Accepted { stat: AcceptStat::Success, .. }), "{header:?}");
    InitResult::decode(&mut decoder).unwrap().handle
}

#[test]
fn replayed_tokens_evict_no_context_that_is_used() {
    run(async || {
        let limits = GssLimits { contexts_max: 8, unproved_per_host: 2, ..GssLimits::default() };
        let rig = Rig::new(limits, None);
        let client = connect(&rig.tcp, &alice(Service::None)).await;
        add(&client, 1).await.unwrap();
        let other =
            connect(&rig.tcp, &GssClient::new(Arc::new(ToyInitiator::new("bob@TOY", SECRET)), Service::None)).await;
        let transport = transport(&other).await;
        let mut last = Bytes::new();
        for xid in 0..100 {
            last = begin(&transport, first_token(0x5000 + xid, 1)).await;
        }
        assert_eq!(rig.flavor.contexts(), 4, "the host has two unproved contexts");
        // Forged calls do not prove a context.
        let known = Known { context: ToyContext::of(SECRET, b"alice@TOY"), handle: last };
        let forged = OpaqueAuth { flavor: RPCSEC_GSS, body: Bytes::from_static(b"forgery!mic") };
        let forged = known.message(&Parts { verifier: Some(forged), ..known.parts(Service::None, 1) });
        assert!(matches!(reply(&transport, forged).await, ReplyBody::Denied(_)));
        // If the context were evicted, this negotiation would fail.
        rig.faults.refuses.store(1, SeqCst);
        assert_eq!(add(&client, 1).await.unwrap(), 2);
        tokio::time::sleep(Duration::from_secs(61)).await;
        let late = reply(&transport, known.message(&known.parts(Service::None, 2))).await;
        assert!(matches!(late, ReplyBody::Denied(RejectStat::AuthError(AuthStat::GssCredProblem))), "{late:?}");
        assert_eq!(add(&client, 1).await.unwrap(), 3, "a proved context stays");
    });
}

/// Checks that a message gets no reply. A later call over the same connection does, and replies keep their order.
async fn is_dropped(client: &Client, transport: &Arc<dyn Transport>, message: Message) {
    let mut silent = pin!(transport.clone().call(message, plan()));
    tokio::select! {
        biased;
        _ = &mut silent => panic!("there must be no reply"),
        sum = add(client, 0) => drop(sum.unwrap()),
    }
    assert!(silent.now_or_never().is_none());
}

#[test]
fn replayed_and_old_sequence_numbers_are_dropped_in_silence() {
    run(async || {
        for service in SERVICES {
            // A separate cache of duplicate requests.
            let rig = rig();
            let flavor = alice(service);
            let client = connect(&rig.tcp, &flavor).await;
            let transport = transport(&client).await;
            let known = Known::of(&flavor);
            let before = rig.counter.sum.load(SeqCst);
            let message = known.message(&known.parts(service, 100));
            assert!(matches!(reply(&transport, message.clone()).await, ReplyBody::Accepted { .. }));
            is_dropped(&client, &transport, message).await;
            // The client's own sequence numbers stay in the window.
            let low = Parts { xid: 7, ..known.parts(service, 50) };
            let high = known.message(&known.parts(service, 50 + WINDOW));
            (0..WINDOW + 60).for_each(|_| drop(flavor.begin(&mut Encoder::default())));
            assert!(matches!(reply(&transport, high).await, ReplyBody::Accepted { .. }));
            is_dropped(&client, &transport, known.message(&low)).await;
            let inside = known.message(&known.parts(service, 200));
            assert!(matches!(reply(&transport, inside).await, ReplyBody::Accepted { .. }), "inside the window");
            assert_eq!(rig.counter.sum.load(SeqCst), before + 15, "dropped calls must not be executed");
        }
    });
}

#[test]
fn invalid_transmissions_are_denied_and_change_nothing() {
    run(async || {
        let rig = rig();
        for way in rig.ways() {
            for service in SERVICES {
                let flavor = alice(service);
                let client = connect(way, &flavor).await;
                let transport = transport(&client).await;
                let known = Known::of(&flavor);
                let before = rig.counter.sum.load(SeqCst);
                let good = || known.parts(service, 100);
                let with = |change: &dyn Fn(&mut Parts)| {
                    let mut parts = good();
                    change(&mut parts);
                    known.message(&parts)
                };
                let forged = |flavor, body: &'static [u8]| Some(OpaqueAuth { flavor, body: Bytes::from_static(body) });
                let cases = [
                    (AuthStat::GssCredProblem, with(&|parts| parts.verifier = forged(RPCSEC_GSS, b"forgery!mic"))),
                    (AuthStat::GssCredProblem, with(&|parts| parts.verifier = forged(RPCSEC_GSS, b""))),
                    (AuthStat::BadVerf, with(&|parts| parts.verifier = Some(OpaqueAuth::NONE))),
                    (AuthStat::GssCredProblem, with(&|parts| parts.credential.handle = Bytes::from_static(&[7; 16]))),
                    (AuthStat::GssCredProblem, with(&|parts| parts.credential.handle = Bytes::new())),
                    (AuthStat::GssCtxProblem, with(&|parts| parts.credential.sequence = MAXSEQ)),
                    (AuthStat::BadCred, with(&|parts| parts.credential.control = Control::Init)),
                    (AuthStat::BadCred, with(&|parts| parts.credential.control = Control::ContinueInit)),
                ];
                for (number, (expected, message)) in cases.into_iter().enumerate() {
                    let denied = reply(&transport, message).await;
                    let ReplyBody::Denied(RejectStat::AuthError(stat)) = denied else { panic!("{number}: {denied:?}") };
                    assert_eq!(stat, expected, "case {number} of {service:?}");
                }
                if service != Service::None {
                    let garbage = reply(&transport, with(&|parts| parts.sequence = 101)).await;
                    assert!(
                        matches!(garbage, ReplyBody::Accepted { stat: AcceptStat::GarbageArgs, .. }),
                        "{garbage:?}"
                    );
                }
                assert_eq!(rig.counter.sum.load(SeqCst), before, "nothing may be executed");
                // The forged calls have not used the sequence number.
                let fresh = known.message(&known.parts(service, if service == Service::None { 100 } else { 99 }));
                assert!(matches!(
                    reply(&transport, fresh).await,
                    ReplyBody::Accepted { stat: AcceptStat::Success, .. }
                ));
            }
        }
    });
}

#[test]
fn destroyed_context_is_removed_and_the_client_negotiates_another() {
    run(async || {
        let rig = rig();
        let flavor = alice(Service::Integrity);
        let client = connect(&rig.tcp, &flavor).await;
        let transport = transport(&client).await;
        let known = Known::of(&flavor);
        let mut parts = known.parts(Service::Integrity, 100);
        parts.credential.control = Control::Destroy;
        let denied = reply(&transport, known.message(&parts)).await;
        assert!(matches!(denied, ReplyBody::Denied(RejectStat::AuthError(AuthStat::BadCred))), "{denied:?}");
        let mut parts = Parts { procedure: 0, ..known.parts(Service::Integrity, 101) };
        parts.credential.control = Control::Destroy;
        let ReplyBody::Accepted { verifier, stat: AcceptStat::Success } =
            reply(&transport, known.message(&parts)).await
        else {
            panic!("the context must be destroyed")
        };
        known.context.verify(&101u32.to_be_bytes(), &verifier.body).unwrap();
        assert_eq!(rig.flavor.contexts(), 0);
        assert_eq!(add(&client, 1).await.unwrap(), 1);
        assert_eq!(rig.flavor.contexts(), 1);
    });
}

#[test]
fn results_that_cannot_be_wrapped_are_not_sent() {
    run(async || {
        let rig = rig();
        let flavor = alice(Service::Privacy);
        let client = connect(&rig.tcp, &flavor).await;
        let transport = transport(&client).await;
        let known = Known::of(&flavor);
        rig.faults.wrap_fails.store(true, SeqCst);
        let mut silent = pin!(transport.clone().call(known.message(&known.parts(Service::Privacy, 100)), plan()));
        // This client's replies are not encrypted, so they are sent, in order.
        let other = connect(&rig.tcp, &alice(Service::None)).await;
        assert!((&mut silent).now_or_never().is_none());
        while rig.counter.sum.load(SeqCst) == 0 {
            add(&other, 0).await.unwrap();
        }
        let null = Message::from(Bytes::from([5u32, 0, 2, PROGRAM, 1, 0, 0, 0, 0, 0].map(u32::to_be_bytes).concat()));
        tokio::select! {
            biased;
            _ = &mut silent => panic!("nothing may be sent in clear text"),
            reply = transport.clone().call(null, plan()) => drop(reply.unwrap()),
        }
        rig.faults.wrap_fails.store(false, SeqCst);
        assert_eq!(add(&client, 1).await.unwrap(), 6);
    });
}

#[test]
fn a_server_without_the_flavour_rejects_it() {
    run(async || {
        let sim = rdma::sim::Sim::new(Default::default());
        let kind = TcpKind::simulated(sim.network().clone(), TcpOptions::default(), Default::default());
        let kind: Arc<dyn TransportKind> = Arc::new(kind);
        let listener = kind.listen("10.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr();
        let server = Server::builder().service(Counter::default()).build();
        let mut process = tokio::task::JoinSet::new();
        process.spawn(crate::process::serve(listener, server));
        let client = connect(&(kind, address), &alice(Service::None)).await;
        let denied = add(&client, 1).await.unwrap_err();
        assert!(denied.to_string().contains("does not accept Kerberos"), "{denied}");
        let credential =
            GssCredential { control: Control::Data, sequence: 1, service: Service::None, handle: Bytes::new() };
        let mut encoder = Encoder::default();
        [9, 0, 2, PROGRAM, 1, ADD].into_iter().for_each(|word| encoder.u32(word));
        credential.to_opaque().encode(&mut encoder);
        OpaqueAuth::NONE.encode(&mut encoder);
        encoder.u64(5);
        let denied = reply(&client.transport().unwrap(), encoder.finish()).await;
        assert!(matches!(denied, ReplyBody::Denied(RejectStat::AuthError(AuthStat::RejectedCred))), "{denied:?}");
    });
}
