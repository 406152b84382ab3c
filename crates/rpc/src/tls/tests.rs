//! Clients and servers with TLS on a simulated network, and peers that violate the protocol.

#[path = "../../../testkit/src/pki.rs"]
pub(super) mod pki;

mod hostile;
mod kernel;
mod records;
mod refusals;

use std::{
    future::Future,
    io::{IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use buf::Pool;
use bytes::Bytes;
use simnet::{Network, NetworkOptions};
use tempfile::TempDir;
use tokio::task::JoinSet;
use xdr::{Decode, Decoder, Encode, Message};

use self::pki::{Issued, Pki};
use super::*;
use crate::{
    self as rpc, Answering, AuthStat, Call, CallHeader, CallOptions, Client, ClientError, ClientOptions, Drain, Hosts,
    OpaqueAuth, Procedure, RawOptions, RejectStat, ReplyBody, ReplyHeader, ReplyPlan, Server, Service, TcpKind,
    TcpOptions, TransportKind, Xid, record::LAST_FRAGMENT,
};

/// A service that counts its calls. Procedure 1 returns its argument and the number of letters of the caller's names; the
/// caller is in clear if that is `u32::MAX`.
#[derive(Default)]
struct Echo {
    calls: AtomicUsize,
}

impl Service for Echo {
    fn program(&self) -> u32 {
        PROGRAM
    }
    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }
    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        (procedure == 1).then_some(Procedure { name: "ECHO", idempotent: true })
    }
    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        self.calls.fetch_add(1, Relaxed);
        let names = match call.transport.tls() {
            ConnectionTls::None => u32::MAX,
            ConnectionTls::Tls => 0,
            ConnectionTls::Mtls { names } => names.iter().map(|name| name.len() as u32).sum(),
        };
        let result = (|| {
            let text = call.arguments.opaque(1 << 20)?;
            call.arguments.finish()?;
            Ok(text)
        })();
        Answering::Ready(result.map(|text: Bytes| call.reply(&Echoed { text, names })))
    }
}

struct Text(Bytes);

impl Encode for Text {
    fn encode(&self, encoder: &mut xdr::Encoder) {
        encoder.opaque(&self.0);
    }
}

struct Echoed {
    text: Bytes,
    names: u32,
}

impl Encode for Echoed {
    fn encode(&self, encoder: &mut xdr::Encoder) {
        encoder.u32(self.names);
        encoder.opaque(&self.text);
    }
}

impl Decode for Echoed {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, xdr::DecodeError> {
        Ok(Self { names: decoder.u32()?, text: decoder.opaque(1 << 20)? })
    }
}

/// A network, and an issuer that both sides trust.
struct Net {
    network: Network,
    dir: TempDir,
    pki: Pki,
    server: Issued,
    /// The hosts that the server admits.
    hosts: Hosts,
    echo: Arc<Echo>,
    processes: JoinSet<()>,
}

/// Runs a test in a simulation.
fn run<F: Future<Output = ()>>(test: impl FnOnce(Net) -> F) {
    let seed = simnet::seeds(1).start;
    simnet::simulate(seed, || {
        let network = Network::new(NetworkOptions { seed, ..NetworkOptions::default() });
        network.conceal();
        let dir = tempfile::tempdir().unwrap();
        let mut pki = Pki::new(dir.path(), "test");
        let server = pki.issue("server", &["nfs.example.com", "127.0.0.1"]);
        test(Net { network, dir, pki, server, hosts: Hosts::all(), echo: Arc::default(), processes: JoinSet::new() })
    });
}

impl Net {
    fn kind(&self, host: u8, options: &[(&str, &str)]) -> Arc<dyn TransportKind> {
        self.try_kind(host, options).unwrap()
    }

    fn try_kind(&self, host: u8, options: &[(&str, &str)]) -> Result<Arc<dyn TransportKind>, String> {
        let raw: RawOptions = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let network = self.network.host(IpAddr::from([127, 0, 0, host]));
        let kind = TcpKind::simulated(network, TcpOptions::default(), Pool::default());
        kind.with_options(&raw).map_err(|error| error.to_string())
    }

    /// Starts a server with these options, and returns its address.
    fn serve(&mut self, options: &[(&str, &str)]) -> SocketAddr {
        let kind = self.kind(1, options);
        self.serve_by(&*kind)
    }

    fn serve_by(&mut self, kind: &dyn TransportKind) -> SocketAddr {
        let mut listener = kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, server) = (listener.local_addr(), Server::builder().shared(self.echo.clone()).build());
        let hosts = self.hosts.clone();
        self.processes.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok(incoming) = listener.accept().await {
                let (server, hosts) = (server.clone(), hosts.clone());
                connections.spawn(async move {
                    let transport = incoming.set_up(hosts).await.unwrap();
                    server.serve(transport, Drain::never()).await;
                });
            }
        });
        address
    }

    /// Returns the TLS of a server with the certificate of this network, and further options.
    fn server_tls(&self, more: &[(&str, &str)]) -> Arc<ServerTls> {
        let own = [("tls_cert", self.server.cert()), ("tls_key", self.server.key())];
        let raw: RawOptions =
            own.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Arc::new(ServerTls::parse(&mut rpc::OptionReader::new("tcp", &raw)).unwrap().unwrap())
    }

    /// Starts a server with this TLS.
    fn serve_with(&mut self, tls: Arc<ServerTls>) -> SocketAddr {
        let network = self.network.host(IpAddr::from([127, 0, 0, 1]));
        let options = TcpOptions { server_tls: Some(tls), ..TcpOptions::default() };
        self.serve_by(&TcpKind::simulated(network, options, Pool::default()))
    }

    /// Starts a server with the certificate of this network, and further options.
    fn serve_tls(&mut self, more: &[(&str, &str)]) -> SocketAddr {
        let server = self.server.clone();
        self.serve(&[&[("tls_cert", server.cert()), ("tls_key", server.key())], more].concat())
    }

    /// Connects a client that trusts the issuer of this network.
    async fn client(&self, server: SocketAddr, more: &[(&str, &str)]) -> Result<Client, ClientError> {
        let ca = self.pki.ca("test");
        let mut options = vec![("xprtsec", "tls"), ("tls_ca", &ca[..]), ("tls_name", "nfs.example.com")];
        options.retain(|(key, _)| more.iter().all(|(other, _)| key != other));
        options.push(("tls_program", "536870913.1"));
        let kind = self.kind(2, &[&options[..], more].concat());
        Client::connect(kind, server, ClientOptions::new(PROGRAM, 1)).await
    }

    /// Connects without TLS.
    async fn in_clear(&self, server: SocketAddr) -> Client {
        Client::connect(self.kind(2, &[]), server, ClientOptions::new(PROGRAM, 1)).await.unwrap()
    }

    /// Opens a connection for a peer that does as it likes.
    async fn raw(&self, server: SocketAddr) -> Raw {
        self.raw_from(3, server).await
    }

    /// Opens such a connection from another host.
    async fn raw_from(&self, host: u8, server: SocketAddr) -> Raw {
        let network = self.network.host(IpAddr::from([127, 0, 0, host]));
        Raw(simnet::Stream::connect(&network, server).await.unwrap())
    }

    fn executed(&self) -> usize {
        self.echo.calls.load(Relaxed)
    }
}

/// A connection whose bytes the test writes and reads.
struct Raw(simnet::Stream);

impl Raw {
    async fn write(&self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            std::future::poll_fn(|cx| self.0.poll_writable(cx)).await;
            at += self.0.write_vectored(&[IoSlice::new(&bytes[at..])]).unwrap_or(0);
        }
    }

    /// Reads until `done` returns a value, or until the server closes the connection.
    async fn read<T>(&self, mut done: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        let mut bytes = Vec::new();
        loop {
            if let Some(value) = done(&bytes) {
                return Some(value);
            }
            std::future::poll_fn(|cx| self.0.poll_readable(cx)).await;
            let mut block = [0; 4096];
            match self.0.read_vectored(&mut [IoSliceMut::new(&mut block)]) {
                Ok(0) => return None,
                Ok(len) => bytes.extend_from_slice(&block[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }

    /// Reads one reply, or `None` if the connection is closed before.
    async fn reply(&self) -> Option<ReplyBody> {
        let record = self
            .read(|bytes| {
                let len = (u32::from_be_bytes(*bytes.first_chunk()?) & !LAST_FRAGMENT) as usize;
                bytes.get(4..4 + len).map(Bytes::copy_from_slice)
            })
            .await?;
        let message = Message::from(record);
        Some(ReplyHeader::decode(&mut Decoder::new(&message)).unwrap().body)
    }
}

/// Returns the record of a call with this procedure, flavour and body of the credential.
fn call(procedure: u32, flavor: u32, body: &'static [u8]) -> Vec<u8> {
    let credential = OpaqueAuth { flavor, body: Bytes::from_static(body) };
    let (xid, verifier) = (Xid(7), OpaqueAuth::NONE);
    let header = CallHeader { xid, program: PROGRAM, version: 1, procedure, credential, verifier };
    let mut message = Message::encode(&header).stream.to_vec();
    if procedure == 1 {
        message.extend_from_slice(&Message::encode(&Text(Bytes::from_static(b"text"))).stream);
    }
    [&(LAST_FRAGMENT | message.len() as u32).to_be_bytes(), &message[..]].concat()
}

fn probe_call() -> Vec<u8> {
    call(0, AUTH_TLS, b"")
}

/// Calls the echo with so many bytes. Returns the number of letters of the names by which the server knows the client.
async fn echo(client: &Client, len: usize) -> u32 {
    let text = Bytes::from((0..len).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    let plan = ReplyPlan { inline_max: 64 + len, ..ReplyPlan::default() };
    let answer = client.call::<Echoed>(1, &Text(text.clone()), plan, CallOptions::default()).await.unwrap();
    assert_eq!(answer.results.text, text);
    answer.results.names
}

async fn problem(result: impl Future<Output = Result<Client, ClientError>>) -> String {
    match result.await {
        Ok(_) => panic!("the server must not be trusted, or must refuse"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn calls_of_all_sizes_pass_over_tls() {
    run(|mut net| async move {
        let server = net.serve_tls(&[]);
        let client = net.client(server, &[]).await.unwrap();
        for len in [0, 1, 1000, 16_384, 16_385, 100_000, 1 << 20] {
            assert_eq!(echo(&client, len).await, 0, "the server must know that the connection is encrypted");
        }
        let calls = (0..50).map(|number| echo(&client, number * 997));
        futures_util::future::join_all(calls).await;
    });
}

#[test]
fn server_knows_the_names_of_a_client_with_a_certificate() {
    run(|mut net| async move {
        let ca = net.pki.ca("test");
        let own = net.pki.issue("client", &["client.example.com"]);
        let server = net.serve_tls(&[("tls_ca", &ca)]);
        let mutual = [("xprtsec", "mtls"), ("tls_cert", own.cert()), ("tls_key", own.key())];
        let client = net.client(server, &mutual).await.unwrap();
        assert_eq!(echo(&client, 10).await, "client.example.com".len() as u32);
        assert_eq!(echo(&net.client(server, &[]).await.unwrap(), 10).await, 0, "a certificate must be optional");
        assert_eq!(echo(&net.in_clear(server).await, 10).await, u32::MAX);
    });
}

#[test]
fn lost_connection_is_made_again_with_tls() {
    run(|mut net| async move {
        let server = net.serve_tls(&[]);
        let client = net.client(server, &[]).await.unwrap();
        for _ in 0..3 {
            assert_eq!(echo(&client, 30_000).await, 0);
            net.network.cut_all();
        }
        assert_eq!(echo(&client, 30_000).await, 0);
    });
}

#[test]
fn new_connections_use_reloaded_certificates_and_present_ones_stay() {
    run(|mut net| async move {
        let issued = net.server.clone();
        let kind = net.kind(1, &[("tls_cert", issued.cert()), ("tls_key", issued.key())]);
        let server = net.serve_by(&*kind);
        let before = net.client(server, &[]).await.unwrap();
        echo(&before, 10).await;
        let other = net.pki.issue("other", &["other.example.com"]);
        std::fs::copy(&other.cert, &issued.cert).unwrap();
        let error = kind.reload().unwrap_err();
        assert!(error.starts_with("tls_key: ") && error.contains("server.key"), "{error}");
        assert!(net.client(server, &[]).await.is_ok(), "after an error the former certificate must stay in use");
        std::fs::copy(&other.key, &issued.key).unwrap();
        kind.reload().unwrap();
        assert!(problem(net.client(server, &[])).await.contains("other.example.com"));
        let renamed = net.client(server, &[("tls_name", "other.example.com")]).await.unwrap();
        assert_eq!(echo(&renamed, 10).await, 0);
        assert_eq!(echo(&before, 10).await, 0, "a connection must stay open when certificates are read again");
    });
}

const PROGRAM: u32 = 0x2000_0001;
