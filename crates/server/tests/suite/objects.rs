//! GETATTR, SETATTR, LOOKUP, ACCESS, READLINK, FSSTAT, FSINFO and PATHCONF.

use crate::common::*;
use nfs::v3::*;

fn lookup(rig: &Rig, dir: &NfsFh3, name: &str) -> LookupRes {
    rig.call::<Lookup>(LookupArgs { what: name_in(dir, name) })
}

#[simnet::test]
async fn attributes_are_those_of_the_file() {
    let rig = Rig::new();
    let root = rig.root();
    let file = rig.file(&root, "f", b"hello");
    let (dir, attr) = (rig.attr(&root), rig.attr(&file));
    assert_eq!((dir.ftype, attr.ftype), (Ftype3::Dir, Ftype3::Reg));
    assert_eq!((attr.mode, attr.nlink, attr.size), (0o644, 1, 5));
    assert_eq!(dir.fsid, attr.fsid);
    assert_ne!(dir.fileid, attr.fileid);
}

#[simnet::test]
async fn two_exports_are_two_file_systems() {
    let mut exports = server::Exports::new();
    let vfs = memory();
    for name in ["/m", "/n"] {
        let id = server::ExportId::of(&[name.as_bytes()]);
        exports.add(server::Export::new(name, id, vfs.clone(), Default::default()).unwrap()).unwrap();
    }
    let rig = Rig::serving(exports);
    let m = rig.root();
    let n = rig.root_of("/n");
    assert_ne!(m, n);
    assert_ne!(rig.attr(&m).fsid, rig.attr(&n).fsid);
    assert_eq!(rig.attr(&m).fileid, rig.attr(&n).fileid);
    let args = RenameArgs { from: name_in(&m, "a"), to: name_in(&n, "b") };
    assert_eq!(rig.call::<Rename>(args).into_result().unwrap_err().0, Nfsstat3::XDev);
    let args = LinkArgs { file: m, link: name_in(&n, "b") };
    assert_eq!(rig.call::<Link>(args).into_result().unwrap_err().0, Nfsstat3::XDev);
}

#[simnet::test]
async fn setattr_sets_all_given_attributes_and_reports_the_change() {
    let rig = Rig::new();
    let file = rig.file(&rig.root(), "f", b"hello");
    let before = rig.attr(&file);
    let time = Nfstime3 { seconds: 1_000_000, nseconds: 5 };
    let set = Sattr3 {
        mode: Some(0o4711),
        uid: Some(5),
        gid: Some(6),
        size: Some(1000),
        atime: SetTime::ToClientTime(time),
        mtime: SetTime::ToClientTime(time),
    };
    let set_it = |guard| rig.call::<SetAttr>(SetAttrArgs { object: file.clone(), new_attributes: set.clone(), guard });
    let other = Nfstime3 { seconds: 1, nseconds: 1 };
    let (status, wcc) = set_it(Some(other)).into_result().unwrap_err();
    assert_eq!(status, Nfsstat3::NotSync);
    assert_eq!(wcc.after, Some(before.clone()), "nothing must have changed");
    assert_eq!(set_it(Some(Nfstime3 { nseconds: 1 << 31, ..other })).into_result().unwrap_err().0, Nfsstat3::Inval);

    let wcc = set_it(Some(before.ctime)).into_result().unwrap();
    let was = wcc.before.unwrap();
    assert_eq!((was.size, was.mtime, was.ctime), (5, before.mtime, before.ctime));
    let after = wcc.after.unwrap();
    assert_eq!((after.mode, after.uid, after.gid, after.size), (0o4711, 5, 6, 1000));
    assert_eq!((after.atime, after.mtime), (time, time));
    assert!(after.ctime > before.ctime);
    assert_eq!(rig.attr(&file), after);
}

#[simnet::test]
async fn lookup_finds_names_and_never_leaves_the_export() {
    let rig = Rig::new();
    let root = rig.root();
    let sub = rig.dir(&root, "sub");
    let file = rig.file(&sub, "f", b"x");
    let found = lookup(&rig, &sub, "f").into_result().unwrap();
    assert_eq!(found.object, file);
    assert_eq!(found.obj_attributes, Some(rig.attr(&file)));
    assert_eq!(found.dir_attributes, Some(rig.attr(&sub)));

    let object = |dir: &NfsFh3, name: &str| lookup(&rig, dir, name).into_result().unwrap().object;
    assert_eq!(object(&sub, "."), sub);
    assert_eq!(object(&sub, ".."), root);
    assert_eq!(object(&root, ".."), root, "the parent of the root must be the root");

    let fails = |dir: &NfsFh3, name: &str| lookup(&rig, dir, name).into_result().unwrap_err();
    assert_eq!(fails(&root, "none"), (Nfsstat3::NoEnt, Some(rig.attr(&root))));
    assert_eq!(fails(&root, "").0, Nfsstat3::Inval);
    assert_eq!(fails(&root, "sub/f").0, Nfsstat3::Inval);
    assert_eq!(fails(&root, "nul\0").0, Nfsstat3::Inval);
    assert_eq!(fails(&root, &"n".repeat(256)).0, Nfsstat3::NameTooLong);
    assert_eq!(fails(&file, "f"), (Nfsstat3::NotDir, Some(rig.attr(&file))));
}

#[simnet::test]
async fn foreign_handles_are_rejected_by_every_procedure() {
    let rig = Rig::new();
    let root = rig.root();
    let foreign = Rig::new().root();
    let mut altered = root.to_vec();
    altered[30] ^= 1;
    let cases = [
        (foreign, Nfsstat3::Stale),
        (bytes::Bytes::from(altered).into(), Nfsstat3::Stale),
        (bytes::Bytes::from_static(b"short").into(), Nfsstat3::BadHandle),
        (bytes::Bytes::new().into(), Nfsstat3::BadHandle),
        (bytes::Bytes::from(vec![0; 64]).into(), Nfsstat3::BadHandle),
    ];
    for (bad, status) in cases {
        let what = name_in(&bad, "n");
        assert_eq!(rig.call::<GetAttr>(GetAttrArgs { object: bad.clone() }), GetAttrRes::Fail(status, ()));
        assert_eq!(lookup(&rig, &bad, "n"), LookupRes::Fail(status, None));
        let args = RenameArgs { from: name_in(&root, "a"), to: what.clone() };
        let (found, wcc) = rig.call::<Rename>(args).into_result().unwrap_err();
        assert_eq!(found, status);
        assert_eq!((wcc.fromdir_wcc.after, wcc.todir_wcc.after), (Some(rig.attr(&root)), None));
        let args = ReadDirArgs { dir: bad.clone(), cookie: 0, cookieverf: [0; 8], count: 1000 };
        assert_eq!(rig.call::<ReadDir>(args), ReadDirRes::Fail(status, None));
        assert_eq!(rig.call::<Write>(write_args(&bad, 0, b"x")).into_result().unwrap_err().0, status);
    }
    let file = rig.file(&root, "f", b"");
    rig.call::<Remove>(RemoveArgs { object: name_in(&root, "f") }).into_result().unwrap();
    assert_eq!(rig.call::<GetAttr>(GetAttrArgs { object: file }), GetAttrRes::Fail(Nfsstat3::Stale, ()));
}

#[simnet::test]
async fn access_grants_what_mode_and_kind_allow() {
    let rig = Rig::new();
    let root = rig.root();
    let file = rig.file(&root, "f", b"");
    rig.set_mode(&file, 0o740);
    let access = |rig: &Rig, object: &NfsFh3, access| {
        let ok = rig.call::<Access>(AccessArgs { object: object.clone(), access }).into_result().unwrap();
        assert_eq!(ok.obj_attributes, Some(rig.attr(object)));
        ok.access
    };
    let (read, write) = (ACCESS3_READ, ACCESS3_MODIFY | ACCESS3_EXTEND);
    assert_eq!(access(&rig, &file, 0x3f), read | write | ACCESS3_EXECUTE);
    assert_eq!(access(&rig.as_user(9, 0), &file, 0x3f), read);
    assert_eq!(access(&rig.as_user(9, 9), &file, 0x3f), 0);
    assert_eq!(access(&rig, &root, 0x3f), read | ACCESS3_LOOKUP | write | ACCESS3_DELETE);
    assert_eq!(access(&rig.as_user(9, 9), &root, u32::MAX), read | ACCESS3_LOOKUP);
    assert_eq!(access(&rig, &root, 0), 0);
    assert_eq!(access(&rig, &root, ACCESS3_LOOKUP), ACCESS3_LOOKUP, "only requested rights may be granted");
}

#[simnet::test]
async fn readlink_works_only_on_links() {
    let rig = Rig::new();
    let root = rig.root();
    let text = bytes::Bytes::from_static(b"../else/where");
    let args = SymLinkArgs {
        what: name_in(&root, "l"),
        symlink_attributes: Default::default(),
        symlink_data: text.clone().into(),
    };
    let link = rig.call::<SymLink>(args).into_result().unwrap().obj.unwrap();
    let read = rig.call::<ReadLink>(ReadLinkArgs { symlink: link.clone() }).into_result().unwrap();
    assert_eq!(read.data, text.into());
    assert_eq!(read.symlink_attributes, Some(rig.attr(&link)));
    let (status, attr) = rig.call::<ReadLink>(ReadLinkArgs { symlink: root.clone() }).into_result().unwrap_err();
    assert_eq!((status, attr), (Nfsstat3::Inval, Some(rig.attr(&root))));
}

#[simnet::test]
async fn fsinfo_and_pathconf_report_correct_limits() {
    let rig = Rig::new();
    let root = rig.root();
    let info = rig.call::<FsInfo>(FsInfoArgs { fsroot: root.clone() }).into_result().unwrap();
    assert_eq!((info.rtmax, info.wtmax, info.rtpref, info.wtpref), (1 << 20, 1 << 20, 1 << 20, 1 << 20));
    assert_eq!((info.rtmult, info.wtmult, info.dtpref), (4096, 4096, 64 << 10));
    assert_eq!(info.properties, FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME);
    assert!(info.maxfilesize > 4 << 30 && info.maxfilesize <= i64::MAX as u64);
    assert_eq!(info.obj_attributes, Some(rig.attr(&root)));

    let udp = rig.over("udp", 65507);
    let info = udp.call::<FsInfo>(FsInfoArgs { fsroot: root.clone() }).into_result().unwrap();
    assert_eq!((info.rtmax, info.wtmax, info.rtpref), (61440, 61440, 32768));

    let conf = rig.call::<PathConf>(PathConfArgs { object: root.clone() }).into_result().unwrap();
    assert_eq!((conf.name_max, conf.no_trunc, conf.case_insensitive, conf.case_preserving), (255, true, false, true));
    let longest = "n".repeat(conf.name_max as usize);
    rig.file(&root, &longest, b"");

    let stat = rig.call::<FsStat>(FsStatArgs { fsroot: root.clone() }).into_result().unwrap();
    assert_eq!(stat.tbytes, 64 << 20);
    assert!(stat.abytes <= stat.fbytes && stat.fbytes < stat.tbytes);
    rig.file(&root, "big", &[1; 1 << 20]);
    let later = rig.call::<FsStat>(FsStatArgs { fsroot: root }).into_result().unwrap();
    assert!(later.fbytes + (1 << 20) <= stat.fbytes);
}
