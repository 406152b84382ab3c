//! MOUNT, and the rules of exports for clients.

use crate::common::*;
use bytes::Bytes;
use nfs::{
    mount::{Dirpath, ExportEntry, MountEntry, MountOk, MountProc3, MountRes, Mountstat3},
    v3::*,
};
use rpc::{Identity, security::Principal};
use server::{Access as Rights, Client, Export, ExportId, ExportOptions, Exports, Sec, SecFlavors, Squash};
use xdr::List;

fn mnt(rig: &Rig, path: &str) -> Result<NfsFh3, Mountstat3> {
    match rig.mount(MountProc3::Mnt, Dirpath::from(path)) {
        MountRes::Ok(MountOk { fhandle, .. }) => Ok(fhandle),
        MountRes::Fail(status) => Err(status),
    }
}

fn clients(texts: &[&str]) -> Vec<Client> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[simnet::test]
async fn paths_resolve_to_exports_and_paths_below_them() {
    let rig = Rig::new();
    let root = rig.root();
    let sub = rig.dir(&root, "sub");
    let deep = rig.dir(&sub, "deep");
    rig.file(&sub, "file", b"");
    let link = |name: &str, target: &'static [u8]| {
        let symlink_data = Bytes::from_static(target).into();
        let args = SymLinkArgs { what: name_in(&root, name), symlink_attributes: Default::default(), symlink_data };
        rig.call::<SymLink>(args).into_result().unwrap();
    };
    link("out", b"/etc");
    link("to-sub", b"sub");
    for path in ["/m", "/m/", "//m", "/m/.", "m"] {
        assert_eq!(mnt(&rig, path).as_ref(), Ok(&root), "{path}");
    }
    assert_eq!(mnt(&rig, "/m/sub//deep/"), Ok(deep));
    assert_eq!(mnt(&rig, "/m/sub"), Ok(sub));
    assert_eq!(mnt(&rig, "/m/sub/.."), Err(Mountstat3::Acces));
    assert_eq!(mnt(&rig, "/m/../etc"), Err(Mountstat3::Acces));
    assert_eq!(mnt(&rig, "/m/none"), Err(Mountstat3::NoEnt));
    assert_eq!(mnt(&rig, "/m/sub/file"), Err(Mountstat3::NotDir));
    assert_eq!(mnt(&rig, "/m/sub/file/x"), Err(Mountstat3::NotDir));
    assert_eq!(mnt(&rig, "/m/out"), Err(Mountstat3::NotDir), "symbolic links must not be followed");
    assert_eq!(mnt(&rig, "/m/to-sub/deep"), Err(Mountstat3::NotDir));
    assert_eq!(mnt(&rig, &format!("/m/{}", "n".repeat(256))), Err(Mountstat3::NameTooLong));
    for path in ["/", "", "/mm", "/other", "/.."] {
        assert_eq!(mnt(&rig, path), Err(Mountstat3::NoEnt), "{path}");
    }
}

#[simnet::test]
async fn longest_export_name_wins() {
    let mut exports = Exports::new();
    for name in ["/a", "/a/b", "/"] {
        let id = ExportId::of(&[name.as_bytes()]);
        exports.add(Export::new(name, id, memory(), Default::default()).unwrap()).unwrap();
    }
    let again = Export::new("/a/", ExportId::unique(), memory(), Default::default()).unwrap();
    assert!(exports.add(again).unwrap_err().to_string().contains("'/a'"));
    for bad in ["a", "/a/../b", "/./a", ""] {
        assert!(Export::new(bad, ExportId::unique(), memory(), Default::default()).is_err(), "{bad}");
    }
    let named = |path: &[u8]| exports.resolve(path).map(|(export, below)| (export.name().clone(), below.count()));
    assert_eq!(named(b"/a/b/c"), Some(("/a/b".into(), 1)));
    assert_eq!(named(b"/a/bc"), Some(("/a".into(), 1)));
    assert_eq!(named(b"/x"), Some(("/".into(), 1)));
    assert_eq!(named(b"/"), Some(("/".into(), 0)));
}

#[simnet::test]
async fn mounts_are_listed_and_removed_only_by_their_host() {
    let rig = Rig::new();
    rig.dir(&rig.root(), "sub");
    mnt(&rig, "/m/sub").unwrap();
    let other = rig.from("198.51.100.9:800");
    mnt(&other, "/m").unwrap();
    assert_eq!(mnt(&other, "/none"), Err(Mountstat3::NoEnt));
    let dump = || -> Vec<(String, String)> {
        let list: List<MountEntry> = rig.mount(MountProc3::Dump, ());
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        list.0.iter().map(|entry| (text(&entry.hostname), text(&entry.directory))).collect()
    };
    let entry = |host: &str, path: &str| (host.to_owned(), path.to_owned());
    assert_eq!(dump(), [entry("192.0.2.1", "/m"), entry("192.0.2.1", "/m/sub"), entry("198.51.100.9", "/m")]);
    rig.mount::<()>(MountProc3::Umnt, Dirpath::from("/m"));
    assert_eq!(dump(), [entry("192.0.2.1", "/m/sub"), entry("198.51.100.9", "/m")]);
    other.mount::<()>(MountProc3::UmntAll, ());
    assert_eq!(dump(), [entry("192.0.2.1", "/m/sub")]);
    rig.mount::<()>(MountProc3::Null, ());
}

#[simnet::test]
async fn exports_are_listed_with_their_clients() {
    let mut exports = Exports::new();
    for (name, texts) in [("/a", &["*", "10.0.0.1"][..]), ("/b", &["10.0.0.0/8", "::1"])] {
        let options = ExportOptions { clients: clients(texts), ..Default::default() };
        exports.add(Export::new(name, ExportId::unique(), memory(), options).unwrap()).unwrap();
    }
    let list: List<ExportEntry> = Rig::serving(exports).mount(MountProc3::Export, ());
    let groups = List(vec!["10.0.0.0/8".into(), "::1".into()]);
    let expected = [ExportEntry { dir: "/a".into(), groups: List(vec![]) }, ExportEntry { dir: "/b".into(), groups }];
    assert_eq!(list.0, expected);
}

/// Calls every procedure that takes a handle. Returns each with the status with which it fails, if it does.
fn everything(rig: &Rig, dir: &NfsFh3, file: &NfsFh3) -> Vec<(Proc3, Option<Nfsstat3>)> {
    fn status<T, F>(res: Res3<T, F>) -> Option<Nfsstat3> {
        res.into_result().err().map(|(status, _)| status)
    }
    let (d, f, n) = (|| dir.clone(), || file.clone(), |name: &str| name_in(dir, name));
    let set = Sattr3::default;
    let list = ReadDirArgs { dir: d(), cookie: 0, cookieverf: [0; 8], count: 4096 };
    let plus = ReadDirPlusArgs { dir: d(), cookie: 0, cookieverf: [0; 8], dircount: 4096, maxcount: 4096 };
    let symlink =
        SymLinkArgs { what: n("l"), symlink_attributes: set(), symlink_data: Bytes::from_static(b"t").into() };
    vec![
        (Proc3::GetAttr, status(rig.call::<GetAttr>(GetAttrArgs { object: f() }))),
        (Proc3::Lookup, status(rig.call::<Lookup>(LookupArgs { what: n("f") }))),
        (Proc3::Access, status(rig.call::<Access>(AccessArgs { object: f(), access: 1 }))),
        (Proc3::Read, status(rig.call::<Read>(ReadArgs { file: f(), offset: 0, count: 1 }))),
        (Proc3::ReadDir, status(rig.call::<ReadDir>(list))),
        (Proc3::ReadDirPlus, status(rig.call::<ReadDirPlus>(plus))),
        (Proc3::FsStat, status(rig.call::<FsStat>(FsStatArgs { fsroot: d() }))),
        (Proc3::FsInfo, status(rig.call::<FsInfo>(FsInfoArgs { fsroot: d() }))),
        (Proc3::PathConf, status(rig.call::<PathConf>(PathConfArgs { object: d() }))),
        (Proc3::Commit, status(rig.call::<Commit>(CommitArgs { file: f(), offset: 0, count: 0 }))),
        (Proc3::SetAttr, status(rig.call::<SetAttr>(SetAttrArgs { object: f(), new_attributes: set(), guard: None }))),
        (Proc3::Write, status(rig.call::<Write>(write_args(file, 0, b"w")))),
        (Proc3::Create, status(rig.call::<Create>(CreateArgs { what: n("c"), how: CreateHow3::Guarded(set()) }))),
        (Proc3::MkDir, status(rig.call::<MkDir>(MkDirArgs { what: n("d"), attributes: set() }))),
        (Proc3::SymLink, status(rig.call::<SymLink>(symlink))),
        (Proc3::MkNod, status(rig.call::<MkNod>(MkNodArgs { what: n("p"), data: MkNodData3::Fifo(set()) }))),
        (Proc3::Link, status(rig.call::<Link>(LinkArgs { file: f(), link: n("k") }))),
        (Proc3::Rename, status(rig.call::<Rename>(RenameArgs { from: n("k"), to: n("k2") }))),
        (Proc3::Remove, status(rig.call::<Remove>(RemoveArgs { object: n("k2") }))),
        (Proc3::RmDir, status(rig.call::<RmDir>(RemoveArgs { object: n("d") }))),
    ]
}

/// Exports a tree twice: with `options`, and without restrictions for its setup.
fn prepared(options: ExportOptions) -> (Rig, NfsFh3, NfsFh3) {
    let vfs = memory();
    let open = ExportOptions { squash: Squash::None, ..Default::default() };
    let mut exports = Exports::new();
    exports.add(Export::new("/m", ExportId::unique(), vfs.clone(), open).unwrap()).unwrap();
    exports.add(Export::new("/limited", ExportId::unique(), vfs, options).unwrap()).unwrap();
    let rig = Rig::serving(exports);
    let root = rig.root();
    rig.set_mode(&root, 0o777);
    let file = rig.file(&root, "f", b"content");
    rig.set_mode(&file, 0o666);
    let user = rig.as_user(1000, 1000);
    let limited = mnt(&user.from("10.0.0.1:700"), "/limited").unwrap();
    let found = user.from("10.0.0.1:700").call::<Lookup>(LookupArgs { what: name_in(&limited, "f") });
    let file = found.into_result().unwrap().object;
    (user, limited, file)
}

#[simnet::test]
async fn every_call_is_checked_against_the_clients_of_its_export() {
    let (rig, dir, file) = prepared(ExportOptions { clients: clients(&["10.0.0.0/8"]), ..Default::default() });
    let inside = rig.from("10.9.9.9:700");
    // SETATTR by a user who does not own the file sets nothing. The back end decides whether it succeeds.
    for (procedure, status) in everything(&inside, &dir, &file) {
        assert!(status.is_none() || procedure == Proc3::SetAttr, "{procedure:?}: {status:?}");
    }
    let outside = rig.from("11.0.0.1:700");
    assert_eq!(mnt(&outside, "/limited"), Err(Mountstat3::Acces));
    for (procedure, status) in everything(&outside, &dir, &file) {
        assert_eq!(status, Some(Nfsstat3::Acces), "{procedure:?}");
    }
}

#[simnet::test]
async fn ports_and_transports_are_checked() {
    let options = ExportOptions { insecure: false, transports: Some(vec!["tcp".into()]), ..Default::default() };
    let (rig, dir, file) = prepared(options);
    let getattr = |rig: &Rig| rig.call::<GetAttr>(GetAttrArgs { object: file.clone() }).into_result().err();
    assert_eq!(getattr(&rig.from("10.0.0.1:1023")), None);
    assert_eq!(getattr(&rig.from("10.0.0.1:1024")), Some((Nfsstat3::Acces, ())));
    assert_eq!(mnt(&rig.from("10.0.0.1:1024"), "/limited"), Err(Mountstat3::Acces));
    let rdma = rig.over("rdma", 4 << 20);
    assert!(mnt(&rdma, "/limited").is_ok(), "`transports` must not apply to MNT");
    for (procedure, status) in everything(&rdma, &dir, &file) {
        assert_eq!(status, Some(Nfsstat3::Acces), "{procedure:?}");
    }
}

#[simnet::test]
async fn read_only_export_cannot_be_changed() {
    let (rig, dir, file) = prepared(ExportOptions { access: Rights::ReadOnly, ..Default::default() });
    let changes = [
        Proc3::SetAttr,
        Proc3::Write,
        Proc3::Create,
        Proc3::MkDir,
        Proc3::SymLink,
        Proc3::MkNod,
        Proc3::Link,
        Proc3::Rename,
        Proc3::Remove,
        Proc3::RmDir,
    ];
    for (procedure, status) in everything(&rig, &dir, &file) {
        let expected = changes.contains(&procedure).then_some(Nfsstat3::RoFs);
        assert_eq!(status, expected, "{procedure:?}");
    }
    let access = rig.call::<Access>(AccessArgs { object: file, access: 0x3f }).into_result().unwrap();
    assert_eq!(access.access, ACCESS3_READ);
}

#[simnet::test]
async fn squashed_callers_act_as_the_anonymous_user() {
    let owner = |squash, caller: Identity| {
        let sec = SecFlavors::new(Sec::ALL.to_vec()).unwrap();
        let options = ExportOptions { squash, sec, anon_uid: 77, anon_gid: 88, ..Default::default() };
        let (rig, dir, _) = prepared(options);
        let rig = Rig { caller, ..rig };
        let attr = rig.attr(&rig.file(&dir, "mine", b""));
        (attr.uid, attr.gid)
    };
    assert_eq!(owner(Squash::Root, user(0, 0)), (77, 88));
    assert_eq!(owner(Squash::Root, user(5, 0)), (5, 88));
    assert_eq!(owner(Squash::Root, user(5, 6)), (5, 6));
    assert_eq!(owner(Squash::All, user(5, 6)), (77, 88));
    assert_eq!(owner(Squash::None, user(0, 0)), (0, 0));
    assert_eq!(owner(Squash::None, Identity::None), (77, 88));
    let name = Principal { name: "root".into(), pseudo_flavor: 390_003 };
    assert_eq!(owner(Squash::None, Identity::Principal(name)), (77, 88), "principals are not mapped to users");
}
