//! The limits of clients, sessions and replies, their division among hosts, and the choice of clients to evict.

use super::*;

#[test]
fn sessions_and_clients_are_bounded() {
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
    assert_eq!(
        world.create(&create(b, 1)),
        Err(Nfsstat4::StaleClientid),
        "the oldest unconfirmed client must be evicted"
    );
    let made = ["c", "d", "e"].map(|name| world.client(name, 1));
    world.events();
    world.exchange(&exchange("f", 1, 0), &OWNER).unwrap();
    assert_eq!(world.events(), [Event::Removed(id)], "the oldest client without requests must be evicted");
    assert_eq!(world.state.clients().len(), 4);
    world.client("f", 1);
    // Clients that send requests stay, however many others introduce themselves and create sessions.
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
fn sessions_of_all_clients_are_bounded_and_two_are_guaranteed() {
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
    assert_eq!(made_by, [3, 3, 3, 3, 3, 2, 2, 2], "the limit is lower after half of 32 sessions");
    // Destroyed sessions do not count.
    for id in ids {
        let removed: Vec<_> = world.state.sessions_of(id).map(|session| session.id).collect();
        removed.into_iter().for_each(|id| world.state.destroy_session(id, false, &OWNER, TCP.id).unwrap());
    }
    let id = world.exchange(&exchange("7", 2, 0), &OWNER).unwrap().clientid;
    let made = (1..).map(|sequence| world.create(&create(id, sequence))).take_while(Result::is_ok).count();
    assert_eq!(made, 3);
}

#[test]
fn second_half_of_all_sessions_is_shared_equally() {
    let mut world = World::new();
    let mut ids = Vec::new();
    for (client, sessions) in (0..).zip([3, 3, 3, 3, 2, 2]) {
        world.peer = Ipv4Addr::new(192, 0, 2, client).into();
        let id = world.exchange(&exchange(&client.to_string(), 1, 0), &OWNER).unwrap().clientid;
        assert!((1..=sessions).all(|sequence| world.create(&create(id, sequence)).is_ok()));
        ids.push(id);
    }
    assert_eq!(world.create(&create(ids[4], 3)), Err(Nfsstat4::NoSpc), "16 of 32 sessions exist");
    let removed = world.state.sessions_of(ids[0]).next().unwrap().id;
    world.state.destroy_session(removed, false, &OWNER, TCP.id).unwrap();
    assert!(world.create(&create(ids[4], 4)).is_ok(), "the first half is granted on demand");
}

/// Creates sessions of one client. Returns the slots of each, and the maximum bytes of a cached reply.
fn granted(world: &mut World, name: &str, count: u32) -> Vec<(u32, u32)> {
    let id = world.exchange(&exchange(name, 1, 0), &OWNER).unwrap().clientid;
    let made = (1..=count).map(|sequence| world.create(&create(id, sequence)).unwrap().fore_chan_attrs);
    made.map(|fore| (fore.maxrequests, fore.maxresponsesize_cached)).collect()
}

#[test]
fn reply_cache_is_bounded_and_each_session_has_a_share() {
    // 2 KiB are guaranteed for each of 64 sessions. Of the other 128 KiB a host gets at most a quarter.
    let mut world = World::with(|options| {
        (options.replies_max, options.sessions_max, options.client_sessions_max) = (256 << 10, 64, 8);
    });
    let bytes =
        |of: &[(u32, u32)]| of.iter().map(|(slots, cached)| (slots * (*cached).max(512)) as usize).sum::<usize>();
    let first = granted(&mut world, "a", 8);
    assert!(
        first.is_sorted_by(|a, b| bytes(&[*a]) >= bytes(&[*b])),
        "each session must get at most as much as the one before: {first:?}"
    );
    assert_eq!(first[0], (2, 2 << 10));
    let mut all = bytes(&first);
    for host in 1..8u8 {
        world.peer = Ipv4Addr::new(192, 0, 2, host).into();
        let of_host = granted(&mut world, &host.to_string(), 2);
        assert!(of_host.iter().all(|(slots, cached)| *slots >= 1 && *cached >= 2 << 10), "{of_host:?}");
        all += bytes(&of_host);
    }
    assert!(all <= 256 << 10, "{all} bytes");
    // A client that asks for less is granted less, except for small replies, which are always cached.
    let id = world.exchange(&exchange("small", 1, 0), &OWNER).unwrap().clientid;
    let mut args = create(id, 1);
    (args.fore_chan_attrs.maxresponsesize_cached, args.fore_chan_attrs.maxrequests) = (0, 4);
    assert_eq!(world.create(&args).unwrap().fore_chan_attrs.maxrequests, 4);
}

#[test]
fn sessions_of_a_host_get_parts_of_what_it_can_still_get() {
    // 2 KiB are guaranteed for each of 256 sessions. Of the other 512 KiB a host gets at most a quarter, 128 KiB.
    let mut world = World::with(|options| {
        (options.replies_max, options.sessions_max, options.client_sessions_max) = (1 << 20, 256, 8);
    });
    // The first session gets a sixteenth of 128 KiB and 2 KiB. That is less than four replies of 4 KiB, so replies are smaller.
    let slots = [5, 4, 4, 4, 4, 4, 3, 3];
    assert_eq!(granted(&mut world, "a", 8), slots.map(|slots| (slots, 2 << 10)));
}

#[test]
fn session_that_gets_all_its_slots_keeps_the_size_of_its_replies() {
    let mut world = World::with(|options| (options.replies_max, options.sessions_max) = (2 << 20, 512));
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let mut args = create(id, 1);
    args.fore_chan_attrs.maxrequests = 4;
    let made = world.create(&args).unwrap().fore_chan_attrs;
    assert_eq!((made.maxrequests, made.maxresponsesize_cached), (4, 4 << 10));
}

#[test]
fn hosts_not_admitted_share_few_clients_and_small_sessions() {
    let mut world = World::with(|options| options.replies_max = 32 * (4 << 10));
    let introduce = |world: &mut World, host: u8| {
        let origin = Origin {
            principal: &OWNER,
            has_integrity: true,
            callback_flavor: None,
            peer: Ipv4Addr::new(198, 51, 100, host).into(),
            admitted: false,
            tls: Xprtsec::None,
        };
        world.state.exchange_id(world.now, 1, &exchange(&format!("stranger {host}"), 1, 0), origin).unwrap().clientid
    };
    let (honest, _) = world.client("honest", 1);
    let first = introduce(&mut world, 0);
    let made = world.create(&create(first, 1)).unwrap().fore_chan_attrs;
    assert_eq!((made.maxrequests, made.maxresponsesize_cached), (1, 2 << 10));
    assert_eq!(world.create(&create(first, 2)), Err(Nfsstat4::NoSpc), "such a client gets one session");
    for host in 1..100 {
        introduce(&mut world, host);
        assert_eq!(world.state.clients().len(), 2, "all such hosts share one client");
    }
    assert!(world.state.clients().find(honest).is_some() && world.state.clients().find(first).is_none());
}

#[test]
fn clients_without_state_are_evicted_before_clients_that_can_reclaim() {
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
    assert!(is_there(&a), "it can reclaim state");
    assert_eq!(others.map(|id| is_there(&id)), [false, true, true], "they hold no state");
}

/// Returns a full table: two hosts have all clients, and all clients are in use.
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
fn new_host_evicts_a_client_of_the_largest_host() {
    for hold in [false, true] {
        let (mut world, ids) = full(hold);
        world.peer = Ipv4Addr::new(192, 0, 2, 3).into();
        let (new, session) = world.client("new", 1);
        world.call(session, 1, 1);
        let gone: Vec<_> = ids.iter().filter(|id| world.state.clients().find(**id).is_none()).collect();
        assert_eq!(gone, [&ids[4]], "the longest silent client of the largest host must be evicted; holding: {hold}");
        assert_eq!(world.state.clients().len(), 8);
        assert!(world.state.clients().find(new).is_some());
        // A host with the largest number of clients can only evict one of its own, or must wait.
        world.peer = Ipv4Addr::new(192, 0, 2, 1).into();
        let again = world.exchange(&exchange("one more", 1, 0), &OWNER);
        assert_eq!(again.is_err(), hold, "{again:?}");
        assert_eq!(world.state.clients().find(ids[0]).is_some(), hold);
    }
}

#[test]
fn client_with_a_request_in_progress_is_not_evicted() {
    let (mut world, ids) = full(true);
    let session = world.state.sessions_of(ids[4]).next().unwrap().id;
    let Begun::Execute(ticket) = world.sequence(session, 2, 1).unwrap().begun else { panic!("the request is new") };
    world.peer = Ipv4Addr::new(192, 0, 2, 3).into();
    world.client("new", 1);
    assert!(world.state.clients().find(ids[4]).is_some() && world.state.clients().find(ids[5]).is_none());
    world.state.finish(world.now, session, ticket, "reply", false);
}

/// A collision that fails because the table is full must not remove the other client.
#[test]
fn failed_collision_does_not_remove_the_other_client() {
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
fn client_ids_are_random_and_bound_to_their_principal() {
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
    let by = Connection { id: ConnectionId(66), duplex: true, tls: Xprtsec::None };
    let bound = world.state.bind_conn_to_session(&bind(session, ChannelDirFromClient4::Back), &OTHER, by);
    assert_eq!(bound, Err(Nfsstat4::WrongCred));
    let other = world.state.bind_conn_to_session(&bind(session, ChannelDirFromClient4::Back), &OWNER, by);
    assert!(other.is_ok(), "another connection of the same principal may be bound");
    assert_eq!(world.state.destroy_session(session, false, &OWNER, by.id), Ok(()));
    assert_eq!(world.state.destroy_clientid(world.now, id, None, &OWNER), Ok(()));
}

#[test]
fn one_host_gets_half_of_the_table_and_evicts_its_own_clients() {
    let mut world = World::new();
    let from = |world: &mut World, peer: &str, name: &str| {
        world.peer = peer.parse().unwrap();
        world.exchange(&exchange(name, 1, 0), &OWNER).map(|ok| ok.clientid)
    };
    // All addresses of one IPv6 /64 prefix are one host, which gets at most half of the table.
    let first = from(&mut world, "2001:db8::1", "a").unwrap();
    for (peer, name) in [("2001:db8::2", "b"), ("2001:db8::3", "c"), ("2001:db8::4", "d")] {
        from(&mut world, peer, name).unwrap();
    }
    assert!(world.state.clients().find(first).is_some());
    let again = from(&mut world, "2001:db8::5", "e").unwrap();
    assert!(world.state.clients().find(first).is_none(), "its own oldest unconfirmed client must be evicted");
    assert_eq!(world.state.clients().len(), 4);

    world.peer = Ipv4Addr::LOCALHOST.into();
    for name in ["f", "g", "h", "i"] {
        let (id, session) = world.ready(name);
        world.call(session, 1, 1);
        world.open(id, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    }
    for peer in ["127.0.0.1", "::ffff:127.0.0.1"] {
        assert_eq!(from(&mut world, peer, "j"), Err(Nfsstat4::Delay), "all its clients hold state");
    }
    // If the table is full, the lowest-ranked client of the largest host is evicted.
    assert_eq!(world.state.clients().len(), 8);
    from(&mut world, "192.0.2.1", "k").unwrap();
    assert_eq!(world.state.clients().len(), 8);
    assert!(world.state.clients().find(again).is_some());
}

#[test]
fn removed_clients_do_not_count() {
    let mut world = World::new();
    for round in 0..20 {
        let (client, session) = world.client(&format!("{round}"), 1);
        world.call(session, 1, 1);
        world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
        world.state.destroy_clientid(world.now, client, None, &OWNER).unwrap();
    }
    // A client that restarts repeatedly counts once.
    for incarnation in 0..20 {
        let (_, session) = world.client("a", incarnation);
        world.call(session, 1, 1);
    }
    assert_eq!(world.state.clients().len(), 1);
}

/// Returns a full table of 8 clients, all in use: three hosts have this number of clients.
fn full_of(counts: [usize; 3], hold: bool) -> (World, Vec<Vec<Clientid4>>) {
    let mut world = World::new();
    let mut clients = Vec::new();
    for (host, count) in (1..).zip(counts) {
        world.peer = Ipv4Addr::new(192, 0, 2, host).into();
        let ids = (0..count).map(|client| {
            let (id, session) = world.ready(&format!("{host} {client}"));
            world.call(session, 1, 1);
            if hold {
                world.open(id, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
            }
            id
        });
        clients.push(ids.collect());
    }
    assert_eq!(world.state.clients().len(), 8);
    (world, clients)
}

#[test]
fn host_with_as_many_clients_as_any_other_evicts_its_own() {
    let (mut world, clients) = full_of([3, 3, 2], false);
    world.peer = Ipv4Addr::new(192, 0, 2, 1).into();
    world.exchange(&exchange("new", 1, 0), &OWNER).unwrap();
    let left = |ids: &Vec<Clientid4>| ids.iter().filter(|id| world.state.clients().find(**id).is_some()).count();
    assert_eq!(clients.iter().map(left).collect::<Vec<_>>(), [2, 3, 2]);
}

#[test]
fn client_that_holds_state_is_evicted_only_if_its_host_has_two_more() {
    for (counts, evicts) in [([3, 3, 2], false), ([4, 3, 1], true)] {
        let (mut world, clients) = full_of(counts, true);
        world.peer = Ipv4Addr::new(192, 0, 2, 3).into();
        let new = world.exchange(&exchange("new", 1, 0), &OWNER);
        assert_eq!(new.is_ok(), evicts, "{new:?}");
        let left = clients.iter().flatten().filter(|id| world.state.clients().find(**id).is_some()).count();
        assert_eq!(left, 8 - usize::from(evicts));
    }
}

#[test]
fn record_that_is_replaced_needs_no_room() {
    let (mut world, clients) = full_of([4, 3, 1], false);
    world.state.evict(clients[2][0]);
    world.peer = Ipv4Addr::new(192, 0, 2, 3).into();
    for verifier in 1..4 {
        world.exchange(&exchange("unconfirmed", verifier, 0), &OWNER).unwrap();
        assert_eq!(world.state.clients().len(), 8, "no other client must be evicted");
    }
}

#[test]
fn client_that_restarts_is_not_evicted_for_itself() {
    let mut world = World::new();
    let [a, b, ..] = ["a", "b", "c", "d"].map(|name| world.client(name, 1).0);
    for host in 1..=4u8 {
        world.peer = Ipv4Addr::new(192, 0, 2, 1).into();
        let (id, _) = world.ready(&host.to_string());
        world.open(id, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    }
    assert_eq!(world.state.clients().len(), 8);
    world.events();
    world.peer = Ipv4Addr::LOCALHOST.into();
    world.exchange(&exchange("a", 2, 0), &OWNER).unwrap();
    assert_eq!(world.events(), [Event::Removed(b)], "the oldest other client is evicted");
    assert!(world.state.clients().find(a).is_some(), "the restart is not confirmed yet");
}
