//! A data server of pNFS. The metadata server uses it by NFSv3, and fences clients by the users of files (RFC 8435 §2.2). Clients of
//! flexible files use its file handles with the anonymous stateid (RFC 8435 §5.1). Those of files layouts use handles that name the
//! user, with stateids of the metadata server (RFC 8881 §13.9.1).

use crate::common::v4::*;
use crate::common::{Rig, memory, server_with, user};
use nfs::{
    v3::{GetAttr, GetAttrArgs, GetAttrRes, NfsFh3, Nfsstat3, Sattr3, SetAttr, SetAttrArgs},
    v4::*,
};
use server::{
    AdoptedHandle, DataHandle, Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings,
};

/// A user that can write, and one that can read.
const WRITER: u32 = 1 << 30;
const READER: u32 = WRITER + 1;

fn data_server() -> NfsServer {
    // The metadata server is root. Here everybody is whom he says, as hosts without root are.
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), memory(), options).unwrap();
    server_with(export, Settings { data_server: true, ..Settings::default() })
}

/// Gives an object to these users.
fn give(mds: &Rig, object: &NfsFh3, writer: u32, reader: u32) {
    let set = Sattr3 { mode: Some(0o640), uid: Some(writer), gid: Some(reader), ..Default::default() };
    let args = SetAttrArgs { object: object.clone(), new_attributes: set, guard: None };
    mds.call::<SetAttr>(args).into_result().unwrap();
}

/// A client of a data server that acts as the users of layouts.
struct DataClient(Client4, NfsFh4);

impl DataClient {
    fn status(&mut self, uid: u32, operation: Argop4) -> Nfsstat4 {
        // Like Linux's client, it has created the session as root.
        self.0.caller = user(uid, READER);
        self.0.status([putfh(&self.1), operation])
    }

    fn write(&mut self, uid: u32) -> Nfsstat4 {
        self.status(uid, write(Stateid4::ANONYMOUS, 3, b"data"))
    }

    fn read(&mut self, uid: u32) -> Nfsstat4 {
        self.status(uid, read(Stateid4::ANONYMOUS, 0, 100))
    }

    fn commit(&mut self, uid: u32) -> Nfsstat4 {
        self.status(uid, Argop4::Commit(CommitArgs { offset: 0, count: 0 }))
    }
}

#[simnet::test]
async fn users_of_an_object_need_no_open_until_they_are_fenced() {
    for minor in [1, 2] {
        let server = data_server();
        let mds = Rig::calling(&server);
        let object = mds.file(&mds.root(), "object", b"old");
        give(&mds, &object, WRITER, READER);
        let handle = NfsFh4::from(object.0.clone());
        let mut client = DataClient(Client4::new(&server, "client", minor), handle);

        assert_eq!(client.write(WRITER), Nfsstat4::Ok);
        assert_eq!(client.commit(WRITER), Nfsstat4::Ok);
        client.0.caller = user(READER, READER);
        let results = client.0.ok([putfh(&client.1), read(Stateid4::ANONYMOUS, 0, 100)]);
        let Some(Resop4::Read(Res4::Ok(ok))) = results.last() else { panic!("{results:?}") };
        assert!(ok.eof && ok.data.0.to_bytes().unwrap() == "olddata");
        assert_eq!(client.write(READER), Nfsstat4::Access, "a client with a layout to read cannot write");
        // A stateid of the metadata server means nothing here.
        let foreign = Stateid4 { seqid: 0, other: [7; 12] };
        assert_eq!(client.status(WRITER, read(foreign, 0, 100)), Nfsstat4::BadStateid);

        // The fence is in force at once, for each operation.
        give(&mds, &object, WRITER + 2, READER + 2);
        assert_eq!(client.write(WRITER), Nfsstat4::Access);
        assert_eq!(client.read(WRITER), Nfsstat4::Access);
        assert_eq!(client.read(READER), Nfsstat4::Access);
        assert_eq!(client.write(WRITER + 2), Nfsstat4::Ok);
    }
}

/// Handles that another program has computed are only for exports that verify them.
#[simnet::test]
async fn handles_without_a_proof_are_refused_by_ordinary_exports() {
    let server = data_server();
    let mds = Rig::calling(&server);
    let object = mds.file(&mds.root(), "object", b"old");
    let (export, known) = HandleKey::parts(&object.0).unwrap();
    for (number, export) in [export, ExportId::of(&[b"another"])].into_iter().enumerate() {
        let forged = AdoptedHandle { export, object: known }.encode();
        let args = GetAttrArgs { object: NfsFh3::from(forged.clone()) };
        assert_eq!(mds.call::<GetAttr>(args), GetAttrRes::Fail(Nfsstat3::Stale, ()));
        let wrapped = DataHandle { uid: WRITER, gid: READER, object: forged.clone() }.encode();
        for minor in [1, 2] {
            let mut client = Client4::new(&server, &format!("client {number} {minor}"), minor);
            for handle in [&forged, &wrapped] {
                let handle = NfsFh4::from(handle.clone());
                assert_eq!(client.status([putfh(&handle), read(FOREIGN, 0, 100)]), Nfsstat4::Stale);
            }
        }
    }
}

/// A stateid of a metadata server.
const FOREIGN: Stateid4 = Stateid4 { seqid: 0, other: [7; 12] };

/// Returns the handle of a files layout.
fn data_handle(object: &NfsFh3, user: u32) -> NfsFh4 {
    DataHandle { uid: user, gid: READER, object: object.0.clone() }.encode().into()
}

#[simnet::test]
async fn handles_of_files_layouts_name_the_user_until_it_is_fenced() {
    for minor in [1, 2] {
        let server = data_server();
        let mds = Rig::calling(&server);
        let object = mds.file(&mds.root(), "object", b"old");
        give(&mds, &object, WRITER, READER);
        let [writer, reader] = [WRITER, READER].map(|user| data_handle(&object, user));
        // The client is somebody who may not use the object, as on the metadata server's side.
        let mut client = Client4::new(&server, "client", minor);
        client.caller = user(1000, 1000);
        assert_eq!(client.status([putfh(&writer), write(FOREIGN, 3, b"data")]), Nfsstat4::Ok);
        assert_eq!(client.status([putfh(&writer), Argop4::Commit(CommitArgs { offset: 0, count: 0 })]), Nfsstat4::Ok);
        for handle in [&writer, &reader] {
            let results = client.ok([putfh(handle), read(FOREIGN, 0, 100)]);
            let Some(Resop4::Read(Res4::Ok(ok))) = results.last() else { panic!("{results:?}") };
            assert!(ok.eof && ok.data.0.to_bytes().unwrap() == "olddata");
        }
        assert_eq!(client.status([putfh(&reader), write(FOREIGN, 0, b"x")]), Nfsstat4::PnfsNoLayout);
        let plain = NfsFh4::from(object.0.clone());
        assert_eq!(client.status([putfh(&plain), read(Stateid4::ANONYMOUS, 0, 1)]), Nfsstat4::Access);

        // RFC 8881 §13.9.1: a data server refuses special stateids.
        //= rfc8881-8.2.3-1 rfc8881-8.2.3-2
        for special in [Stateid4::ANONYMOUS, Stateid4::READ_BYPASS, Stateid4::CURRENT, Stateid4::INVALID] {
            assert_eq!(client.status([putfh(&writer), read(special, 0, 1)]), Nfsstat4::BadStateid, "{special:?}");
            assert_eq!(client.status([putfh(&writer), write(special, 0, b"x")]), Nfsstat4::BadStateid, "{special:?}");
        }

        give(&mds, &object, WRITER + 2, READER + 2);
        assert_eq!(client.status([putfh(&writer), write(FOREIGN, 0, b"x")]), Nfsstat4::PnfsNoLayout);
        assert_eq!(client.status([putfh(&writer), read(FOREIGN, 0, 1)]), Nfsstat4::PnfsNoLayout);
        assert_eq!(client.status([putfh(&reader), read(FOREIGN, 0, 1)]), Nfsstat4::PnfsNoLayout);
        let next = data_handle(&object, WRITER + 2);
        assert_eq!(client.status([putfh(&next), write(FOREIGN, 0, b"x")]), Nfsstat4::Ok);
    }
}

/// The metadata server learns sizes and times by LAYOUTCOMMIT, which a client omits after FILE_SYNC4.
#[simnet::test]
async fn no_write_by_a_files_layout_is_file_sync() {
    let server = data_server();
    let mds = Rig::calling(&server);
    let object = mds.file(&mds.root(), "object", b"");
    give(&mds, &object, WRITER, READER);
    let mut client = Client4::new(&server, "client", 1);
    let mut committed = |handle: &NfsFh4, stateid, stable| {
        let args = WriteArgs { stateid, offset: 0, stable, data: bytes::Bytes::from_static(b"data").into() };
        client.caller = user(WRITER, READER);
        let results = client.ok([putfh(handle), Argop4::Write(args)]);
        let Some(Resop4::Write(Res4::Ok(ok))) = results.last() else { panic!("{results:?}") };
        ok.committed
    };
    let by_layout = data_handle(&object, WRITER);
    assert_eq!(committed(&by_layout, FOREIGN, StableHow4::FileSync), StableHow4::DataSync);
    assert_eq!(committed(&by_layout, FOREIGN, StableHow4::DataSync), StableHow4::DataSync);
    let plain = NfsFh4::from(object.0.clone());
    assert_eq!(committed(&plain, Stateid4::ANONYMOUS, StableHow4::FileSync), StableHow4::FileSync);
}

/// RFC 8881 §13.6.
#[simnet::test]
async fn handles_of_files_layouts_are_for_data_only() {
    let server = data_server();
    let mds = Rig::calling(&server);
    let object = mds.file(&mds.root(), "object", b"old");
    give(&mds, &object, WRITER, READER);
    let handle = data_handle(&object, WRITER);
    let mut client = Client4::new(&server, "client", 2);
    let others = [
        Argop4::GetAttr(nfs::v4::GetAttrArgs { attr_request: Default::default() }),
        Argop4::GetFh,
        Argop4::SaveFh,
        Argop4::PutRootFh,
        Argop4::Deallocate(AllocateArgs { stateid: FOREIGN, offset: 0, length: 1 }),
    ];
    for operation in others {
        assert_eq!(client.status([putfh(&handle), operation.clone()]), Nfsstat4::NotSupp, "{operation:?}");
    }
    // The next file handle has no user.
    let plain = NfsFh4::from(object.0.clone());
    assert_eq!(client.status([putfh(&handle), putfh(&plain), Argop4::GetFh]), Nfsstat4::Ok);
}

#[simnet::test]
async fn forged_handles_of_files_layouts_are_refused() {
    let server = data_server();
    let mds = Rig::calling(&server);
    let object = mds.file(&mds.root(), "object", b"old");
    give(&mds, &object, WRITER, READER);
    let mut client = Client4::new(&server, "client", 1);
    let mut status = |handle: NfsFh4| client.status([putfh(&handle), read(FOREIGN, 0, 1)]);
    assert_eq!(status(data_handle(&object, WRITER)), Nfsstat4::Ok);
    for user in [0, 1000, WRITER - 1, 1 << 31, u32::MAX] {
        assert_eq!(status(data_handle(&object, user)), Nfsstat4::BadHandle, "{user}");
    }
    assert_eq!(status(data_handle(&object, WRITER + 1)), Nfsstat4::Ok, "the group may read");
    let other_group = DataHandle { uid: WRITER + 5, gid: READER + 5, object: object.0.clone() }.encode();
    assert_eq!(status(other_group.into()), Nfsstat4::PnfsNoLayout);
    let mut altered = object.0.to_vec();
    *altered.last_mut().unwrap() ^= 1;
    assert_eq!(status(data_handle(&bytes::Bytes::from(altered).into(), WRITER)), Nfsstat4::Stale);
    for len in 1..9 {
        assert_eq!(status(data_handle(&object, WRITER).0.slice(..len).into()), Nfsstat4::BadHandle, "{len} bytes");
    }
    let root = DataHandle { uid: WRITER, gid: READER, object: mds.root().0 }.encode();
    assert_ne!(client.status([putfh(&root.into()), read(FOREIGN, 0, 1)]), Nfsstat4::Ok, "a directory");

    // A server that is no data server knows no such handles.
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), memory(), options).unwrap();
    let plain = server_with(export, Settings::default());
    let mds = Rig::calling(&plain);
    let object = mds.file(&mds.root(), "object", b"old");
    give(&mds, &object, WRITER, READER);
    let mut client = Client4::new(&plain, "client", 1);
    assert_eq!(client.status([putfh(&data_handle(&object, WRITER)), read(FOREIGN, 0, 1)]), Nfsstat4::BadHandle);
}
