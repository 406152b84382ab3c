//! Requests to return slots and delegations. The limits are 16 slots and 8 delegations.

use vfs::layout::LayoutKind;

use super::*;
use crate::v4::state::{load::Reduction, recallable::RecallableKind, transitions::delegation::DelegationRequest};

impl World {
    /// Sends a request in a slot. Returns the target slot of its reply.
    fn in_slot(&mut self, sessionid: Sessionid4, slot: u32, sequence: u32, highest: u32) -> u32 {
        let args = SequenceArgs {
            sessionid,
            sequenceid: Sequenceid4(sequence),
            slotid: Slotid4(slot),
            highest_slotid: Slotid4(highest),
            cachethis: true,
        };
        let fingerprint = Fingerprint { principal: OWNER, checksum: u64::from(sequence) };
        let request = Request { args: &args, fingerprint, len: 1000, operations: 3 };
        let sequenced = self.state.sequence(self.now, request, TCP).unwrap();
        let Begun::Execute(ticket) = sequenced.begun else { panic!("the request is new") };
        self.state.finish(self.now, sessionid, ticket, "reply", false);
        sequenced.result.target_highest_slotid.0
    }

    fn reductions(&mut self) -> Vec<(Clientid4, Reduction)> {
        self.state.reduce_load(self.now);
        let mut asks: Vec<_> = std::iter::from_fn(|| self.state.poll_reduction()).collect();
        asks.sort_by_key(|(client, _)| *client);
        asks
    }

    /// Requests a read delegation for each of `files`. Returns the number granted.
    pub(super) fn hold(&mut self, client: Clientid4, files: &str) -> usize {
        let delegate = |file| {
            let share_access = OPEN4_SHARE_ACCESS_READ;
            let request = DelegationRequest { client, file: &file, share_access, change: 7, reclaim: None, call: None };
            matches!(self.state.delegate(&self.locks, &request, self.now), OpenDelegation4::Read(_))
        };
        files.chars().map(delegate).filter(|granted| *granted).count()
    }
}

#[test]
fn sessions_above_their_share_of_slots_are_asked_to_reduce_until_enough_are_free() {
    let mut world = World::new();
    let ((a, one), (b, two), (_, idle)) = (world.ready("a"), world.ready("b"), world.ready("c"));
    for slot in 0..8 {
        assert_eq!(world.in_slot(one, slot, 1, 7), 7);
    }
    world.in_slot(idle, 0, 1, 0);
    assert_eq!(world.reductions(), [], "9 of 16 slots are in use");
    for slot in 0..4 {
        world.in_slot(two, slot, 1, 3);
    }
    // Half of all slots is two for each of three sessions.
    let target = Slotid4(1);
    assert_eq!(world.reductions(), [(a, Reduction::Slots(one, target)), (b, Reduction::Slots(two, target))]);
    assert_eq!(world.reductions(), [], "the request is sent once");
    assert_eq!((world.in_slot(one, 0, 2, 7), world.in_slot(two, 0, 2, 3)), (1, 1), "each reply has the target");
    assert_eq!(
        (world.in_slot(one, 0, 3, 1), world.in_slot(two, 0, 3, 1)),
        (1, 1),
        "these requests show that the client has seen the target"
    );
    assert_eq!(world.state.clients().find(client_of(&one)).unwrap().shard.close().slots(one).unwrap().in_use(), 2);
    assert_eq!(world.reductions(), []);
    assert_eq!(world.in_slot(one, 1, 2, 1), 7, "5 of 16 slots are in use: the limit is lifted");
}

#[test]
fn client_above_its_share_of_delegations_is_asked_to_reduce() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    assert_eq!((world.hold(a, "abcde"), world.hold(b, "f")), (5, 1));
    assert_eq!(world.reductions(), [], "6 of 8 delegations are granted");
    assert_eq!(world.hold(a, "ghi"), 2, "the ninth exceeds the limit");
    assert_eq!(world.reductions(), [(a, Reduction::Recallables(RecallableKind::Delegation, 2))]);
    assert_eq!(world.reductions(), [], "the client has time to return delegations");
    world.now += Duration::from_secs(5);
    assert_eq!(world.reductions(), [(a, Reduction::Recallables(RecallableKind::Delegation, 2))]);
}

/// Without this, the clients would get LAYOUTTRYLATER for ever.
#[test]
fn client_above_its_share_of_layouts_is_asked_to_reduce_before_the_limit_is_reached() {
    for kind in [LayoutKind::Flexible, LayoutKind::Files] {
        let mut world = World::new();
        let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
        let hold = |world: &mut World, client, files: &str| {
            files.chars().for_each(|file| world.hold_layout(client, file, kind).unwrap());
        };
        hold(&mut world, a, "abcde");
        hold(&mut world, b, "f");
        assert_eq!(world.reductions(), [], "6 of 8 layouts are granted");
        hold(&mut world, a, "g");
        let asked = [(a, Reduction::Recallables(RecallableKind::Layout(kind), 2))];
        assert_eq!(world.reductions(), asked, "half of the limit is two for each of two clients");
        assert_eq!(world.reductions(), [], "the client has time to return layouts");
        world.now += Duration::from_secs(5);
        assert_eq!(world.reductions(), asked);
        // The other kinds have limits of their own.
        assert_eq!(world.hold(a, "hijklm"), 6);
        assert_eq!(world.reductions(), []);
    }
}

#[test]
fn share_of_slots_depends_on_the_number_of_sessions() {
    let mut world = World::new();
    let ((a, one), (b, two)) = (world.ready("a"), world.ready("b"));
    for slot in 0..8 {
        world.in_slot(one, slot, 1, 7);
    }
    for slot in 0..5 {
        world.in_slot(two, slot, 1, 4);
    }
    // Half of all slots is four for each of two sessions.
    let target = Slotid4(3);
    assert_eq!(world.reductions(), [(a, Reduction::Slots(one, target)), (b, Reduction::Slots(two, target))]);
    for session in [one, two] {
        assert_eq!(world.in_slot(session, 0, 2, 4), 3);
        assert_eq!(world.in_slot(session, 0, 3, 3), 3);
    }
    assert_eq!(world.reductions(), []);
    assert_eq!(world.in_slot(one, 0, 4, 3), 3, "8 of 16 slots are in use: the limit stays");
}

#[test]
fn session_with_its_share_of_slots_is_not_asked_to_reduce() {
    let mut world = World::new();
    let sessions = ["a", "b", "c"].map(|name| world.ready(name).1);
    for (session, count) in sessions.into_iter().zip([8, 3, 2]) {
        for slot in 0..count {
            world.in_slot(session, slot, 1, count - 1);
        }
    }
    let asked = world.reductions().into_iter().map(|(_, reduction)| reduction);
    let target = Slotid4(1);
    assert_eq!(
        asked.collect::<Vec<_>>(),
        sessions[..2].iter().map(|one| Reduction::Slots(*one, target)).collect::<Vec<_>>()
    );
}

#[test]
fn client_with_its_share_of_delegations_is_not_asked_to_reduce() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    assert_eq!((world.hold(a, "abcde"), world.hold(b, "fg")), (5, 2));
    assert_eq!(
        world.reductions(),
        [(a, Reduction::Recallables(RecallableKind::Delegation, 2))],
        "half of the limit is two for each of two clients"
    );
}

/// A client that listens for callbacks at 192.0.2.1, port 2049.
fn listening() -> SetClientIdArgs {
    let cb_location = Netaddr4 { netid: "tcp".into(), addr: "192.0.2.1.8.1".into() };
    SetClientIdArgs {
        client: NfsClientId4 { verifier: [1; 8], id: "old".into() },
        callback: CbClient4 { cb_program: 1, cb_location },
        callback_ident: 1,
    }
}

/// Adds a confirmed client of 4.0 that answers callbacks.
pub(super) fn reachable(world: &mut World) -> Clientid4 {
    let from = Origin { peer: "192.0.2.1".parse().unwrap(), ..local() };
    let SetClientIdOk { clientid, setclientid_confirm } =
        world.state.set_clientid(world.now, &listening(), from).unwrap();
    let confirm = SetClientIdConfirmArgs { clientid, setclientid_confirm };
    world.state.set_clientid_confirm(world.now, &confirm, (&OWNER, Xprtsec::None)).unwrap();
    let listener = world.state.listener40(clientid).unwrap();
    assert!(!world.state.listener_probed(clientid, &listener, true));
    clientid
}

#[test]
fn a_v40_client_of_rpcsec_gss_gets_callbacks_if_the_server_has_a_flavour_for_it() {
    let gss = Principal::Gss(Bytes::from_static(b"host/client@REALM"));
    for (principal, callback_flavor, expected) in
        [(&OWNER, None, true), (&gss, None, false), (&gss, Some(390_004), true)]
    {
        let mut world = World::new();
        let from = Origin {
            principal,
            has_integrity: true,
            callback_flavor,
            peer: "192.0.2.1".parse().unwrap(),
            admitted: true,
            tls: Xprtsec::None,
        };
        let made = world.state.set_clientid(world.now, &listening(), from).unwrap();
        let SetClientIdOk { clientid, setclientid_confirm } = made;
        let confirm = SetClientIdConfirmArgs { clientid, setclientid_confirm };
        world.state.set_clientid_confirm(world.now, &confirm, (principal, Xprtsec::None)).unwrap();
        let listener = world.state.listener40(clientid);
        assert_eq!(listener.is_some(), expected, "{principal:?}");
        let called = listener.and_then(|listener| listener.principal).map(|principal| principal.pseudo_flavor);
        assert_eq!(called, callback_flavor);
        assert_eq!(world.events().contains(&Event::NewListener(clientid)), expected);
    }
}

#[test]
fn delegations_of_a_v40_client_are_recalled_one_by_one() {
    let mut world = World::new();
    let args = listening();
    let from = |ip: &str| Origin { peer: ip.parse().unwrap(), ..local() };
    let other_host = world.state.set_clientid(world.now, &args, from("192.0.2.2")).unwrap().clientid;
    assert!(world.state.listener40(other_host).is_none());
    let made = world.state.set_clientid(world.now, &args, from("::ffff:192.0.2.1")).unwrap();
    let SetClientIdOk { clientid, setclientid_confirm } = made;
    let confirm = SetClientIdConfirmArgs { clientid, setclientid_confirm };
    world.state.set_clientid_confirm(world.now, &confirm, (&OWNER, Xprtsec::None)).unwrap();
    assert_eq!(world.events(), [Event::Confirmed(clientid), Event::NewListener(clientid)]);
    assert_eq!(world.hold(clientid, "a"), 0, "the callback address was not probed");
    let listener = world.state.listener40(clientid).unwrap();
    assert_eq!(listener.address, "192.0.2.1:2049".parse().unwrap());
    assert!(!world.state.listener_probed(clientid, &listener, true));
    assert_eq!(world.hold(clientid, "abcdefg"), 7);
    assert_eq!(world.reductions(), []);
    let recalled = std::iter::from_fn(|| world.state.poll_recall()).count();
    assert_eq!(recalled, 3, "it keeps half of the limit");
}
