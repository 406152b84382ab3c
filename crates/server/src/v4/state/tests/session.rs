//! The cases of RFC 8881 §18.33–18.37, §18.46, §18.50 and §18.51, one after the other.

use super::{
    super::v40::{Entered, Subject},
    *,
};

#[test]
fn case_1_a_new_owner_gets_an_unconfirmed_record() {
    let mut world = World::new();
    let first = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap();
    let second = world.exchange(&exchange("b", 1, 0), &OWNER).unwrap();
    assert_ne!(first.clientid, second.clientid);
    assert_eq!(first.flags, EXCHGID4_FLAG_USE_NON_PNFS);
    assert_eq!(first.server_owner.major_id, "server".into());
    assert!(!world.state.clients().find(first.clientid).unwrap().confirmed);
}

#[test]
fn case_2_a_retry_gets_the_confirmed_record_and_so_does_trunking() {
    let mut world = World::new();
    let (id, session) = world.client("a", 1);
    let again = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap();
    assert_eq!((again.clientid, again.flags & EXCHGID4_FLAG_CONFIRMED_R), (id, EXCHGID4_FLAG_CONFIRMED_R));
    assert!(world.state.session(session).is_some());
    assert_eq!(world.events(), [Event::Confirmed(id)]);
    // A restart that came to nothing is forgotten.
    let restarted = world.exchange(&exchange("a", 2, 0), &OWNER).unwrap().clientid;
    assert_eq!(world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid, id);
    assert_eq!(world.create(&create(restarted, 1)), Err(Nfsstat4::StaleClientid));
}

#[test]
fn case_3_a_collision_is_refused_while_the_other_has_state_and_a_lease() {
    let mut world = World::new();
    let (id, session) = world.client("a", 1);
    assert_eq!(world.exchange(&exchange("a", 1, 0), &OTHER), Err(Nfsstat4::ClidInuse));
    assert_eq!(world.exchange(&exchange("a", 9, 0), &OTHER), Err(Nfsstat4::ClidInuse));
    assert!(world.state.session(session).is_some());
    world.events();
    world.now += LEASE + Duration::from_secs(1);
    let new = world.exchange(&exchange("a", 1, 0), &OTHER).unwrap();
    assert_ne!(new.clientid, id);
    assert!(world.state.session(session).is_none() && world.state.clients().find(id).is_none());
    assert_eq!(world.events(), [Event::Gone(id)]);
}

#[test]
fn case_3_a_collision_with_a_client_without_state_is_a_new_owner() {
    let mut world = World::new();
    let (id, session) = world.ready("a");
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    let open = world.open(id, "o", 1, 0).unwrap();
    assert_eq!(world.exchange(&exchange("a", 1, 0), &OTHER), Err(Nfsstat4::ClidInuse), "an open is state");
    world.state.close(&mut world.locks, id, &'f', &open).unwrap();
    assert_ne!(world.exchange(&exchange("a", 1, 0), &OTHER).unwrap().clientid, id);
}

#[test]
fn case_4_an_unconfirmed_record_is_replaced() {
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
fn case_5_a_restarted_client_loses_its_state_when_it_is_confirmed() {
    let mut world = World::new();
    let (old, session) = world.client("a", 1);
    let new = world.exchange(&exchange("a", 2, 0), &OWNER).unwrap();
    assert_eq!(new.flags & EXCHGID4_FLAG_CONFIRMED_R, 0);
    world.call(session, 1, 1);
    world.events();
    world.create(&create(new.clientid, 1)).unwrap();
    assert!(world.state.session(session).is_none() && world.state.clients().find(old).is_none());
    assert_eq!(world.events(), [Event::Gone(old), Event::Confirmed(new.clientid)]);
    let again = world.exchange(&exchange("a", 2, 0), &OWNER).unwrap();
    assert_eq!(again.clientid, new.clientid);
}

#[test]
fn case_5_a_confirmation_that_fails_changes_nothing() {
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    let new = world.exchange(&exchange("a", 2, 0), &OWNER).unwrap().clientid;
    let mut args = create(new, 1);
    args.fore_chan_attrs.maxrequestsize = 8;
    assert_eq!(world.create(&args), Err(Nfsstat4::TooSmall));
    assert!(world.state.session(session).is_some());
    assert!(!world.state.clients().find(new).unwrap().confirmed);
    assert_eq!(world.create(&args), Err(Nfsstat4::TooSmall), "a retry gets the same again");
    assert!(world.create(&create(new, 2)).is_ok());
}

#[test]
fn the_sequence_of_what_was_refused_for_its_arguments_is_good_for_better_ones() {
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
    assert_eq!(world.create(&small), Ok(made), "a session is made once");
    assert!(world.create(&create(id, 2)).is_ok());
}

#[test]
fn cases_6_to_9_only_a_confirmed_record_is_updated_by_its_own_client() {
    let mut world = World::new();
    let update = |verifier| exchange("a", verifier, EXCHGID4_FLAG_UPD_CONFIRMED_REC_A);
    assert_eq!(world.exchange(&update(1), &OWNER), Err(Nfsstat4::NoEnt));
    let unconfirmed = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    assert_eq!(world.exchange(&update(1), &OWNER), Err(Nfsstat4::NoEnt));
    world.create(&create(unconfirmed, 1)).expect("the unconfirmed record is intact");
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
fn flags_without_meaning_are_refused() {
    let mut world = World::new();
    for flags in [EXCHGID4_FLAG_CONFIRMED_R, 0x8, EXCHGID4_FLAG_SUPP_FENCE_OPS] {
        assert_eq!(world.exchange(&exchange("a", 1, flags), &OWNER), Err(Nfsstat4::Inval), "{flags:#x}");
    }
    let fence = exchange("a", 1, EXCHGID4_FLAG_SUPP_FENCE_OPS);
    assert!(world.state.exchange_id(world.now, 2, &fence, local()).is_ok(), "4.2 has this one");
}

#[test]
fn protection_takes_rpcsec_gss() {
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
    let made = world.exchange(&args(StateProtect4A::MachCred(ops)), &gss).unwrap();
    let StateProtect4R::MachCred(granted) = made.state_protect else { panic!("{made:?}") };
    assert!(granted.must_enforce.contains(Opnum4::DestroySession as u32));
    assert!(!granted.must_enforce.contains(Opnum4::Read as u32));

    let session = world.state.create_session(world.now, &create(made.clientid, 1), &gss, TCP).unwrap().sessionid;
    assert_eq!(world.sequence(session, 1, 2).unwrap_err(), Nfsstat4::ConnNotBoundToSession);
    let other = Connection { id: ConnectionId(2), duplex: true };
    let args = bind(session, ChannelDirFromClient4::Fore);
    assert_eq!(world.state.bind_conn_to_session(&args, &OWNER, other), Err(Nfsstat4::WrongCred));
    world.state.bind_conn_to_session(&args, &gss, other).unwrap();
    world.call(session, 1, 2);
    assert_eq!(world.state.destroy_session(session, false, &OWNER, TCP.id), Err(Nfsstat4::WrongCred));
    world.state.destroy_session(session, false, &gss, TCP.id).unwrap();
    let destroyed = world.state.destroy_clientid(world.now, made.clientid, None, &OWNER);
    assert_eq!(destroyed, Err(Nfsstat4::WrongCred));
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
    assert_eq!(world.create(&create(id, 1)), Ok(first.clone()));
    assert_eq!(world.state.sessions_of(id).map(|session| session.id).collect::<Vec<_>>(), [first.sessionid]);
    let second = world.create(&create(id, 2)).unwrap();
    assert_ne!(second.sessionid, first.sessionid);
    assert_eq!(world.create(&create(id, 1)), Err(Nfsstat4::SeqMisordered));
    assert_eq!(world.events(), [Event::Confirmed(id)]);
}

#[test]
fn another_principal_cannot_confirm_nor_use_up_the_sequence() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let stolen = world.state.create_session(world.now, &create(id, 1), &OTHER, TCP);
    assert_eq!(stolen, Err(Nfsstat4::ClidInuse));
    world.create(&create(id, 1)).unwrap();
    let stolen = world.state.create_session(world.now, &create(id, 2), &OTHER, TCP);
    assert_eq!(stolen, Err(Nfsstat4::ClidInuse));
    world.create(&create(id, 2)).unwrap();
}

#[test]
fn channels_are_lowered_and_never_raised() {
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
    assert_eq!(made.fore_chan_attrs, expected);
    // §18.36.3: the server must not change these of the backchannel.
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
    assert_eq!(refused(|args| args.fore_chan_attrs.maxresponsesize = 60), Nfsstat4::TooSmall);
    assert_eq!(refused(|args| args.back_chan_attrs.maxoperations = 1), Nfsstat4::TooSmall);
    assert_eq!(refused(|args| args.flags = 0x10), Nfsstat4::Inval);
}

#[test]
fn flags_of_a_session_are_what_is_granted() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let persist = CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_RDMA;
    assert_eq!(world.create(&CreateSessionArgs { flags: persist, ..create(id, 1) }).unwrap().flags, 0);
    let simplex = Connection { id: ConnectionId(5), duplex: false };
    let made = world.state.create_session(world.now, &create(id, 2), &OWNER, simplex).unwrap();
    assert_eq!(made.flags, 0, "callbacks cannot go by it");
}

#[test]
fn sessions_of_a_client_and_clients_are_bounded() {
    let mut world = World::new();
    let (id, _) = world.client("a", 1);
    world.create(&create(id, 2)).unwrap();
    world.create(&create(id, 3)).unwrap();
    assert_eq!(world.create(&create(id, 4)), Err(Nfsstat4::NoSpc));
    let b = world.exchange(&exchange("b", 1, 0), &OWNER).unwrap().clientid;
    for name in ["c", "d", "e"] {
        world.exchange(&exchange(name, 1, 0), &OWNER).unwrap();
    }
    assert_eq!(world.state.clients().len(), 4);
    assert_eq!(world.create(&create(b, 1)), Err(Nfsstat4::StaleClientid), "the oldest unconfirmed one had to go");
    let made = ["c", "d", "e"].map(|name| world.client(name, 1));
    world.events();
    world.exchange(&exchange("f", 1, 0), &OWNER).unwrap();
    assert_eq!(world.events(), [Event::Gone(id)], "the oldest that has never called had to");
    assert_eq!(world.state.clients().len(), 4);
    world.client("f", 1);
    // Those that do call stay, however many introduce themselves and make sessions.
    let (d, in_use) = made[1];
    world.call(in_use, 1, 1);
    for at in 0..100 {
        world.client(&format!("idle {at}"), 1);
    }
    assert_eq!(world.state.clients().len(), 4);
    assert_eq!(world.call(in_use, 2, 1).sequenceid, Sequenceid4(2));
    assert!(world.state.clients().find(d).is_some());
}

#[test]
fn sessions_of_all_clients_are_bounded_and_two_are_certain() {
    let mut world = World::new();
    let mut made_by = Vec::new();
    let mut ids = Vec::new();
    for client in 0..8u8 {
        world.peer = Ipv4Addr::new(192, 0, 2, client).into();
        let id = world.exchange(&exchange(&client.to_string(), 1, 0), &OWNER).unwrap().clientid;
        ids.push(id);
        let made = (1..).map(|sequence| world.create(&create(id, sequence))).take_while(Result::is_ok);
        made_by.push(made.count());
    }
    assert_eq!(made_by, [3, 3, 3, 3, 3, 2, 2, 2], "from a half of 32 on");
    // Those that are gone do not count.
    for id in ids {
        let removed: Vec<_> = world.state.sessions_of(id).map(|session| session.id).collect();
        removed.into_iter().for_each(|id| world.state.destroy_session(id, false, &OWNER, TCP.id).unwrap());
    }
    let id = world.exchange(&exchange("7", 2, 0), &OWNER).unwrap().clientid;
    let made = (1..).map(|sequence| world.create(&create(id, sequence))).take_while(Result::is_ok).count();
    assert_eq!(made, 3);
}

/// What sessions of one client are granted: slots, and bytes of each reply that is cached.
fn granted(world: &mut World, name: &str, count: u32) -> Vec<(u32, u32)> {
    let id = world.exchange(&exchange(name, 1, 0), &OWNER).unwrap().clientid;
    let made = (1..=count).map(|sequence| world.create(&create(id, sequence)).unwrap().fore_chan_attrs);
    made.map(|fore| (fore.maxrequests, fore.maxresponsesize_cached)).collect()
}

#[test]
fn the_reply_cache_is_bounded_and_a_part_of_it_is_certain() {
    // 2 KiB for each of 64 sessions, and 128 KiB beside these, of which a host has no more than a quarter.
    let mut world = World::with(|options| {
        (options.replies_max, options.sessions_max, options.client_sessions_max) = (256 << 10, 64, 8);
    });
    let bytes =
        |of: &[(u32, u32)]| of.iter().map(|(slots, cached)| (slots * (*cached).max(512)) as usize).sum::<usize>();
    let first = granted(&mut world, "a", 8);
    assert!(first.is_sorted_by(|a, b| bytes(&[*a]) >= bytes(&[*b])), "fewer and fewer: {first:?}");
    assert_eq!(first[0], (2, 2 << 10));
    let mut all = bytes(&first);
    for host in 1..8u8 {
        world.peer = Ipv4Addr::new(192, 0, 2, host).into();
        let of_host = granted(&mut world, &host.to_string(), 2);
        assert!(of_host.iter().all(|(slots, cached)| *slots >= 1 && *cached >= 2 << 10), "{of_host:?}");
        all += bytes(&of_host);
    }
    assert!(all <= 256 << 10, "{all} bytes");
    // A client that wants less is charged less, but for what is kept unasked.
    let id = world.exchange(&exchange("small", 1, 0), &OWNER).unwrap().clientid;
    let mut args = create(id, 1);
    (args.fore_chan_attrs.maxresponsesize_cached, args.fore_chan_attrs.maxrequests) = (0, 4);
    assert_eq!(world.create(&args).unwrap().fore_chan_attrs.maxrequests, 4);
}

#[test]
fn hosts_that_no_export_admits_share_a_few_places_and_small_sessions() {
    let mut world = World::with(|options| options.replies_max = 32 * (4 << 10));
    let introduce = |world: &mut World, host: u8| {
        let origin = Origin { principal: &OWNER, peer: Ipv4Addr::new(198, 51, 100, host).into(), admitted: false };
        world.state.exchange_id(world.now, 1, &exchange(&format!("stranger {host}"), 1, 0), origin).unwrap().clientid
    };
    let (honest, _) = world.client("honest", 1);
    let first = introduce(&mut world, 0);
    let made = world.create(&create(first, 1)).unwrap().fore_chan_attrs;
    assert_eq!((made.maxrequests, made.maxresponsesize_cached), (1, 2 << 10));
    assert_eq!(world.create(&create(first, 2)), Err(Nfsstat4::NoSpc), "one session");
    for host in 1..100 {
        introduce(&mut world, host);
        assert_eq!(world.state.clients().len(), 2, "the eighth part of one place is one");
    }
    assert!(world.state.clients().find(honest).is_some() && world.state.clients().find(first).is_none());
}

#[test]
fn nobody_is_kept_out_by_who_only_introduces_itself_but_by_clients_that_hold_something() {
    let mut world = World::new();
    world.begin_grace(&["a"], &[]);
    let (a, _) = world.client("a", 1);
    let others = ["b", "c", "d"].map(|name| {
        let (id, session) = world.client(name, 1);
        world.now += Duration::from_secs(1);
        world.call(session, 1, 1);
        id
    });
    assert!(world.exchange(&exchange("e", 1, 0), &OWNER).is_ok());
    let is_there = |id: &Clientid4| world.state.clients().find(*id).is_some();
    assert!(is_there(&a), "it has something to reclaim");
    assert_eq!(others.map(|id| is_there(&id)), [false, true, true], "they hold nothing");
}

/// Two hosts have all places, and everything that they have there is in use.
fn full(hold: bool) -> (World, Vec<Clientid4>) {
    let mut world = World::new();
    let mut ids = Vec::new();
    for host in 1..=2u8 {
        world.peer = Ipv4Addr::new(192, 0, 2, host).into();
        for client in 0..4 {
            let (id, session) = world.ready(&format!("{host} {client}"));
            world.now += Duration::from_secs(1);
            world.call(session, 1, 1);
            if hold {
                world.open(id, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
            }
            ids.push(id);
        }
    }
    assert_eq!(world.state.clients().len(), 8);
    (world, ids)
}

#[test]
fn a_new_host_gets_in_whatever_those_have_that_have_the_most() {
    for hold in [false, true] {
        let (mut world, ids) = full(hold);
        world.peer = Ipv4Addr::new(192, 0, 2, 3).into();
        let (new, session) = world.client("new", 1);
        world.call(session, 1, 1);
        let gone: Vec<_> = ids.iter().filter(|id| world.state.clients().find(**id).is_none()).collect();
        assert_eq!(gone, [&ids[4]], "of the host with the most, who was silent for the longest time; holding: {hold}");
        assert_eq!(world.state.clients().len(), 8);
        assert!(world.state.clients().find(new).is_some());
        // Who has as many as any other makes room by itself, or has to wait.
        world.peer = Ipv4Addr::new(192, 0, 2, 1).into();
        let again = world.exchange(&exchange("one more", 1, 0), &OWNER);
        assert_eq!(again.is_err(), hold, "{again:?}");
        assert_eq!(world.state.clients().find(ids[0]).is_some(), hold);
    }
}

#[test]
fn a_client_whose_request_is_being_executed_makes_no_room() {
    let (mut world, ids) = full(true);
    let session = world.state.sessions_of(ids[4]).next().unwrap().id;
    let Begun::Execute(ticket) = world.sequence(session, 2, 1).unwrap().begun else { panic!("new") };
    world.peer = Ipv4Addr::new(192, 0, 2, 3).into();
    world.client("new", 1);
    assert!(world.state.clients().find(ids[4]).is_some() && world.state.clients().find(ids[5]).is_none());
    world.state.finish(world.now, session, ticket, "reply", false);
}

/// A collision that is refused for want of room has not ended the client whose name it is.
#[test]
fn who_finds_no_room_has_taken_no_name() {
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    world.call(session, 1, 1);
    world.peer = Ipv4Addr::new(192, 0, 2, 2).into();
    for name in ["b", "c", "d", "e"] {
        let (id, _) = world.ready(name);
        world.open(id, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    }
    world.now += LEASE + Duration::from_secs(1);
    assert_eq!(world.exchange(&exchange("a", 1, 0), &OTHER), Err(Nfsstat4::Delay));
    assert_eq!(world.call(session, 2, 1).sequenceid, Sequenceid4(2));
}

#[test]
fn names_cannot_be_guessed_nor_used_by_others() {
    let mut world = World::new();
    let ids: Vec<_> =
        (0..4).map(|n| world.exchange(&exchange(&n.to_string(), 1, 0), &OWNER).unwrap().clientid.0).collect();
    for (at, id) in ids.iter().enumerate() {
        let others = ids.iter().enumerate().filter(|(other, _)| *other != at);
        assert!(others.into_iter().all(|(_, other)| (id ^ other).count_ones() > 8), "{ids:x?}");
    }
    let (id, session) = world.ready("0");
    assert_eq!(world.state.destroy_clientid(world.now, id, None, &OTHER), Err(Nfsstat4::WrongCred));
    assert_eq!(world.state.destroy_session(session, false, &OTHER, TCP.id), Err(Nfsstat4::WrongCred));
    let by = Connection { id: ConnectionId(66), duplex: true };
    let bound = world.state.bind_conn_to_session(&bind(session, ChannelDirFromClient4::Back), &OTHER, by);
    assert_eq!(bound, Err(Nfsstat4::WrongCred));
    // Not even what the last one came to.
    assert_eq!(world.state.create_session(world.now, &create(id, 1), &OTHER, TCP), Err(Nfsstat4::ClidInuse));
    let other = world.state.bind_conn_to_session(&bind(session, ChannelDirFromClient4::Back), &OWNER, by);
    assert!(other.is_ok(), "another connection of the client, from wherever it comes");
    assert_eq!(world.state.destroy_session(session, false, &OWNER, by.id), Ok(()));
    assert_eq!(world.state.destroy_clientid(world.now, id, None, &OWNER), Ok(()));
}

#[test]
fn one_host_keeps_no_other_out_and_gives_way_to_itself() {
    let mut world = World::new();
    let from = |world: &mut World, peer: &str, name: &str| {
        world.peer = peer.parse().unwrap();
        world.exchange(&exchange(name, 1, 0), &OWNER).map(|ok| ok.clientid)
    };
    // All addresses of a link of IPv6 are one host's, which has no more than a half.
    let first = from(&mut world, "2001:db8::1", "a").unwrap();
    for (peer, name) in [("2001:db8::2", "b"), ("2001:db8::3", "c"), ("2001:db8::4", "d")] {
        from(&mut world, peer, name).unwrap();
    }
    assert!(world.state.clients().find(first).is_some());
    let again = from(&mut world, "2001:db8::5", "e").unwrap();
    assert!(world.state.clients().find(first).is_none(), "of its own the first that has done least");
    assert_eq!(world.state.clients().len(), 4);

    world.peer = Ipv4Addr::LOCALHOST.into();
    for name in ["f", "g", "h", "i"] {
        let (id, session) = world.ready(name);
        world.call(session, 1, 1);
        world.open(id, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    }
    for peer in ["127.0.0.1", "::ffff:127.0.0.1"] {
        assert_eq!(from(&mut world, peer, "j"), Err(Nfsstat4::Delay), "all of its own hold something");
    }
    // Where all places are taken, of the hosts with the most whoever has done least gives way.
    assert_eq!(world.state.clients().len(), 8);
    from(&mut world, "192.0.2.1", "k").unwrap();
    assert_eq!(world.state.clients().len(), 8);
    assert!(world.state.clients().find(again).is_some());
}

#[test]
fn what_a_host_had_and_has_no_more_does_not_count() {
    let mut world = World::new();
    for round in 0..20 {
        let (client, session) = world.client(&format!("{round}"), 1);
        world.call(session, 1, 1);
        world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
        world.state.destroy_clientid(world.now, client, None, &OWNER).unwrap();
    }
    // A client that restarts again and again is one.
    for incarnation in 0..20 {
        let (_, session) = world.client("a", incarnation);
        world.call(session, 1, 1);
    }
    assert_eq!(world.state.clients().len(), 1);
}

/// What is decoded is a part of the buffer that its message came in.
#[test]
fn what_is_kept_does_not_keep_the_message_that_it_came_in() {
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
    let open = OpenRequest { client, owner: name(), file: 'f', access: 3, deny: 0, reclaim: false, delegated: false };
    let open_stateid = world.state.open(&mut world.locks, &open, world.now).unwrap();
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
        world.state.set_clientid_confirm(world.now, &args, &OWNER).unwrap();
        clientid
    };
    let opener = StateOwner4 { clientid: old, owner: name().into() };
    let entered = world.state.enter(&mut world.locks, world.now, Subject::Opener(&opener, Seqid4(1)));
    assert!(matches!(entered, Ok(Entered::InTurn(_))));
    drop((open, lock_owner, lock, opener, entered));
    assert!(message.try_into_mut().is_ok(), "nobody else has any of it");
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
    assert!(!world.state.clients().is_expired(id, world.now));
    assert!(matches!(world.sequence(session, 1, 1).unwrap().begun, Begun::Replay("reply")));
    world.state.session_mut(session).unwrap().slots.set_target(Slotid4(2));
    assert_eq!(world.call(session, 2, 1).target_highest_slotid, Slotid4(2));
    world.now += LEASE + Duration::from_secs(1);
    assert!(world.state.clients().is_expired(id, world.now));
}

#[test]
fn a_retry_may_come_by_any_connection() {
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    world.call(session, 1, 1);
    world.state.disconnect(TCP.id);
    assert!(matches!(world.sequence(session, 1, 9).unwrap().begun, Begun::Replay("reply")));
    assert!(world.state.session(session).unwrap().is_bound(ConnectionId(9)));
}

#[test]
fn an_error_of_sequence_changes_nothing() {
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
    assert_eq!(world.state.sequence(world.now, large, TCP.id).unwrap_err(), Nfsstat4::ReqTooBig);
    let long = Request { operations: 17, ..request };
    assert_eq!(world.state.sequence(world.now, long, TCP.id).unwrap_err(), Nfsstat4::TooManyOps);
    assert!(world.state.clients().is_expired(id, world.now), "the lease is not renewed");
    world.call(session, 1, 1);
}

#[test]
fn a_lost_backchannel_is_told_until_another_is_bound() {
    let mut world = World::new();
    let (id, first) = world.client("a", 1);
    let second = world.create(&create(id, 2)).unwrap().sessionid;
    world.state.disconnect(TCP.id);
    let both = SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION;
    assert_eq!(world.call(first, 1, 2).status_flags, both);
    let three = Connection { id: ConnectionId(3), duplex: true };
    world.state.bind_conn_to_session(&bind(second, ChannelDirFromClient4::Back), &OWNER, three).unwrap();
    assert_eq!(world.call(first, 2, 2).status_flags, SEQ4_STATUS_CB_PATH_DOWN_SESSION);
    // The connection was bound by SEQUENCE alone, which is no hindrance.
    let two = Connection { id: ConnectionId(2), duplex: true };
    let bound = world.state.bind_conn_to_session(&bind(first, ChannelDirFromClient4::ForeOrBoth), &OWNER, two);
    assert_eq!(bound.unwrap().dir, ChannelDirFromServer4::Both);
    assert_eq!(world.call(first, 3, 2).status_flags, 0);
    assert_eq!(world.state.session(first).unwrap().backchannel().collect::<Vec<_>>(), [ConnectionId(2)]);
}

#[test]
fn a_client_that_wants_no_callbacks_is_not_told_that_there_is_no_way() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let session = world.create(&CreateSessionArgs { flags: 0, ..create(id, 1) }).unwrap().sessionid;
    assert_eq!(world.call(session, 1, 1).status_flags, 0);
}

#[test]
fn connections_are_bound_as_the_client_demands_or_not_at_all() {
    use ChannelDirFromClient4::{Back, BackOrBoth, Fore, ForeOrBoth};
    use ChannelDirFromServer4 as Server;
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    let mut bound = |id, duplex, dir| {
        let connection = Connection { id: ConnectionId(id), duplex };
        world.state.bind_conn_to_session(&bind(session, dir), &OWNER, connection).map(|ok| ok.dir)
    };
    assert_eq!(bound(10, true, Fore), Ok(Server::Fore));
    assert_eq!(bound(11, true, Back), Ok(Server::Back));
    assert_eq!(bound(12, true, ForeOrBoth), Ok(Server::Both));
    assert_eq!(bound(13, true, BackOrBoth), Ok(Server::Both));
    assert_eq!(bound(14, false, ForeOrBoth), Ok(Server::Fore));
    assert_eq!(bound(15, false, Back), Err(Nfsstat4::Inval));
    // §18.34.3: once more is fine, but nothing else is.
    assert_eq!(bound(10, true, Fore), Ok(Server::Fore));
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
fn a_session_is_destroyed_by_its_connections_when_nothing_is_under_way() {
    let mut world = World::new();
    let (_, session) = world.client("a", 1);
    assert_eq!(world.state.destroy_session(Sessionid4([3; 16]), false, &OWNER, TCP.id), Err(Nfsstat4::BadSession));
    let stranger = ConnectionId(77);
    let destroyed = world.state.destroy_session(session, false, &OWNER, stranger);
    assert_eq!(destroyed, Err(Nfsstat4::ConnNotBoundToSession));
    let sequenced = world.sequence(session, 1, 1).unwrap();
    assert_eq!(world.state.destroy_session(session, false, &OWNER, TCP.id), Err(Nfsstat4::Delay));
    assert_eq!(world.state.destroy_session(session, true, &OWNER, TCP.id), Ok(()));
    let Begun::Execute(ticket) = sequenced.begun else { panic!("new") };
    world.state.finish(world.now, session, ticket, "reply", false);
    assert_eq!(world.sequence(session, 1, 1).unwrap_err(), Nfsstat4::BadSession);
}

#[test]
fn a_client_is_destroyed_when_it_has_nothing() {
    let mut world = World::new();
    let (id, session) = world.ready("a");
    let (other, _) = world.client("b", 1);
    let destroy = |world: &mut World, id, own| world.state.destroy_clientid(world.now, id, own, &OWNER);
    assert_eq!(destroy(&mut world, Clientid4(5), None), Err(Nfsstat4::StaleClientid));
    assert_eq!(destroy(&mut world, id, None), Err(Nfsstat4::ClientidBusy), "it has a session");
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    let open = world.open(id, "o", 1, 0).unwrap();
    assert_eq!(destroy(&mut world, id, Some(other)), Err(Nfsstat4::ClientidBusy), "it has an open");
    world.state.close(&mut world.locks, id, &'f', &open).unwrap();
    assert_eq!(destroy(&mut world, id, Some(id)), Err(Nfsstat4::ClientidBusy));
    world.events();
    assert_eq!(destroy(&mut world, id, Some(other)), Ok(()));
    assert_eq!(world.events(), [Event::Gone(id)]);
    let unconfirmed = world.exchange(&exchange("c", 1, 0), &OWNER).unwrap().clientid;
    assert_eq!(destroy(&mut world, unconfirmed, None), Ok(()));
    assert_eq!(world.events(), [], "it never was anybody");
}

#[test]
fn reclaim_is_complete_once() {
    let mut world = World::new();
    world.begin_grace(&["a", "x"], &[]);
    let (id, session) = world.client("a", 1);
    let (new, other) = world.client("b", 1);
    assert_eq!(world.call(session, 1, 1).status_flags, SEQ4_STATUS_RESTART_RECLAIM_NEEDED);
    assert_eq!(world.call(other, 1, 1).status_flags, 0, "it had nothing before the restart");
    assert!(world.state.may_reclaim(id) && !world.state.may_reclaim(new));
    let one_fs = ReclaimCompleteArgs { one_fs: true };
    let all = ReclaimCompleteArgs { one_fs: false };
    assert_eq!(world.state.reclaim_complete(id, &one_fs), Ok(()));
    world.events();
    assert_eq!(world.state.reclaim_complete(id, &all), Ok(()));
    assert_eq!(world.state.reclaim_complete(id, &all), Err(Nfsstat4::CompleteAlready));
    assert_eq!(world.events(), [Event::ReclaimComplete(id)]);
    assert!(!world.state.may_reclaim(id) && !world.state.may_end_grace(), "x has not been heard of");
    assert_eq!(world.call(session, 2, 1).status_flags, 0);
    let (x, _) = world.client("x", 1);
    world.state.reclaim_complete(x, &all).unwrap();
    assert!(world.state.may_end_grace());
    world.end_grace();
    assert!(!world.state.in_grace());
}

#[test]
fn who_is_silent_for_a_lease_is_forgotten_unless_it_holds_something() {
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
    assert_eq!(world.events(), [Event::Gone(idle)]);
    assert!(world.state.session(session).is_none() && world.state.session(kept).is_some());
    assert_eq!(world.state.clients().len(), 1);
    world.call(kept, 1, 1);
    assert!(!world.state.clients().is_expired(holder, world.now));
}

/// What is executed when a client is evicted ends, nothing else begins, and then all of it is gone.
#[test]
fn who_is_evicted_ends_what_he_has_begun() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
    let Begun::Execute(ticket) = world.sequence(session, 1, 1).unwrap().begun else { panic!("new") };
    world.events();
    assert_eq!(world.state.evict(a), evict::Evicted::Busy);
    assert_eq!(world.sequence(session, 2, 1).unwrap_err(), Nfsstat4::BadSession);
    assert_eq!(world.create(&create(a, 2)).unwrap_err(), Nfsstat4::StaleClientid);
    assert_eq!(world.events(), []);
    world.state.finish(world.now, session, ticket, "reply", false);
    assert_eq!(world.state.evict(a), evict::Evicted::Gone);
    assert_eq!(world.events(), [Event::Gone(a)]);
    assert_eq!(world.state.evict(a), evict::Evicted::Unknown);
}
