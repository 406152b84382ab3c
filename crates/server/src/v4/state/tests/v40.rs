//! Clients of 4.0, which have no sessions.

use super::{
    super::{
        owner::{Caller, Kept},
        transitions::v40::{Entered, Subject},
    },
    reduce::reachable,
    *,
};

const CALLER: Caller = Caller { principal: OWNER, sec: None, tls: Xprtsec::None };

/// Executes SETCLIENTID and SETCLIENTID_CONFIRM.
pub(super) fn introduce(world: &mut World, name: &str) -> Clientid4 {
    let args = SetClientIdArgs {
        client: NfsClientId4 { verifier: [1; 8], id: name.into() },
        callback: CbClient4 { cb_program: 0x4000_0000, cb_location: Netaddr4::default() },
        callback_ident: 1,
    };
    let SetClientIdOk { clientid, setclientid_confirm } =
        world.state.set_clientid(world.now, &args, Origin { tls: world.tls, ..local() }).unwrap();
    let args = SetClientIdConfirmArgs { clientid, setclientid_confirm };
    world.state.set_clientid_confirm(world.now, &args, (&OWNER, world.tls)).unwrap();
    clientid
}

pub(super) fn renew(world: &mut World, client: Clientid4) -> Result<(), Nfsstat4> {
    world.state.enter(&mut world.locks, world.now, Subject::Renewal(client), &CALLER).map(drop)
}

/// Returns an OPEN of the file `f`.
fn opens(clientid: Clientid4, name: &'static str, seqid: u32) -> Argop4 {
    Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(seqid),
        share_access: OPEN4_SHARE_ACCESS_WRITE,
        share_deny: OPEN4_SHARE_DENY_NONE,
        owner: StateOwner4 { clientid, owner: name.into() },
        openhow: Openflag4::NoCreate,
        claim: OpenClaim4::Null("f".into()),
    }))
}

impl World {
    fn enter(&mut self, operation: &Argop4) -> Result<Entered<char>, Nfsstat4> {
        let subject = Subject::of(operation).expect("it must have a subject");
        self.state.enter(&mut self.locks, self.now, subject, &CALLER)
    }

    /// Executes an operation with a sequence ID.
    fn sequenced<T>(&mut self, operation: &Argop4, execute: impl FnOnce(&mut Self) -> Result<T, Nfsstat4>) -> T {
        let Ok(Entered::Sequenced(owner)) = self.enter(operation) else { panic!("it must be executed: {operation:?}") };
        let result = execute(self).unwrap();
        let kept = Kept { status: Nfsstat4::Ok, result: Bytes::new(), file: Some('f'), caller: CALLER };
        self.state.leave(self.now, &owner, operation, kept);
        result
    }

    fn open_by_owner(&mut self, client: Clientid4, name: &'static str, seqid: u32) -> Stateid4 {
        let open = |world: &mut Self| world.open(client, name, OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_NONE);
        self.sequenced(&opens(client, name, seqid), open)
    }

    fn confirm_open(&mut self, client: Clientid4, open_stateid: Stateid4, seqid: u32) -> Stateid4 {
        let confirm = Argop4::OpenConfirm(OpenConfirmArgs { open_stateid, seqid: Seqid4(seqid) });
        self.sequenced(&confirm, |world| world.state.open_confirm(client, &'f', &open_stateid))
    }
}

#[test]
fn client_with_revoked_state_gets_expired_until_it_confirms_again() {
    let mut world = World::new();
    let (a, b) = (introduce(&mut world, "a"), introduce(&mut world, "b"));
    let lost = world.open(a, "o", OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_DENY_BOTH).unwrap();
    world.now += LEASE + Duration::from_secs(1);
    assert_eq!(renew(&mut world, b), Ok(()));
    assert!(world.open(b, "o", OPEN4_SHARE_ACCESS_READ, 0).is_ok());
    for _ in 0..2 {
        assert_eq!(renew(&mut world, a), Err(Nfsstat4::Expired));
    }
    let again = introduce(&mut world, "a");
    assert_eq!(renew(&mut world, again), Ok(()));
    assert!(world.open(again, "o", OPEN4_SHARE_ACCESS_READ, 0).is_ok());
    let old = world.state.enter(&mut world.locks, world.now, Subject::State(&lost), &CALLER);
    assert_eq!(old.map(drop), Err(Nfsstat4::BadStateid), "revoked state must not be restored");
}

#[test]
fn operations_on_state_have_a_subject() {
    let stateid = Stateid4 { seqid: 1, other: [7; 12] };
    let downgrade = OpenDowngradeArgs { open_stateid: stateid, seqid: Seqid4(3), share_access: 1, share_deny: 0 };
    let of = |operation: &Argop4| format!("{:?}", Subject::of(operation));
    assert_eq!(of(&Argop4::OpenDowngrade(downgrade)), format!("{:?}", Some(Subject::Owner(&stateid, Seqid4(3)))));
    let set = SetAttrArgs { stateid, obj_attributes: attr::Fattr4::default() };
    assert_eq!(of(&Argop4::SetAttr(set)), format!("{:?}", Some(Subject::State(&stateid))));
}

#[test]
fn client_that_changes_its_callback_address_keeps_its_state() {
    let mut world = World::new();
    let a = introduce(&mut world, "a");
    let open = world.open(a, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    assert_eq!(introduce(&mut world, "a"), a);
    assert!(world.state.stateids.contains(&open.other));
}

#[test]
fn confirmation_does_not_end_a_client_of_another_principal_that_is_back() {
    let mut world = World::new();
    let a = introduce(&mut world, "a");
    world.open(a, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    world.now += LEASE + Duration::from_secs(1);
    let other = Origin { principal: &OTHER, ..local() };
    let args = SetClientIdArgs {
        client: NfsClientId4 { verifier: [2; 8], id: "a".into() },
        callback: CbClient4 { cb_program: 0x4000_0000, cb_location: Netaddr4::default() },
        callback_ident: 1,
    };
    let SetClientIdOk { clientid, setclientid_confirm } = world.state.set_clientid(world.now, &args, other).unwrap();
    let confirm = |world: &mut World| {
        let args = SetClientIdConfirmArgs { clientid, setclientid_confirm };
        world.state.set_clientid_confirm(world.now, &args, (&OTHER, Xprtsec::None))
    };
    assert_eq!(renew(&mut world, a), Ok(()));
    assert_eq!(confirm(&mut world), Err(Nfsstat4::ClidInuse));
    world.now += LEASE + Duration::from_secs(1);
    assert_eq!(confirm(&mut world), Ok(()), "the lease has expired again");
    assert!(world.state.clients().find(a).is_none());
}

#[test]
fn operation_with_a_sequence_id_renews_the_lease_when_it_begins() {
    let mut world = World::new();
    let a = introduce(&mut world, "a");
    let open_stateid = world.open_by_owner(a, "o", 1);
    world.now += LEASE;
    let entered = world.enter(&Argop4::OpenConfirm(OpenConfirmArgs { open_stateid, seqid: Seqid4(2) }));
    assert!(matches!(entered, Ok(Entered::Sequenced(_))), "{entered:?}");
    world.now += LEASE;
    assert!(!world.state.clients().is_expired(a, world.now));
}

/// RFC 7530 §9.1.11: the owner's client has lost the reply, or has restarted.
#[test]
fn next_open_of_an_unconfirmed_owner_closes_its_earlier_ones() {
    let mut world = World::new();
    let a = introduce(&mut world, "a");
    let kept = world.open_by_owner(a, "kept", 1);
    world.confirm_open(a, kept, 2);
    let lost = world.open_by_owner(a, "o", 1);
    let again = world.open_by_owner(a, "o", 7);
    assert_ne!(again.other, lost.other);
    assert_eq!([kept, lost, again].map(|open| world.state.stateids.contains(&open.other)), [true, false, true]);
}

#[test]
fn owners_without_state_make_room_for_others() {
    let mut world = World::with(|options| options.client_stateids_max = 2);
    let a = introduce(&mut world, "a");
    let open = world.open_by_owner(a, "idle", 1);
    let open_stateid = world.confirm_open(a, open, 2);
    let close = Argop4::Close(CloseArgs { seqid: Seqid4(3), open_stateid });
    world.sequenced(&close, |world| world.state.close(&mut world.locks, a, &'f', &open_stateid));
    let open = world.open_by_owner(a, "in use", 1);
    let entered = world.enter(&opens(a, "new", 1));
    assert!(matches!(entered, Ok(Entered::Sequenced(_))), "{entered:?}");
    assert_eq!(world.enter(&opens(a, "more", 1)), Err(Nfsstat4::Resource), "one has state, one has begun");
    world.confirm_open(a, open, 2);
}

#[test]
fn changed_callback_address_is_probed_again() {
    let mut world = World::new();
    let confirmed_with = |world: &mut World, location: &str| {
        let callback =
            CbClient4 { cb_program: 0x4000_0000, cb_location: Netaddr4 { netid: "tcp".into(), addr: location.into() } };
        let client = NfsClientId4 { verifier: [1; 8], id: "a".into() };
        let args = SetClientIdArgs { client, callback, callback_ident: 1 };
        let SetClientIdOk { clientid, setclientid_confirm } =
            world.state.set_clientid(world.now, &args, local()).unwrap();
        let args = SetClientIdConfirmArgs { clientid, setclientid_confirm };
        world.state.set_clientid_confirm(world.now, &args, (&OWNER, Xprtsec::None)).unwrap();
        let probes = world.events().iter().filter(|event| matches!(event, Event::NewListener(_))).count();
        (clientid, probes)
    };
    let (id, probes) = confirmed_with(&mut world, "127.0.0.1.3.232");
    assert_eq!(probes, 1);
    let first = world.state.listener40(id).unwrap();
    assert_eq!(confirmed_with(&mut world, "127.0.0.1.3.233"), (id, 0), "the probe in progress will detect the change");
    assert!(world.state.listener_probed(id, &first, true), "it must be repeated");
    let second = world.state.listener40(id).unwrap();
    assert!(!world.state.listener_probed(id, &second, true));
    assert_eq!(confirmed_with(&mut world, "127.0.0.1.3.234"), (id, 1));
}

#[test]
fn renew_probes_a_callback_address_that_does_not_answer() {
    let mut world = World::new();
    let id = reachable(&mut world);
    let listener = world.state.listener40(id).unwrap();
    world.events();
    let renew = |world: &mut World| {
        let result = world.state.renew40(id);
        (result, world.events().iter().filter(|event| **event == Event::NewListener(id)).count())
    };
    assert_eq!(renew(&mut world), (Ok(()), 0), "the client answers");
    assert!(!world.state.listener_probed(id, &listener, false));
    assert_eq!(world.hold(id, "a"), 0);
    assert_eq!(renew(&mut world), (Ok(()), 1));
    assert_eq!(renew(&mut world), (Ok(()), 0), "the probe is in progress");
    assert!(!world.state.listener_probed(id, &listener, true));
    assert_eq!(world.hold(id, "a"), 1);
    // A recall fails. The client has a delegation now.
    world.state.note_callback(id, true);
    assert_eq!(renew(&mut world), (Err(Nfsstat4::CbPathDown), 1));
    assert!(!world.state.listener_probed(id, &listener, true));
    assert_eq!((renew(&mut world), world.hold(id, "b")), ((Ok(()), 0), 1));
}
