//! A data server of pNFS that is loosely coupled: clients use the file handles of a metadata server, which uses NFSv3, with the
//! anonymous stateid, and are fenced by the users of files (RFC 8435 §2.2, §5.1).

use crate::common::v4::*;
use crate::common::{Rig, memory, server_with, user};
use nfs::{
    v3::{NfsFh3, Sattr3, SetAttr, SetAttrArgs},
    v4::*,
};
use server::{Export, ExportId, ExportOptions, NfsServer, Squash, config::Settings};

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
