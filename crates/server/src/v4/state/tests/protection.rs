//! Clients that use TLS, and callers with a weaker protection that know their names or sessions.

use super::{
    super::{
        back_slots::BackOutcome,
        transitions::back::{CallbackSubject, NoPath},
    },
    v40::introduce,
    *,
};

fn connection(id: u64, tls: Xprtsec) -> Connection {
    Connection { id: ConnectionId(id), duplex: true, tls }
}

/// Returns the caller with the client's principal over such a connection.
fn caller(tls: Xprtsec) -> Origin<'static> {
    Origin { tls, ..local() }
}

#[test]
fn callbacks_use_only_the_strongest_protection_that_a_session_has_had() {
    use ChannelDirFromClient4::{Back, BackOrBoth, ForeOrBoth};
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let tls = connection(1, Xprtsec::Tls);
    let session = world.state.create_session(world.now, &create(id, 1), &OWNER, tls).unwrap().sessionid;
    let back = |world: &World| world.state.session(session).unwrap().backchannel().collect::<Vec<_>>();
    let mut bound = |id, tls, dir| {
        let bound = world.state.bind_conn_to_session(&bind(session, dir), &OWNER, connection(id, tls));
        bound.map(|ok| ok.dir)
    };
    assert_eq!(bound(2, Xprtsec::None, Back), Err(Nfsstat4::Inval));
    assert_eq!(bound(2, Xprtsec::None, BackOrBoth), Err(Nfsstat4::Inval));
    assert_eq!(bound(2, Xprtsec::None, ForeOrBoth), Ok(ChannelDirFromServer4::Fore));
    assert_eq!(bound(3, Xprtsec::Tls, BackOrBoth), Ok(ChannelDirFromServer4::Both));
    assert_eq!(back(&world), [ConnectionId(1), ConnectionId(3)]);
    assert_eq!(world.state.callback_connections(session), back(&world));
    world.state.disconnect(ConnectionId(1));
    world.state.disconnect(ConnectionId(3));
    let dir = bind(session, Back);
    let late = world.state.bind_conn_to_session(&dir, &OWNER, connection(4, Xprtsec::None));
    assert_eq!(late.unwrap_err(), Nfsstat4::Inval, "the protection of a lost connection must still count");
}

#[test]
fn backchannel_in_clear_is_not_used_after_a_connection_with_tls_was_bound() {
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    assert_eq!(world.call(session, 1, 1).status_flags, 0);
    let args = bind(session, ChannelDirFromClient4::Fore);
    world.state.bind_conn_to_session(&args, &OWNER, connection(2, Xprtsec::Tls)).unwrap();
    assert_eq!(world.state.session(session).unwrap().backchannel().count(), 0);
    let down = SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION;
    assert_eq!(world.call(session, 2, 1).status_flags, down, "the client must learn that it has no backchannel");
    let both = bind(session, ChannelDirFromClient4::BackOrBoth);
    let again = world.state.bind_conn_to_session(&both, &OWNER, connection(3, Xprtsec::Tls)).unwrap();
    assert_eq!(again.dir, ChannelDirFromServer4::Both);
    let old = world.state.bind_conn_to_session(&both, &OWNER, TCP);
    assert_eq!(old.unwrap_err(), Nfsstat4::Inval);
}

#[test]
fn callbacks_about_a_client_use_only_sessions_with_its_strongest_protection() {
    let mut world = World::new();
    let (id, clear) = world.client("a", 1);
    let called_over = |world: &mut World| {
        let call = world.state.begin_callback(id, &CallbackSubject::default())?;
        world.state.end_callback(call.session, &call.ticket, BackOutcome::NotBegun);
        Ok(call.session)
    };
    assert_eq!(called_over(&mut world), Ok(clear));
    let tls =
        world.state.create_session(world.now, &create(id, 2), &OWNER, connection(2, Xprtsec::Tls)).unwrap().sessionid;
    assert_eq!(called_over(&mut world), Ok(tls), "a recall in clear would show what was granted over TLS");
    world.state.disconnect(ConnectionId(2));
    assert_eq!(called_over(&mut world), Err(NoPath::Down));
    assert!(!world.state.can_be_called(id));
    let flags = world.call(tls, 1, 2).status_flags;
    assert_ne!(flags & SEQ4_STATUS_CB_PATH_DOWN, 0, "the client must learn that it cannot be called");
    world.state.destroy_session(tls, false, &OWNER, ConnectionId(2)).unwrap();
    assert_eq!(called_over(&mut world), Err(NoPath::Down), "what was granted over TLS remains");
}

#[test]
fn weaker_caller_gets_no_session_with_callbacks_and_no_session_of_tls() {
    let mut world = World::new();
    let tls = |id| connection(id, Xprtsec::Tls);
    let clear = connection(9, Xprtsec::None);
    let introduced = |world: &mut World| {
        world.state.exchange_id(world.now, 1, &exchange("a", 1, 0), caller(Xprtsec::Tls)).unwrap().clientid
    };
    let id = introduced(&mut world);
    let create_over =
        |world: &mut World, sequence, over| world.state.create_session(world.now, &create(id, sequence), &OWNER, over);
    assert_eq!(create_over(&mut world, 1, clear), Err(Nfsstat4::ClidInuse), "it must not confirm the client");
    let own = create_over(&mut world, 1, tls(1)).unwrap();
    assert_eq!(
        create_over(&mut world, 1, clear),
        Err(Nfsstat4::SeqMisordered),
        "it must not learn the ID of the session"
    );
    assert_eq!(create_over(&mut world, 1, tls(2)), Ok(own.clone()), "a retry");
    let weaker = create_over(&mut world, 2, clear).unwrap();
    assert_eq!(weaker.flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN, 0);
    world.state.disconnect(ConnectionId(1));
    assert!(!world.state.can_be_called(id), "the callbacks of the client must not go to the other caller");
}

#[test]
fn client_of_tls_is_not_replaced_by_a_weaker_caller() {
    use Xprtsec::{Mtls, None, Tls};
    for (own, weaker) in [(Tls, None), (Mtls, None), (Mtls, Tls)] {
        let mut world = World::new();
        let mut exchange_over = |tls, incarnation, now| {
            world.state.exchange_id(now, 1, &exchange("a", incarnation, 0), caller(tls)).map(|ok| ok.clientid)
        };
        let (start, late) = (world.now, world.now + LEASE + Duration::from_secs(1));
        let unconfirmed = exchange_over(own, 1, start).unwrap();
        assert_eq!(exchange_over(weaker, 2, start), Err(Nfsstat4::ClidInuse), "an unconfirmed client");
        assert_ne!(exchange_over(own, 1, start), Ok(unconfirmed), "the client itself may replace it");
        let id = exchange_over(own, 1, start).unwrap();
        let session = world.state.create_session(start, &create(id, 1), &OWNER, connection(1, own)).unwrap();
        let mut exchange_over = |tls, incarnation, now| {
            world.state.exchange_id(now, 1, &exchange("a", incarnation, 0), caller(tls)).map(|ok| ok.clientid)
        };
        assert_eq!(exchange_over(weaker, 2, start), Err(Nfsstat4::ClidInuse));
        assert_eq!(exchange_over(weaker, 1, start), Ok(id), "the same incarnation replaces nothing");
        let set = set_clientid("a", 2);
        let replaced = world.state.set_clientid(start, &set, caller(weaker));
        assert_eq!(replaced.unwrap_err(), Nfsstat4::ClidInuse);
        world.call(session.sessionid, 1, 1);
        // The lease has expired, so the client may have returned with another configuration.
        let again = world.state.exchange_id(late, 1, &exchange("a", 3, 0), caller(weaker)).unwrap().clientid;
        assert_ne!(again, id);
        let stronger = world.state.exchange_id(late, 1, &exchange("a", 4, 0), caller(own)).unwrap().clientid;
        assert_ne!(stronger, again);
    }
}

/// RPCSEC_GSS proves the principal, so its client may return without TLS.
#[test]
fn principal_of_rpcsec_gss_replaces_its_client_without_tls() {
    let [own, other] = [b"host/a", b"host/b"].map(|name| Principal::Gss(Bytes::from_static(name)));
    let mut world = World::new();
    let mut exchange_by = |principal: &Principal, incarnation, tls| {
        let origin = Origin { principal, tls, ..local() };
        world.state.exchange_id(world.now, 1, &exchange("a", incarnation, 0), origin).map(|ok| ok.clientid)
    };
    let first = exchange_by(&own, 1, Xprtsec::Tls).unwrap();
    assert_eq!(exchange_by(&other, 2, Xprtsec::None), Err(Nfsstat4::ClidInuse));
    assert_ne!(exchange_by(&own, 2, Xprtsec::None).unwrap(), first);
}

#[test]
fn client_of_tls_in_nfs40_is_not_replaced_by_a_weaker_caller() {
    let mut world = World::new();
    world.tls = Xprtsec::Tls;
    let id = introduce(&mut world, "a");
    let set = |world: &mut World, incarnation, tls| {
        world.state.set_clientid(world.now, &set_clientid("a", incarnation), caller(tls)).map(|ok| ok.clientid)
    };
    assert_eq!(set(&mut world, 2, Xprtsec::None), Err(Nfsstat4::ClidInuse));
    assert_eq!(set(&mut world, 1, Xprtsec::None), Err(Nfsstat4::ClidInuse), "it must not learn the ID of the client");
    let args = set_clientid("a", 1);
    let SetClientIdOk { clientid, setclientid_confirm } =
        world.state.set_clientid(world.now, &args, caller(Xprtsec::Tls)).unwrap();
    assert_eq!(clientid, id);
    let confirm = SetClientIdConfirmArgs { clientid, setclientid_confirm };
    for (tls, expected) in [(Xprtsec::None, Err(Nfsstat4::ClidInuse)), (Xprtsec::Tls, Ok(()))] {
        assert_eq!(world.state.set_clientid_confirm(world.now, &confirm, (&OWNER, tls)), expected);
    }
    assert_ne!(set(&mut world, 2, Xprtsec::Tls).unwrap(), id);
    world.now += LEASE + Duration::from_secs(1);
    assert_ne!(
        set(&mut world, 1, Xprtsec::None).unwrap(),
        id,
        "the client may have returned with another configuration"
    );
}

fn set_clientid(name: &str, incarnation: u8) -> SetClientIdArgs {
    SetClientIdArgs {
        client: NfsClientId4 { verifier: [incarnation; 8], id: name.into() },
        callback: CbClient4 { cb_program: 0x4000_0000, cb_location: Netaddr4::default() },
        callback_ident: 1,
    }
}
