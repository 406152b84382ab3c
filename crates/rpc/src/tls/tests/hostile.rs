//! Peers that violate the protocol of the probe and the handshake.

use std::time::Duration;

use super::{
    super::server::{HALF_OPEN_MAX, OF_HOST_MAX, UNADMITTED_MAX},
    *,
};
use crate::Host;

#[test]
fn bytes_behind_the_probe_are_never_executed() {
    run(|mut net| async move {
        let server = net.serve_tls(&[]);
        let raw = net.raw(server).await;
        raw.write(&[probe_call(), call(1, 0, b"")].concat()).await;
        assert_eq!(raw.reply().await, None, "the connection must be closed without a reply");
        // In clear, the same call is executed.
        let other = net.raw(server).await;
        other.write(&call(1, 0, b"")).await;
        assert!(matches!(other.reply().await, Some(ReplyBody::Accepted { .. })));
        assert_eq!(net.executed(), 1);
    });
}

#[test]
fn calls_in_clear_after_the_probe_are_not_executed() {
    run(|mut net| async move {
        let server = net.serve_tls(&[]);
        let raw = net.raw(server).await;
        raw.write(&probe_call()).await;
        let reply = raw.reply().await.unwrap();
        assert!(probe::starts_tls(&reply), "{reply:?}");
        raw.write(&call(1, 0, b"")).await;
        // The server sends an alert, and closes the connection.
        assert_eq!(raw.read(|bytes| (bytes.len() > 64).then_some(())).await, None);
        assert_eq!(net.executed(), 0);
    });
}

#[test]
fn half_open_handshakes_of_a_host_are_bounded_in_number_and_time() {
    run(|mut net| async move {
        let server = net.serve_tls(&[]);
        let mut waiting = Vec::new();
        for _ in 0..OF_HOST_MAX {
            let raw = net.raw(server).await;
            raw.write(&probe_call()).await;
            assert!(raw.reply().await.is_some());
            waiting.push(raw);
        }
        let began = tokio::time::Instant::now();
        let refused = net.raw(server).await;
        refused.write(&probe_call()).await;
        assert_eq!(refused.reply().await, None, "one more handshake must be refused");
        assert_eq!(echo(&net.client(server, &[]).await.unwrap(), 10).await, 0, "other hosts must not be affected");
        for raw in &waiting {
            assert_eq!(raw.read(|bytes| (!bytes.is_empty()).then_some(())).await, None, "a silent peer must time out");
        }
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        let again = net.raw(server).await;
        again.write(&probe_call()).await;
        assert!(again.reply().await.is_some(), "their places must be free again");
    });
}

#[test]
fn half_open_handshakes_of_unadmitted_hosts_do_not_affect_admitted_ones() {
    run(|mut net| async move {
        net.hosts = Hosts::admitted_by(|address| address == IpAddr::from([127, 0, 0, 2]));
        let server = net.serve_tls(&[]);
        let mut waiting = Vec::new();
        for number in 0..UNADMITTED_MAX as u8 {
            let raw = net.raw_from(3 + number, server).await;
            raw.write(&probe_call()).await;
            assert!(raw.reply().await.is_some());
            waiting.push(raw);
        }
        let refused = net.raw_from(100, server).await;
        refused.write(&probe_call()).await;
        assert_eq!(refused.reply().await, None, "one more handshake of an unadmitted host must be refused");
        assert_eq!(echo(&net.client(server, &[]).await.unwrap(), 10).await, 0, "an admitted host must get in");
    });
}

#[test]
fn handshakes_of_all_hosts_are_bounded_and_their_places_are_freed() {
    run(|net| async move {
        let net = &net;
        let raw: RawOptions = [("tls_cert", net.server.cert()), ("tls_key", net.server.key())]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let tls = ServerTls::parse(&mut rpc::OptionReader::new("tcp", &raw)).unwrap().unwrap();
        let begin = |number: usize, admitted| {
            let [high, low] = ((number / OF_HOST_MAX) as u16).to_be_bytes();
            tls.begin(Host::of(IpAddr::from([192, 0, high, low])), admitted)
        };
        for _ in 0..2 {
            let begun: Vec<_> = (0..HALF_OPEN_MAX).map(|number| begin(number, number >= UNADMITTED_MAX)).collect();
            assert!(begun.iter().all(Option::is_some));
            assert!(begin(HALF_OPEN_MAX, true).is_none());
        }
        let begun: Vec<_> = (0..=UNADMITTED_MAX).map(|number| begin(number * OF_HOST_MAX, false)).collect();
        assert_eq!(begun.iter().flatten().count(), UNADMITTED_MAX);
    });
}

#[test]
fn auth_tls_is_malformed_everywhere_but_in_the_first_call() {
    let bad = ReplyBody::Denied(RejectStat::AuthError(AuthStat::BadCred));
    run(|mut net| async move {
        let server = net.serve_tls(&[]);
        for malformed in [call(1, AUTH_TLS, b""), call(0, AUTH_TLS, b"body")] {
            let raw = net.raw(server).await;
            raw.write(&malformed).await;
            assert_eq!(raw.reply().await.as_ref(), Some(&bad));
        }
        let late = net.raw(server).await;
        late.write(&call(0, 0, b"")).await;
        late.reply().await.unwrap();
        late.write(&probe_call()).await;
        assert_eq!(late.reply().await.as_ref(), Some(&bad));

        let network = net.network.host(IpAddr::from([127, 0, 0, 3]));
        let socket = simnet::Stream::connect(&network, server).await.unwrap();
        let ca = net.pki.ca("test");
        let raw: RawOptions = [("xprtsec", "tls"), ("tls_ca", &ca), ("tls_name", "127.0.0.1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let tls = ClientTls::parse(&mut rpc::OptionReader::new("tcp", &raw)).unwrap().unwrap();
        let mut wire = Wire::connect(socket, Some(&tls)).await.unwrap();
        wire.send_all(probe_call().into()).await.unwrap();
        assert_eq!(wire.reply(Xid(7)).await.unwrap(), bad, "inside of a session");
        assert_eq!(net.executed(), 0);
    });
}

#[test]
fn server_without_tls_does_not_know_the_probe() {
    run(|mut net| async move {
        let server = net.serve(&[]);
        let raw = net.raw(server).await;
        raw.write(&probe_call()).await;
        let rejected = ReplyBody::Denied(RejectStat::AuthError(AuthStat::RejectedCred));
        assert_eq!(raw.reply().await, Some(rejected));
    });
}

#[test]
fn listener_that_requires_tls_rejects_calls_in_clear() {
    run(|mut net| async move {
        let server = net.serve_tls(&[("tls_required", "tls")]);
        let raw = net.raw(server).await;
        raw.write(&[call(1, 0, b""), call(1, 0, b"")].concat()).await;
        let weak = ReplyBody::Denied(RejectStat::AuthError(AuthStat::TooWeak));
        assert_eq!(raw.reply().await, Some(weak));
        assert_eq!(raw.read(|bytes| (!bytes.is_empty()).then_some(())).await, None, "the connection must be closed");
        assert_eq!(net.executed(), 0);
        assert_eq!(echo(&net.client(server, &[]).await.unwrap(), 10).await, 0);
    });
}

#[test]
fn client_never_continues_in_clear() {
    run(|mut net| async move {
        let server = net.serve(&[]);
        let error = problem(net.client(server, &[])).await;
        assert!(error.contains("the server does not support RPC with TLS: AUTH_ERROR: AUTH_REJECTEDCRED"), "{error}");
        assert_eq!(net.executed(), 0);
        // An attacker that answers the probe without "STARTTLS".
        let listening = simnet::StreamListener::bind(&net.network, "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listening.local_addr();
        let attacker = tokio::spawn(async move {
            let mut listening = listening;
            let raw = Raw(listening.accept().await.unwrap());
            let xid = raw.read(|bytes| bytes.get(4..8).map(<[u8]>::to_vec)).await.unwrap();
            let accepted = [0u32.to_be_bytes(); 4].concat();
            let reply = [&(LAST_FRAGMENT | 24).to_be_bytes(), &xid[..], &1u32.to_be_bytes(), &accepted[..]].concat();
            raw.write(&reply).await;
            raw.read(|bytes| (bytes.len() > 44).then_some(())).await
        });
        let error = problem(net.client(address, &[])).await;
        assert!(error.contains("the server does not support RPC with TLS"), "{error}");
        assert_eq!(attacker.await.unwrap(), None, "after that answer, the client must send nothing");
    });
}

#[test]
fn client_refuses_bytes_behind_the_answer_to_its_probe() {
    run(|net| async move {
        // Each is sent together with the answer: the begin of a reply in clear, a byte, and the record of an alert.
        let injected: [&[u8]; 3] = [&[0x80, 0, 0, 0], &[22], &[21, 3, 3, 0, 2, 1, 0]];
        for bytes in injected {
            let mut refused = 0;
            for _ in 0..10 {
                let listening = simnet::StreamListener::bind(&net.network, "127.0.0.1:0".parse().unwrap()).unwrap();
                let address = listening.local_addr();
                let attacker = tokio::spawn(async move {
                    let mut listening = listening;
                    let raw = Raw(listening.accept().await.unwrap());
                    // The whole probe.
                    let probe = raw.read(|bytes| bytes.get(..44).map(<[u8]>::to_vec)).await.unwrap();
                    let xid = Xid(u32::from_be_bytes(*probe[4..].first_chunk().unwrap()));
                    raw.write(&[&wire::record(&starttls(xid))[..], bytes].concat()).await;
                    raw.read(|bytes| (!bytes.is_empty()).then_some(())).await
                });
                let error = problem(net.client(address, &[])).await;
                let sent = attacker.await.unwrap();
                // The network can also deliver them later. Then they belong to the handshake, which fails.
                if error.contains("bytes follow the reply to the TLS probe") {
                    refused += 1;
                    assert_eq!(sent, None, "the client must not even begin the handshake");
                }
            }
            assert!(refused > 0, "the client must notice {bytes:?}");
        }
    });
}

#[test]
fn failed_handshakes_of_a_host_are_logged_once_a_minute() {
    run(|mut net| async move {
        let log = simnet::Log::collect(tracing::Level::INFO, "tls::server");
        let server = net.serve_tls(&[]);
        let fail = async |host| {
            let raw = net.raw_from(host, server).await;
            raw.write(&probe_call()).await;
            raw.reply().await.unwrap();
            raw.write(&call(1, 0, b"")).await;
            raw.read(|_| None::<()>).await;
            let injecting = net.raw_from(host, server).await;
            injecting.write(&[probe_call(), call(1, 0, b"")].concat()).await;
            injecting.read(|_| None::<()>).await;
        };
        for _ in 0..10 {
            fail(3).await;
        }
        assert_eq!(log.lines().len(), 1);
        fail(4).await;
        assert_eq!(log.lines().len(), 2, "another host has its own line");
    });
}
