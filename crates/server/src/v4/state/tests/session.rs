//! The cases of RFC 8881 §18.33–18.37, §18.46, §18.50 and §18.51.

use super::{
    super::{
        back_slots::BackOutcome,
        owner::Caller,
        transitions::{
            back::{CallbackSubject, NoPath},
            evict::Evicted,
            v40::{Entered, Subject},
        },
    },
    *,
};

#[test]
fn case_1_new_owner_gets_an_unconfirmed_record() {
    let mut world = World::new();
    let first = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap();
    let second = world.exchange(&exchange("b", 1, 0), &OWNER).unwrap();
    assert_ne!(first.clientid, second.clientid);
    //= rfc8881-18.35.3-13
    assert_eq!(first.flags, EXCHGID4_FLAG_USE_NON_PNFS);
    assert_eq!(first.server_owner.major_id, "server".into());
    assert!(!world.state.clients().find(first.clientid).unwrap().confirmed);
}

#[test]
fn case_2_retry_and_trunking_get_the_confirmed_record() {
    let mut world = World::new();
    let (id, session) = world.client("a", 1);
    let again = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap();
    //= rfc8881-18.35.3-9 rfc8881-18.35.3-10
    assert_eq!((again.clientid, again.flags & EXCHGID4_FLAG_CONFIRMED_R), (id, EXCHGID4_FLAG_CONFIRMED_R));
    //= rfc8881-2.4.3-5
    assert!(world.state.session(session).is_some());
    assert_eq!(world.events(), [Event::Confirmed(id)]);
    let third = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap();
    //= rfc8881-2.10.5-6
    assert_eq!((third.clientid, third.server_owner, third.server_scope), (id, again.server_owner, again.server_scope));
    // An unconfirmed restart is removed.
    let restarted = world.exchange(&exchange("a", 2, 0), &OWNER).unwrap().clientid;
    assert_eq!(world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid, id);
    assert_eq!(world.create(&create(restarted, 1)), Err(Nfsstat4::StaleClientid));
}

#[test]
fn case_3_collision_fails_while_the_other_client_has_state_and_a_lease() {
    let mut world = World::new();
    let (id, session) = world.client("a", 1);
    assert_eq!(world.exchange(&exchange("a", 1, 0), &OTHER), Err(Nfsstat4::ClidInuse));
    //= rfc8881-2.4.3-4
    assert_eq!(world.exchange(&exchange("a", 9, 0), &OTHER), Err(Nfsstat4::ClidInuse));
    assert!(world.state.session(session).is_some());
    world.events();
    world.now += LEASE + Duration::from_secs(1);
    //= rfc8881-2.4.3-1
    let new = world.exchange(&exchange("a", 1, 0), &OTHER).unwrap();
    assert_ne!(new.clientid, id);
    assert!(world.state.session(session).is_none() && world.state.clients().find(id).is_none());
    assert_eq!(world.events(), [Event::Removed(id)]);
}

#[test]
fn case_3_collision_replaces_a_client_without_state() {
    let mut world = World::new();
    let (id, session) = world.ready("a");
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    let open = world.open(id, "o", 1, 0).unwrap();
    assert_eq!(world.exchange(&exchange("a", 1, 0), &OTHER), Err(Nfsstat4::ClidInuse), "an open is state");
    world.state.close(&mut world.locks, id, &'f', &open).unwrap();
    assert_ne!(world.exchange(&exchange("a", 1, 0), &OTHER).unwrap().clientid, id);
}

#[test]
fn case_4_unconfirmed_record_is_replaced() {
    let mut world = World::new();
    let first = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    for (verifier, principal) in [(1, OWNER), (2, OWNER), (1, OTHER)] {
        let next = world.exchange(&exchange("a", verifier, 0), &principal).unwrap().clientid;
        assert_ne!(next, first);
        assert_eq!(world.create(&create(first, 1)), Err(Nfsstat4::StaleClientid));
        assert_eq!(world.state.clients().len(), 1);
    }
}

#[test]
fn case_5_restarted_client_loses_its_state_at_confirmation() {
    let mut world = World::new();
    let (old, session) = world.client("a", 1);
    let new = world.exchange(&exchange("a", 2, 0), &OWNER).unwrap();
    assert_eq!(new.flags & EXCHGID4_FLAG_CONFIRMED_R, 0);
    world.call(session, 1, 1);
    world.events();
    world.create(&create(new.clientid, 1)).unwrap();
    //= rfc8881-18.35.3-3
    assert!(world.state.session(session).is_none() && world.state.clients().find(old).is_none());
    assert_eq!(world.events(), [Event::Removed(old), Event::Confirmed(new.clientid)]);
    let again = world.exchange(&exchange("a", 2, 0), &OWNER).unwrap();
    assert_eq!(again.clientid, new.clientid);
}

#[test]
fn case_5_failed_confirmation_changes_nothing() {
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    let new = world.exchange(&exchange("a", 2, 0), &OWNER).unwrap().clientid;
    let mut args = create(new, 1);
    args.fore_chan_attrs.maxrequestsize = 8;
    assert_eq!(world.create(&args), Err(Nfsstat4::TooSmall));
    assert!(world.state.session(session).is_some());
    assert!(!world.state.clients().find(new).unwrap().confirmed);
    assert_eq!(world.create(&args), Err(Nfsstat4::TooSmall), "a retry gets the same error");
    assert!(world.create(&create(new, 2)).is_ok());
}

#[test]
fn sequence_id_of_a_rejected_create_session_can_be_reused() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let mut small = create(id, 1);
    small.back_chan_attrs.maxoperations = 1;
    let mut empty = create(id, 1);
    empty.fore_chan_attrs.maxrequests = 0;
    for _ in 0..2 {
        assert_eq!(world.create(&small), Err(Nfsstat4::TooSmall));
        assert_eq!(world.create(&empty), Err(Nfsstat4::Inval));
    }
    assert_eq!(world.create(&create(id, 3)), Err(Nfsstat4::SeqMisordered));
    let made = world.create(&create(id, 1)).unwrap();
    assert_eq!(world.create(&small), Ok(made), "the session is created once");
    assert!(world.create(&create(id, 2)).is_ok());
}

#[test]
fn cases_6_to_9_only_its_own_client_updates_a_confirmed_record() {
    let mut world = World::new();
    let update = |verifier| exchange("a", verifier, EXCHGID4_FLAG_UPD_CONFIRMED_REC_A);
    assert_eq!(world.exchange(&update(1), &OWNER), Err(Nfsstat4::NoEnt));
    let unconfirmed = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    assert_eq!(world.exchange(&update(1), &OWNER), Err(Nfsstat4::NoEnt));
    //= rfc8881-18.35.3-8
    world.create(&create(unconfirmed, 1)).expect("the unconfirmed record must be intact");
    let implementation = NfsImplId4 { domain: "d".into(), name: "n".into(), date: Nfstime4::default() };
    let args = ExchangeIdArgs { client_impl_id: Some(implementation.clone()), ..update(1) };
    let updated = world.exchange(&args, &OWNER).unwrap();
    assert_eq!((updated.clientid, updated.flags & EXCHGID4_FLAG_CONFIRMED_R), (unconfirmed, EXCHGID4_FLAG_CONFIRMED_R));
    assert_eq!(world.state.clients().find(unconfirmed).unwrap().implementation, Some(implementation));
    assert_eq!(world.exchange(&update(2), &OWNER), Err(Nfsstat4::NotSame));
    assert_eq!(world.exchange(&update(2), &OTHER), Err(Nfsstat4::NotSame));
    assert_eq!(world.exchange(&update(1), &OTHER), Err(Nfsstat4::Perm));
}

#[test]
fn undefined_flags_are_rejected() {
    let mut world = World::new();
    for flags in [EXCHGID4_FLAG_CONFIRMED_R, 0x8, EXCHGID4_FLAG_SUPP_FENCE_OPS] {
        assert_eq!(world.exchange(&exchange("a", 1, flags), &OWNER), Err(Nfsstat4::Inval), "{flags:#x}");
    }
    let fence = exchange("a", 1, EXCHGID4_FLAG_SUPP_FENCE_OPS);
    assert!(world.state.exchange_id(world.now, 2, &fence, local()).is_ok(), "4.2 defines this flag");
}

#[test]
fn state_protection_requires_rpcsec_gss() {
    let mut world = World::new();
    let gss = Principal::Gss(Bytes::from_static(b"host@REALM"));
    let all = Opnum4::ALL.iter().map(|&opnum| opnum as u32).collect::<Bitmap4>();
    let ops = StateProtectOps4 { must_enforce: all.clone(), must_allow: all };
    let args = |state_protect| ExchangeIdArgs { state_protect, ..exchange("a", 1, 0) };
    assert_eq!(world.exchange(&args(StateProtect4A::MachCred(ops.clone())), &OWNER), Err(Nfsstat4::Inval));
    let ssv = SsvSpParms4 {
        ops: ops.clone(),
        hash_algs: Default::default(),
        encr_algs: Default::default(),
        window: 1,
        num_gss_handles: 0,
    };
    assert_eq!(world.exchange(&args(StateProtect4A::Ssv(ssv)), &gss), Err(Nfsstat4::EncrAlgUnsupp));
    let made = world.exchange(&args(StateProtect4A::MachCred(ops.clone())), &gss).unwrap();
    let StateProtect4R::MachCred(granted) = made.state_protect else { panic!("{made:?}") };
    assert!(granted.must_enforce.contains(Opnum4::DestroySession as u32));
    assert!(!granted.must_enforce.contains(Opnum4::Read as u32));

    let session = world.state.create_session(world.now, &create(made.clientid, 1), &gss, TCP).unwrap().sessionid;
    assert_eq!(world.sequence(session, 1, 2).unwrap_err(), Nfsstat4::ConnNotBoundToSession);
    let other = Connection { id: ConnectionId(2), duplex: true, tls: Xprtsec::None };
    let args = bind(session, ChannelDirFromClient4::Fore);
    assert_eq!(world.state.bind_conn_to_session(&args, &OWNER, other), Err(Nfsstat4::WrongCred));
    world.state.bind_conn_to_session(&args, &gss, other).unwrap();
    world.call(session, 1, 2);
    assert_eq!(world.state.destroy_session(session, false, &OWNER, TCP.id), Err(Nfsstat4::WrongCred));
    assert_eq!(world.state.check_integrity(made.clientid, false), Err(Nfsstat4::WrongCred));
    assert_eq!(world.state.check_integrity(made.clientid, true), Ok(()));
    // Kerberos without integrity: a retry, a restart, an update, and NFSv4.0.
    let origin = Origin {
        principal: &gss,
        has_integrity: false,
        callback_flavor: None,
        peer: world.peer,
        admitted: true,
        tls: Xprtsec::None,
    };
    let again = |flags, verifier| ExchangeIdArgs {
        state_protect: StateProtect4A::MachCred(ops.clone()),
        ..exchange("a", verifier, flags)
    };
    for (flags, verifier, refused) in [
        (0, 1, Nfsstat4::ClidInuse),
        (0, 2, Nfsstat4::ClidInuse),
        (EXCHGID4_FLAG_UPD_CONFIRMED_REC_A, 1, Nfsstat4::Perm),
    ] {
        let args = again(flags, verifier);
        assert_eq!(world.state.exchange_id(world.now, 1, &args, origin), Err(refused), "{flags:#x} {verifier}");
        let plain = ExchangeIdArgs { state_protect: StateProtect4A::None, ..args };
        assert_eq!(world.state.exchange_id(world.now, 1, &plain, origin), Err(refused), "{flags:#x} {verifier}");
    }
    assert_eq!(world.exchange(&again(0, 1), &gss).unwrap().clientid, made.clientid);
    world.state.destroy_session(session, false, &gss, TCP.id).unwrap();
    let destroyed = world.state.destroy_clientid(world.now, made.clientid, None, &OWNER);
    assert_eq!(destroyed, Err(Nfsstat4::WrongCred));
    let (open, _) = world.client("b", 1);
    assert_eq!(world.state.check_integrity(open, false), Ok(()), "a client without state protection");
}

#[test]
fn create_session_is_executed_once() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    assert_eq!(world.create(&create(Clientid4(id.0 + 1), 1)), Err(Nfsstat4::StaleClientid));
    for sequence in [0, 2, 3, u32::MAX] {
        assert_eq!(world.create(&create(id, sequence)), Err(Nfsstat4::SeqMisordered), "{sequence}");
    }
    let first = world.create(&create(id, 1)).unwrap();
    //= rfc8881-18.36.4-1 rfc8881-18.36.3-3
    assert_eq!(world.create(&create(id, 1)), Ok(first.clone()));
    assert_eq!(world.state.sessions_of(id).map(|session| session.id).collect::<Vec<_>>(), [first.sessionid]);
    let second = world.create(&create(id, 2)).unwrap();
    assert_ne!(second.sessionid, first.sessionid);
    //= rfc8881-18.36.4-2 rfc8881-18.36.4-3
    assert_eq!(world.create(&create(id, 1)), Err(Nfsstat4::SeqMisordered));
    assert_eq!(world.events(), [Event::Confirmed(id)]);
}

#[test]
fn another_principal_cannot_confirm_a_client() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    for sequence in [0, 1, 2] {
        let stolen = world.state.create_session(world.now, &create(id, sequence), &OTHER, TCP);
        assert_eq!(stolen, Err(Nfsstat4::ClidInuse), "{sequence}");
    }
    world.create(&create(id, 1)).unwrap();
}

/// RFC 8881 §18.36.4 compares the principal only in phase 3, which is skipped for a confirmed client ID.
#[test]
fn another_principal_can_create_a_session_of_a_confirmed_client() {
    let mut world = World::new();
    let (id, own) = world.client("a", 1);
    let by_other = |world: &mut World, sequence| {
        let connection = Connection { id: ConnectionId(66), duplex: true, tls: Xprtsec::None };
        world.state.create_session(world.now, &create(id, sequence), &OTHER, connection)
    };
    assert_eq!(by_other(&mut world, 1).unwrap().sessionid, own, "a retry returns the cached result");
    world.state.note_callback(id, true);
    let made = by_other(&mut world, 2).unwrap();
    assert_eq!(by_other(&mut world, 2), Ok(made.clone()), "a retry");
    assert!(!world.state.can_be_called(id), "a session of another principal must not clear the callback failure");
    world.state.note_callback(id, false);
    assert_eq!(made.flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN, 0, "only the owner gets callbacks");
    let call = world.state.begin_callback(id, &CallbackSubject::default()).unwrap();
    assert_eq!(call.session, own);
    let about = CallbackSubject { session: Some(made.sessionid), ..CallbackSubject::default() };
    assert!(matches!(world.state.begin_callback(id, &about), Err(NoPath::Down)));
    world.state.end_callback(own, &call.ticket, BackOutcome::NotBegun);
    // The owner gets an error and not the other principal's session.
    assert_eq!(world.create(&create(id, 2)), Err(Nfsstat4::SeqMisordered));
    assert_eq!(by_other(&mut world, 3), Err(Nfsstat4::NoSpc), "other principals get one of three sessions");
    world.create(&create(id, 4)).unwrap();
    assert_eq!(world.create(&create(id, 5)), Err(Nfsstat4::NoSpc));
}

#[test]
fn channel_attributes_are_lowered_and_never_raised() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let made = world.create(&create(id, 1)).unwrap();
    let expected = ChannelAttrs4 {
        headerpadsize: 0,
        maxrequestsize: 256 << 10,
        maxresponsesize: 256 << 10,
        maxresponsesize_cached: 4 << 10,
        maxoperations: 16,
        maxrequests: 8,
        rdma_ird: None,
    };
    //= rfc8881-18.36.3-4 rfc8881-18.36.3-9 rfc8881-18.36.3-10 rfc8881-18.36.3-11 rfc8881-18.36.3-12 rfc8881-18.36.3-16
    assert_eq!(made.fore_chan_attrs, expected);
    // §18.36.3: the server must not change these attributes of the backchannel.
    //= rfc8881-18.36.3-13 rfc8881-18.36.3-15
    assert_eq!((made.back_chan_attrs.maxoperations, made.back_chan_attrs.maxrequests), (2, 1));
    assert_eq!(made.flags, CREATE_SESSION4_FLAG_CONN_BACK_CHAN);

    let mut sequence = 1;
    let mut refused = |change: fn(&mut CreateSessionArgs)| {
        sequence += 1;
        let mut args = create(id, sequence);
        change(&mut args);
        world.create(&args).unwrap_err()
    };
    assert_eq!(refused(|args| args.fore_chan_attrs.maxrequests = 0), Nfsstat4::Inval);
    assert_eq!(refused(|args| args.fore_chan_attrs.maxoperations = 0), Nfsstat4::Inval);
    // The least sizes are those of SEQUENCE and its result.
    assert_eq!(refused(|args| args.fore_chan_attrs.maxrequestsize = 87), Nfsstat4::TooSmall);
    assert_eq!(refused(|args| args.fore_chan_attrs.maxresponsesize = 79), Nfsstat4::TooSmall);
    assert_eq!(refused(|args| args.back_chan_attrs.maxoperations = 1), Nfsstat4::TooSmall);
    assert_eq!(refused(|args| args.flags = 0x10), Nfsstat4::Inval);
    let id = world.exchange(&exchange("b", 1, 0), &OWNER).unwrap().clientid;
    let mut least = create(id, 1);
    (least.fore_chan_attrs.maxrequestsize, least.fore_chan_attrs.maxresponsesize) = (88, 80);
    assert!(world.create(&least).is_ok());
}

#[test]
fn other_principals_get_at_most_half_of_the_sessions() {
    let mut world = World::with(|options| options.client_sessions_max = 4);
    let (id, _) = world.client("a", 1);
    let by_other = |world: &mut World, sequence| {
        let connection = Connection { id: ConnectionId(66), ..TCP };
        world.state.create_session(world.now, &create(id, sequence), &OTHER, connection).map(drop)
    };
    world.state.note_callback(id, false);
    let made: Vec<_> = (2..=4).map(|sequence| by_other(&mut world, sequence)).collect();
    assert_eq!(made, [Ok(()), Ok(()), Err(Nfsstat4::NoSpc)]);
    assert!(world.state.can_be_called(id), "their sessions do not affect the callbacks");
    world.state.note_callback(id, true);
    world.create(&create(id, 5)).unwrap();
    assert!(world.state.can_be_called(id), "the owner has a new session for callbacks");
}

#[test]
fn session_flags_report_what_was_granted() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let persist = CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_RDMA;
    assert_eq!(world.create(&CreateSessionArgs { flags: persist, ..create(id, 1) }).unwrap().flags, 0);
    //= rfc8881-18.36.3-5 rfc8881-18.36.3-7
    let simplex = Connection { id: ConnectionId(5), duplex: false, tls: Xprtsec::None };
    let made = world.state.create_session(world.now, &create(id, 2), &OWNER, simplex).unwrap();
    assert_eq!(made.flags, 0, "the connection cannot carry callbacks");
}

/// Decoded values refer to the buffer of their message. State must not keep such buffers.
#[test]
fn state_does_not_keep_message_buffers() {
    let mut world = World::new();
    let message = Bytes::from(vec![b'n'; 1 << 16]);
    let name = || message.slice(100..108);
    let client = {
        let mut args = exchange("", 1, 0);
        args.clientowner.ownerid = name().into();
        let date = Nfstime4::default();
        args.client_impl_id = Some(NfsImplId4 { domain: name().into(), name: name().into(), date });
        let client = world.exchange(&args, &OWNER).unwrap().clientid;
        let handle = || name().into();
        let gss = CallbackSecParms4::RpcsecGss(GssCbHandles4 {
            service: RpcGssSvc::None,
            handle_from_server: handle(),
            handle_from_client: handle(),
        });
        let sys = AuthsysParms { machinename: name().into(), ..Default::default() };
        let sec_parms = xdr::Array(vec![gss, CallbackSecParms4::Sys(sys)]);
        world.create(&CreateSessionArgs { sec_parms, ..create(client, 1) }).unwrap();
        world.state.reclaim_complete(client, &ReclaimCompleteArgs { one_fs: false }).unwrap();
        client
    };
    let open_stateid = world.open_by(OpenRequest { access: 3, ..opening(client, name()) }).unwrap().stateid;
    let lock_owner = StateOwner4 { clientid: client, owner: name().into() };
    let (open_seqid, lock_seqid) = (Seqid4(0), Seqid4(0));
    let locker = Locker4::New { open_seqid, open_stateid, lock_seqid, lock_owner: lock_owner.clone() };
    let lock = LockArgs { locktype: NfsLockType4::Write, reclaim: false, offset: 0, length: 1, locker };
    world.state.lock(&mut world.locks, client, &'f', &lock, world.now).unwrap();
    let old = {
        let args = SetClientIdArgs {
            client: NfsClientId4 { verifier: [1; 8], id: message.slice(0..9).into() },
            callback: CbClient4 { cb_program: 1, cb_location: Netaddr4 { netid: name().into(), addr: name().into() } },
            callback_ident: 1,
        };
        let made = world.state.set_clientid(world.now, &args, local()).unwrap();
        let SetClientIdOk { clientid, setclientid_confirm } = made;
        let args = SetClientIdConfirmArgs { clientid, setclientid_confirm };
        world.state.set_clientid_confirm(world.now, &args, (&OWNER, Xprtsec::None)).unwrap();
        clientid
    };
    let caller = Caller { principal: OWNER, sec: None, tls: Xprtsec::None };
    let opener = StateOwner4 { clientid: old, owner: name().into() };
    let entered = world.state.enter(&mut world.locks, world.now, Subject::OpenOwner(&opener, Seqid4(1)), &caller);
    assert!(matches!(entered, Ok(Entered::Sequenced(_))));
    drop((lock_owner, lock, opener, entered));
    assert!(message.try_into_mut().is_ok(), "nothing must refer to the message");
}

#[test]
fn sequence_renews_the_lease_and_reports_slots() {
    let mut world = World::new();
    let (id, session) = world.client("a", 1);
    world.now += LEASE;
    let result = world.call(session, 1, 1);
    assert_eq!((result.highest_slotid, result.target_highest_slotid), (Slotid4(7), Slotid4(7)));
    assert_eq!(result.status_flags, 0);
    world.now += LEASE;
    //= rfc8881-18.46.3-13 rfc8881-8.3-1
    assert!(!world.state.clients().is_expired(id, world.now));
    assert!(matches!(world.sequence(session, 1, 1).unwrap().begun, Begun::Replay("reply")));
    world
        .state
        .clients()
        .find(client_of(&session))
        .unwrap()
        .shard
        .close()
        .slots(session)
        .unwrap()
        .set_target(Slotid4(2));
    assert_eq!(world.call(session, 2, 1).target_highest_slotid, Slotid4(2));
    world.now += LEASE + Duration::from_secs(1);
    assert!(world.state.clients().is_expired(id, world.now));
}

#[test]
fn retry_may_arrive_on_any_connection() {
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    world.call(session, 1, 1);
    world.state.disconnect(TCP.id);
    //= rfc8881-2.10.3.1-1 rfc8881-2.10.5-1 rfc8881-2.10.5-2 rfc8881-2.10.5-4
    assert!(matches!(world.sequence(session, 1, 9).unwrap().begun, Begun::Replay("reply")));
    assert!(world.state.session(session).unwrap().is_bound(ConnectionId(9)));
}

#[test]
fn failed_sequence_changes_nothing() {
    let mut world = World::new();
    let (id, session) = world.client("a", 1);
    world.now += LEASE + Duration::from_secs(1);
    assert_eq!(world.sequence(Sessionid4([9; 16]), 1, 1).unwrap_err(), Nfsstat4::BadSession);
    assert_eq!(world.sequence(session, 2, 1).unwrap_err(), Nfsstat4::SeqMisordered);
    let args = SequenceArgs {
        sessionid: session,
        sequenceid: Sequenceid4(1),
        slotid: Slotid4(0),
        highest_slotid: Slotid4(0),
        cachethis: false,
    };
    let fingerprint = Fingerprint { principal: OWNER, checksum: 1 };
    let request = Request { args: &args, fingerprint, len: 1000, operations: 3 };
    let large = Request { len: (256 << 10) + 1, ..request.clone() };
    assert_eq!(world.state.sequence(world.now, large, TCP).unwrap_err(), Nfsstat4::ReqTooBig);
    let long = Request { operations: 17, ..request };
    assert_eq!(world.state.sequence(world.now, long, TCP).unwrap_err(), Nfsstat4::TooManyOps);
    //= rfc8881-18.46.3-12
    assert!(world.state.clients().is_expired(id, world.now), "the lease is not renewed");
    world.call(session, 1, 1);
}

#[test]
fn lost_backchannel_is_reported_until_another_is_bound() {
    let mut world = World::new();
    let (id, first) = world.client("a", 1);
    let second = world.create(&create(id, 2)).unwrap().sessionid;
    world.state.disconnect(TCP.id);
    let both = SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION;
    //= rfc8881-2.10.6.2-2 rfc8881-2.10.13.2.4-2 rfc8881-2.10.5-1 rfc8881-2.10.5-2 rfc8881-2.10.5-5
    assert_eq!(world.call(first, 1, 2).status_flags, both);
    let three = Connection { id: ConnectionId(3), duplex: true, tls: Xprtsec::None };
    world.state.bind_conn_to_session(&bind(second, ChannelDirFromClient4::Back), &OWNER, three).unwrap();
    assert_eq!(world.call(first, 2, 2).status_flags, SEQ4_STATUS_CB_PATH_DOWN_SESSION);
    // Only SEQUENCE bound this connection, so it may be bound to other channels.
    let two = Connection { id: ConnectionId(2), duplex: true, tls: Xprtsec::None };
    let bound = world.state.bind_conn_to_session(&bind(first, ChannelDirFromClient4::ForeOrBoth), &OWNER, two);
    assert_eq!(bound.unwrap().dir, ChannelDirFromServer4::Both);
    assert_eq!(world.call(first, 3, 2).status_flags, 0);
    assert_eq!(world.state.session(first).unwrap().backchannel().collect::<Vec<_>>(), [ConnectionId(2)]);
}

#[test]
fn client_without_callbacks_gets_no_callback_flags() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let made = world.create(&CreateSessionArgs { flags: 0, ..create(id, 1) }).unwrap();
    //= rfc8881-18.36.3-6
    assert_eq!(made.flags, 0);
    assert_eq!(world.call(made.sessionid, 1, 1).status_flags, 0);
}

#[test]
fn bind_conn_to_session_satisfies_the_request_or_fails() {
    use ChannelDirFromClient4::{Back, BackOrBoth, Fore, ForeOrBoth};
    use ChannelDirFromServer4 as Server;
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    let mut bound = |id, duplex, dir| {
        let connection = Connection { id: ConnectionId(id), duplex, tls: Xprtsec::None };
        world.state.bind_conn_to_session(&bind(session, dir), &OWNER, connection).map(|ok| ok.dir)
    };
    assert_eq!(bound(10, true, Fore), Ok(Server::Fore));
    assert_eq!(bound(11, true, Back), Ok(Server::Back));
    //= rfc8881-18.34.3-5 rfc8881-18.34.3-6 rfc8881-18.34.3-7 rfc8881-18.34.3-8
    assert_eq!(bound(12, true, ForeOrBoth), Ok(Server::Both));
    assert_eq!(bound(13, true, BackOrBoth), Ok(Server::Both));
    assert_eq!(bound(14, false, ForeOrBoth), Ok(Server::Fore));
    assert_eq!(bound(15, false, Back), Err(Nfsstat4::Inval));
    // §18.34.3: a repeated binding succeeds, a different one fails.
    assert_eq!(bound(10, true, Fore), Ok(Server::Fore));
    //= rfc8881-18.34.3-9 rfc8881-18.34.3-10
    assert_eq!(bound(10, true, ForeOrBoth), Ok(Server::Fore));
    assert_eq!(bound(10, true, Back), Err(Nfsstat4::Inval));
    assert_eq!(bound(11, true, Fore), Err(Nfsstat4::Inval));
    assert_eq!(bound(12, true, Fore), Err(Nfsstat4::Inval));
    assert_eq!(bound(12, true, BackOrBoth), Ok(Server::Both));
    let unknown = bind(Sessionid4([3; 16]), Fore);
    assert_eq!(world.state.bind_conn_to_session(&unknown, &OWNER, TCP), Err(Nfsstat4::BadSession));
}

#[test]
fn connections_of_a_session_are_bounded() {
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    for n in 1..=1000 {
        world.call(session, n, u64::from(n));
    }
    let session = world.state.session(session).unwrap();
    assert!(session.is_bound(ConnectionId(1000)) && !session.is_bound(ConnectionId(500)));
}

#[test]
fn destroy_session_needs_a_bound_connection_and_no_request_in_progress() {
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    assert_eq!(world.state.destroy_session(Sessionid4([3; 16]), false, &OWNER, TCP.id), Err(Nfsstat4::BadSession));
    let stranger = ConnectionId(77);
    let destroyed = world.state.destroy_session(session, false, &OWNER, stranger);
    //= rfc8881-18.37.3-1
    assert_eq!(destroyed, Err(Nfsstat4::ConnNotBoundToSession));
    let sequenced = world.sequence(session, 1, 1).unwrap();
    assert_eq!(world.state.destroy_session(session, false, &OWNER, TCP.id), Err(Nfsstat4::Delay));
    assert_eq!(world.state.destroy_session(session, true, &OWNER, TCP.id), Ok(()));
    let Begun::Execute(ticket) = sequenced.begun else { panic!("the request is new") };
    world.state.finish(world.now, session, ticket, "reply", false);
    assert_eq!(world.sequence(session, 1, 1).unwrap_err(), Nfsstat4::BadSession);
}

#[test]
fn destroy_clientid_needs_a_client_without_state() {
    let mut world = World::new();
    let (id, session) = world.ready("a");
    let (other, _) = world.client("b", 1);
    let destroy = |world: &mut World, id, own| world.state.destroy_clientid(world.now, id, own, &OWNER);
    assert_eq!(destroy(&mut world, Clientid4(5), None), Err(Nfsstat4::StaleClientid));
    assert_eq!(destroy(&mut world, id, None), Err(Nfsstat4::ClientidBusy), "it has a session");
    //= rfc8881-18.50.3-1
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    let open = world.open(id, "o", 1, 0).unwrap();
    assert_eq!(destroy(&mut world, id, Some(other)), Err(Nfsstat4::ClientidBusy), "it has an open");
    world.state.close(&mut world.locks, id, &'f', &open).unwrap();
    //= rfc8881-18.50.3-2
    assert_eq!(destroy(&mut world, id, Some(id)), Err(Nfsstat4::ClientidBusy));
    world.events();
    assert_eq!(destroy(&mut world, id, Some(other)), Ok(()));
    assert_eq!(world.events(), [Event::Removed(id)]);
    let unconfirmed = world.exchange(&exchange("c", 1, 0), &OWNER).unwrap().clientid;
    assert_eq!(destroy(&mut world, unconfirmed, None), Ok(()));
    assert_eq!(world.events(), [], "an unconfirmed client causes no event");
}

#[test]
fn reclaim_complete_succeeds_once() {
    let mut world = World::new();
    world.begin_grace(&["a", "x"], &[]);
    let (id, session) = world.client("a", 1);
    let (new, other) = world.client("b", 1);
    assert_eq!(world.call(session, 1, 1).status_flags, SEQ4_STATUS_RESTART_RECLAIM_NEEDED);
    assert_eq!(world.call(other, 1, 1).status_flags, 0, "it held no state before the restart");
    assert!(world.state.may_reclaim(id) && !world.state.may_reclaim(new));
    let one_fs = ReclaimCompleteArgs { one_fs: true };
    let all = ReclaimCompleteArgs { one_fs: false };
    assert_eq!(world.state.reclaim_complete(id, &one_fs), Ok(()));
    world.events();
    assert_eq!(world.state.reclaim_complete(id, &all), Ok(()));
    assert_eq!(world.state.reclaim_complete(id, &all), Err(Nfsstat4::CompleteAlready));
    assert_eq!(world.events(), [Event::ReclaimComplete(id)]);
    assert!(!world.state.may_reclaim(id) && !world.state.may_end_grace(), "client x has not returned");
    assert_eq!(world.call(session, 2, 1).status_flags, 0);
    let (x, _) = world.client("x", 1);
    world.state.reclaim_complete(x, &all).unwrap();
    assert!(world.state.may_end_grace());
    world.end_grace();
    assert!(!world.state.in_grace());
}

#[test]
fn expired_client_is_removed_unless_it_holds_state() {
    let mut world = World::new();
    let (idle, session) = world.client("a", 1);
    let (holder, kept) = world.ready("b");
    world.open(holder, "o", 1, 0).unwrap();
    world.exchange(&exchange("c", 1, 0), &OWNER).unwrap();
    world.events();
    world.now += LEASE;
    world.state.expire(world.now);
    assert_eq!(world.state.clients().len(), 3);
    world.now += LEASE / 32;
    world.state.expire(world.now);
    assert_eq!(world.events(), [Event::Removed(idle)]);
    assert!(world.state.session(session).is_none() && world.state.session(kept).is_some());
    assert_eq!(world.state.clients().len(), 1);
    world.call(kept, 1, 1);
    assert!(!world.state.clients().is_expired(holder, world.now));
}

/// Requests in progress at an eviction end, no new one begins, and then all state is removed.
#[test]
fn eviction_waits_for_requests_in_progress() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
    let Begun::Execute(ticket) = world.sequence(session, 1, 1).unwrap().begun else { panic!("the request is new") };
    world.events();
    assert_eq!(world.state.evict(a), Evicted::Busy);
    assert_eq!(world.sequence(session, 2, 1).unwrap_err(), Nfsstat4::BadSession);
    assert_eq!(world.create(&create(a, 2)).unwrap_err(), Nfsstat4::StaleClientid);
    assert_eq!(world.events(), []);
    world.state.finish(world.now, session, ticket, "reply", false);
    assert_eq!(world.state.evict(a), Evicted::Gone);
    assert_eq!(world.events(), [Event::Removed(a)]);
    assert_eq!(world.state.evict(a), Evicted::Unknown);
}

/// The server must not use credentials for callbacks that the client does not offer.
#[test]
fn client_that_offers_only_unsupported_credentials_is_not_called() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let gss = GssCbHandles4 {
        service: RpcGssSvc::Integrity,
        handle_from_server: "server".into(),
        handle_from_client: "client".into(),
    };
    let offers = |all: &[CallbackSecParms4]| -> CallbackSec4 { xdr::Array(all.to_vec()) };
    let only_gss = offers(&[CallbackSecParms4::RpcsecGss(gss.clone())]);
    let session = world.create(&CreateSessionArgs { sec_parms: only_gss.clone(), ..create(id, 1) }).unwrap().sessionid;
    //= rfc8881-2.10.8.2-1
    assert!(!world.state.can_be_called(id));
    assert!(matches!(world.state.begin_callback(id, &CallbackSubject::default()), Err(NoPath::Down)));
    let either = offers(&[CallbackSecParms4::RpcsecGss(gss), CallbackSecParms4::None]);
    for (sec_parms, works) in [(either, true), (only_gss, false)] {
        world.state.backchannel_ctl(session, &BackchannelCtlArgs { cb_program: 1, sec_parms }).unwrap();
        //= rfc8881-2.10.8.2-1
        assert_eq!(world.state.can_be_called(id), works);
    }
}
