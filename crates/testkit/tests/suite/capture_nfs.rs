//! Tests that every message of a Linux client and a Linux server over RPC-over-RDMA decodes, and encodes to the same
//! bytes.

use std::collections::BTreeMap;

use nfs::{v3::*, v4};
use rpc::{AcceptStat, CallHeader, ReplyBody, ReplyHeader, Xid};
use testkit::{
    capture,
    exchange::{self, Exchange},
    pcap,
};
use xdr::{Decode, Decoder, Encode, Encoder};

/// Captures of Linux with NFS version 3, and with the minor versions of version 4.
const CAPTURES: [&str; 4] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/data/siw-v3.pcap.gz"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/data/siw-v4.0.pcap.gz"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/data/siw-v4.1.pcap.gz"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/data/siw-v4.2.pcap.gz"),
];

/// Returns the NFS conversations of a capture, as messages of iWARP.
fn conversations(capture: &str) -> Vec<Vec<capture::Message>> {
    let conversations = pcap::read(capture).unwrap();
    let rdma = conversations.iter().filter(|talk| talk.server.port() == 20049);
    rdma.map(|talk| capture::messages(&capture::frames(talk))).collect()
}

#[derive(Debug, Default)]
struct Seen {
    /// The calls by procedure or operation.
    calls: BTreeMap<&'static str, usize>,
    read_chunks: usize,
    write_chunks: usize,
    reply_chunks: usize,
    others: usize,
    callbacks: usize,
    attributes: usize,
    long_bitmaps: usize,
}

impl Seen {
    fn of(capture: &str) -> Self {
        let mut seen = Seen::default();
        for messages in conversations(capture) {
            let (exchanges, unanswered) = exchange::exchanges(&messages);
            assert_eq!(unanswered, 0, "every call must be answered");
            exchanges.iter().for_each(|exchange| seen.add(exchange));
        }
        assert!(seen.calls.values().sum::<usize>() > 50, "{seen:?}");
        assert!(seen.read_chunks > 0 && seen.write_chunks > 0 && seen.reply_chunks > 0, "{seen:?}");
        seen
    }

    fn add(&mut self, exchange: &Exchange) {
        self.read_chunks += exchange.call.payloads.len();
        self.write_chunks += exchange.reply.payloads.len();
        self.reply_chunks += usize::from(exchange.reply_chunk);
        let (mut call, mut reply) = (Decoder::new(&exchange.call), Decoder::new(&exchange.reply));
        let header = CallHeader::decode(&mut call).unwrap();
        let answer = ReplyHeader::decode(&mut reply).unwrap();
        assert_eq!(answer.xid, header.xid);
        assert!(matches!(answer.body, ReplyBody::Accepted { stat: AcceptStat::Success, .. }));
        let (mut call_again, mut reply_again) = (Encoder::default(), Encoder::default());
        header.encode(&mut call_again);
        answer.encode(&mut reply_again);
        let mut sides = Sides { call, reply, call_again, reply_again, sets: false };
        match (exchange.from_client, header.program, header.version) {
            (true, nfs::NFS_PROGRAM, VERSION) => {
                let procedure = Proc3::from_number(header.procedure).unwrap();
                sides.procedure(procedure);
                *self.calls.entry(procedure.name()).or_default() += 1;
            }
            (true, nfs::NFS_PROGRAM, v4::VERSION) => match header.procedure {
                v4::PROC_COMPOUND => self.compound(&mut sides),
                procedure => assert_eq!(procedure, v4::PROC_NULL),
            },
            (false, _, v4::CALLBACK_VERSION) => {
                self.callbacks += 1;
                match header.procedure {
                    v4::PROC_COMPOUND => {
                        sides.both::<v4::compound::CbCompoundArgs, v4::compound::CbCompoundRes>();
                    }
                    procedure => assert_eq!(procedure, v4::PROC_NULL),
                }
            }
            _ => {
                self.others += 1;
                return;
            }
        }
        assert!(exchange::same(&sides.call_again.finish(), &exchange.call), "{:?}", exchange.call);
        let reply = sides.reply_again.finish();
        if !exchange::same(&reply, &exchange.reply) {
            // Linux's server encodes the bitmap of set attributes with trailing zero words, which we omit.
            assert!(sides.sets, "{:?}", exchange.reply);
            assert!((1..=3).any(|words| reply.len() + 4 * words == exchange.reply.len()), "{:?}", exchange.reply);
            self.long_bitmaps += 1;
        }
    }

    fn compound(&mut self, sides: &mut Sides<'_>) {
        let (args, res) = sides.both::<v4::compound::CompoundArgs, v4::compound::CompoundRes>();
        let minor = args.minorversion;
        for operation in &args.argarray {
            assert!(operation.opnum().minor_versions().contains(&minor), "{operation:?}");
            *self.calls.entry(operation.opnum().name()).or_default() += 1;
            self.attributes_set(operation, minor);
        }
        assert_eq!(res.resarray.last().map(v4::Resop4::status), Some(res.status));
        for (result, operation) in res.resarray.iter().zip(&args.argarray) {
            assert_eq!(result.opnum(), operation.opnum());
            match result {
                v4::Resop4::Open(_) | v4::Resop4::Create(_) | v4::Resop4::SetAttr(_) => sides.sets = true,
                v4::Resop4::GetAttr(v4::Res4::Ok(attrs)) => self.attributes(attrs, minor, v4::attr::Purpose::Get),
                v4::Resop4::ReadDir(v4::Res4::Ok(ok)) => {
                    ok.reply.entries.iter().for_each(|e| self.attributes(&e.attrs, minor, v4::attr::Purpose::Get));
                }
                _ => {}
            }
        }
    }

    fn attributes_set(&mut self, operation: &v4::Argop4, minor: u32) {
        use v4::{Argop4, Createhow4::*, Openflag4};
        let attrs = match operation {
            Argop4::SetAttr(args) => &args.obj_attributes,
            Argop4::Create(args) => &args.createattrs,
            Argop4::Open(args) => match &args.openhow {
                Openflag4::Create(Unchecked(attrs) | Guarded(attrs) | Exclusive41 { attrs, .. }) => attrs,
                _ => return,
            },
            _ => return,
        };
        self.attributes(attrs, minor, v4::attr::Purpose::Set);
    }

    fn attributes(&mut self, sent: &v4::attr::Fattr4, minor: u32, purpose: v4::attr::Purpose) {
        let attrs = sent.to_attrs(minor, purpose).unwrap_or_else(|error| panic!("{error} in {sent:?}"));
        assert_eq!(v4::attr::Fattr4::from(&attrs), *sent);
        self.attributes += attrs.mask().iter().count();
    }
}

/// Decodes a call and its reply after their headers, and encodes them again.
struct Sides<'a> {
    call: Decoder<'a>,
    reply: Decoder<'a>,
    call_again: Encoder,
    reply_again: Encoder,
    /// `true` if a result contains the bitmap of set attributes.
    sets: bool,
}

impl Sides<'_> {
    /// Decodes the remaining arguments and results, and encodes them again.
    fn both<A: Decode + Encode, R: Decode + Encode>(&mut self) -> (A, R) {
        fn one<T: Decode + Encode>(decoder: &mut Decoder<'_>, encoder: &mut Encoder) -> T {
            let value = T::decode(decoder).unwrap();
            decoder.finish().unwrap();
            value.encode(encoder);
            value
        }
        (one(&mut self.call, &mut self.call_again), one(&mut self.reply, &mut self.reply_again))
    }

    fn procedure(&mut self, procedure: Proc3) {
        macro_rules! procedures {
            ($($name:ident)*) => {
                match procedure {
                    $(Proc3::$name => drop(self.both::<<$name as Procedure3>::Args, <$name as Procedure3>::Res>()),)*
                }
            };
        }
        procedures!(Null GetAttr SetAttr Lookup Access ReadLink Read Write Create MkDir SymLink MkNod Remove RmDir
            Rename Link ReadDir ReadDirPlus FsStat FsInfo PathConf Commit);
    }
}

#[test]
fn every_message_of_version_3_encodes_to_the_same_bytes() {
    let seen = Seen::of(CAPTURES[0]);
    assert!(seen.calls.len() >= 20 && seen.others > 0, "{seen:?}");
}

#[test]
fn every_message_of_version_4_encodes_to_the_same_bytes() {
    for (capture, only) in [(1, "SETCLIENTID_CONFIRM"), (2, "RECLAIM_COMPLETE"), (3, "COPY")] {
        let seen = Seen::of(CAPTURES[capture]);
        assert!(seen.calls.contains_key(only), "{seen:?}");
        assert!(seen.calls.len() >= 20 && seen.attributes > 1000, "{seen:?}");
    }
}

#[test]
fn xids_are_used_once() {
    let mut xids = std::collections::BTreeSet::new();
    for messages in conversations(CAPTURES[0]) {
        for message in messages {
            let send = !matches!(
                message.opcode,
                rdma::iwarp::rdmap::Opcode::Write
                    | rdma::iwarp::rdmap::Opcode::ReadRequest
                    | rdma::iwarp::rdmap::Opcode::ReadResponse
            );
            if send && message.from_client {
                let Xid(xid) = exchange::transport_header(&message.payload).0.xid;
                assert!(xids.insert(xid), "{xid:#x}");
            }
        }
    }
}
