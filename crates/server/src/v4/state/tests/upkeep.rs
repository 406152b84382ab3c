//! What the state reports about its work, its leases and its sessions.

use super::{
    super::{
        load::Reduction,
        recallable::{Held, RecallableKind},
    },
    *,
};

#[test]
fn state_is_settled_only_if_every_queue_is_empty() {
    let held = Held { client: Clientid4(1), file: 'f', stateid: Stateid4 { seqid: 1, other: [0; 12] } };
    type Change<'a> = &'a dyn Fn(&mut State<&'static str, char>);
    let changes: [Change<'_>; 4] = [
        &|state| state.events.push_back(Event::Removed(Clientid4(1))),
        &|state| state.records.push_back(RecordChange::Remove(Bytes::from_static(b"a"))),
        &|state| state.recalls.queue.push_back(held.clone()),
        &|state| state.load.reductions.push_back((Clientid4(1), Reduction::Recallables(RecallableKind::Delegation, 1))),
    ];
    assert!(World::new().state.is_settled());
    for change in changes {
        let mut world = World::new();
        change(&mut world.state);
        assert!(!world.state.is_settled());
    }
}

#[test]
fn leases_are_checked_at_intervals() {
    let mut world = World::new();
    assert!(world.state.clients().is_empty());
    let (id, _) = world.client("a", 1);
    assert!(!world.state.clients().is_empty());
    let first = world.now + LEASE - Duration::from_millis(500);
    world.state.expire(first);
    world.state.expire(first + Duration::from_secs(1));
    assert!(world.state.clients().find(id).is_some(), "the next check is later");
    world.state.expire(first + LEASE / EXPIRY_CHECKS);
    assert!(world.state.clients().find(id).is_none());
}

#[test]
fn session_wants_a_backchannel_since_it_was_bound_to_one() {
    let mut world = World::new();
    let id = world.exchange(&exchange("a", 1, 0), &OWNER).unwrap().clientid;
    let session = world.create(&CreateSessionArgs { flags: 0, ..create(id, 1) }).unwrap().sessionid;
    let other = Connection { id: ConnectionId(2), duplex: true, tls: Xprtsec::None };
    assert_eq!(world.call(session, 1, 1).status_flags & SEQ4_STATUS_CB_PATH_DOWN_SESSION, 0);
    world.state.bind_conn_to_session(&bind(session, ChannelDirFromClient4::BackOrBoth), &OWNER, other).unwrap();
    assert_eq!(world.call(session, 2, 1).status_flags & SEQ4_STATUS_CB_PATH_DOWN_SESSION, 0);
    world.state.disconnect(other.id);
    assert_ne!(world.call(session, 3, 1).status_flags & SEQ4_STATUS_CB_PATH_DOWN_SESSION, 0);
    let simplex = Connection { id: ConnectionId(3), duplex: false, tls: Xprtsec::None };
    for dir in [ChannelDirFromClient4::Back, ChannelDirFromClient4::BackOrBoth] {
        let bound = world.state.bind_conn_to_session(&bind(session, dir), &OWNER, simplex);
        assert_eq!(bound.map(|_| ()), Err(Nfsstat4::Inval));
    }
}
