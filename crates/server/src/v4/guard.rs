//! Implements [`Recall`] for NFSv4: all protocols ask it whether a delegation conflicts with the use of a file.

use nfs::v4::Clientid4;

use super::service::Shared4;
use crate::{
    clock,
    handle::FileId,
    sharing::{
        conflict::{Access, Conflict, Recall},
        locks::LockClient,
    },
};

impl Recall for Shared4 {
    fn recall(&self, file: &FileId, by: Option<LockClient>, access: Access) -> Result<(), Conflict> {
        let by = match by {
            Some(LockClient::V4(id)) => Some(Clientid4(id)),
            Some(LockClient::Nlm(_)) | None => None,
        };
        let recalled = self.with_locks(|state, locks| state.recall(locks, file, (by, access), clock::now()));
        recalled.map_err(|_| Conflict::Recalled)
    }
}
