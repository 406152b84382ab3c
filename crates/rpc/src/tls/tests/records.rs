//! The records of a session: new keys, and records that a peer has not made.

use std::future::poll_fn;

use buf::{Piece, RecvStage, SendQueue};

use super::{super::session::Session, *};
use crate::{Host, Stream, TcpTransport, Transport, budget::Budget, record::STAGE_BYTES, tcp::Terms};

/// Two streams with a session between them.
async fn pair(net: &Net) -> [Wire<simnet::Stream>; 2] {
    let listening = simnet::StreamListener::bind(&net.network, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listening.local_addr();
    let accepting = tokio::spawn(async move {
        let mut listening = listening;
        listening.accept().await.unwrap()
    });
    let near = simnet::Stream::connect(&net.network, address).await.unwrap();
    let [client, server] = sessions(net);
    [(near, client), (accepting.await.unwrap(), server)].map(|(socket, session)| {
        let mut wire = Wire::clear(socket);
        wire.secure(session, Ktls::Auto);
        wire
    })
}

/// The two ends of a session, without a network.
pub fn sessions(net: &Net) -> [Session; 2] {
    let ca = net.pki.ca("test");
    let raw = |options: &[(&str, &str)]| -> RawOptions {
        options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let of_client = raw(&[("xprtsec", "tls"), ("tls_ca", &ca), ("tls_name", "nfs.example.com")]);
    let of_server = raw(&[("tls_cert", net.server.cert()), ("tls_key", net.server.key())]);
    let tls = ClientTls::parse(&mut rpc::OptionReader::new("tcp", &of_client)).unwrap().unwrap();
    let server = ServerTls::parse(&mut rpc::OptionReader::new("tcp", &of_server)).unwrap().unwrap();
    let (config, demands) = tls.for_connection();
    let mut client = Handshake::client(config, tls.name().clone(), demands).unwrap();
    let mut server = Handshake::server(server.config()).unwrap();
    let mut bytes = Vec::new();
    let mut done = [false; 2];
    while done != [true; 2] {
        done[0] |= matches!(client.advance(&bytes).unwrap(), Progress::Done);
        done[1] |= matches!(server.advance(&client.take_outgoing()).unwrap(), Progress::Done);
        bytes = server.take_outgoing();
    }
    [client, server].map(|side| side.finish().unwrap().0)
}

/// Creates the server's transport of a connection, whose memory is charged to a budget. Answers each call with `len` bytes.
fn charged(budget: &Budget, wire: Wire<simnet::Stream>, tls: Option<Arc<ServerTls>>, len: usize) {
    let host = Host::of(wire.peer_addr().unwrap().ip());
    let terms = Terms { tls, ..Terms::admitted(budget.account(host)) };
    let transport = TcpTransport::new(wire, (2 << 20, None), terms, Pool::default()).unwrap();
    tokio::spawn(async move {
        while let Ok(call) = poll_fn(|cx| transport.poll_recv(cx)).await {
            let mut encoder = xdr::Encoder::default();
            encoder.payload(Bytes::from(vec![1; len]).into());
            transport.reply(call.token, encoder.finish()).unwrap();
        }
    });
}

/// Waits until connections use `min` bytes of a budget.
async fn until_used(budget: &Budget, min: usize) {
    let waiting = async {
        while budget.used() < min {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(5), waiting).await;
    assert!(waited.is_ok(), "{} bytes are charged, not {min}", budget.used());
}

/// Sends bytes from one end and receives them at the other.
pub async fn pass(from: &mut Wire<impl Stream>, to: &mut Wire<impl Stream>, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|at| (at % 249) as u8).collect();
    let mut queue = SendQueue::new();
    queue.push(Piece::Memory(bytes.clone().into()));
    let (mut stage, mut direct, mut got) = (RecvStage::new(STAGE_BYTES), vec![0; len / 2], 0);
    loop {
        let _ = from.try_send(&mut queue);
        match to.try_receive(&mut stage, &mut direct[got..], 1000.max(len)) {
            Ok(received) => got += received.direct,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
        }
        if got + stage.bytes().len() == len {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!([&direct[..], stage.bytes()].concat(), bytes);
}

#[test]
fn keys_are_updated_in_both_directions() {
    run(|net| async move {
        let [mut client, mut server] = pair(&net).await;
        for end in [&mut client, &mut server] {
            end.session().update_after(3);
        }
        for _ in 0..3 {
            // Each direction needs several keys for these records.
            pass(&mut client, &mut server, 200_000).await;
            pass(&mut server, &mut client, 200_000).await;
        }
        client.session().request_update();
        pass(&mut client, &mut server, 10).await;
        assert_eq!(server.unsent(), 0, "an answer must wait for the next data");
        server.session().update_after(u64::MAX);
        let before = client.session().updates();
        pass(&mut server, &mut client, 10).await;
        pass(&mut server, &mut client, 10).await;
        assert_eq!(client.session().updates(), before + 1, "the server must answer with one KeyUpdate of its own");
        server.session().request_update();
        pass(&mut server, &mut client, 10).await;
        pass(&mut client, &mut server, 100_000).await;
    });
}

#[test]
fn key_updates_are_bounded_by_the_data_between_them() {
    run(|net| async move {
        // The second peer sends a little data between its KeyUpdates.
        for len in [0, 1] {
            let [mut client, mut server] = pair(&net).await;
            for _ in 0..32 {
                client.session().request_update();
                pass(&mut client, &mut server, len).await;
            }
            client.session().request_update();
            let _ = client.try_send(&mut SendQueue::new());
            let error = receive(&mut server).await.unwrap_err();
            assert!(error.to_string().contains("TooManyKeyUpdateRequests"), "{error}");
        }
        let [mut client, mut server] = pair(&net).await;
        for _ in 0..70 {
            client.session().request_update();
            pass(&mut client, &mut server, 40_000).await;
        }
    });
}

#[test]
fn requests_for_new_keys_use_no_memory() {
    run(|net| async move {
        let [mut client, mut server] = pair(&net).await;
        for _ in 0..20 {
            client.session().request_update();
            pass(&mut client, &mut server, 1).await;
            assert_eq!(server.unsent(), 0, "a peer that reads nothing must not make the queue grow");
        }
        pass(&mut server, &mut client, 1).await;
        assert_eq!(client.session().updates(), 1, "one answer must suffice for all requests");
    });
}

/// Answers the probe of a client and makes the handshake, without a transport.
pub async fn accept_session(wire: &mut Wire<simnet::Stream>, tls: &ServerTls) -> Result<(), rustls::Error> {
    let mut stage = RecvStage::new(STAGE_BYTES);
    while stage.bytes().len() < 44 {
        wire.receive(&mut stage).await.unwrap();
    }
    let xid = Xid(u32::from_be_bytes(*stage.bytes()[4..].first_chunk().unwrap()));
    stage.consume(stage.bytes().len());
    wire.send_all(wire::record(&starttls(xid))).await.unwrap();
    let mut handshake = Handshake::server(tls.config()).unwrap();
    while let Progress::More = handshake.advance(stage.bytes())? {
        stage.consume(stage.bytes().len());
        wire.send_all(handshake.take_outgoing().into()).await.unwrap();
        wire.receive(&mut stage).await.unwrap();
    }
    wire.secure(handshake.finish()?.0, Ktls::Auto);
    Ok(())
}

pub async fn receive(wire: &mut Wire<impl Stream>) -> std::io::Result<usize> {
    let mut stage = RecvStage::new(STAGE_BYTES);
    loop {
        match wire.try_receive(&mut stage, &mut [], 1000) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            done => return done.map(|received| received.staged),
        }
    }
}

#[test]
fn altered_and_invalid_records_end_the_connection_with_an_alert() {
    let cases: [(&[u8], &str); 4] = [
        (&[23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20], "BadRecordMac"),
        (&[23, 3, 3, 0xff, 0xff], "RecordOverflow"),
        (&[21, 3, 3, 0, 2, 1, 0], "UnexpectedMessage"),
        (&[23, 3, 3, 0, 1, 9], "BadRecordMac"),
    ];
    run(|net| async move {
        for (bytes, alert) in cases {
            let [client, server] = sessions(&net);
            let mut listening = simnet::StreamListener::bind(&net.network, "127.0.0.1:0".parse().unwrap()).unwrap();
            let address = listening.local_addr();
            let (raw, accepted) = tokio::join!(net.raw(address), listening.accept());
            let mut wire = Wire::clear(accepted.unwrap());
            wire.secure(server, Ktls::Auto);
            let budget = Budget::new(8 << 20);
            charged(&budget, wire, None, 1000);
            // The server must not reset the connection because of what follows, or the alert would be lost.
            raw.write(&[bytes, &[0; 40_000]].concat()).await;
            let mut wire = Wire::clear(raw.0);
            wire.secure(client, Ktls::Auto);
            let error = receive(&mut wire).await.unwrap_err();
            assert!(error.to_string().contains(&format!("the peer refused the session: alert {alert}")), "{error}");
            assert_eq!(budget.used(), 0, "a connection that waits for the peer's end must hold no memory");
        }
    });
}

#[test]
fn calls_fail_with_the_reason_when_the_server_sends_an_invalid_record() {
    run(|net| async move {
        let [client, mut server] = pair(&net).await;
        let transport =
            Arc::new(TcpTransport::new(client, (2 << 20, None), Terms::connecting(), Pool::default()).unwrap());
        let driving = poll_fn(|cx| transport.poll_recv(cx));
        let calling = transport.clone().call(
            Message::encode(&CallHeader {
                xid: Xid(7),
                program: PROGRAM,
                version: 1,
                procedure: 0,
                credential: OpaqueAuth::NONE,
                verifier: OpaqueAuth::NONE,
            }),
            ReplyPlan::default(),
        );
        let misbehaving = async {
            assert!(receive(&mut server).await.unwrap() > 0);
            server.session().queue(rustls::ContentType::Handshake, &[]);
            let _ = server.try_send(&mut SendQueue::new());
            receive(&mut server).await.unwrap_err()
        };
        let (called, alert) = tokio::select! {
            both = async { tokio::join!(calling, misbehaving) } => both,
            _ = driving => panic!("the client must wait until the server has closed the connection"),
        };
        let error = called.unwrap_err().error.to_string();
        assert!(error.contains("TLS: the peer has sent an invalid record: an empty record"), "{error}");
        assert!(alert.to_string().contains("alert UnexpectedMessage"), "{alert}");
    });
}

#[test]
fn end_of_data_is_announced() {
    run(|net| async move {
        let [mut client, mut server] = pair(&net).await;
        client.shutdown(std::net::Shutdown::Write);
        assert_eq!(receive(&mut server).await.unwrap(), 0);
        assert_eq!(server.held(), 0);
    });
}

#[test]
fn incomplete_handshakes_are_charged() {
    run(|net| async move {
        let of_server = [("tls_cert", net.server.cert()), ("tls_key", net.server.key())]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let tls = ServerTls::parse(&mut rpc::OptionReader::new("tcp", &of_server)).unwrap().unwrap();
        let mut listening = simnet::StreamListener::bind(&net.network, "127.0.0.1:0".parse().unwrap()).unwrap();
        let raw = net.raw(listening.local_addr()).await;
        let budget = Budget::new(1 << 20);
        charged(&budget, Wire::clear(listening.accept().await.unwrap()), Some(Arc::new(tls)), 0);
        raw.write(&probe_call()).await;
        raw.reply().await.unwrap();
        assert_eq!(budget.used(), 0);
        // The first 16,000 bytes of a record.
        raw.write(&[&[22, 3, 1, 0x40, 0][..], &[1; 15_995]].concat()).await;
        until_used(&budget, 4096).await;
        drop(raw);
        let freed = async {
            while budget.used() > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(5), freed).await.expect("its memory must be released");
    });
}

#[test]
fn encrypted_replies_are_charged_until_they_are_sent() {
    run(|net| async move {
        let [mut client, server] = pair(&net).await;
        let budget = Budget::new(8 << 20);
        let len = 120 << 10;
        charged(&budget, server, None, len);
        client.send_all(call(1, 0, b"").into()).await.unwrap();
        // The client does not read. The network holds 64 KiB, and the rest is encrypted already.
        until_used(&budget, 40 << 10).await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert!(budget.used() >= 40 << 10, "{} bytes are charged", budget.used());
        let mut received = 0;
        while received < len {
            received += receive(&mut client).await.unwrap();
        }
        let freed = async {
            while budget.used() > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(5), freed).await.expect("its memory must be released");
    });
}

#[test]
fn records_without_data_are_bounded() {
    use rustls::ContentType::{ApplicationData, Handshake};
    // The type of each record and its content, the number of records that is permitted, and the error of one more.
    let ticket = [4, 0, 0, 1, 0];
    let cases: [(_, &[u8], usize, &str); 4] = [
        (ApplicationData, &[], 32, "too many records without data"),
        // A record with a ticket counts twice.
        (Handshake, &ticket, 16, "too many records without data"),
        // Parts of a message that is longer than all of them.
        (Handshake, &[4, 0, 0x3f], 32, "too many records without data"),
        (Handshake, &[], 0, "invalid record"),
    ];
    run(|net| async move {
        for (typ, content, permitted, expected) in cases {
            let [mut client, mut server] = pair(&net).await;
            for _ in 0..3 {
                (0..permitted).for_each(|_| server.session().queue(typ, content));
                pass(&mut server, &mut client, 1).await;
            }
            (0..=permitted).for_each(|_| server.session().queue(typ, content));
            let _ = server.try_send(&mut SendQueue::new());
            let error = receive(&mut client).await.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    });
}
