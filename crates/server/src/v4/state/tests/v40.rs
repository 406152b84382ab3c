//! Clients of 4.0, which have no sessions.

use super::{
    super::{owner::Caller, transitions::v40::Subject},
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
