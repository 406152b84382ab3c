//! Extended attributes.

use vfs::{CreateMode, SetAttr, VfsError, XATTR_MAX, XattrMode};

use crate::backend::{Outcome, Skipped, World, caller, cred, mode, name};

fn need_xattrs(w: &World) -> Outcome {
    let why = "the file system of the temporary directory does not support extended attributes of class user";
    if w.fs.caps().xattrs { Ok(()) } else { Err(Skipped(why)) }
}

pub fn xattrs_are_set_listed_and_removed(w: &World) -> Outcome {
    need_xattrs(w)?;
    let me = w.me();
    for object in [w.file(&w.root(), "f"), w.dir(&w.root(), "d")] {
        assert!(w.fs.xattrs(&me, &object).unwrap().is_empty());
        assert_eq!(w.fs.xattr(&me, &object, name("one")), Err(VfsError::NoXattr));
        let replaced = w.fs.set_xattr(&me, &object, name("one"), b"1", XattrMode::Replace);
        assert_eq!(replaced.unwrap_err(), VfsError::NoXattr);
        let before = w.attr(&object).ctime;
        let change = w.fs.set_xattr(&me, &object, name("one"), b"1", XattrMode::Create).unwrap();
        assert_eq!(change.before.ctime, before);
        assert!(w.coarse_times || change.after.ctime > before);
        let again = w.fs.set_xattr(&me, &object, name("one"), b"2", XattrMode::Create);
        assert_eq!(again.unwrap_err(), VfsError::Exists);
        w.fs.set_xattr(&me, &object, name("one"), b"2", XattrMode::Replace).unwrap();
        w.fs.set_xattr(&me, &object, name("a.b"), b"", XattrMode::Either).unwrap();
        assert_eq!(w.fs.xattr(&me, &object, name("one")).unwrap(), &b"2"[..]);
        assert_eq!(w.fs.xattr(&me, &object, name("a.b")).unwrap(), &b""[..]);
        assert_eq!(w.fs.xattrs(&me, &object).unwrap(), [&b"a.b"[..], b"one"]);
        w.fs.remove_xattr(&me, &object, name("one")).unwrap();
        assert_eq!(w.fs.remove_xattr(&me, &object, name("one")).unwrap_err(), VfsError::NoXattr);
        assert_eq!(w.fs.xattrs(&me, &object).unwrap(), [&b"a.b"[..]]);
    }
    Ok(())
}

pub fn xattrs_have_bounds(w: &World) -> Outcome {
    need_xattrs(w)?;
    let file = w.file(&w.root(), "f");
    let large = w.fs.set_xattr(&w.me(), &file, name("x"), &vec![1; XATTR_MAX + 1], XattrMode::Either);
    assert!(matches!(large, Err(VfsError::XattrTooBig | VfsError::NoSpace)), "{large:?}");
    w.fs.set_xattr(&w.me(), &file, name("x"), &[1; 1000], XattrMode::Either).unwrap();
    let link = w.fs.symlink(&w.me(), &w.root(), name("l"), b"f", &SetAttr::default()).unwrap().handle;
    assert_eq!(w.fs.xattr(&w.me(), &link, name("x")), Err(VfsError::Perm));
    Ok(())
}

pub fn xattrs_need_permission(w: &World) -> Outcome {
    need_xattrs(w)?;
    w.need_identities()?;
    let (owner, other) = (cred(1001, 1001, &[]), cred(1002, 1002, &[]));
    let made = w.fs.create(&caller(&owner), &w.root(), name("f"), &CreateMode::Guarded(mode(0o644)));
    let file = made.unwrap().handle;
    w.fs.set_xattr(&caller(&owner), &file, name("x"), b"1", XattrMode::Either).unwrap();
    assert_eq!(w.fs.xattr(&caller(&other), &file, name("x")).unwrap(), &b"1"[..]);
    let refused = w.fs.set_xattr(&caller(&other), &file, name("x"), b"2", XattrMode::Either);
    assert_eq!(refused.unwrap_err(), VfsError::Access);
    assert_eq!(w.fs.remove_xattr(&caller(&other), &file, name("x")).unwrap_err(), VfsError::Access);
    w.set_as(&owner, &file, &mode(0o600)).unwrap();
    assert_eq!(w.fs.xattr(&caller(&other), &file, name("x")), Err(VfsError::Access));
    assert_eq!(w.fs.xattrs(&caller(&other), &file), Err(VfsError::Access));
    Ok(())
}
