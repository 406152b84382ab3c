//! A directory that is served again after a restart. File handles stay valid as long as their key exists.
//!
//! The tests do not run in simulations, because they are about directories of the system.

use std::path::Path;

use crate::common::*;
use nfs::v3::*;
use server::{ExportOptions, NfsServer, Squash, config::ExportConfig};

fn serve(dir: &Path, state: &Path) -> Rig {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = ExportConfig::directory(dir, options).unwrap();
    Rig::calling(&NfsServer::open(&[export], &state.join("state"), &buf::Pool::default()).unwrap())
}

#[test]
fn handles_survive_a_restart_with_the_same_state_directory_only() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let name = dir.path().canonicalize().unwrap();
    let before = serve(dir.path(), state.path());
    let root = before.root_of(name.to_str().unwrap());
    let file = before.file(&before.dir(&root, "sub"), "file", b"kept");
    let verifier = |rig: &Rig| {
        let commit = CommitArgs { file: file.clone(), offset: 0, count: 0 };
        rig.call::<Commit>(commit).into_result().unwrap().verf
    };
    let first = verifier(&before);
    assert_eq!(verifier(&before), first);
    let attr = before.attr(&file);
    drop(before);
    std::fs::rename(dir.path().join("sub/file"), dir.path().join("moved")).unwrap();
    std::fs::rename(dir.path().join("moved"), dir.path().join("sub/file")).unwrap();

    let after = serve(dir.path(), state.path());
    assert_eq!(after.root_of(name.to_str().unwrap()), root);
    let read = after.call::<Read>(ReadArgs { file: file.clone(), offset: 0, count: 100 }).into_result().unwrap();
    assert_eq!(read.data.0.to_bytes().unwrap(), "kept");
    let now = after.attr(&file);
    assert_eq!((now.fsid, now.fileid, now.mtime), (attr.fsid, attr.fileid, attr.mtime));
    assert_ne!(verifier(&after), first, "unstable writes may have been lost");

    let other_state = tempfile::tempdir().unwrap();
    let other = serve(dir.path(), other_state.path());
    assert_eq!(other.call::<GetAttr>(GetAttrArgs { object: file }), GetAttrRes::Fail(Nfsstat3::Stale, ()));
}

#[test]
fn state_directory_must_not_be_exported() {
    let dir = tempfile::tempdir().unwrap();
    let export = ExportConfig::directory(dir.path(), ExportOptions::default()).unwrap();
    let opened = NfsServer::open(std::slice::from_ref(&export), &dir.path().join("state"), &buf::Pool::default());
    let Err(error) = opened else { panic!("the export must be refused") };
    assert!(error.to_string().contains("name another state directory"), "{error}");

    let state = tempfile::tempdir().unwrap();
    let twice = NfsServer::open(&[export.clone(), export], &state.path().join("state"), &buf::Pool::default());
    let Err(error) = twice else { panic!("the export must be refused") };
    assert!(error.to_string().contains("is exported already"), "{error}");

    let missing = ExportConfig::directory(&dir.path().join("none"), ExportOptions::default()).unwrap_err();
    assert!(missing.to_string().contains("none"), "{missing}");
}
