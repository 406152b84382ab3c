//! Files that the server passes as descriptors to a process on its host, for FUSE_PASSTHROUGH: the program
//! [`nfs::passthrough`], on the connection of NFS.

use std::{fmt, os::fd::OwnedFd};

use nfs::passthrough::{PASSTHROUGH_PROGRAM, PassArgs, PassProc, PassRes, PassStat, VERSION};
use rpc::{AcceptStat, ClientError, ReplyPlan};
use xdr::Opaque;

use crate::{
    call::Program,
    model::{Error, ErrorKind, Handle},
};

/// The reason why the server passes no descriptor of a file.
#[derive(Debug)]
pub enum NotPassed {
    /// The connection is not over shm, so descriptors cannot travel with replies.
    NoDescriptors,
    /// The server does not run as root. Its descriptors are not used: the kernel would open these files again with the rights of
    /// this process, which the server may lack.
    ServerNotRoot,
    /// No export of the server passes files.
    NoProgram,
    /// The server refuses.
    Refused(PassStat),
    /// The file is at another server now.
    Moved,
    /// The descriptor did not arrive, because the connection was lost.
    Lost,
    /// The call failed.
    Failed(Error),
}

impl fmt::Display for NotPassed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotPassed::NoDescriptors => write!(f, "the transport is not shm (proto=shm)"),
            NotPassed::ServerNotRoot => write!(f, "the server does not run as root"),
            NotPassed::NoProgram => write!(f, "no export of the server has passthrough = true"),
            NotPassed::Refused(status) => write!(f, "the server refuses: {status}"),
            NotPassed::Moved => write!(f, "the file is at another server"),
            NotPassed::Lost => write!(f, "the connection was lost"),
            NotPassed::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NotPassed {}

/// Asks the server of `program`, which is NFS, for a descriptor of a file: [`Mount::pass_file`](super::Mount::pass_file).
pub(super) async fn pass_file(program: &Program, file: &Handle) -> Result<OwnedFd, NotPassed> {
    let program = program.sibling(PASSTHROUGH_PROGRAM, VERSION);
    match program.transport() {
        Some(transport) if !transport.carries_descriptors() => return Err(NotPassed::NoDescriptors),
        Some(transport) if transport.peer_user().is_none_or(|user| user.uid != ROOT) => {
            return Err(NotPassed::ServerNotRoot);
        }
        _ => {}
    }
    if file.len() > nfs::v3::FHSIZE3 {
        return Err(NotPassed::NoProgram); // Our servers make shorter handles.
    }
    let args = PassArgs { file: Opaque(file.0.clone()) };
    let plan = ReplyPlan { inline_max: RESULT_MAX, ..ReplyPlan::default() };
    let name = PassProc::Pass.name();
    let (result, _) = program.call::<_, PassRes>(PassProc::Pass as u32, name, &args, plan, &program.deadline()).await;
    let number = match result.map_err(not_passed)? {
        PassRes::Ok(ok) => ok.number,
        PassRes::Fail(status) => return Err(NotPassed::Refused(status)),
    };
    // A descriptor of an earlier connection does not have this number.
    let transport = program.transport().ok_or(NotPassed::Lost)?;
    if transport.peer_user().is_none_or(|user| user.uid != ROOT) {
        return Err(NotPassed::ServerNotRoot);
    }
    transport.take_descriptor(number).ok_or(NotPassed::Lost)
}

fn not_passed(error: Error) -> NotPassed {
    use AcceptStat::{ProcUnavail, ProgMismatch, ProgUnavail};
    match error.kind() {
        ErrorKind::Rpc(ClientError::NotExecuted(ProgUnavail | ProgMismatch { .. } | ProcUnavail)) => {
            NotPassed::NoProgram
        }
        _ => NotPassed::Failed(error),
    }
}

/// The user ID of root, as this process sees it.
const ROOT: u32 = 0;
/// Maximum bytes of a result.
const RESULT_MAX: usize = 64;
