//! Tests of `slipway mount`: POSIX ACLs.

use std::{
    ffi::CString,
    fs::{self, DirEntry},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use rustix::{
    fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr},
    io::Errno,
};

use crate::common::mounted::{CACHED, World};

/// Encodes a value of `posix_acl_xattr.h`: tags, permissions and IDs.
fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry =
        |&(tag, perm, id): &(u16, u16, u32)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    [&2u32.to_le_bytes()[..], &entries.iter().flat_map(entry).collect::<Vec<u8>>()].concat()
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut room = [0; 1000];
    let len = getxattr(path, name, &mut room)?;
    Ok(room[..len].to_vec())
}

fn names(path: &Path) -> Vec<String> {
    let mut room = vec![0u8; 1000];
    let len = listxattr(path, &mut room[..]).unwrap();
    let names = room[..len].split_inclusive(|&byte| byte == 0);
    names.map(|name| CString::from_vec_with_nul(name.to_vec()).unwrap().into_string().unwrap()).collect()
}

/// Applies the mask to the entries of users and groups, as NFSv4 shows them.
fn masked(value: &[u8]) -> Vec<u8> {
    let (mut value, tag) = (value.to_vec(), |entry: &[u8]| u16::from_le_bytes([entry[0], entry[1]]));
    let mask = value[4..].chunks_exact(8).find(|entry| tag(entry) == 0x10).map(|entry| entry[2]).unwrap();
    value[4..].chunks_exact_mut(8).filter(|entry| [2, 4, 8].contains(&tag(entry))).for_each(|entry| entry[2] &= mask);
    value
}

const NONE: u32 = u32::MAX;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

#[test]
fn acls_of_the_server_are_read_and_set() {
    for version in ["3", "4.0", "4.1", "4.2"] {
        read_and_set(version);
    }
}

fn read_and_set(version: &str) {
    let test = "acls_of_the_server_are_read_and_set";
    let Some(world) = World::new(test, "tcp", &format!("&vers={version}")) else { return };
    let (dir, served) = (world.at.join("dir"), world.served.join("dir"));
    fs::create_dir(&dir).unwrap();
    let (file, there) = (dir.join("file"), served.join("file"));
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    for name in [ACCESS, DEFAULT] {
        assert_eq!((get(&file, name), get(&dir, name)), (Err(Errno::NODATA), Err(Errno::NODATA)));
    }
    // Over NFSv4, only attributes of users are listed.
    let listed = |path: &Path, expected: &[&str]| {
        if version == "3" {
            assert_eq!(names(path), expected);
        }
    };
    listed(&file, &[]);
    let acl = value(&[(1, 6, NONE), (2, 7, 12), (4, 4, NONE), (8, 1, 34), (0x10, 7, NONE), (0x20, 0, NONE)]);
    let set = |path: &Path, name: &str, value: &[u8]| setxattr(path, name, value, XattrFlags::empty());
    match set(&there, ACCESS, &acl) {
        Err(Errno::OPNOTSUPP) => {
            eprintln!("SKIPPED {test}: the file system has no ACLs");
            return world.end();
        }
        done => done.unwrap(),
    }
    assert_eq!(get(&file, ACCESS).as_ref(), Ok(&acl));
    listed(&file, &[ACCESS]);
    // Set through the mount. The group bits of the mode are the mask.
    let other = value(&[(1, 6, NONE), (2, 4, 12), (2, 2, 13), (4, 4, NONE), (0x10, 6, NONE), (0x20, 4, NONE)]);
    set(&file, ACCESS, &other).unwrap();
    assert_eq!((get(&there, ACCESS).as_ref(), get(&file, ACCESS).as_ref()), (Ok(&other), Ok(&other)));
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o664);
    removexattr(&file, ACCESS).unwrap();
    assert_eq!((get(&there, ACCESS), get(&file, ACCESS)), (Err(Errno::NODATA), Err(Errno::NODATA)));
    assert_eq!(there.metadata().unwrap().mode() & 0o777, 0o664);
    // The default ACL of a directory. Setting one ACL keeps the other.
    set(&dir, DEFAULT, &acl).unwrap();
    set(&dir, ACCESS, &other).unwrap();
    assert_eq!((get(&served, DEFAULT).as_ref(), get(&served, ACCESS).as_ref()), (Ok(&acl), Ok(&other)));
    listed(&dir, &[ACCESS, DEFAULT]);
    fs::write(dir.join("new"), "x").unwrap();
    let inherited = get(&served.join("new"), ACCESS).unwrap();
    let inherited = if version == "3" { inherited } else { masked(&inherited) };
    assert_eq!(get(&dir.join("new"), ACCESS).as_ref(), Ok(&inherited));
    removexattr(&dir, DEFAULT).unwrap();
    assert_eq!((get(&served, DEFAULT), get(&served, ACCESS).as_ref()), (Err(Errno::NODATA), Ok(&other)));
    // Errors.
    assert_eq!(set(&file, DEFAULT, &acl), Err(Errno::ACCESS));
    assert_eq!(set(&file, ACCESS, &value(&[(1, 6, NONE)])), Err(Errno::INVAL));
    let user = if version == "4.2" { Errno::NODATA } else { Errno::OPNOTSUPP };
    assert_eq!(get(&file, "user.name"), Err(user));
    world.end();
}

/// Lists a directory, and asks for the ACL of each entry, as `ls -l` does. Returns the names of the files that have one.
fn list(dir: &Path) -> Vec<String> {
    let has_acl = |entry: &DirEntry| match get(&entry.path(), ACCESS) {
        Ok(acl) => !acl.is_empty(),
        Err(error) => {
            assert_eq!(error, Errno::NODATA);
            false
        }
    };
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap).filter(|entry| entry.metadata().is_ok());
    let mut found: Vec<_> = entries.filter(has_acl).map(|entry| entry.file_name().into_string().unwrap()).collect();
    found.sort();
    found
}

#[test]
fn files_of_a_listing_are_not_asked_for_their_acls_one_by_one_over_version_4() {
    const FILES: u64 = 100;
    let test = "files_of_a_listing_are_not_asked_for_their_acls_one_by_one_over_version_4";
    let Some(world) = World::new(test, "tcp", "") else { return };
    let acl = value(&[(1, 6, NONE), (2, 7, 12), (4, 4, NONE), (0x10, 7, NONE), (0x20, 0, NONE)]);
    let set = |path: &Path| setxattr(path, ACCESS, &acl, XattrFlags::empty());
    for dir in ["first", "second"] {
        let dir = world.served.join(dir);
        fs::create_dir(&dir).unwrap();
        (0..FILES).for_each(|number| fs::write(dir.join(format!("file{number}")), "x").unwrap());
        fs::create_dir(dir.join("dir")).unwrap();
        if set(&dir.join("file7")) == Err(Errno::OPNOTSUPP) {
            eprintln!("SKIPPED {test}: the file system has no ACLs");
            return world.end();
        }
    }
    // One call for each file of the second directory over version 3, as in the first one.
    for (version, most) in [("3", FILES + 20), ("4.0", 20), ("4.2", 20)] {
        let (counted, mounted) = world.counted_with(version, &format!("&vers={version}"), &CACHED);
        assert_eq!(list(&mounted.at.join("first")), ["file7"], "{version}");
        let before = counted.calls();
        assert_eq!(list(&mounted.at.join("second")), ["file7"], "{version}");
        let calls = counted.calls() - before;
        assert!(calls <= most, "{calls} calls over {version}");
        // Listed again, and changed by the mount itself.
        let before = counted.calls();
        let file = mounted.at.join("second/file8");
        assert_eq!(get(&file, ACCESS), Err(Errno::NODATA), "{version}");
        assert_eq!(counted.calls(), before, "{version}");
        set(&file).unwrap();
        assert_eq!(get(&file, ACCESS).unwrap(), acl, "{version}");
        assert_eq!(list(&mounted.at.join("second")), ["file7", "file8"], "{version}");
        removexattr(&file, ACCESS).unwrap();
        assert_eq!(list(&mounted.at.join("second")), ["file7"], "{version}");
        mounted.end();
    }
    world.end();
}

#[test]
fn mode_is_current_after_the_acl_of_version_4_is_set() {
    let name = "mode_is_current_after_the_acl_of_version_4_is_set";
    let Some(world) = World::new(name, "tcp", "") else { return };
    for version in ["4.0", "4.2"] {
        let mounted = world.with_arguments(version, &format!("&vers={version}"), &CACHED);
        let [open, closed] = ["open", "closed"].map(|name| mounted.at.join(name));
        for (file, mode) in [(&open, 0o644), (&closed, 0o600)] {
            fs::write(file, "x").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let acl = get(&closed, "system.nfs4_acl").unwrap();
        assert_eq!(open.metadata().unwrap().mode() & 0o777, 0o644, "{version}");
        setxattr(&open, "system.nfs4_acl", &acl, XattrFlags::empty()).unwrap();
        assert_eq!(open.metadata().unwrap().mode() & 0o777, 0o600, "{version}");
        mounted.end();
    }
    world.end();
}

#[test]
fn noacl_turns_posix_acls_off() {
    for version in ["3", "4.0", "4.2"] {
        let Some(world) = World::new("noacl_turns_posix_acls_off", "tcp", &format!("&vers={version}&noacl")) else {
            return;
        };
        let file = world.at.join("file");
        fs::write(&file, "x").unwrap();
        // Over NFSv3 there are no extended attributes at all then. Linux takes this for a file without an ACL.
        let none = if version == "3" { Errno::NODATA } else { Errno::OPNOTSUPP };
        for name in [ACCESS, DEFAULT] {
            assert_eq!(get(&file, name), Err(none), "{name} over {version}");
        }
        let set = setxattr(&file, ACCESS, &value(&[(1, 6, NONE), (4, 4, NONE), (0x20, 0, NONE)]), XattrFlags::empty());
        assert_eq!(set, Err(Errno::OPNOTSUPP));
        // Other attributes are not affected.
        if version != "3" {
            assert!(!get(&file, "system.nfs4_acl").unwrap().is_empty());
        }
        if version == "4.2" {
            setxattr(&file, "user.colour", b"red", XattrFlags::empty()).unwrap();
            assert_eq!(get(&file, "user.colour").unwrap(), b"red");
        }
        world.end();
    }
}

#[test]
fn only_acls_that_both_kinds_represent_are_read_and_set_over_version_4() {
    let test = "only_acls_that_both_kinds_represent_are_read_and_set_over_version_4";
    let Some(world) = World::new(test, "tcp", "&vers=4.2") else { return };
    let (file, there) = (world.at.join("file"), world.served.join("file"));
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let set = |path: &Path, value: &[u8]| setxattr(path, ACCESS, value, XattrFlags::empty());
    // The mask bounds the entries, and remains in the mode.
    let entries = |user, mask| value(&[(1, 6, NONE), (2, user, 12), (4, 4, NONE), (0x10, mask, NONE), (0x20, 0, NONE)]);
    match set(&there, &entries(7, 5)) {
        Err(Errno::OPNOTSUPP) => {
            eprintln!("SKIPPED {test}: the file system has no ACLs");
            return world.end();
        }
        done => done.unwrap(),
    }
    assert_eq!(get(&file, ACCESS).as_ref(), Ok(&entries(5, 5)));
    fs::set_permissions(&there, fs::Permissions::from_mode(0o670)).unwrap();
    assert_eq!(get(&file, ACCESS).as_ref(), Ok(&entries(7, 7)));
    set(&file, &entries(7, 5)).unwrap();
    assert_eq!((get(&file, ACCESS).as_ref(), get(&there, ACCESS).as_ref()), (Ok(&entries(5, 5)), Ok(&entries(5, 5))));
    // The server would not let others read, because the group must not.
    let others = value(&[(1, 6, NONE), (2, 5, 12), (4, 0, NONE), (0x10, 5, NONE), (0x20, 4, NONE)]);
    assert_eq!(set(&file, &others), Err(Errno::OPNOTSUPP));
    assert_eq!(get(&there, ACCESS).as_ref(), Ok(&entries(5, 5)), "nothing may have changed");
    // It can be read if a program at the server has set it.
    set(&there, &others).unwrap();
    assert_eq!(get(&file, ACCESS).as_ref(), Ok(&others));
    world.end();
}
