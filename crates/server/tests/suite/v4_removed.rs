//! Files that are open by version 4 when another client removes or replaces their names.

use std::{sync::Arc, time::Duration};

use crate::common::machine::background_work;
use crate::common::v4::*;
use crate::common::*;
use nfs::{
    v3::{GetAttr, GetAttrArgs as GetAttr3Args, Nfsstat3, Remove, RemoveArgs as Remove3Args},
    v4::{attr::Attr4, attr::Attrs, attr::Purpose, *},
};
use server::{Export, ExportId, ExportOptions, NfsServer, Squash, config::Settings};
use vfs::{
    Vfs,
    posix::{Posix, PosixOptions},
};

const LEASE: Duration = Duration::from_secs(20);

fn serving(tree: Arc<dyn Vfs>) -> NfsServer {
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let export = Export::new("/m", ExportId::unique(), tree, options).unwrap();
    server_with(export, Settings { lease: LEASE, ..Settings::default() })
}

/// Calls a test with each back end that keeps files.
fn with_each_tree(test: impl Fn(NfsServer)) {
    test(serving(memory()));
    let dir = tempfile::tempdir().unwrap();
    test(serving(Arc::new(Posix::open(dir.path(), PosixOptions::default()).unwrap())));
}

/// Returns the status of a GETATTR by version 3, which needs no state.
fn exists(server: &NfsServer, handle: &NfsFh4) -> bool {
    let args = GetAttr3Args { object: handle.0.clone().into() };
    match Rig::calling(server).call::<GetAttr>(args).into_result() {
        Ok(_) => true,
        Err((Nfsstat3::Stale, _)) => false,
        Err((status, _)) => panic!("{status:?}"),
    }
}

fn link_count(client: &mut Client4, handle: &NfsFh4) -> u32 {
    match client.ok([putfh(handle), getattr(&[Attr4::Numlinks])]).pop() {
        Some(Resop4::GetAttr(Res4::Ok(fattr))) => fattr.to_attrs(2, Purpose::Get).unwrap().numlinks.unwrap(),
        other => panic!("{other:?}"),
    }
}

fn read_back(client: &mut Client4, handle: &NfsFh4, stateid: Stateid4) -> Vec<u8> {
    match client.ok([putfh(handle), read(stateid, 0, 100)]).pop() {
        Some(Resop4::Read(Res4::Ok(read))) => read.data.0.to_bytes().unwrap().to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Opens a file whose handle a client has.
fn open_by_handle(client: &mut Client4, handle: &NfsFh4) -> Stateid4 {
    let Argop4::Open(args) = open("", Open { create: false, ..Open::default() }) else { unreachable!() };
    let args = OpenArgs { claim: OpenClaim4::Fh, ..*args };
    match client.ok([putfh(handle), Argop4::Open(Box::new(args))]).pop() {
        Some(Resop4::Open(Res4::Ok(opened))) => opened.stateid,
        other => panic!("{other:?}"),
    }
}

fn rename(from: &str, to: &str) -> Vec<Argop4> {
    let rename = RenameArgs { oldname: from.into(), newname: to.into() };
    [at("m"), vec![Argop4::SaveFh, Argop4::Rename(rename)]].concat()
}

fn removal(name: &str) -> Vec<Argop4> {
    [at("m"), vec![remove(name)]].concat()
}

fn opened_with(client: &mut Client4, name: &str, content: &[u8]) -> (Stateid4, NfsFh4) {
    let (stateid, handle) = client.open("m", name, Open::default()).unwrap();
    client.ok([putfh(&handle), write(stateid, 0, content)]);
    (stateid, handle)
}

#[simnet::test]
async fn open_file_keeps_its_data_when_another_client_removes_it() {
    for minor in [1, 2] {
        with_each_tree(|server| {
            let (mut holder, mut other) = (Client4::new(&server, "a", minor), Client4::new(&server, "b", minor));
            let (stateid, handle) = opened_with(&mut holder, "f", b"old data");
            other.ok(removal("f"));
            assert_eq!(other.status(at("m/f")), Nfsstat4::NoEnt);
            assert_eq!(read_back(&mut holder, &handle, stateid), b"old data");
            holder.ok([putfh(&handle), write(stateid, 0, b"new")]);
            assert_eq!(read_back(&mut holder, &handle, stateid), b"new data");
            let truncate = SetAttrArgs { stateid, obj_attributes: Attrs { size: Some(3), ..Attrs::default() }.into() };
            holder.ok([putfh(&handle), Argop4::SetAttr(truncate)]);
            assert_eq!(link_count(&mut holder, &handle), 0);

            let second = open_by_handle(&mut other, &handle);
            holder.ok([putfh(&handle), close(stateid)]);
            assert_eq!(read_back(&mut other, &handle, second), b"new");
            other.ok([putfh(&handle), close(second)]);
            assert!(!exists(&server, &handle), "the last CLOSE removes the file");
        });
    }
}

#[simnet::test]
async fn open_file_keeps_its_data_when_another_client_renames_over_it() {
    with_each_tree(|server| {
        let (mut holder, mut other) = (Client4::new(&server, "a", 2), Client4::new(&server, "b", 2));
        let (stateid, handle) = opened_with(&mut holder, "f", b"replaced");
        let moved = other.file("m", "moved", b"moved");
        other.ok(rename("moved", "f"));
        assert_eq!(other.walk("m/f"), moved);
        assert_eq!(read_back(&mut holder, &handle, stateid), b"replaced");
        holder.ok([putfh(&handle), close(stateid)]);
        assert!(!exists(&server, &handle));
        assert!(exists(&server, &moved));
    });
}

#[simnet::test]
async fn open_file_keeps_its_data_when_a_client_of_version_3_removes_it() {
    with_each_tree(|server| {
        let (mut holder, rig) = (Client4::new(&server, "a", 2), Rig::calling(&server));
        let (stateid, handle) = opened_with(&mut holder, "f", b"data");
        let dir = holder.walk("m").0.into();
        rig.call::<Remove>(Remove3Args { object: name_in(&dir, "f") }).into_result().unwrap();
        assert_eq!(read_back(&mut holder, &handle, stateid), b"data");
        holder.ok([putfh(&handle), close(stateid)]);
        assert!(!exists(&server, &handle));
    });
}

#[simnet::test]
async fn open_that_was_refused_keeps_no_file() {
    with_each_tree(|server| {
        let (mut holder, mut other) = (Client4::new(&server, "a", 2), Client4::new(&server, "b", 2));
        let alone = Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() };
        let (stateid, handle) = holder.open("m", "f", alone).unwrap();
        assert_eq!(other.open("m", "f", Open::default()).unwrap_err(), Nfsstat4::ShareDenied);
        other.ok(removal("f"));
        assert!(exists(&server, &handle));
        holder.ok([putfh(&handle), close(stateid)]);
        assert!(!exists(&server, &handle));
    });
}

#[simnet::test]
async fn restart_of_the_client_ends_the_removed_file() {
    with_each_tree(|server| {
        let (mut holder, mut other) = (Client4::new(&server, "a", 2), Client4::new(&server, "b", 2));
        let (_, handle) = opened_with(&mut holder, "f", b"data");
        other.ok(removal("f"));
        let Argop4::ExchangeId(mut args) = exchange_id("a") else { unreachable!() };
        args.clientowner.verifier = [2; 8];
        let restarted = Client4::stranger(&server, 2);
        let Resop4::ExchangeId(Res4::Ok(id)) = restarted.alone(Argop4::ExchangeId(args)) else { panic!() };
        assert!(exists(&server, &handle), "the new incarnation is not confirmed");
        restarted.alone(create_session(id.clientid, id.sequenceid, channel()));
        assert!(!exists(&server, &handle));
    });
}

/// Sends SEQUENCE after the lease has expired. The server may have to store the record of the client again before it answers.
fn come_back(client: &mut Client4) {
    client.sequence += 1;
    let sequence = client.sequence_op(0, client.sequence);
    if client.compound(vec![sequence.clone()]).status != Nfsstat4::Ok {
        assert_eq!(client.compound(vec![sequence]).status, Nfsstat4::Ok);
    }
}

#[simnet::test]
async fn removed_file_is_kept_as_long_as_the_lease_of_its_client() {
    let server = serving(memory());
    let _work = background_work(&server);
    let (mut holder, mut other) = (Client4::new(&server, "a", 2), Client4::new(&server, "b", 2));
    let (stateid, handle) = opened_with(&mut holder, "f", b"data");
    let (kept, with_name) = opened_with(&mut other, "g", b"data");
    let (of_holder, _) = holder.open("m", "g", Open::default()).unwrap();
    other.ok(removal("f"));
    for _ in 0..4 {
        tokio::time::sleep(LEASE * 3 / 4).await;
        assert_eq!(read_back(&mut holder, &handle, stateid), b"data", "the client renews its lease");
    }
    tokio::time::sleep(LEASE * 2).await;
    assert!(!exists(&server, &handle), "nobody else can want the file, so its client cannot keep it for ever");
    come_back(&mut holder);
    assert_eq!(holder.status([putfh(&with_name), read(of_holder, 0, 1)]), Nfsstat4::Expired);
    come_back(&mut other);
    assert_eq!(read_back(&mut other, &with_name, kept), b"data", "other expired clients keep their state");
}
