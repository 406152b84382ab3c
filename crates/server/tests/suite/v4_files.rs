//! Names, attributes, data and opens of version 4.

use crate::common::toy::Toy;
use crate::common::v4;
use crate::common::v4::*;
use crate::common::*;
use nfs::v4::{
    attr::{Attr4, Attrs, Fattr4, Purpose},
    *,
};
use server::{Export, ExportId, ExportOptions, Exports, NfsServer, Squash};

fn export(name: &str, options: ExportOptions) -> Export {
    Export::new(name, ExportId::unique(), memory(), ExportOptions { squash: Squash::None, ..options }).unwrap()
}

fn serving(names: &[&str]) -> NfsServer {
    let mut exports = Exports::new();
    names.iter().for_each(|name| exports.add(export(name, ExportOptions::default())).unwrap());
    server_of(exports)
}

fn names(client: &mut Client4, path: &str) -> Vec<String> {
    let (mut cookie, mut cookieverf, mut names) = (0, [0; 8], Vec::new());
    loop {
        let mut operations = at(path);
        let attr_request = [Attr4::Fileid as u32, Attr4::RdattrError as u32].into_iter().collect();
        operations.push(Argop4::ReadDir(ReadDirArgs { cookie, cookieverf, dircount: 0, maxcount: 200, attr_request }));
        let Some(Resop4::ReadDir(Res4::Ok(read))) = client.ok(operations).pop() else { panic!() };
        for entry in &read.reply.entries {
            cookie = entry.cookie;
            names.push(String::from_utf8(entry.name.0.to_vec()).unwrap());
        }
        cookieverf = read.cookieverf;
        if read.reply.eof {
            return names;
        }
    }
}

#[simnet::test]
async fn pseudo_file_system_joins_the_exports() {
    let server = serving(&["/a/b", "/a/c/d", "/e"]);
    let mut client = Client4::new(&server, "a", 2);
    assert_eq!(names(&mut client, ""), ["a", "e"]);
    assert_eq!(names(&mut client, "a"), ["b", "c"]);
    assert_eq!(client.status(at("x")), Nfsstat4::NoEnt);
    let fsid = |client: &mut Client4, path| client.attrs(path, &[Attr4::Fsid]).fsid.unwrap();
    assert_eq!(fsid(&mut client, ""), fsid(&mut client, "a/c"));
    assert_ne!(fsid(&mut client, "a"), fsid(&mut client, "a/b"));
    assert_ne!(fsid(&mut client, "a/b"), fsid(&mut client, "e"));
    // LOOKUPP crosses the mount points.
    let up = [at("a/c/d"), vec![Argop4::LookupP, Argop4::LookupP, Argop4::GetFh]].concat();
    let Some(Resop4::GetFh(Res4::Ok(handle))) = client.ok(up).pop() else { panic!() };
    assert_eq!(handle, client.walk("a"));
    assert_eq!(client.status([Argop4::PutRootFh, Argop4::LookupP]), Nfsstat4::NoEnt);
    // The pseudo file system is read-only.
    assert_eq!(client.status([at("a"), vec![mkdir("x")]].concat()), Nfsstat4::RoFs);
    let root = client.attrs("a/b", &[Attr4::Fileid, Attr4::MountedOnFileid]);
    assert_ne!(root.fileid, root.mounted_on_fileid);
}

#[simnet::test]
async fn export_can_be_mounted_in_another() {
    let server = serving(&["/", "/sub/inner"]);
    let mut client = Client4::new(&server, "a", 2);
    assert_eq!(client.status(at("sub")), Nfsstat4::NoEnt);
    client.ok([Argop4::PutRootFh, mkdir("sub")]);
    assert_eq!(client.status(at("sub/other")), Nfsstat4::NoEnt);
    client.ok([at("sub/inner"), vec![mkdir("deep")]].concat());
    let up = [at("sub/inner"), vec![Argop4::LookupP, Argop4::GetFh]].concat();
    let Some(Resop4::GetFh(Res4::Ok(handle))) = client.ok(up).pop() else { panic!() };
    assert_eq!(handle, client.walk("sub"));
    assert_eq!(names(&mut client, "sub/inner"), ["deep"]);
}

#[simnet::test]
async fn exports_that_do_not_admit_the_caller_are_hidden() {
    let mut exports = Exports::new();
    exports.add(export("/mine", ExportOptions::default())).unwrap();
    let clients = vec!["10.0.0.0/8".parse().unwrap()];
    exports.add(export("/theirs/x", ExportOptions { clients, ..Default::default() })).unwrap();
    let server = server_of(exports);
    let mut client = Client4::new(&server, "a", 2);
    assert_eq!(names(&mut client, ""), ["mine"]);
    assert_eq!(client.status(at("theirs")), Nfsstat4::NoEnt);
    client.peer = "10.1.2.3:700".parse().unwrap();
    assert_eq!(names(&mut client, ""), ["mine", "theirs"]);
    let handle = client.walk("theirs/x");
    client.peer = "192.0.2.1:700".parse().unwrap();
    assert_eq!(client.status([putfh(&handle)]), Nfsstat4::Access);
}

#[simnet::test]
async fn current_stateid_writes_and_reads() {
    let server = serving(&["/m"]);
    let mut client = Client4::new(&server, "a", 2);
    let mut operations = at("m");
    operations.extend([open("f", Open::default()), write(Stateid4::CURRENT, 3, b"hello")]);
    operations.extend([read(Stateid4::CURRENT, 0, 100), close(Stateid4::CURRENT)]);
    let results = client.ok(operations);
    let [.., Resop4::Read(Res4::Ok(read_back)), Resop4::Close(Res4::Ok(closed))] = &results[..] else { panic!() };
    assert_eq!(read_back.data.0.to_bytes().unwrap(), &b"\0\0\0hello"[..]);
    assert!(read_back.eof);
    assert_eq!(*closed, Stateid4::INVALID);
    // A compound without an OPEN has no current stateid.
    //= rfc8881-8.2.3-3
    assert_eq!(client.status([at("m/f"), vec![read(Stateid4::CURRENT, 0, 1)]].concat()), Nfsstat4::BadStateid);
}

#[simnet::test]
async fn io_checks_stateids() {
    let server = serving(&["/m"]);
    let mut client = Client4::new(&server, "a", 2);
    let how = Open { access: OPEN4_SHARE_ACCESS_READ, ..Open::default() };
    let (stateid, handle) = client.open("m", "f", how).unwrap();
    let other = client.file("m", "g", b"g");
    //= rfc8881-9.1.2-2
    assert_eq!(client.status([putfh(&handle), write(stateid, 0, b"x")]), Nfsstat4::OpenMode);
    assert_eq!(client.status([putfh(&other), read(stateid, 0, 1)]), Nfsstat4::BadStateid);
    let (upgraded, _) = client.open("m", "f", Open::default()).unwrap();
    assert_eq!(client.status([putfh(&handle), read(stateid, 0, 1)]), Nfsstat4::OldStateid);
    client.ok([putfh(&handle), write(upgraded, 0, b"x")]);
    client.ok([putfh(&handle), close(upgraded)]);
    assert_eq!(client.status([putfh(&handle), read(upgraded, 0, 1)]), Nfsstat4::BadStateid);
}

#[simnet::test]
async fn open_denied_by_a_share_does_not_truncate_the_file() {
    let server = serving(&["/m"]);
    let mut first = Client4::new(&server, "a", 2);
    first.file("m", "f", b"content");
    let reading =
        Open { access: OPEN4_SHARE_ACCESS_READ, deny: OPEN4_SHARE_DENY_WRITE, create: false, ..Open::default() };
    let (held, handle) = first.open("m", "f", reading).unwrap();
    let mut second = Client4::new(&server, "b", 2);
    let truncating = Fattr4::from(Attrs { size: Some(0), ..Attrs::default() });
    let Argop4::Open(mut args) = open("f", Open::default()) else { unreachable!() };
    args.openhow = Openflag4::Create(Createhow4::Unchecked(truncating));
    let truncate = [at("m"), vec![Argop4::Open(args)]].concat();
    assert_eq!(second.status(truncate.clone()), Nfsstat4::ShareDenied);
    assert_eq!(second.attrs("m/f", &[Attr4::Size]).size, Some(7));
    //= rfc8881-9.1.2-1
    assert_eq!(second.status([putfh(&handle), write(Stateid4::ANONYMOUS, 0, b"x")]), Nfsstat4::Locked);
    assert_eq!(first.status(truncate.clone()), Nfsstat4::ShareDenied, "a deny also applies to the same owner");
    first.ok([putfh(&handle), close(held)]);
    assert_eq!(second.status(truncate), Nfsstat4::Ok);
    assert_eq!(second.attrs("m/f", &[Attr4::Size]).size, Some(0));
}

#[simnet::test]
async fn exclusive_create_is_repeatable_with_the_same_verifier() {
    let server = serving(&["/m"]);
    let mut client = Client4::new(&server, "a", 2);
    let mut make = |verf: u8| {
        let Argop4::Open(mut args) = open("f", Open::default()) else { unreachable!() };
        let attrs = Attrs { mode: Some(0o640), ..Attrs::default() }.into();
        args.openhow = Openflag4::Create(Createhow4::Exclusive41 { verf: [verf; 8], attrs });
        client.status([at("m"), vec![Argop4::Open(args)]].concat())
    };
    assert_eq!([make(1), make(1), make(2)], [Nfsstat4::Ok, Nfsstat4::Ok, Nfsstat4::Exist]);
    assert_eq!(client.attrs("m/f", &[Attr4::Mode]).mode, Some(0o640));
}

#[simnet::test]
async fn open_of_other_objects_fails() {
    let server = serving(&["/m"]);
    let mut client = Client4::new(&server, "a", 2);
    client.ok([at("m"), vec![mkdir("d")]].concat());
    let link = Createtype4::Lnk(bytes::Bytes::from_static(b"f").into());
    client.ok([at("m"), vec![create("l", link)]].concat());
    client.ok([at("m"), vec![create("p", Createtype4::Other(Ftype4::Fifo))]].concat());
    let existing = Open { create: false, ..Open::default() };
    assert_eq!(client.open("m", "d", existing), Err(Nfsstat4::IsDir));
    assert_eq!(client.open("m", "l", existing), Err(Nfsstat4::Symlink));
    assert_eq!(client.open("m", "p", existing), Err(Nfsstat4::WrongType));
    assert_eq!(client.open("m", "nothing", existing), Err(Nfsstat4::NoEnt));
    assert_eq!(client.open("m/l", "x", existing), Err(Nfsstat4::Symlink));
    let Some(Resop4::ReadLink(Res4::Ok(text))) = client.ok([at("m/l"), vec![Argop4::ReadLink]].concat()).pop() else {
        panic!()
    };
    assert_eq!(text.link.0.to_bytes().unwrap(), &b"f"[..]);
    // Clients that change whole trees set the mode of links too, which has no effect.
    let mode = v4::set(Attrs { mode: Some(0o600), ..Attrs::default() });
    assert_eq!(client.status([at("m/l"), vec![mode]].concat()), Nfsstat4::Ok);
    assert_eq!(client.status([at("m/d"), vec![Argop4::ReadLink]].concat()), Nfsstat4::WrongType);
}

#[simnet::test]
async fn names_are_created_renamed_linked_and_removed() {
    let server = serving(&["/m", "/n"]);
    let mut client = Client4::new(&server, "a", 2);
    client.file("m", "f", b"f");
    client.ok([at("m"), vec![mkdir("d")]].concat());
    let rename = |from: &str, to: &str| Argop4::Rename(RenameArgs { oldname: from.into(), newname: to.into() });
    let between = |from: &str, to: &str, op: Argop4| [at(from), vec![Argop4::SaveFh], at(to), vec![op]].concat();
    client.ok(between("m", "m/d", rename("f", "g")));
    assert_eq!(names(&mut client, "m/d"), ["g"]);
    //= rfc8881-18.26.3-1
    assert_eq!(client.status(between("m", "n", rename("d", "d"))), Nfsstat4::XDev);
    assert_eq!(client.status(between("m", "m/d", rename("d", "x"))), Nfsstat4::Inval);
    client.ok([at("m"), vec![mkdir("e")]].concat());
    //= rfc8881-18.26.3-2
    assert_eq!(client.status(between("m", "m/d", rename("e", "g"))), Nfsstat4::Exist);
    client.ok([at("m"), vec![remove("e")]].concat());
    assert_eq!(client.status(vec![Argop4::PutRootFh, rename("a", "b")]), Nfsstat4::NoFileHandle);
    let link = Argop4::Link(LinkArgs { newname: "h".into() });
    client.ok(between("m/d/g", "m", link));
    assert_eq!(client.attrs("m/h", &[Attr4::Numlinks]).numlinks, Some(2));
    assert_eq!(client.status([at("m"), vec![remove("d")]].concat()), Nfsstat4::NotEmpty);
    client.ok([at("m/d"), vec![remove("g")]].concat());
    client.ok([at("m"), vec![remove("d"), remove("h")]].concat());
    assert!(names(&mut client, "m").is_empty());
    for (name, status) in [
        ("", Nfsstat4::Inval),
        (".", Nfsstat4::BadName),
        ("..", Nfsstat4::BadName),
        ("a/b", Nfsstat4::BadChar),
        ("\0", Nfsstat4::BadChar),
        (&"x".repeat(256), Nfsstat4::NameTooLong),
    ] {
        assert_eq!(client.status([at("m"), vec![mkdir(name)]].concat()), status, "{name}");
    }
}

#[simnet::test]
async fn getattr_returns_all_supported_attributes_and_no_others() {
    let server = serving(&["/m"]);
    for minor in [1, 2] {
        let mut client = Client4::new(&server, ["first", "second"][minor as usize - 1], minor);
        client.file("m", "f", b"12345");
        for path in ["", "m", "m/f"] {
            let supported = client.attrs(path, &[Attr4::SupportedAttrs]).supported_attrs.unwrap();
            let all = Attr4::defined(2, |access| access != attr::Access::Set);
            let mut operations = at(path);
            operations.push(Argop4::GetAttr(GetAttrArgs { attr_request: all }));
            let Some(Resop4::GetAttr(Res4::Ok(fattr))) = client.ok(operations).pop() else { panic!() };
            let readable = supported.difference(&Attr4::defined(2, |access| access == attr::Access::Set));
            //= rfc8881-18.7.3-1 rfc8881-18.7.3-2
            assert_eq!(fattr.attrmask, readable);
            let attrs = fattr.to_attrs(minor, Purpose::Get).unwrap();
            // VERIFY accepts each value.
            let mut same = attrs.clone();
            same.rdattr_error = None;
            let verify = |attrs: &Attrs| Argop4::Verify(VerifyArgs { obj_attributes: attrs.into() });
            // The space attributes can change at any time.
            (same.space_avail, same.space_free, same.space_used, same.files_avail, same.files_free) =
                Default::default();
            assert_eq!(client.status([at(path), vec![verify(&same)]].concat()), Nfsstat4::Ok, "{path}");
            same.mode = Some(0o123);
            assert_eq!(client.status([at(path), vec![verify(&same)]].concat()), Nfsstat4::NotSame);
        }
    }
}

/// Returns the attributes of the last result, which must be that of GETATTR.
fn last_attrs(results: &[Resop4]) -> Attrs {
    let Some(Resop4::GetAttr(Res4::Ok(attrs))) = results.last() else { panic!("{results:?}") };
    attrs.to_attrs(2, Purpose::Get).unwrap()
}

#[simnet::test]
async fn attributes_of_a_created_file_are_not_read_again_in_its_compound() {
    let toy = Toy::new(plain_memory());
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let server = server_of(Export::new("/m", ExportId::unique(), toy.clone(), options).unwrap());
    let mut client = Client4::new(&server, "a", 2);
    let wanted = [Attr4::Type, Attr4::Change, Attr4::Size, Attr4::Fileid, Attr4::Mode, Attr4::TimeMetadata];
    let create = |name: &str, rest: &[Argop4]| [at("m"), vec![open(name, Open::default())], rest.to_vec()].concat();
    let before = toy.state().getattrs;
    let created = last_attrs(&client.ok(create("f", &[Argop4::GetFh, getattr(&wanted)])));
    assert_eq!(toy.state().getattrs, before);
    assert_eq!(created, client.attrs("m/f", &wanted));
    assert_eq!(toy.state().getattrs, before + 1);
    // After an operation that changes the file, they are read.
    let size = getattr(&[Attr4::Size]);
    let written = write(Stateid4::CURRENT, 0, b"hello");
    assert_eq!(last_attrs(&client.ok(create("g", &[written.clone(), size.clone()]))).size, Some(5));
    let saved = [Argop4::SaveFh, written, Argop4::RestoreFh, size];
    assert_eq!(last_attrs(&client.ok(create("h", &saved))).size, Some(5));
    // Those of another object are read too.
    let of_dir =
        client
            .ok([at("m"), vec![Argop4::SaveFh, open("i", Open::default()), Argop4::RestoreFh, getattr(&wanted)]]
                .concat());
    assert_eq!(last_attrs(&of_dir).object_type, Some(Ftype4::Dir));
    // An exclusive creation sets attributes after it has created the file.
    let Argop4::Open(mut args) = open("j", Open::default()) else { unreachable!() };
    let attrs = Attrs { mode: Some(0o640), ..Attrs::default() }.into();
    args.openhow = Openflag4::Create(Createhow4::Exclusive41 { verf: [7; 8], attrs });
    let exclusive = [at("m"), vec![Argop4::Open(args), getattr(&[Attr4::Mode])]].concat();
    assert_eq!(last_attrs(&client.ok(exclusive)).mode, Some(0o640));
}

#[simnet::test]
async fn type_of_a_name_is_compared_without_its_attributes() {
    let toy = Toy::new(plain_memory());
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let server = server_of(Export::new("/m", ExportId::unique(), toy.clone(), options).unwrap());
    let mut client = Client4::new(&server, "a", 2);
    client.file("m", "f", b"f");
    client.ok([at("m"), vec![mkdir("d")]].concat());
    let of = |object_type, size| VerifyArgs { obj_attributes: Attrs { object_type, size, ..Attrs::default() }.into() };
    let (dir, file) = (of(Some(Ftype4::Dir), None), of(Some(Ftype4::Reg), None));
    let mut status = |path: &str, operation| client.status([at(path), vec![operation]].concat());
    let before = toy.state().getattrs;
    for (path, is, is_not) in [("m/f", &file, &dir), ("m/d", &dir, &file)] {
        assert_eq!(status(path, Argop4::Verify(is.clone())), Nfsstat4::Ok);
        assert_eq!(status(path, Argop4::Verify(is_not.clone())), Nfsstat4::NotSame);
        assert_eq!(status(path, Argop4::NVerify(is_not.clone())), Nfsstat4::Ok);
        assert_eq!(status(path, Argop4::NVerify(is.clone())), Nfsstat4::Same);
    }
    assert_eq!(toy.state().getattrs, before);
    // The root of the export was not found by a name.
    assert_eq!(status("m", Argop4::Verify(dir.clone())), Nfsstat4::Ok);
    let both = of(Some(Ftype4::Reg), Some(1));
    assert_eq!(status("m/f", Argop4::Verify(both)), Nfsstat4::Ok);
    assert_eq!(toy.state().getattrs, before + 2);
    // The current file handle is not that of the look-up any more.
    let back =
        [Argop4::SaveFh, Argop4::Lookup(LookupArgs { objname: "f".into() }), Argop4::RestoreFh, Argop4::Verify(dir)];
    assert_eq!(client.status([at("m"), back.to_vec()].concat()), Nfsstat4::Ok);
}

#[simnet::test]
async fn setattr_sets_valid_attributes_and_rejects_others() {
    let server = serving(&["/m"]);
    let mut client = Client4::new(&server, "a", 2);
    client.file("m", "f", b"12345");
    let mut change = |attrs: Attrs| client.status([at("m/f"), vec![set(attrs)]].concat());
    let of = |owner: &str| Attrs { owner: Some(owner.into()), ..Attrs::default() };
    assert_eq!(change(of("1234")), Nfsstat4::Ok);
    assert_eq!(change(of("nobody@nowhere")), Nfsstat4::BadOwner);
    assert_eq!(change(of("4294967295")), Nfsstat4::BadOwner);
    assert_eq!(change(Attrs { size: Some(3), mode: Some(0o600), ..Attrs::default() }), Nfsstat4::Ok);
    assert_eq!(change(Attrs { hidden: Some(true), ..Attrs::default() }), Nfsstat4::AttrNotSupp);
    assert_eq!(change(Attrs { fileid: Some(1), ..Attrs::default() }), Nfsstat4::Inval);
    assert_eq!(change(Attrs { size: Some(u64::MAX), ..Attrs::default() }), Nfsstat4::FBig);
    let time = Settime4::ToClientTime(Nfstime4 { seconds: -5, nseconds: 7 });
    assert_eq!(change(Attrs { time_modify_set: Some(time), ..Attrs::default() }), Nfsstat4::Ok);
    let attrs = client.attrs("m/f", &[Attr4::Owner, Attr4::Size, Attr4::Mode, Attr4::TimeModify]);
    assert_eq!((attrs.owner, attrs.size, attrs.mode), (Some("1234".into()), Some(3), Some(0o600)));
    assert_eq!(attrs.time_modify, Some(Nfstime4 { seconds: -5, nseconds: 7 }));
}

#[simnet::test]
async fn locks_of_different_clients_conflict() {
    let server = serving(&["/m"]);
    let mut first = Client4::new(&server, "a", 2);
    let mut second = Client4::new(&server, "b", 2);
    let (open_a, handle) = first.open("m", "f", Open::default()).unwrap();
    let (open_b, _) = second.open("m", "f", Open::default()).unwrap();
    let lock = |open_stateid, offset, length| {
        Argop4::Lock(LockArgs {
            locktype: NfsLockType4::WriteW,
            reclaim: false,
            offset,
            length,
            locker: Locker4::New {
                open_seqid: Seqid4(0),
                open_stateid,
                lock_seqid: Seqid4(0),
                lock_owner: StateOwner4 { clientid: Clientid4(0), owner: "locker".into() },
            },
        })
    };
    let Some(Resop4::Lock(LockRes::Ok(held))) = first.ok([putfh(&handle), lock(open_a, 0, 10)]).pop() else { panic!() };
    let (status, results) = second.call([putfh(&handle), lock(open_b, 5, LENGTH_TO_EOF)]);
    assert_eq!(status, Nfsstat4::Denied);
    let Some(Resop4::Lock(LockRes::Denied(denied))) = results.last() else { panic!() };
    //= rfc8881-18.10.3-6 rfc8881-18.10.3-3 rfc8881-18.10.3-4 rfc8881-18.10.3-5
    assert_eq!((denied.offset, denied.length, denied.owner.clientid), (0, 10, Clientid4(0)));
    let test = Argop4::LockT(LockTArgs {
        locktype: NfsLockType4::Read,
        offset: 9,
        length: 1,
        owner: StateOwner4 { clientid: Clientid4(0), owner: "locker".into() },
    });
    assert_eq!(second.status([putfh(&handle), test.clone()]), Nfsstat4::Denied);
    //= rfc8881-18.11.3-1 rfc8881-18.11.3-2
    assert_eq!(first.status([putfh(&handle), test]), Nfsstat4::Ok);
    let unlock = Argop4::LockU(LockUArgs {
        locktype: NfsLockType4::Write,
        seqid: Seqid4(0),
        lock_stateid: held,
        offset: 0,
        length: LENGTH_TO_EOF,
    });
    //= rfc8881-18.12.3-1
    first.ok([putfh(&handle), unlock]);
    second.ok([putfh(&handle), lock(open_b, 5, LENGTH_TO_EOF)]);
}
