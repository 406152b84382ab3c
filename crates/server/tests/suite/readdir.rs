//! READDIR and READDIRPLUS: size limits, cookies and verifiers.

use std::collections::BTreeSet;

use crate::common::*;
use nfs::v3::*;
use xdr::Message;

/// Creates a directory of files with names of all lengths from 1.
fn populated(rig: &Rig, files: usize) -> (NfsFh3, BTreeSet<String>) {
    let dir = rig.dir(&rig.root(), "d");
    let mut names = BTreeSet::from([".".to_owned(), "..".to_owned()]);
    for i in 0..files {
        let name = format!("{i:0width$}", width = 1 + i % 40);
        rig.file(&dir, &name, b"");
        assert!(names.insert(name));
    }
    (dir, names)
}

fn readdir(rig: &Rig, dir: &NfsFh3, cookie: u64, cookieverf: [u8; 8], count: u32) -> ReadDirRes {
    rig.call::<ReadDir>(ReadDirArgs { dir: dir.clone(), cookie, cookieverf, count })
}

fn plus(rig: &Rig, dir: &NfsFh3, cookie: u64, verf: [u8; 8], dircount: u32, maxcount: u32) -> ReadDirPlusRes {
    rig.call::<ReadDirPlus>(ReadDirPlusArgs { dir: dir.clone(), cookie, cookieverf: verf, dircount, maxcount })
}

fn text(name: &Filename3) -> String {
    String::from_utf8(name.to_vec()).unwrap()
}

#[simnet::test]
async fn every_count_is_respected_and_lists_every_entry_once() {
    let rig = Rig::new();
    let (dir, names) = populated(&rig, 20);
    for count in 1..=2000 {
        let (mut cookie, mut verf, mut seen) = (0, [0; 8], BTreeSet::new());
        loop {
            let ok = match readdir(&rig, &dir, cookie, verf, count) {
                ReadDirRes::Ok(ok) => ok,
                ReadDirRes::Fail(status, attr) => {
                    assert_eq!((status, attr), (Nfsstat3::TooSmall, Some(rig.attr(&dir))));
                    // The head has 96 bytes and the end 8. The longest next entry has 24 bytes and a name of up to 20.
                    assert!(count < 96 + 8 + 24 + 20, "{count} bytes are enough for an entry");
                    break;
                }
            };
            let size = Message::encode(&ok).stream.len();
            assert!(size <= count as usize, "{size} bytes for a count of {count}");
            assert_eq!(ok.dir_attributes, Some(rig.attr(&dir)));
            for entry in &ok.reply.entries {
                assert!(seen.insert(text(&entry.name)), "{entry:?} twice");
            }
            if ok.reply.eof {
                assert_eq!(seen, names, "count {count}");
                break;
            }
            let last = ok.reply.entries.last().expect("the listing must make progress");
            (cookie, verf) = (last.cookie, ok.cookieverf);
            let next = readdir(&rig, &dir, cookie, verf, 4096).into_result().unwrap();
            let more = 24 + next.reply.entries[0].name.len().next_multiple_of(4);
            assert!(size + more > count as usize, "{size} bytes for a count of {count} leave space for {more} more");
        }
    }
}

#[simnet::test]
async fn readdirplus_respects_both_limits() {
    let rig = Rig::new();
    let (dir, names) = populated(&rig, 20);
    let base = |name: &Filename3| 24 + name.len().next_multiple_of(4);
    let enough = readdir(&rig, &dir, 0, [0; 8], 8192).into_result().unwrap().reply.entries;
    for (dircount, maxcount) in (0..700).flat_map(|i| [(i, 8192), (8192, 6 * i), (i, 3 * i)]) {
        let (mut cookie, mut verf, mut seen) = (0, [0; 8], BTreeSet::new());
        loop {
            let ok = match plus(&rig, &dir, cookie, verf, dircount, maxcount) {
                ReadDirPlusRes::Ok(ok) => ok,
                ReadDirPlusRes::Fail(status, _) => {
                    assert_eq!(status, Nfsstat3::TooSmall);
                    let next = enough.iter().find(|entry| !seen.contains(&text(&entry.name))).unwrap();
                    let whole = 96 + 8 + base(&next.name) + 88 + 8 + 40;
                    assert!((dircount as usize) < base(&next.name) || (maxcount as usize) < whole);
                    break;
                }
            };
            let size = Message::encode(&ok).stream.len();
            let dir_size: usize = ok.reply.entries.iter().map(|entry| base(&entry.name)).sum();
            assert!(size <= maxcount as usize && dir_size <= dircount as usize);
            for entry in &ok.reply.entries {
                assert!(seen.insert(text(&entry.name)), "{entry:?} twice");
            }
            if ok.reply.eof {
                assert_eq!(seen, names);
                break;
            }
            (cookie, verf) = (ok.reply.entries.last().expect("the listing must make progress").cookie, ok.cookieverf);
        }
    }
}

#[simnet::test]
async fn readdirplus_returns_attributes_and_handles_of_entries() {
    let rig = Rig::new();
    let (dir, _) = populated(&rig, 10);
    let ok = plus(&rig, &dir, 0, [0; 8], 1 << 20, 1 << 20).into_result().unwrap();
    assert_eq!((ok.reply.entries.len(), ok.reply.eof), (12, true));
    for entry in ok.reply.entries {
        let handle = entry.name_handle.expect("entry must have a handle");
        let found = rig.call::<Lookup>(LookupArgs { what: Diropargs3 { dir: dir.clone(), name: entry.name } });
        let found = found.into_result().unwrap();
        assert_eq!((found.object, found.obj_attributes), (handle.clone(), entry.name_attributes));
        assert_eq!(rig.attr(&handle).fileid, entry.fileid);
    }
}

#[simnet::test]
async fn cookies_survive_changes_and_invalid_ones_are_rejected() {
    let rig = Rig::new();
    let (dir, names) = populated(&rig, 30);
    let first = readdir(&rig, &dir, 0, [0; 8], 400).into_result().unwrap();
    let mut seen: BTreeSet<_> = first.reply.entries.iter().map(|entry| text(&entry.name)).collect();
    let last = first.reply.entries.last().unwrap();
    // Remove the entry of the cookie, as happens while a directory tree is being removed.
    rig.call::<Remove>(RemoveArgs { object: Diropargs3 { dir: dir.clone(), name: last.name.clone() } })
        .into_result()
        .unwrap();
    rig.file(&dir, "added-later", b"");
    let rest = readdir(&rig, &dir, last.cookie, first.cookieverf, 8000).into_result().unwrap();
    for entry in rest.reply.entries {
        assert!(seen.insert(text(&entry.name)), "{entry:?} twice");
    }
    seen.remove("added-later");
    assert_eq!(seen, names);
    let wrong = readdir(&rig, &dir, last.cookie, *b"notthis!", 8000).into_result().unwrap_err();
    assert_eq!(wrong, (Nfsstat3::BadCookie, Some(rig.attr(&dir))));
}

#[simnet::test]
async fn end_of_the_listing_needs_no_space_for_an_entry() {
    let rig = Rig::new();
    let dir = rig.dir(&rig.root(), "d");
    let all = readdir(&rig, &dir, 0, [0; 8], 4096).into_result().unwrap();
    let last = all.reply.entries.last().unwrap().cookie;
    let end = readdir(&rig, &dir, last, all.cookieverf, 96 + 8).into_result().unwrap();
    assert!(end.reply.eof && end.reply.entries.is_empty());
    let short = readdir(&rig, &dir, last, all.cookieverf, 96 + 7).into_result().unwrap_err();
    assert_eq!(short.0, Nfsstat3::TooSmall);
}

#[simnet::test]
async fn only_readable_directories_are_listed() {
    let rig = Rig::new();
    let root = rig.root();
    let file = rig.file(&root, "f", b"");
    assert_eq!(readdir(&rig, &file, 0, [0; 8], 4096), ReadDirRes::Fail(Nfsstat3::NotDir, Some(rig.attr(&file))));
    let dir = rig.dir(&root, "d");
    rig.set_mode(&dir, 0o711);
    let denied = readdir(&rig.as_user(5, 5), &dir, 0, [0; 8], 4096).into_result().unwrap_err();
    assert_eq!(denied, (Nfsstat3::Acces, Some(rig.attr(&dir))));
    assert_eq!(plus(&rig.as_user(5, 5), &dir, 0, [0; 8], 4096, 4096).into_result().unwrap_err().0, Nfsstat3::Acces);
}

#[simnet::test]
async fn replies_are_bounded_whatever_the_count() {
    let rig = Rig::new();
    let (dir, _) = populated(&rig, 3000);
    let ok = plus(&rig, &dir, 0, [0; 8], u32::MAX, u32::MAX).into_result().unwrap();
    let size = Message::encode(&ok).stream.len();
    assert!(!ok.reply.eof && size <= 256 << 10 && size > 250 << 10, "{size}");
}
