//! Exports that demand TLS: each call is judged by the connection that carries it.

use nfs::{
    v3::{GetAttr, GetAttrArgs as GetAttrArgs3, Nfsstat3},
    v4::*,
};
use rpc::{ConnectionTls, Xprtsec};
use server::{Export, ExportId, ExportOptions, Exports, HandleKey, NfsServer, Protections, Squash};
use testkit::paper::Paper;

use crate::common::{v4::*, *};

/// Serves `/open` to all connections, `/tls` to those with TLS, and `/mtls` to those of clients with a certificate.
fn server() -> NfsServer {
    let mut exports = Exports::new();
    let kinds: [(&str, &[Xprtsec]); 3] =
        [("/open", &[Xprtsec::None, Xprtsec::Tls]), ("/tls", &[Xprtsec::Tls]), ("/mtls", &[Xprtsec::Mtls])];
    for (name, xprtsec) in kinds {
        let options = ExportOptions {
            squash: Squash::None,
            xprtsec: Protections::new(xprtsec.to_vec()).unwrap(),
            ..Default::default()
        };
        exports.add(Export::new(name, ExportId::unique(), memory(), options).unwrap()).unwrap();
    }
    NfsServer::new(exports, HandleKey::random())
}

fn paper(tls: ConnectionTls) -> Paper {
    Paper::with_tls("tcp", 4 << 20, tls)
}

fn mutual() -> ConnectionTls {
    ConnectionTls::Mtls { names: ["client.example.com".to_owned()].into() }
}

#[test]
fn nfs3_is_refused_in_clear_also_with_a_handle_from_tls() {
    let server = server();
    let clear = Rig::calling(&server);
    let over = |tls| Rig { paper: paper(tls).into(), ..clear.clone() };
    let (tls, mtls) = (over(ConnectionTls::Tls), over(mutual()));
    // Linux's client calls MNT in clear.
    for name in ["/open", "/tls", "/mtls"] {
        let handle = clear.root_of(name);
        let status = |rig: &Rig| {
            let result = rig.call::<GetAttr>(GetAttrArgs3 { object: handle.clone() }).into_result();
            result.map(drop).map_err(|(status, ())| status)
        };
        let refused = Err(Nfsstat3::Acces);
        let expected = match name {
            "/open" => [Ok(()), Ok(()), Ok(())],
            "/tls" => [refused, Ok(()), Ok(())],
            _ => [refused, refused, Ok(())],
        };
        assert_eq!([&clear, &tls, &mtls].map(status), expected, "{name}");
    }
}

#[test]
fn connection_in_clear_cannot_use_an_export_by_a_session_of_tls() {
    let server = server();
    let mut client = Client4::stranger(&server, 1);
    client.paper = paper(ConnectionTls::Tls);
    client.introduce("a", channel());
    let secret = client.file("tls", "f", b"secret");
    let open = client.file("open", "f", b"public");
    assert_eq!(client.status([putfh(&secret), read(Stateid4::ANONYMOUS, 0, 10)]), Nfsstat4::Ok);

    // The same session, from another connection that is in clear and bound to the session.
    client.paper = paper(ConnectionTls::None).connection(rpc::ConnectionId(1));
    let bind = BindConnToSessionArgs {
        sessid: client.session,
        dir: ChannelDirFromClient4::ForeOrBoth,
        use_conn_in_rdma_mode: false,
    };
    let bound = client.alone(Argop4::BindConnToSession(bind));
    assert!(matches!(bound, Resop4::BindConnToSession(_)), "{bound:?}");
    for operation in [read(Stateid4::ANONYMOUS, 0, 10), getattr(&[]), write(Stateid4::ANONYMOUS, 0, b"x")] {
        assert_eq!(client.status([putfh(&secret), operation]), Nfsstat4::Access);
    }
    // The pseudo file system does not show an export to a caller that cannot use it.
    assert_eq!(client.status(at("tls")), Nfsstat4::NoEnt);
    assert_eq!(client.status([putfh(&open), read(Stateid4::ANONYMOUS, 0, 10)]), Nfsstat4::Ok);
    client.paper = paper(mutual()).connection(rpc::ConnectionId(2));
    assert_eq!(client.status([putfh(&secret), read(Stateid4::ANONYMOUS, 0, 10)]), Nfsstat4::Ok);
}

#[test]
fn cached_reply_is_not_sent_to_a_connection_in_clear() {
    let server = server();
    let mut client = Client4::stranger(&server, 1);
    client.paper = paper(ConnectionTls::Tls);
    client.introduce("a", channel());
    let secret = client.file("tls", "f", b"secret");
    client.cachethis = true;
    let request = || [putfh(&secret), read(Stateid4::ANONYMOUS, 0, 10)];
    let first = client.call(request());
    assert_eq!(first.0, Nfsstat4::Ok);
    client.sequence -= 1;
    assert_eq!(client.call(request()), first, "a retry over TLS must get the cached reply");
    client.paper = paper(ConnectionTls::None).connection(rpc::ConnectionId(1));
    let mut all = vec![client.sequence_op(0, client.sequence)];
    all.extend(request());
    assert_eq!(client.compound(all).status, Nfsstat4::SeqFalseRetry);
}

#[test]
fn caller_in_clear_gets_no_callbacks_of_a_client_of_tls_and_does_not_replace_it() {
    let server = server();
    let mut client = Client4::stranger(&server, 1);
    client.paper = paper(ConnectionTls::Tls);
    client.introduce("a", channel());
    let bind = |dir| {
        let sessid = client.session;
        Argop4::BindConnToSession(BindConnToSessionArgs { sessid, dir, use_conn_in_rdma_mode: false })
    };
    let [back, fore] = [ChannelDirFromClient4::BackOrBoth, ChannelDirFromClient4::ForeOrBoth].map(bind);
    let restarted = Argop4::ExchangeId(Box::new(ExchangeIdArgs {
        clientowner: ClientOwner4 { verifier: [99; 8], ownerid: "a".into() },
        flags: 0,
        state_protect: StateProtect4A::None,
        client_impl_id: None,
    }));
    client.paper = paper(ConnectionTls::None).connection(rpc::ConnectionId(1));
    let refused = client.alone(back.clone());
    assert!(matches!(refused, Resop4::BindConnToSession(Res4::Fail(Nfsstat4::Inval))), "{refused:?}");
    let bound = client.alone(fore);
    let Resop4::BindConnToSession(Res4::Ok(bound)) = bound else { panic!("{bound:?}") };
    assert_eq!(bound.dir, ChannelDirFromServer4::Fore);
    let refused = client.alone(restarted.clone());
    assert!(matches!(refused, Resop4::ExchangeId(Res4::Fail(Nfsstat4::ClidInuse))), "{refused:?}");
    client.paper = paper(ConnectionTls::Tls).connection(rpc::ConnectionId(2));
    let bound = client.alone(back);
    assert!(matches!(bound, Resop4::BindConnToSession(Res4::Ok(_))), "{bound:?}");
    let restarted = client.alone(restarted);
    assert!(matches!(restarted, Resop4::ExchangeId(Res4::Ok(_))), "{restarted:?}");
}
