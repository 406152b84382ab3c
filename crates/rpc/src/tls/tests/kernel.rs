//! Sessions whose sent records the system encrypts (kTLS), over a stream that does what Linux does.

use std::{
    future::poll_fn,
    io,
    net::Shutdown,
    task::{Context, Poll},
    time::Duration,
};

use buf::{Piece, Received, RecvStage, SendQueue, ktls::RecordKey};
use parking_lot::Mutex;
use rustls::{
    ContentType, ProtocolVersion,
    crypto::{
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher::{AeadKey, Iv, MessageEncrypter, OutboundChunks, OutboundPlainMessage},
    },
};

use super::{
    records::{pass, receive, sessions},
    *,
};
use crate::{Host, Stream, TcpTransport, Transport, budget::Budget, tcp::Terms};

/// A simulated stream that encrypts like Linux: it accepts a record for which the socket has little room, and keeps the rest.
struct Kernel {
    socket: simnet::Stream,
    /// `true` if this system has no TLS.
    without_tls: bool,
    sealing: Mutex<Option<Sealing>>,
    seen: Arc<Seen>,
}

struct Sealing {
    sealer: Box<dyn MessageEncrypter>,
    sealed: u64,
    /// Bytes that the socket has not accepted yet.
    held: SendQueue,
}

/// The records that a kernel has made.
#[derive(Default)]
struct Seen {
    /// The number of records with data.
    data: AtomicUsize,
    /// The number of alerts.
    alerts: AtomicUsize,
}

impl Sealing {
    fn seal(&mut self, typ: ContentType, payload: &[&[u8]]) {
        let payload = OutboundChunks::new(payload);
        let message = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_2, payload };
        let record = self.sealer.encrypt(message, self.sealed).unwrap().encode();
        self.sealed += 1;
        self.held.push(Piece::Memory(record.into()));
    }
}

impl Stream for Kernel {
    const SPIN_MAX: Duration = Duration::ZERO;

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Stream::peer_addr(&self.socket)
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_read_ready(cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_write_ready(cx)
    }

    fn try_receive(&self, stage: &mut RecvStage, direct: &mut [u8], ahead: usize) -> io::Result<Received> {
        self.socket.try_receive(stage, direct, ahead)
    }

    fn try_send(&self, queue: &mut SendQueue) -> io::Result<()> {
        let mut sealing = self.sealing.lock();
        let Some(sealing) = &mut *sealing else { return self.socket.try_send(queue) };
        loop {
            self.socket.try_send(&mut sealing.held)?;
            if queue.is_empty() {
                return Ok(());
            }
            let len = {
                let front = queue.front(1 << 14)?;
                sealing.seal(ContentType::ApplicationData, &front);
                front.iter().map(|piece| piece.len()).sum()
            };
            queue.consume(len);
            self.seen.data.fetch_add(1, Relaxed);
            if queue.is_empty() {
                // The system does not tell that it holds a part of the last record.
                let _ = self.socket.try_send(&mut sealing.held);
                return Ok(());
            }
        }
    }

    fn encrypt_sent(&self, key: &RecordKey) -> io::Result<()> {
        let &RecordKey::Aes256Gcm { key, iv } = key else { return Err(io::ErrorKind::InvalidInput.into()) };
        if self.without_tls {
            return Err(io::ErrorKind::NotFound.into());
        }
        let algorithm = TLS13_AES_256_GCM_SHA384.tls13().unwrap().aead_alg;
        let sealer = algorithm.encrypter(AeadKey::from(key), Iv::from(iv));
        *self.sealing.lock() = Some(Sealing { sealer, sealed: 0, held: SendQueue::new() });
        Ok(())
    }

    fn send_record(&self, content_type: u8, payload: &[u8]) -> io::Result<()> {
        let mut sealing = self.sealing.lock();
        let sealing = sealing.as_mut().expect("only the system can send such a record");
        self.socket.try_send(&mut sealing.held)?;
        sealing.seal(content_type.into(), &[payload]);
        self.seen.alerts.fetch_add(1, Relaxed);
        self.socket.try_send(&mut sealing.held)
    }

    fn shutdown(&self, how: Shutdown) {
        self.socket.shutdown(how);
    }
}

/// A server whose system has TLS or not, its client, and what the server's system has done.
struct Ends {
    server: Wire<Kernel>,
    client: Wire<simnet::Stream>,
    seen: Arc<Seen>,
}

impl Ends {
    async fn new(net: &Net, ktls: Ktls, without_tls: bool) -> Self {
        let mut listening = simnet::StreamListener::bind(&net.network, "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listening.local_addr();
        let (near, accepted) = tokio::join!(simnet::Stream::connect(&net.network, address), listening.accept());
        let [of_client, of_server] = sessions(net);
        let seen = Arc::<Seen>::default();
        let socket = accepted.unwrap();
        let kernel = Kernel { socket, without_tls, sealing: Mutex::default(), seen: seen.clone() };
        let (mut server, mut client) = (Wire::clear(kernel), Wire::clear(near.unwrap()));
        server.secure(of_server, ktls);
        client.secure(of_client, Ktls::Off);
        Self { server, client, seen }
    }
}

/// Counts: records with data, and alerts, of the system.
fn counts(seen: &Seen) -> (usize, usize) {
    (seen.data.load(Relaxed), seen.alerts.load(Relaxed))
}

#[test]
fn system_encrypts_what_is_sent_if_it_can_and_may() {
    run(|net| async move {
        for (ktls, without_tls, by_system) in
            [(Ktls::Auto, false, true), (Ktls::Off, false, false), (Ktls::Auto, true, false)]
        {
            let Ends { mut server, mut client, seen } = Ends::new(&net, ktls, without_tls).await;
            for len in [1, 16_384, 16_385, 300_000] {
                pass(&mut server, &mut client, len).await;
                pass(&mut client, &mut server, len).await;
            }
            assert_eq!(counts(&seen).0 > 0, by_system);
            server.shutdown(Shutdown::Write);
            assert_eq!(receive(&mut client).await.unwrap(), 0);
            assert_eq!(counts(&seen).1, usize::from(by_system), "the end of the data must be announced");
        }
    });
}

#[test]
fn data_that_the_system_holds_are_sent_before_the_end() {
    run(|net| async move {
        let Ends { mut server, mut client, seen } = Ends::new(&net, Ktls::Auto, false).await;
        // The network holds 64 KiB, so that a part of the last record stays in the system.
        let len = 64 << 10;
        let mut queue = SendQueue::new();
        queue.push(Piece::Memory(vec![7; len].into()));
        server.try_send(&mut queue).unwrap();
        server.shutdown(Shutdown::Write);
        assert_eq!(counts(&seen).1, 0, "there must be no room for the alert yet");
        let ending = tokio::spawn(async move { poll_fn(|cx| server.poll_discard(cx)).await });
        let mut received = 0;
        loop {
            match receive(&mut client).await.unwrap() {
                0 => break,
                more => received += more,
            }
        }
        assert_eq!((received, counts(&seen).1), (len, 1));
        client.shutdown(Shutdown::Write);
        ending.await.unwrap();
    });
}

#[test]
fn connection_with_a_spent_key_ends_after_the_replies_to_its_calls() {
    run(|net| async move {
        let Ends { mut server, mut client, seen } = Ends::new(&net, Ktls::Auto, false).await;
        server.session().update_after(3);
        let budget = Budget::new(8 << 20);
        let terms = Terms::admitted(budget.account(Host::of(server.peer_addr().unwrap().ip())));
        let transport = Arc::new(TcpTransport::new(server, (2 << 20, None), terms, Pool::default()).unwrap());
        let driving = transport.clone();
        let (calls, mut called) = tokio::sync::mpsc::unbounded_channel();
        let driver = tokio::spawn(async move {
            loop {
                match poll_fn(|cx| driving.poll_recv(cx)).await {
                    Ok(call) => calls.send(call.token).unwrap(),
                    Err(error) => return error.to_string(),
                }
            }
        });
        client.send_all(call(1, 0, b"").repeat(2).into()).await.unwrap();
        let (first, second) = (called.recv().await.unwrap(), called.recv().await.unwrap());
        let len = 60 << 10;
        let reply = |token, len| {
            let mut encoder = xdr::Encoder::default();
            encoder.payload(Bytes::from(vec![1; len]).into());
            transport.reply(token, encoder.finish()).unwrap();
        };
        // The reply spends the key, which suffices for 48 KiB. The second call is in progress.
        reply(first, len);
        let mut received = 0;
        while received < len {
            received += receive(&mut client).await.unwrap();
        }
        // This call is not read: the client must send it again on another connection.
        client.send_all(call(1, 0, b"").into()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(counts(&seen).1, 0, "the connection must stay open until the second call is answered");
        // The system holds the end of this reply, because the network has room for 64 KiB and the client does not read yet.
        let long = (64 << 10) - 8;
        reply(second, long);
        tokio::time::sleep(Duration::from_secs(5)).await;
        loop {
            match receive(&mut client).await.unwrap() {
                0 => break,
                more => received += more,
            }
        }
        // Eight bytes precede the data of a reply: the mark of its record, and their length.
        assert_eq!(
            (received, counts(&seen).1),
            (8 + len + 8 + long, 1),
            "both calls must be answered before the alert"
        );
        assert_eq!(budget.used(), 0, "a connection that waits for the peer's end must hold no memory");
        client.shutdown(Shutdown::Write);
        let error = driver.await.unwrap();
        assert!(error.contains("cannot replace the key of TLS") && called.recv().await.is_none(), "{error}");
    });
}

#[test]
fn request_for_a_new_key_ends_the_connection_without_further_data() {
    run(|net| async move {
        let Ends { mut server, mut client, seen } = Ends::new(&net, Ktls::Auto, false).await;
        client.session().request_update();
        let _ = client.try_send(&mut SendQueue::new());
        let error = receive(&mut server).await.unwrap_err();
        assert!(error.to_string().contains("asks for a new key") && server.has_failed(), "{error}");
        let before = counts(&seen).0;
        server.shutdown(Shutdown::Write);
        assert_eq!(receive(&mut client).await.unwrap(), 0, "the alert must be no error");
        assert_eq!(counts(&seen), (before, 1));
    });
}

#[test]
fn handshake_that_has_used_the_key_of_the_session_is_refused() {
    run(|net| async move {
        // A ticket is the only thing that a handshake sends with it.
        let with_ticket = |tickets| {
            let ca = net.pki.ca("test");
            let options = [("xprtsec", "tls"), ("tls_ca", &ca[..]), ("tls_name", "nfs.example.com")];
            let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            let tls = ClientTls::parse(&mut rpc::OptionReader::new("tcp", &options)).unwrap().unwrap();
            let (config, demands) = tls.for_connection();
            let mut client = Handshake::client(config, tls.name().clone(), demands).unwrap();
            let mut config = (*net.server_tls(&[]).config()).clone();
            config.session_storage = rustls::server::ServerSessionMemoryCache::new(4);
            config.send_tls13_tickets = tickets;
            let mut server = Handshake::server(Arc::new(config)).unwrap();
            let mut bytes = Vec::new();
            loop {
                client.advance(&bytes).unwrap();
                let done = server.advance(&client.take_outgoing()).unwrap();
                bytes = server.take_outgoing();
                if matches!(done, Progress::Done) {
                    return server.finish().map(drop);
                }
            }
        };
        assert_eq!(with_ticket(0), Ok(()));
        let error = with_ticket(1).unwrap_err();
        assert!(error.to_string().contains("has sent records after its end"), "{error}");
    });
}
