//! ACLs: they are stored, enforced and inherited, and consistent with the mode.

use vfs::{Acl, AclEntry, AclKind, AclWho, AclWho::*, Cred, Handle, Rights, VfsError};

use crate::backend::{Outcome, Skipped, World, caller, cred, mode, name};

fn acl(entries: &[(AclWho, u32)]) -> Acl {
    Acl::new(entries.iter().map(|&(who, perm)| AclEntry { who, perm })).unwrap()
}

fn need_acls(w: &World) -> Outcome {
    if w.fs.caps().acls {
        Ok(())
    } else {
        Err(Skipped("the file system of the temporary directory does not support ACLs"))
    }
}

fn set(w: &World, cred: &Cred, object: &Handle, kind: AclKind, acl: Option<&Acl>) -> vfs::Result<u32> {
    w.fs.set_acl(&caller(cred), object, kind, acl).map(|change| change.after.mode)
}

fn kept(w: &World, object: &Handle, kind: AclKind) -> Option<Acl> {
    w.fs.acl(&w.me(), object, kind).unwrap().0
}

pub fn acls_are_stored_and_set_the_mode(w: &World) -> Outcome {
    need_acls(w)?;
    let file = w.file(&w.root(), "f");
    assert_eq!(kept(w, &file, AclKind::Access), None);
    let more = acl(&[(Owner, 6), (User(77), 7), (OwningGroup, 4), (Group(88), 1), (Mask, 5), (Others, 0)]);
    let before = w.attr(&file).ctime;
    assert_eq!(set(w, &w.cred, &file, AclKind::Access, Some(&more)), Ok(0o650));
    assert!(w.coarse_times || w.attr(&file).ctime > before);
    assert_eq!(kept(w, &file, AclKind::Access), Some(more.clone()));
    // Setting the mode changes the entries for the owner, the mask and others, and nothing else.
    w.set(&file, &mode(0o711)).unwrap();
    let moved = acl(&[(Owner, 7), (User(77), 7), (OwningGroup, 4), (Group(88), 1), (Mask, 1), (Others, 1)]);
    assert_eq!(kept(w, &file, AclKind::Access), Some(moved));
    // An ACL with the same meaning as the mode is not stored.
    assert_eq!(set(w, &w.cred, &file, AclKind::Access, Some(&Acl::from_mode(0o640))), Ok(0o640));
    assert_eq!(kept(w, &file, AclKind::Access), None);
    set(w, &w.cred, &file, AclKind::Access, Some(&more)).unwrap();
    set(w, &w.cred, &file, AclKind::Access, None).unwrap();
    assert_eq!(kept(w, &file, AclKind::Access), None);
    Ok(())
}

pub fn acls_decide_access(w: &World) -> Outcome {
    need_acls(w)?;
    w.need_identities()?;
    let (owner, named, member, other) =
        (cred(1001, 1, &[]), cred(1002, 2, &[]), cred(1003, 3, &[4, 88]), cred(1004, 4, &[]));
    let file = w.create(&owner, &w.root(), "f", &mode(0o600)).unwrap().handle;
    w.write_as(&owner, &file, 0, b"data").unwrap();
    let list = acl(&[(Owner, 6), (User(1002), 6), (OwningGroup, 0), (Group(88), 6), (Mask, 6), (Others, 0)]);
    for reader in [&named, &member, &other] {
        assert_eq!(w.read_as(reader, &file, 0, 9).unwrap_err(), VfsError::Access);
    }
    set(w, &owner, &file, AclKind::Access, Some(&list)).unwrap();
    for writer in [&named, &member] {
        assert_eq!(&w.read_as(writer, &file, 0, 9).unwrap()[..], b"data");
        w.write_as(writer, &file, 0, b"d").unwrap();
        let rights = w.fs.access(&caller(writer), &file, Rights::ALL).unwrap().0;
        assert!(rights.read && rights.modify && rights.extend && !rights.execute);
    }
    assert_eq!(w.read_as(&other, &file, 0, 9).unwrap_err(), VfsError::Access);
    assert_eq!(w.fs.access(&caller(&other), &file, Rights::ALL).unwrap().0, Rights::default());
    // The mask bounds the permissions of the named user.
    w.set_as(&owner, &file, &mode(0o640)).unwrap();
    assert_eq!(&w.read_as(&named, &file, 0, 9).unwrap()[..], b"data");
    assert_eq!(w.write_as(&named, &file, 0, b"x").unwrap_err(), VfsError::Access);
    Ok(())
}

pub fn default_acls_are_inherited(w: &World) -> Outcome {
    need_acls(w)?;
    let dir = w.dir(&w.root(), "d");
    let default = acl(&[(Owner, 7), (User(77), 7), (OwningGroup, 5), (Mask, 7), (Others, 0)]);
    set(w, &w.cred, &dir, AclKind::Default, Some(&default)).unwrap();
    assert_eq!(
        (kept(w, &dir, AclKind::Access), w.attr(&dir).mode),
        (None, 0o755),
        "the directory itself must not change"
    );
    let file = w.create(&w.cred, &dir, "f", &mode(0o664)).unwrap();
    assert_eq!(file.attr.mode, 0o660, "others must get nothing, and the mask is bounded by the mode");
    let inherited = acl(&[(Owner, 6), (User(77), 7), (OwningGroup, 5), (Mask, 6), (Others, 0)]);
    assert_eq!(kept(w, &file.handle, AclKind::Access), Some(inherited));
    let sub = w.fs.mkdir(&w.me(), &dir, name("s"), &mode(0o755)).unwrap();
    assert_eq!(sub.attr.mode, 0o750);
    assert_eq!(kept(w, &sub.handle, AclKind::Default), Some(default));
    // A link has no ACL. Removing the default ACL affects only later objects.
    w.fs.symlink(&w.me(), &dir, name("l"), b"f", &mode(0o777)).unwrap();
    set(w, &w.cred, &dir, AclKind::Default, None).unwrap();
    assert_eq!(kept(w, &dir, AclKind::Default), None);
    let plain = w.create(&w.cred, &dir, "p", &mode(0o664)).unwrap();
    assert_eq!((plain.attr.mode, kept(w, &plain.handle, AclKind::Access)), (0o664, None));
    Ok(())
}

pub fn only_owners_set_acls(w: &World) -> Outcome {
    need_acls(w)?;
    let list = Acl::from_mode(0o777);
    let link = w.fs.symlink(&w.me(), &w.root(), name("l"), b"f", &mode(0o777)).unwrap().handle;
    assert_eq!(set(w, &w.cred, &link, AclKind::Access, Some(&list)), Err(VfsError::NotSupported));
    let file = w.file(&w.root(), "f");
    assert_eq!(set(w, &w.cred, &file, AclKind::Default, Some(&list)), Err(VfsError::Access));
    assert_eq!(set(w, &w.cred, &file, AclKind::Default, None), Ok(0o644));
    w.need_identities()?;
    let owned = w.create(&cred(1001, 1, &[]), &w.root(), "o", &mode(0o666)).unwrap().handle;
    assert_eq!(set(w, &cred(1002, 1, &[]), &owned, AclKind::Access, Some(&list)), Err(VfsError::Perm));
    assert_eq!(set(w, &cred(1001, 1, &[]), &owned, AclKind::Access, Some(&list)), Ok(0o777));
    Ok(())
}
