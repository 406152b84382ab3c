//! POSIX ACLs: the program NFS_ACL, version 3, on the connection of NFSv3. No RFC defines it; see [`nfs::nfsacl`].

use std::sync::atomic::Ordering::Relaxed;

use nfs::nfsacl::*;
use rpc::{AcceptStat, ClientError, ReplyPlan};
use xdr::{Array, Decode, Encode};

use super::{V3, operations::fh};
use crate::{
    call::Backoff,
    model::{Attr, Error, ErrorKind, Handle, Result, Status},
};

/// The POSIX ACLs of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PosixAcls {
    /// The entries of the access ACL.
    pub access: Vec<AclEntry>,
    /// The entries of the default ACL of a directory, without [`ACL_DEFAULT`] in their kinds. Empty if there is none.
    pub default: Vec<AclEntry>,
}

impl V3 {
    /// Returns `false` if the mount has the option `noacl`, or the server has answered that it has no ACLs.
    pub fn has_acls(&self) -> bool {
        !self.no_acls.load(Relaxed)
    }

    /// GETACL: returns the ACLs of an object. An object without an access ACL has the one that its mode means.
    ///
    /// # Errors
    /// `NotSupported` if the server does not have the program, or with the option `noacl`, …
    pub async fn acls(&self, object: &Handle) -> Result<PosixAcls> {
        let args = GetAclArgs { fh: fh(object)?, mask: NFS_ACL | NFS_DFACL };
        let inline_max = REPLY_MAX;
        let ok: GetAclOk =
            self.acl_call::<_, GetAclRes, _, _>(AclProc3::GetAcl, &args, inline_max, |res| res.into_result()).await?;
        let lists = ok.acl;
        let of = |list: Acl| {
            let plain = |entry: AclEntry| AclEntry { kind: entry.kind & !ACL_DEFAULT, ..entry };
            list.entries.0.into_iter().map(plain).collect()
        };
        Ok(PosixAcls { access: of(lists.acl), default: of(lists.default_acl) })
    }

    /// SETACL: sets the access ACL of an object, and if it is a directory the default ACL. `attr` are the attributes of
    /// the object.
    ///
    /// # Errors
    /// `NotSupported`, `NotPermitted`, `InvalidArgument`, …
    pub async fn set_acls(&self, object: &Handle, acls: &PosixAcls, attr: &Attr) -> Result<()> {
        let is_dir = attr.kind == crate::model::FileKind::Dir;
        let acl = SecAttr {
            // Linux's server removes an ACL that is not in the mask.
            mask: if is_dir { NFS_ACL | NFS_DFACL } else { NFS_ACL },
            acl: list(&acls.access, attr, 0),
            default_acl: if is_dir { list(&acls.default, attr, ACL_DEFAULT) } else { Acl::default() },
        };
        let args = SetAclArgs { fh: fh(object)?, acl };
        self.acl_call::<_, SetAclRes, _, _>(AclProc3::SetAcl, &args, 0, |res| res.into_result()).await.map(drop)
    }

    async fn acl_call<A, R, T, F>(
        &self,
        procedure: AclProc3,
        args: &A,
        entries_max: usize,
        result: impl Fn(R) -> std::result::Result<T, (nfs::v3::Nfsstat3, F)>,
    ) -> Result<T>
    where
        A: Encode,
        R: Decode,
    {
        let (program, name) = (self.program.sibling(NFSACL_PROGRAM, VERSION), procedure.name());
        if !self.has_acls() {
            return Err(Error::refused(Status::NotSupported, name));
        }
        let deadline = &program.deadline();
        let mut backoff = Backoff::new();
        loop {
            let plan = ReplyPlan { inline_max: super::RESULT_MAX + entries_max, ..ReplyPlan::default() };
            let (answered, _) = program.call::<_, R>(procedure as u32, name, args, plan, deadline).await;
            let answered = answered
                .and_then(|res| result(res).map_err(|(status, _)| Error::of_status(status, name).on(program.server())));
            match answered {
                Err(error) if lacks_program(&error) => {
                    self.no_acls.store(true, Relaxed);
                    return Err(Error::refused(Status::NotSupported, name));
                }
                Err(error) if backoff.pause_if_delayed(&program, &error, deadline).await => {}
                answered => return answered,
            }
        }
    }
}

fn list(entries: &[AclEntry], attr: &Attr, mark: u32) -> Acl {
    let entry = |entry: &AclEntry| {
        let id = match entry.kind {
            ACL_USER_OBJ => attr.uid,
            ACL_GROUP_OBJ => attr.gid,
            ACL_USER | ACL_GROUP => entry.id,
            _ => 0,
        };
        AclEntry { kind: entry.kind | mark, id, ..*entry }
    };
    let mut all: Vec<AclEntry> = entries.iter().map(entry).collect();
    // Solaris requires a mask. Linux's client and server add this one, too, and remove it from what they receive.
    let group = entries.iter().find(|entry| entry.kind == ACL_GROUP_OBJ).filter(|_| entries.len() == 3);
    if let Some(group) = group {
        all.insert(2, AclEntry { kind: ACL_MASK | mark, id: 0, perm: group.perm });
    }
    Acl { count: all.len() as u32, entries: Array(all) }
}

/// Returns `true` if the server does not have the program or the procedure.
fn lacks_program(error: &Error) -> bool {
    use AcceptStat::{ProcUnavail, ProgMismatch, ProgUnavail};
    matches!(error.kind(), ErrorKind::Rpc(ClientError::NotExecuted(ProgUnavail | ProgMismatch { .. } | ProcUnavail)))
}

/// The maximum bytes of two lists.
const REPLY_MAX: usize = 2 * (8 + 12 * ENTRIES_MAX);
