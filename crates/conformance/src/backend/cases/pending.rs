//! Operations that complete later. A back end may have them, and a caller gets them only if it provides a slot.

use vfs::{Caller, CompletionSlot, CreateMode, SetAttr, VfsError};

use crate::backend::{Outcome, World, name};

pub fn callers_without_a_slot_get_no_pending_operation(w: &World) -> Outcome {
    let (fs, root) = (&w.back_end, w.root());
    let mode = CreateMode::Guarded(SetAttr::default());
    // On a thread that may wait, the operation waits.
    let made = fs.create(&w.me(), &root, name("f"), &mode).unwrap();
    assert_eq!(fs.getattr(&w.me(), &made.handle).unwrap().fileid, made.attr.fileid);
    // On a thread that must not wait, the operation returns its result at once or has had no effect.
    let waitless = Caller { may_block: false, ..w.me() };
    match fs.create(&waitless, &root, name("g"), &mode) {
        Ok(_) => {}
        Err(error) => {
            assert_eq!(error, VfsError::WouldBlock);
            assert_eq!(fs.lookup(&w.me(), &root, name("g")).unwrap_err(), VfsError::NotFound);
        }
    }
    Ok(())
}

pub fn a_pending_operation_has_its_effect_once(w: &World) -> Outcome {
    let (fs, root) = (&w.back_end, w.root());
    let mode = CreateMode::Guarded(SetAttr::default());
    for number in 0..20 {
        let file = format!("f{number}");
        // A second effect would fail with EEXIST.
        let made = w.fs.create(&w.me(), &root, name(&file), &mode).unwrap();
        assert_eq!(w.lookup(&root, &file).unwrap(), made.handle);
        // Dropping a future undoes nothing, and the slot can be used for another operation.
        let slot = CompletionSlot::default();
        let lent = Caller { completion: Some(&slot), ..w.me() };
        if fs.remove(&lent, &root, name(&file)) == Err(VfsError::Pending) {
            drop(slot.take_future().expect("pending operation must leave a future"));
        }
        let later = vfs::pending::drive(&w.me(), |caller| fs.getattr(caller, &root)).unwrap();
        assert_eq!(later.kind, vfs::Kind::Dir);
    }
    Ok(())
}
