//! RPC with TLS: the bytes of a peer before and in the handshake, and handshakes that are changed on the way.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Shutdown, SocketAddr},
    sync::{Arc, OnceLock},
};

use buf::Pool;
use bytes::Bytes;
use rpc::{
    AcceptStat, CallHeader, Hosts, OpaqueAuth, RawOptions, ReplyBody, ReplyHeader, SimStreams, TcpKind, TcpOptions,
    TransportKind, Xid, Xprtsec,
};
use simnet::{Network, NetworkOptions, Stream, StreamListener};
use tokio::task::{JoinHandle, yield_now};
use xdr::{Encode, Encoder, Message};

use crate::pki::Pki;

/// The first byte of the input selects one of these, and the second one in which pieces the bytes arrive.
///
/// 0: the bytes of a client, in clear. 1: those behind the server's answer to the probe. The server must execute nothing. 2: the
/// answer of a server to the probe, in which the XID is replaced. 3: the bytes behind a correct answer. The client must neither
/// use the connection nor send anything in clear. Others: a client and a server that trust each other. Each four bytes change what
/// they send: the lowest bit of the first one is the direction, and the next two say whether a byte is changed, inserted or removed, or the
/// connection cut; then the position, and a value.
pub fn tls_handshake(data: &[u8]) {
    let [kind, step, bytes @ ..] = data else { return };
    let step = [1, 5, 64, 1460, usize::MAX][usize::from(*step) % 5];
    // The files are read outside of the simulation.
    options();
    simnet::simulate(1, || async {
        let network = Network::new(NetworkOptions { seed: 1, ..NetworkOptions::default() });
        network.conceal();
        let world = World { network, step };
        match kind {
            0 => world.client_in_clear(bytes).await,
            1 => world.client_behind_the_probe(bytes).await,
            2 => world.server(bytes, false).await,
            3 => world.server(bytes, true).await,
            _ => world.changed(bytes).await,
        }
    });
}

/// A network of a client, a server, and an attacker.
struct World {
    network: Network,
    /// The number of bytes that the attacker sends at once.
    step: usize,
}

impl World {
    async fn client_in_clear(&self, bytes: &[u8]) {
        let (address, server) = self.serve();
        let stream = self.connect(address).await;
        self.write(&stream, bytes).await;
        stream.shutdown(Shutdown::Write);
        let _ = read(&stream, usize::MAX).await;
        let calls = server.await.expect("the server must not panic");
        assert!(calls.iter().all(|level| *level == Xprtsec::None), "only a handshake makes a session");
    }

    async fn client_behind_the_probe(&self, bytes: &[u8]) {
        let (address, server) = self.serve();
        let stream = self.connect(address).await;
        self.write(&stream, &probe()).await;
        assert_eq!(read(&stream, ANSWER_LEN).await, answer(XID), "the server must answer the probe");
        self.write(&stream, bytes).await;
        stream.shutdown(Shutdown::Write);
        let sent = read(&stream, usize::MAX).await;
        assert!(sent.len() < SENT_MAX, "the server has sent {} bytes", sent.len());
        assert_eq!(server.await.expect("the server must not panic"), [], "nothing must be executed");
    }

    async fn server(&self, bytes: &[u8], answers: bool) {
        let (mut listener, address) = self.listen();
        let client = self.client(address);
        let stream = listener.accept().await.expect("the client must connect");
        let sent = read(&stream, PROBE_LEN).await;
        let xid: [u8; 4] = sent[4..8].try_into().expect("the probe must have an XID");
        let bytes = match answers {
            true => [&answer(Xid(u32::from_be_bytes(xid))), bytes].concat(),
            false => {
                let mut bytes = bytes.to_vec();
                bytes.iter_mut().skip(4).zip(xid).for_each(|(byte, of_xid)| *byte = of_xid);
                bytes
            }
        };
        self.write(&stream, &bytes).await;
        stream.shutdown(Shutdown::Write);
        let sent = read(&stream, usize::MAX).await;
        assert!(!client.await.expect("the client must not panic"), "the client must not use this connection");
        let is_tls = sent.first().is_none_or(|content| [ALERT, HANDSHAKE].contains(content));
        assert!(is_tls && sent.len() < SENT_MAX, "the client must not continue in clear: {sent:?}");
    }

    async fn changed(&self, changes: &[u8]) {
        let (server_address, server) = self.serve();
        let (mut listener, address) = self.listen();
        let client = self.client(address);
        let to_client = Arc::new(listener.accept().await.expect("the client must connect"));
        let to_server = Arc::new(self.connect(server_address).await);
        let (changes, _) = changes.as_chunks::<4>();
        let of = |direction| changes.iter().copied().filter(|change| change[0] & 1 == direction).collect();
        let relays = [
            tokio::spawn(relay(to_client.clone(), to_server.clone(), of(0))),
            tokio::spawn(relay(to_server, to_client, of(1))),
        ];
        let is_connected = client.await.expect("the client must not panic");
        for relay in relays {
            relay.await.expect("the attacker must not panic");
        }
        let calls = server.await.expect("the server must not panic");
        assert!(is_connected || !changes.is_empty(), "without a change, the handshake must succeed");
        assert!(!is_connected || calls.last() == Some(&Xprtsec::Mtls), "the client must not use a connection in clear");
    }

    /// Starts a server, which answers all calls of one connection. Returns the protection of each.
    fn serve(&self) -> (SocketAddr, JoinHandle<Vec<Xprtsec>>) {
        let kind = self.kind(1, &options().0);
        let mut listener = kind.listen(SocketAddr::from((host(1), 0))).expect("the network must have room");
        let address = listener.local_addr();
        let serving = tokio::spawn(async move {
            let incoming = listener.accept().await.expect("the listener must work");
            let mut calls = Vec::new();
            let Ok(transport) = incoming.set_up(Hosts::all()).await else { return calls };
            while let Ok(call) = poll_fn(|cx| transport.poll_recv(cx)).await {
                calls.push(transport.tls().level());
                let body = ReplyBody::Accepted { verifier: OpaqueAuth::NONE, stat: AcceptStat::Success };
                let reply = ReplyHeader { xid: call.token.xid, body }.to_message();
                // The client may be gone.
                let _ = transport.reply(call.token, reply);
            }
            calls
        });
        (address, serving)
    }

    /// Starts a client. Returns whether it has connected.
    fn client(&self, address: SocketAddr) -> JoinHandle<bool> {
        let kind = self.kind(2, &options().1);
        tokio::spawn(async move {
            kind.connect(address).await.is_ok_and(|transport| {
                transport.close();
                true
            })
        })
    }

    fn kind(&self, number: u8, options: &TcpOptions) -> TcpKind<SimStreams> {
        TcpKind::simulated(self.network.host(host(number)), options.clone(), Pool::default())
    }

    fn listen(&self) -> (StreamListener, SocketAddr) {
        let listener = StreamListener::bind(&self.network.host(host(3)), SocketAddr::from((host(3), 0)));
        let listener = listener.expect("the network must have room");
        let address = listener.local_addr();
        (listener, address)
    }

    async fn connect(&self, address: SocketAddr) -> Stream {
        Stream::connect(&self.network.host(host(3)), address).await.expect("the server must listen")
    }

    async fn write(&self, stream: &Stream, bytes: &[u8]) {
        for piece in bytes.chunks(self.step) {
            if !write(stream, piece).await {
                return;
            }
            yield_now().await;
        }
    }
}

/// Carries bytes until the end of the stream, and applies changes.
async fn relay(from: Arc<Stream>, to: Arc<Stream>, changes: Vec<[u8; 4]>) {
    let mut passed = 0;
    loop {
        let received = read_some(&from, usize::MAX).await;
        let mut bytes = Vec::new();
        let mut is_cut = received.is_empty();
        for &byte in &received {
            let mut now = vec![byte];
            for &[how, high, low, value] in &changes {
                if usize::from(u16::from_be_bytes([high, low])) == passed {
                    match how >> 1 & 3 {
                        0 => now.iter_mut().for_each(|byte| *byte ^= value),
                        1 => now.push(value),
                        2 => drop(now.pop()),
                        _ => is_cut = true,
                    }
                }
            }
            bytes.extend(now);
            passed += 1;
        }
        let is_written = write(&to, &bytes).await;
        if is_cut || !is_written {
            to.shutdown(Shutdown::Write);
            from.shutdown(Shutdown::Read);
            return;
        }
    }
}

/// Writes all bytes. Returns `false` if the connection is lost.
async fn write(stream: &Stream, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        poll_fn(|cx| stream.poll_writable(cx)).await;
        match stream.write_vectored(&[IoSlice::new(bytes)]) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    true
}

/// Reads so many bytes, or fewer at the end of the stream.
async fn read(stream: &Stream, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let now = read_some(stream, len - bytes.len()).await;
        if now.is_empty() {
            break;
        }
        bytes.extend(now);
    }
    bytes
}

/// Reads what has arrived, at most `max` bytes. Returns nothing at the end of the stream.
async fn read_some(stream: &Stream, max: usize) -> Vec<u8> {
    loop {
        poll_fn(|cx| stream.poll_readable(cx)).await;
        let mut block = vec![0; max.min(4096)];
        match stream.read_vectored(&mut [IoSliceMut::new(&mut block)]) {
            Ok(len) => {
                block.truncate(len);
                return block;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Vec::new(),
        }
    }
}

fn host(number: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, number])
}

fn record(message: &Message) -> Vec<u8> {
    [&(1 << 31 | message.stream.len() as u32).to_be_bytes(), &message.stream[..]].concat()
}

fn probe() -> Vec<u8> {
    let credential = OpaqueAuth { flavor: AUTH_TLS, body: Bytes::new() };
    let (program, version, procedure) = (100_003, 3, 0);
    record(&Message::encode(&CallHeader {
        xid: XID,
        program,
        version,
        procedure,
        credential,
        verifier: OpaqueAuth::NONE,
    }))
}

fn answer(xid: Xid) -> Vec<u8> {
    let verifier = OpaqueAuth { body: Bytes::from_static(b"STARTTLS"), ..OpaqueAuth::NONE };
    let mut encoder = Encoder::with_capacity(ANSWER_LEN);
    ReplyHeader { xid, body: ReplyBody::Accepted { verifier, stat: AcceptStat::Success } }.encode(&mut encoder);
    record(&encoder.finish())
}

/// Returns the options of the server and of the client, which trust each other.
fn options() -> &'static (TcpOptions, TcpOptions) {
    static OPTIONS: OnceLock<(TcpOptions, TcpOptions)> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("slipway-fuzz-tls-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("the directory of temporary files must be writable");
        let mut pki = Pki::new(&directory, "test");
        let ca = pki.ca("test");
        let [server, client] = ["nfs.example.com", "client.example.com"].map(|name| pki.issue(name, &[name]));
        let parse = |options: &[(&str, &str)]| {
            let raw: RawOptions = options.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            TcpOptions::parse(&raw).expect("the files must be usable")
        };
        let of_server = parse(&[("tls_cert", server.cert()), ("tls_key", server.key()), ("tls_ca", &ca)]);
        let of_client = parse(&[
            ("xprtsec", "mtls"),
            ("tls_ca", &ca),
            ("tls_name", "nfs.example.com"),
            ("tls_program", "100003.3"),
            ("tls_cert", client.cert()),
            ("tls_key", client.key()),
        ]);
        // Both keep what they have read.
        let _ = std::fs::remove_dir_all(&directory);
        (of_server, of_client)
    })
}

const AUTH_TLS: u32 = 7;
const XID: Xid = Xid(7);
const PROBE_LEN: usize = 44;
const ANSWER_LEN: usize = 36;
/// More than the messages of one side in a handshake.
const SENT_MAX: usize = 8 << 10;
/// Content types of records (RFC 8446 §5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
