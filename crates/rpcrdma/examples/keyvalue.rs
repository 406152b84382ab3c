//! An RPC program of one's own: a key-value store, its client, and both over every transport.
//!
//! ```text
//! cargo run -p slipway-rpcrdma --example keyvalue                          # all transports, in one process
//! cargo run -p slipway-rpcrdma --example keyvalue serve rdma 127.0.0.1:7777
//! cargo run -p slipway-rpcrdma --example keyvalue put   rdma 127.0.0.1:7777 greeting hello
//! cargo run -p slipway-rpcrdma --example keyvalue get   rdma 127.0.0.1:7777 greeting
//! ```
//!
//! In XDR's own language (RFC 4506), the program is
//!
//! ```text
//! program KEYVALUE {
//!     version KEYVALUE_V1 {
//!         void   NULL(void)      = 0;
//!         bool   PUT(put_args)   = 1;   /* whether there was a value already */
//!         value* GET(key)        = 2;
//!     } = 1;
//! } = 0x20000010;                       /* RFC 5531 §13.1: 0x20000000 and up are for everyone's use */
//! ```
//!
//! Values are [`Payload`]s: over RDMA, the server pulls them from and pushes them to the client's memory; over TCP they
//! are received where they are wanted. Nothing below says how.

use std::{collections::HashMap, error::Error, net::SocketAddr, ops::RangeInclusive, sync::Arc, time::Duration};

use buf::Buffer;
use bytes::Bytes;
use parking_lot::Mutex;
use rdma::iwarp::{Iwarp, IwarpOptions};
use rpc::{
    AcceptError, Answering, Call, CallOptions, Client, ClientError, ClientOptions, Procedure, RawOptions, ReplyHeader,
    ReplyPlan, Server, Service, Switch, TcpKind, TransportKind, UdpKind, WorkerOptions, Workers,
};
use rpcrdma::RdmaKind;
use xdr::{Decode, Encode, Located, Message, Opaque, Payload};

// What both sides know.

const KEYVALUE: u32 = 0x2000_0010;
const PUT: u32 = 1;
const GET: u32 = 2;
const VALUE_MAX: usize = 1 << 20;

type Key = Opaque<255>;
type Value = Payload<VALUE_MAX>;

#[derive(Debug, Encode, Decode)]
struct PutArgs {
    key: Key,
    value: Value,
}

// The server.

/// The program as a service.
#[derive(Default)]
struct Store {
    values: Mutex<HashMap<Key, Bytes>>,
}

impl Service for Store {
    fn program(&self) -> u32 {
        KEYVALUE
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        match procedure {
            // Executed twice, its result would be another: it is remembered, so that it is not.
            PUT => Some(Procedure { name: "PUT", idempotent: false }),
            GET => Some(Procedure { name: "GET", idempotent: true }),
            // NULL is answered for every program.
            _ => None,
        }
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            match call.procedure {
                PUT => {
                    let PutArgs { key, value } = Decode::decode(&mut call.arguments)?;
                    call.arguments.finish()?;
                    // Both lie in memory of the transport. What is kept for long is copied out of it.
                    let (key, mut copy) = (Opaque(Bytes::copy_from_slice(&key)), vec![0; value.0.len()]);
                    value.0.copy_to(&mut copy).map_err(|_| AcceptError::SystemErr)?;
                    let before = self.values.lock().insert(key, copy.into());
                    Ok(call.reply(&before.is_some()))
                }
                _ => {
                    let key = Key::decode(&mut call.arguments)?;
                    call.arguments.finish()?;
                    let value = self.values.lock().get(&key).cloned();
                    Ok(call.reply(&value.map(Value::from)))
                }
            }
        }))
    }
}

fn serve(kind: &dyn TransportKind, address: SocketAddr) -> Result<(Workers, SocketAddr), Box<dyn Error>> {
    let server = Server::builder().service(Store::default()).build();
    let workers = Workers::new(WorkerOptions::default())?;
    let listener = kind.listen(address)?;
    let address = listener.local_addr();
    workers.listen(server, listener);
    Ok((workers, address))
}

// The client.

/// The program as its callers see it.
struct KeyValue(Client);

impl KeyValue {
    async fn connect(kind: Arc<dyn TransportKind>, server: SocketAddr) -> Result<Self, ClientError> {
        Ok(Self(Client::connect(kind, server, ClientOptions::new(KEYVALUE, 1)).await?))
    }

    /// Puts a value; says whether there was one already.
    async fn put(&self, key: &str, value: Bytes) -> Result<bool, ClientError> {
        let arguments = PutArgs { key: key.into(), value: value.into() };
        let answer = self.0.call(PUT, &arguments, ReplyPlan::default(), CallOptions::default()).await?;
        Ok(answer.results)
    }

    /// Gets a value into `buffer`, which is long enough for any, and shows what it got, if there is such a key.
    async fn get(&self, key: &str, buffer: Buffer) -> Result<(Option<Bytes>, bool), ClientError> {
        // How a transport finds the value in a reply that is still arriving.
        fn locate(prefix: &Bytes) -> Option<Located> {
            Message::locate::<Option<Value>>(prefix, |decoder| ReplyHeader::decode(decoder).map(drop))
        }
        let plan =
            ReplyPlan { inline_max: 64, payload_max: buffer.len(), sink: Some(buffer.into()), locate: Some(locate) };
        let answer = self.0.call::<Option<Value>>(GET, &Key::from(key), plan, CallOptions::default()).await?;
        let value = answer.results.map(|value| value.0);
        let placed = value.as_ref().zip(answer.sink).is_some_and(|(value, sink)| sink.holds(value));
        let value = value.map(|value| value.to_bytes().expect("it is in memory"));
        Ok((value, placed))
    }
}

// Both, over what there is.

fn switch() -> Switch {
    let mut switch = Switch::new();
    switch.register(Arc::new(TcpKind::default()));
    switch.register(Arc::new(UdpKind::default()));
    let iwarp = Arc::new(Iwarp::new(IwarpOptions::default()));
    switch.register(Arc::new(RdmaKind::new(iwarp, rpcrdma::Options::default())));
    switch
}

/// Serves and calls over each transport in turn; says for each whether a large value was placed in its buffer.
pub async fn everywhere() -> Result<Vec<(&'static str, bool)>, Box<dyn Error>> {
    let mut placed = Vec::new();
    for name in switch().names() {
        let kind = switch().find(name).expect("it is in the list").with_options(&RawOptions::new())?;
        let (workers, address) = serve(&*kind, "127.0.0.1:0".parse()?)?;
        let store = KeyValue::connect(kind, address).await?;
        // A datagram has room for 64 KiB.
        let large: Bytes = (0..if name == "udp" { 50_000 } else { VALUE_MAX }).map(|i| (i % 251) as u8).collect();
        assert!(!store.put("small", Bytes::from_static(b"hello")).await?);
        assert!(!store.put("large", large.clone()).await?);
        assert!(store.put("small", Bytes::from_static(b"world")).await?, "there was a value");
        assert_eq!(store.get("small", Buffer::zeroed(VALUE_MAX)).await?.0.as_deref(), Some(&b"world"[..]));
        assert_eq!(store.get("none", Buffer::zeroed(VALUE_MAX)).await?.0, None);
        let (value, in_place) = store.get("large", Buffer::zeroed(VALUE_MAX)).await?;
        assert!(value.as_ref() == Some(&large), "the value has come back as it was");
        placed.push((name, in_place));
        workers.drain(Duration::from_secs(10)).await;
    }
    Ok(placed)
}

/// Runs one command; see the top of the file.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let find = |name| switch().find(name).ok_or(format!("no transport '{name}'"));
    match words[..] {
        [] => {
            for (name, placed) in everywhere().await? {
                println!("{name}: works; a large value is {}", if placed { "placed" } else { "copied" });
            }
        }
        ["serve", name, address] => {
            let (_workers, address) = serve(&*find(name)?, address.parse()?)?;
            println!("serving on {address} over {name}");
            std::future::pending().await
        }
        ["put", name, address, key, value] => {
            let store = KeyValue::connect(find(name)?, address.parse()?).await?;
            let replaced = store.put(key, Bytes::copy_from_slice(value.as_bytes())).await?;
            println!("{}", if replaced { "replaced" } else { "new" });
        }
        ["get", name, address, key] => {
            let store = KeyValue::connect(find(name)?, address.parse()?).await?;
            match store.get(key, Buffer::zeroed(VALUE_MAX)).await?.0 {
                Some(value) => println!("{}", value.escape_ascii()),
                None => return Err(format!("no value for '{key}'").into()),
            }
        }
        _ => return Err("usage: keyvalue [serve|put|get TRANSPORT ADDRESS [KEY [VALUE]]]".into()),
    }
    Ok(())
}
