//! COMPOUND: sessions, slots, limits, and errors.

use crate::common::v4::*;
use crate::common::*;
use nfs::v4::{attr::Attr4, compound::CompoundArgs, *};
use server::{Export, ExportId, ExportOptions, NfsServer, Squash};
use xdr::Message;

fn server() -> NfsServer {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    server_of(Export::new("/m", ExportId::unique(), memory(), options).unwrap())
}

fn bytes(operations: Vec<Argop4>) -> Message {
    Message::encode(&CompoundArgs { tag: "t".into(), minorversion: 1, argarray: operations })
}

#[simnet::test]
async fn compound_begins_with_sequence_or_has_one_sessionless_operation() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    //= rfc8881-18.33.3-1 rfc8881-18.46.3-2 rfc8881-18.46.3-3
    assert_eq!(client.compound(vec![Argop4::PutRootFh]).status, Nfsstat4::OpNotInSession);
    let first = client.compound(vec![exchange_id("b"), Argop4::PutRootFh]);
    //= rfc8881-18.35.3-1 rfc8881-18.35.3-2
    assert_eq!((first.status, first.resarray.len()), (Nfsstat4::NotOnlyOp, 1));
    let again = client.sequence_op(1, 1);
    //= rfc8881-18.46.3-1 rfc8881-2.10.2.1-1
    assert_eq!(client.status([Argop4::PutRootFh, again]), Nfsstat4::SequencePos);
    assert_eq!(client.compound(vec![]).status, Nfsstat4::Ok);
    client.minor = 3;
    let refused = client.compound(vec![Argop4::PutRootFh]);
    assert_eq!((refused.status, refused.resarray.len()), (Nfsstat4::MinorVersMismatch, 0));
}

#[simnet::test]
async fn retry_gets_the_same_bytes_and_executes_nothing() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    client.cachethis = true;
    client.sequence += 1;
    let mut operations = vec![client.sequence_op(0, client.sequence)];
    operations.extend(at("m"));
    operations.extend([mkdir("made"), Argop4::GetFh]);
    let call = bytes(operations);
    let first = client.raw(&call).unwrap();
    // The retry uses another connection of the session, as after a reconnect.
    client.peer = "192.0.2.1:701".parse().unwrap();
    let second = client.raw(&call).unwrap();
    //= rfc8881-18.46.3-7 rfc8881-2.10.6.1.1-1 rfc8881-2.10.6.1.1-2 rfc8881-2.10.6.4-1
    assert_eq!(first.stream, second.stream);
    assert_eq!(client.status([at("m"), vec![mkdir("made")]].concat()), Nfsstat4::Exist);
}

#[simnet::test]
async fn retry_of_an_uncached_request_gets_retry_uncached_rep() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    client.sequence += 1;
    let operations = vec![client.sequence_op(0, client.sequence), Argop4::PutRootFh, Argop4::GetFh];
    assert_eq!(client.compound(operations.clone()).status, Nfsstat4::Ok);
    let retried = client.compound(operations);
    //= rfc8881-18.46.3-8
    assert_eq!(retried.status, Nfsstat4::RetryUncachedRep);
    let failed = Resop4::failure(Opnum4::PutRootFh, Nfsstat4::RetryUncachedRep);
    //= rfc8881-2.10.6.1.3-2 rfc8881-2.10.6.1.3-3
    assert_eq!(retried.resarray[1..], [failed]);
}

/// An illegal operation of a retry is reported as such, although the reply to the request was not cached.
#[simnet::test]
async fn retry_of_an_uncached_illegal_operation_gets_its_error() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    // With so long a tag, the reply is too long to be cached although the client did not ask for that.
    let encode = |operations| {
        let args = CompoundArgs { tag: "t".repeat(700).as_str().into(), minorversion: 1, argarray: operations };
        Message::encode(&args).stream.to_vec()
    };
    let mut retry = |change: &dyn Fn(Vec<u8>) -> Vec<u8>, second| {
        (client.sequence, client.caller) = (client.sequence + 1, user(0, 0));
        let call = change(encode(vec![client.sequence_op(0, client.sequence), second]));
        let call = Message::from(bytes::Bytes::from(call));
        let [first, again, foreign] = [0, 0, 1000].map(|uid| {
            client.caller = user(uid, uid);
            results::<compound::CompoundRes>(&client.raw(&call).unwrap())
        });
        //= rfc8881-2.10.6.1.3.1-2
        assert_eq!((foreign.status, foreign.resarray.len()), (Nfsstat4::SeqFalseRetry, 1), "another user");
        assert_eq!((first.status, first.resarray.len()), (again.status, 2));
        assert_eq!(first.resarray[1..], again.resarray[1..]);
        again.status
    };
    //= rfc8881-2.10.6.1.3-4 rfc8881-2.10.6.1.3-5
    assert_eq!(retry(&|call| call, Argop4::Renew(ClientIdArgs { clientid: Clientid4(1) })), Nfsstat4::NotSupp);
    let illegal = |mut call: Vec<u8>| {
        let at = call.len() - 4;
        call[at..].copy_from_slice(&99_999_u32.to_be_bytes());
        call
    };
    //= rfc8881-2.10.6.1.3-4 rfc8881-2.10.6.1.3-5
    assert_eq!(retry(&illegal, Argop4::PutRootFh), Nfsstat4::OpIllegal);
    let cut = |call: Vec<u8>| call[..call.len() - 4].to_vec();
    //= rfc8881-2.10.6.1.3-5
    assert_eq!(retry(&cut, mkdir("x")), Nfsstat4::BadXdr);
}

#[simnet::test]
async fn malformed_operation_ends_a_compound_after_the_valid_ones() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    client.sequence += 1;
    let good = bytes(vec![client.sequence_op(0, client.sequence), Argop4::PutRootFh, mkdir("x")]);
    // The last word is missing, so the attributes of CREATE are truncated.
    let cut = good.stream.slice(..good.stream.len() - 4);
    let results: compound::CompoundRes = results(&client.raw(&Message::from(cut)).unwrap());
    assert_eq!((results.status, results.resarray.len()), (Nfsstat4::BadXdr, 3));
    assert_eq!(results.resarray[2], Resop4::failure(Opnum4::Create, Nfsstat4::BadXdr));
    // The slot stays usable.
    client.ok([Argop4::PutRootFh]);
}

#[simnet::test]
async fn replies_respect_the_limits_of_the_session() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    client.file("m", "f", &[7; 3000]);
    let fore = ChannelAttrs4 { maxresponsesize: 2000, maxresponsesize_cached: 500, ..channel() };
    let mut small = Client4::with_channel(&server, "b", 1, fore);
    let reads = |count| [at("m/f"), vec![read(Stateid4::ANONYMOUS, 0, count)]].concat();
    assert_eq!(small.status(reads(1000)), Nfsstat4::Ok);
    assert_eq!(small.status(reads(3000)), Nfsstat4::RepTooBig);
    small.cachethis = true;
    //= rfc8881-2.10.6.4-2
    assert_eq!(small.status(reads(1000)), Nfsstat4::RepTooBigToCache);
    // The reply with this error is cached too, because the operations before it were executed.
    small.sequence += 1;
    let mut operations = vec![small.sequence_op(0, small.sequence)];
    operations.extend([at("m"), vec![mkdir("once")], at("m/f"), vec![read(Stateid4::ANONYMOUS, 0, 1000)]].concat());
    let [first, again] = [small.compound(operations.clone()), small.compound(operations)];
    assert_eq!(first.status, Nfsstat4::RepTooBigToCache);
    //= rfc8881-2.10.6.4-3
    assert_eq!(first, again);
    assert_eq!(again.resarray[3].status(), Nfsstat4::Ok, "MKDIR is executed once");
    // An operation that changes something is refused before it is executed.
    let mut many = at("m");
    many.extend(std::iter::repeat_n(getattr(&[Attr4::Fsid, Attr4::Owner, Attr4::Filehandle]), 3));
    many.push(mkdir("too-late"));
    assert_eq!(small.status(many), Nfsstat4::RepTooBigToCache);
    assert_eq!(client.status(at("m/too-late")), Nfsstat4::NoEnt);
}

#[simnet::test]
async fn requests_respect_the_limits_of_the_session() {
    let server = server();
    let fore = ChannelAttrs4 { maxoperations: 3, maxrequestsize: 300, ..channel() };
    let client = Client4::with_channel(&server, "a", 1, fore);
    let call = |operations: Vec<Argop4>| {
        let mut all = vec![client.sequence_op(1, 1)];
        all.extend(operations);
        client.compound(all).status
    };
    //= rfc8881-18.36.3-14
    assert_eq!(call(vec![Argop4::PutRootFh; 3]), Nfsstat4::TooManyOps);
    assert_eq!(call(vec![Argop4::PutRootFh, mkdir(&"x".repeat(250))]), Nfsstat4::ReqTooBig);
    assert_eq!(call(vec![Argop4::PutRootFh; 2]), Nfsstat4::Ok);
}

#[simnet::test]
async fn destroy_session_must_be_the_last_operation_of_its_compound() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    let destroy = Argop4::DestroySession(DestroySessionArgs { sessionid: client.session });
    //= rfc8881-18.37.3-4
    assert_eq!(client.status([destroy.clone(), Argop4::PutRootFh]), Nfsstat4::NotOnlyOp);
    assert_eq!(client.status([destroy.clone()]), Nfsstat4::Ok);
    assert_eq!(client.alone(destroy).status(), Nfsstat4::BadSession);
    let destroy_client = Argop4::DestroyClientId(ClientIdArgs { clientid: client.client });
    assert_eq!(client.alone(destroy_client.clone()).status(), Nfsstat4::Ok);
    assert_eq!(client.alone(destroy_client).status(), Nfsstat4::StaleClientid);
}

#[simnet::test]
async fn restarted_client_releases_its_share_reservation() {
    let server = server();
    let mut first = Client4::new(&server, "a", 1);
    let deny = Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() };
    first.open("m", "f", deny).unwrap();
    let mut second = Client4::new(&server, "b", 1);
    assert_eq!(second.open("m", "f", Open::default()), Err(Nfsstat4::ShareDenied));
    // The same client after a restart: it has a new verifier.
    let mut again = Client4::stranger(&server, 1);
    let Argop4::ExchangeId(mut args) = exchange_id("a") else { unreachable!() };
    args.clientowner.verifier = [2; 8];
    let Resop4::ExchangeId(Res4::Ok(exchanged)) = again.alone(Argop4::ExchangeId(args)) else { panic!() };
    again.client = exchanged.clientid;
    again.alone(create_session(exchanged.clientid, exchanged.sequenceid, channel()));
    assert!(second.open("m", "f", Open::default()).is_ok());
}
