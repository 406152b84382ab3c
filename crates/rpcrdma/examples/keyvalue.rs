//! A user-defined RPC program: a key-value store and its client, run over every transport.
//!
//! ```text
//! cargo run -p slipway-rpcrdma --example keyvalue                          # all transports, in one process
//! cargo run -p slipway-rpcrdma --example keyvalue serve rdma 127.0.0.1:7777
//! cargo run -p slipway-rpcrdma --example keyvalue put   rdma 127.0.0.1:7777 greeting hello
//! cargo run -p slipway-rpcrdma --example keyvalue get   rdma 127.0.0.1:7777 greeting
//! ```
//!
//! In the XDR language (RFC 4506), the program is
//!
//! ```text
//! program KEYVALUE {
//!     version KEYVALUE_V1 {
//!         void   NULL(void)      = 0;
//!         bool   PUT(put_args)   = 1;   /* true if there was a value already */
//!         value* GET(key)        = 2;
//!     } = 1;
//! } = 0x20000010;                       /* RFC 5531 §13.1: 0x20000000 and up are for private use */
//! ```
//!
//! Values are [`Payload`]s. Over RDMA, the server reads them from and writes them to the client's memory; over TCP they
//! are received into the destination buffer. The code below does not depend on the transport.

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

// The definitions that both sides share.

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
            // A second execution would return another result, so the duplicate request cache must remember the call.
            PUT => Some(Procedure { name: "PUT", idempotent: false }),
            GET => Some(Procedure { name: "GET", idempotent: true }),
            // The server answers NULL for every program.
            _ => None,
        }
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            match call.procedure {
                PUT => {
                    let PutArgs { key, value } = Decode::decode(&mut call.arguments)?;
                    call.arguments.finish()?;
                    // Key and value are in memory of the transport. They are copied because they are kept for long.
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

/// The program as seen by its callers.
struct KeyValue(Client);

impl KeyValue {
    async fn connect(kind: Arc<dyn TransportKind>, server: SocketAddr) -> Result<Self, ClientError> {
        Ok(Self(Client::connect(kind, server, ClientOptions::new(KEYVALUE, 1)).await?))
    }

    /// Puts a value. Returns `true` if there was a value already.
    async fn put(&self, key: &str, value: Bytes) -> Result<bool, ClientError> {
        let arguments = PutArgs { key: key.into(), value: value.into() };
        let answer = self.0.call(PUT, &arguments, ReplyPlan::default(), CallOptions::default()).await?;
        Ok(answer.results)
    }

    /// Gets the value of `key`, if there is one, and returns `true` if it was placed in `buffer`. `buffer` must be long
    /// enough for any value.
    async fn get(&self, key: &str, buffer: Buffer) -> Result<(Option<Bytes>, bool), ClientError> {
        // Finds the value in a reply that is still arriving.
        fn locate(prefix: &Bytes) -> Option<Located> {
            Message::locate::<Option<Value>>(prefix, |decoder| ReplyHeader::decode(decoder).map(drop))
        }
        let plan =
            ReplyPlan { inline_max: 64, payload_max: buffer.len(), sink: Some(buffer.into()), locate: Some(locate) };
        let answer = self.0.call::<Option<Value>>(GET, &Key::from(key), plan, CallOptions::default()).await?;
        let value = answer.results.map(|value| value.0);
        let placed = value.as_ref().zip(answer.sink).is_some_and(|(value, sink)| sink.holds(value));
        let value = value.map(|value| value.to_bytes().expect("value must be in memory"));
        Ok((value, placed))
    }
}

// Client and server, over each transport.

fn switch() -> Switch {
    let mut switch = Switch::new();
    switch.register(Arc::new(TcpKind::default()));
    switch.register(Arc::new(UdpKind::default()));
    let iwarp = Arc::new(Iwarp::new(IwarpOptions::default()));
    switch.register(Arc::new(RdmaKind::new(iwarp, rpcrdma::Options::default())));
    switch
}

/// Serves and calls over each transport in turn. Returns for each whether a large value was placed in its buffer.
pub async fn everywhere() -> Result<Vec<(&'static str, bool)>, Box<dyn Error>> {
    let mut placed = Vec::new();
    for name in switch().names() {
        let kind = switch().find(name).expect("the transport must be in the list").with_options(&RawOptions::new())?;
        let (workers, address) = serve(&*kind, "127.0.0.1:0".parse()?)?;
        let store = KeyValue::connect(kind, address).await?;
        // A datagram holds up to 64 KiB.
        let large: Bytes = (0..if name == "udp" { 50_000 } else { VALUE_MAX }).map(|i| (i % 251) as u8).collect();
        assert!(!store.put("small", Bytes::from_static(b"hello")).await?);
        assert!(!store.put("large", large.clone()).await?);
        assert!(store.put("small", Bytes::from_static(b"world")).await?, "there must be a value already");
        assert_eq!(store.get("small", Buffer::zeroed(VALUE_MAX)).await?.0.as_deref(), Some(&b"world"[..]));
        assert_eq!(store.get("none", Buffer::zeroed(VALUE_MAX)).await?.0, None);
        let (value, in_place) = store.get("large", Buffer::zeroed(VALUE_MAX)).await?;
        assert!(value.as_ref() == Some(&large), "the value must be returned unchanged");
        placed.push((name, in_place));
        workers.drain(Duration::from_secs(10)).await;
    }
    Ok(placed)
}

/// Runs one command; see the documentation at the top of this file.
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
