//! Handles of a data server of kind `slipway`.

use std::sync::Arc;

use buf::{Pool, Rope};
use bytes::Bytes;
use pnfs::objects::{
    Objects,
    fences::Fences,
    handle::{BODY_LEN, ClusterKey, ObjectHandle, Right, StoreId},
    name,
};
use redb::backends::InMemoryBackend;
use vfs::{
    Caller, Cred, Handle, Name, Report, SetAttr, Stability, Vfs, VfsError,
    memory::{Memory, MemoryOptions},
};

/// The bytes of a handle that a client has made. They must be refused. With the right MAC, the handle must permit no more than its
/// right: see [`use_handle`].
pub fn object_handle(data: &[u8]) {
    let (key, store) = (ClusterKey::new(&entropy::random()), StoreId(entropy::random()));
    assert!(key.open(store, data).is_err(), "a handle of another key must be refused");
    let Some(body) = data.first_chunk::<BODY_LEN>() else { return };
    let handle = match ObjectHandle::of_body(body) {
        Ok(handle) => handle,
        Err(error) => return assert_eq!(error, VfsError::BadHandle),
    };
    assert_eq!(handle.body(), *body, "the encoding must be canonical");
    let mut sealed = key.seal(store, &handle);
    assert_eq!(key.open(store, &sealed), Ok(handle));
    for (at, byte) in data[BODY_LEN..].iter().enumerate().take(sealed.len()) {
        sealed[at] ^= byte;
        assert_eq!(key.open(store, &sealed).is_ok(), *byte == 0);
        sealed[at] ^= byte;
    }
    use_handle(&key, &handle);
}

/// Uses a handle for every operation, as a client and as the metadata server.
fn use_handle(key: &ClusterKey, handle: &ObjectHandle) {
    let memory = Arc::new(Memory::new(MemoryOptions { capacity: 1 << 20, ..Default::default() }));
    let fences = Fences::with_backend(InMemoryBackend::new()).expect("memory does not fail");
    let objects = Objects::open(memory, fences, key.clone()).expect("memory does not fail");
    let store = Objects::store_of(objects.root().as_bytes()).expect("the root must name its store");
    let adopt = |handle: &ObjectHandle| objects.adopt(&key.seal(store, handle)).expect("the key is right");
    let (file, root) = (adopt(handle), Cred::root());
    let client = Cred { uid: 1000, ..Cred::root() };
    for cred in [&client, &root] {
        let caller = Caller::blocking(cred);
        let is_mds = cred.uid == 0;
        let data = Rope::from(Bytes::from_static(b"data"));
        let written = objects.write(&caller, &file, 0, &data, Stability::FileSync, Report::Nothing);
        let may_write = handle.right == Right::Write || handle.right == Right::Control && is_mds;
        assert!(may_write || written.is_err(), "{handle:?} must not write");
        let read = objects.read(&caller, &file, 0, 10, &Pool::default(), false);
        assert!(handle.right != Right::Store || read.is_err());
        for set in [
            SetAttr { size: Some(1), ..SetAttr::default() },
            SetAttr { uid: Some(1), gid: Some(1), ..SetAttr::default() },
            SetAttr { mode: Some(0o777), ..SetAttr::default() },
        ] {
            let set = objects.setattr(&caller, &file, &set, None);
            assert!(handle.right == Right::Control && is_mds || set.is_err(), "{handle:?} must not change attributes");
        }
        let _ = (objects.getattr(&caller, &file), objects.commit(&caller, &file, 0, 0), objects.statfs(&caller, &file));
        let text = name(handle.object);
        let name = Name::new(text.as_bytes()).expect("the name must be valid");
        let removed = objects.remove(&caller, &file, name);
        assert_eq!(removed.is_ok(), handle.right == Right::Store && is_mds, "{handle:?}");
    }
    // Bytes without a proof are no object.
    assert!(objects.adopt(file.as_bytes()).is_err());
    assert!(objects.getattr(&Caller::blocking(&root), &Handle::new(b"")).is_err());
}
