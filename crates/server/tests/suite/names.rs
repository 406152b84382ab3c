//! CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK.

use crate::common::*;
use bytes::Bytes;
use nfs::v3::*;

fn create(rig: &Rig, dir: &NfsFh3, name: &str, how: CreateHow3) -> NewObjectRes {
    rig.call::<Create>(CreateArgs { what: name_in(dir, name), how })
}

fn remove(rig: &Rig, dir: &NfsFh3, name: &str) -> RemoveRes {
    rig.call::<Remove>(RemoveArgs { object: name_in(dir, name) })
}

fn rmdir(rig: &Rig, dir: &NfsFh3, name: &str) -> RemoveRes {
    rig.call::<RmDir>(RemoveArgs { object: name_in(dir, name) })
}

fn rename(rig: &Rig, from: Diropargs3, to: Diropargs3) -> RenameRes {
    rig.call::<Rename>(RenameArgs { from, to })
}

fn handle(rig: &Rig, dir: &NfsFh3, name: &str) -> Result<NfsFh3, Nfsstat3> {
    let found = rig.call::<Lookup>(LookupArgs { what: name_in(dir, name) });
    found.into_result().map(|ok| ok.object).map_err(|(status, _)| status)
}

/// Checks that the change of a directory has these attributes before and after it.
fn assert_wcc(wcc: &WccData, before: &Fattr3, after: &Fattr3) {
    let was = wcc.before.expect("attributes before the change must be present");
    assert_eq!((was.size, was.mtime, was.ctime), (before.size, before.mtime, before.ctime));
    assert_eq!(wcc.after.as_ref(), Some(after));
    assert!(after.mtime > before.mtime);
}

#[simnet::test]
async fn created_file_has_the_requested_attributes() {
    let rig = Rig::new();
    let root = rig.root();
    let before = rig.attr(&root);
    let set = Sattr3 { mode: Some(0o604), size: Some(77), ..Default::default() };
    let made = create(&rig, &root, "f", CreateHow3::Guarded(set.clone())).into_result().unwrap();
    let file = made.obj.unwrap();
    assert_eq!(handle(&rig, &root, "f"), Ok(file.clone()));
    assert_eq!(made.obj_attributes, Some(rig.attr(&file)));
    let attr = rig.attr(&file);
    assert_eq!((attr.mode, attr.size, attr.nlink, attr.ftype), (0o604, 77, 1, Ftype3::Reg));
    assert_wcc(&made.dir_wcc, &before, &rig.attr(&root));

    let (status, wcc) = create(&rig, &root, "f", CreateHow3::Guarded(set)).into_result().unwrap_err();
    assert_eq!((status, wcc.after), (Nfsstat3::Exist, Some(rig.attr(&root))));
    let truncate = Sattr3 { size: Some(0), ..Default::default() };
    let opened = create(&rig, &root, "f", CreateHow3::Unchecked(truncate)).into_result().unwrap();
    assert_eq!((opened.obj.unwrap(), opened.obj_attributes.unwrap().size), (file, 0));
}

#[simnet::test]
async fn exclusive_creation_distinguishes_a_retransmission_from_another_client() {
    let rig = Rig::new();
    let root = rig.root();
    let make = |verifier: &[u8; 8]| create(&rig, &root, "x", CreateHow3::Exclusive(*verifier));
    let first = make(b"client-1").into_result().unwrap().obj.unwrap();
    assert_eq!(make(b"client-1").into_result().unwrap().obj.unwrap(), first, "a retransmission by the same client");
    assert_eq!(make(b"client-2").into_result().unwrap_err().0, Nfsstat3::Exist);
    let set = SetAttrArgs {
        object: first,
        new_attributes: Sattr3 { mode: Some(0o600), atime: SetTime::ToServerTime, ..Default::default() },
        guard: None,
    };
    rig.call::<SetAttr>(set).into_result().unwrap();
    rig.file(&root, "plain", b"");
    let on_plain = create(&rig, &root, "plain", CreateHow3::Exclusive(*b"client-1"));
    assert_eq!(on_plain.into_result().unwrap_err().0, Nfsstat3::Exist);
}

#[simnet::test]
async fn special_names_and_types_are_refused_with_the_rfcs_status() {
    let rig = Rig::new();
    let root = rig.root();
    rig.file(&root, "f", b"");
    let set = Sattr3::default;
    for dots in [".", ".."] {
        assert_eq!(
            create(&rig, &root, dots, CreateHow3::Unchecked(set())).into_result().unwrap_err().0,
            Nfsstat3::Exist
        );
        let made = rig.call::<MkDir>(MkDirArgs { what: name_in(&root, dots), attributes: set() });
        assert_eq!(made.into_result().unwrap_err().0, Nfsstat3::Exist);
        assert_eq!(remove(&rig, &root, dots).into_result().unwrap_err().0, Nfsstat3::Inval);
        for (from, to) in [(dots, "t"), ("f", dots)] {
            let moved = rename(&rig, name_in(&root, from), name_in(&root, to));
            assert_eq!(moved.into_result().unwrap_err().0, Nfsstat3::Inval);
        }
    }
    assert_eq!(rmdir(&rig, &root, ".").into_result().unwrap_err().0, Nfsstat3::Inval);
    assert_eq!(rmdir(&rig, &root, "..").into_result().unwrap_err().0, Nfsstat3::Exist);
    assert_eq!(remove(&rig, &root, "none").into_result().unwrap_err().0, Nfsstat3::NoEnt);
    assert_eq!(rmdir(&rig, &root, "f").into_result().unwrap_err().0, Nfsstat3::NotDir);
    for ftype in [Ftype3::Reg, Ftype3::Dir, Ftype3::Lnk] {
        let made = rig.call::<MkNod>(MkNodArgs { what: name_in(&root, "n"), data: MkNodData3::Other(ftype) });
        assert_eq!(made.into_result().unwrap_err().0, Nfsstat3::BadType);
    }
    for text in [&b""[..], b"a\0b"] {
        let symlink_data = Bytes::copy_from_slice(text).into();
        let args = SymLinkArgs { what: name_in(&root, "l"), symlink_attributes: set(), symlink_data };
        assert_eq!(rig.call::<SymLink>(args).into_result().unwrap_err().0, Nfsstat3::Inval);
    }
}

#[simnet::test]
async fn nodes_keep_their_type_and_device_number() {
    let rig = Rig::new();
    let root = rig.root();
    let set = Sattr3 { mode: Some(0o640), ..Default::default() };
    let device = Specdata3 { specdata1: 8, specdata2: 300 };
    let cases = [
        (MkNodData3::Chr(set.clone(), device), Ftype3::Chr, device),
        (MkNodData3::Blk(set.clone(), device), Ftype3::Blk, device),
        (MkNodData3::Sock(set.clone()), Ftype3::Sock, Specdata3::default()),
        (MkNodData3::Fifo(set), Ftype3::Fifo, Specdata3::default()),
    ];
    for (i, (data, ftype, rdev)) in cases.into_iter().enumerate() {
        let what = name_in(&root, &format!("n{i}"));
        let before = rig.attr(&root);
        let made = rig.call::<MkNod>(MkNodArgs { what, data }).into_result().unwrap();
        let attr = made.obj_attributes.unwrap();
        assert_eq!((attr.ftype, attr.rdev, attr.mode), (ftype, rdev, 0o640));
        assert_wcc(&made.dir_wcc, &before, &rig.attr(&root));
    }
}

#[simnet::test]
async fn remove_removes_the_name_and_reports_the_directory() {
    let rig = Rig::new();
    let root = rig.root();
    let (file, dir) = (rig.file(&root, "f", b"x"), rig.dir(&root, "d"));
    rig.file(&dir, "inside", b"");
    assert_eq!(rmdir(&rig, &root, "d").into_result().unwrap_err().0, Nfsstat3::NotEmpty);
    assert_eq!(remove(&rig, &root, "d").into_result().unwrap_err().0, Nfsstat3::IsDir);
    remove(&rig, &dir, "inside").into_result().unwrap();
    let before = rig.attr(&root);
    let wcc = rmdir(&rig, &root, "d").into_result().unwrap();
    assert_wcc(&wcc, &before, &rig.attr(&root));
    assert_eq!(rig.attr(&root).nlink, before.nlink - 1);
    let before = rig.attr(&root);
    let wcc = remove(&rig, &root, "f").into_result().unwrap();
    assert_wcc(&wcc, &before, &rig.attr(&root));
    assert_eq!(handle(&rig, &root, "f"), Err(Nfsstat3::NoEnt));
    assert_eq!(rig.call::<GetAttr>(GetAttrArgs { object: file }), GetAttrRes::Fail(Nfsstat3::Stale, ()));
}

#[simnet::test]
async fn rename_replaces_only_compatible_objects() {
    let rig = Rig::new();
    let root = rig.root();
    let (a, b) = (rig.dir(&root, "a"), rig.dir(&root, "b"));
    let file = rig.file(&a, "f", b"new");
    let old = rig.file(&b, "f", b"old");
    let (was_a, was_b) = (rig.attr(&a), rig.attr(&b));
    let wcc = rename(&rig, name_in(&a, "f"), name_in(&b, "f")).into_result().unwrap();
    assert_wcc(&wcc.fromdir_wcc, &was_a, &rig.attr(&a));
    assert_wcc(&wcc.todir_wcc, &was_b, &rig.attr(&b));
    assert_eq!((handle(&rig, &b, "f"), handle(&rig, &a, "f")), (Ok(file), Err(Nfsstat3::NoEnt)));
    assert_eq!(rig.call::<GetAttr>(GetAttrArgs { object: old }), GetAttrRes::Fail(Nfsstat3::Stale, ()));

    let fails = |from, to| {
        let (status, wcc) = rename(&rig, from, to).into_result().unwrap_err();
        assert!(wcc.fromdir_wcc.after.is_some() && wcc.todir_wcc.after.is_some());
        status
    };
    assert_eq!(fails(name_in(&root, "a"), name_in(&b, "f")), Nfsstat3::NotDir);
    assert_eq!(fails(name_in(&b, "f"), name_in(&root, "a")), Nfsstat3::IsDir);
    assert_eq!(fails(name_in(&root, "a"), name_in(&root, "b")), Nfsstat3::NotEmpty);
    assert_eq!(fails(name_in(&root, "a"), name_in(&a, "below")), Nfsstat3::Inval);
    assert_eq!(fails(name_in(&root, "none"), name_in(&a, "n")), Nfsstat3::NoEnt);
    rename(&rig, name_in(&root, "a"), name_in(&b, "a")).into_result().unwrap();
    assert_eq!(handle(&rig, &a, ".."), Ok(b), "its parent must be the new directory");
}

#[simnet::test]
async fn links_are_additional_names_of_one_object() {
    let rig = Rig::new();
    let root = rig.root();
    let file = rig.file(&root, "f", b"x");
    let before = rig.attr(&root);
    let link =
        |file: &NfsFh3, name: &str| rig.call::<Link>(LinkArgs { file: file.clone(), link: name_in(&root, name) });
    let ok = link(&file, "g").into_result().unwrap();
    assert_wcc(&ok.linkdir_wcc, &before, &rig.attr(&root));
    assert_eq!(ok.file_attributes.unwrap().nlink, 2);
    assert_eq!(handle(&rig, &root, "g"), Ok(file.clone()));
    let (status, wcc) = link(&file, "g").into_result().unwrap_err();
    assert_eq!((status, wcc.file_attributes), (Nfsstat3::Exist, Some(rig.attr(&file))));
    assert_eq!(wcc.linkdir_wcc.after, Some(rig.attr(&root)));
    assert_eq!(link(&file, "..").into_result().unwrap_err().0, Nfsstat3::Exist);
    assert!(matches!(
        link(&root, "d").into_result().unwrap_err().0,
        Nfsstat3::IsDir | Nfsstat3::Perm | Nfsstat3::Inval
    ));
    remove(&rig, &root, "f").into_result().unwrap();
    assert_eq!(rig.attr(&file).nlink, 1);
}

#[simnet::test]
async fn directories_without_write_permission_cannot_be_changed() {
    let rig = Rig::new();
    let root = rig.root();
    rig.file(&root, "f", b"");
    let user = rig.as_user(1000, 1000);
    let before = rig.attr(&root);
    let how = || CreateHow3::Unchecked(Sattr3::default());
    assert_eq!(create(&user, &root, "n", how()).into_result().unwrap_err().0, Nfsstat3::Acces);
    assert_eq!(remove(&user, &root, "f").into_result().unwrap_err().0, Nfsstat3::Acces);
    let moved = rename(&user, name_in(&root, "f"), name_in(&root, "g"));
    assert_eq!(moved.into_result().unwrap_err().0, Nfsstat3::Acces);
    assert_eq!(rig.attr(&root), before);
    rig.set_mode(&root, 0o1777);
    create(&user, &root, "mine", how()).into_result().unwrap();
    let other = rig.as_user(1001, 1001);
    assert!(remove(&other, &root, "mine").into_result().is_err(), "the directory is sticky");
    remove(&user, &root, "mine").into_result().unwrap();
}
