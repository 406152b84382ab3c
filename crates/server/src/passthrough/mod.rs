//! PASSTHROUGH: passes files to clients that are root on this host, so that their kernel reads them without a call. See
//! `docs/adr/0013-fuse-passthrough.md`.
//!
//! A descriptor cannot be taken back, and its holder can open the file again through `/proc` with its own rights. So an export passes
//! files only if its configuration says so, only to root of the server's user namespace, and only if neither the export nor the call
//! demands that data are protected on their way. Otherwise the decision is that of a READ by the same caller.

use std::{
    io,
    ops::RangeInclusive,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use nfs::passthrough::{self, PassArgs, PassOk, PassProc, PassRes, PassStat};
use rpc::{AcceptError, Answering, Call, Procedure, Service};
use vfs::VfsError;
use xdr::{Encode, Encoder};

use crate::{
    audit::Kind,
    call::{
        audit::Action,
        context::Context,
        core::Core,
        error::{Fault, WouldBlock},
        exec::{self, Answer, Null},
        object::Object,
    },
    sharing::conflict::Conflict,
};

/// The PASSTHROUGH program, version 1.
pub struct Passthrough {
    shared: Arc<Core>,
}

impl Passthrough {
    pub(crate) fn new(shared: Arc<Core>) -> Self {
        Self { shared }
    }
}

impl Service for Passthrough {
    fn program(&self) -> u32 {
        passthrough::PASSTHROUGH_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        passthrough::VERSION..=passthrough::VERSION
    }

    fn needs_reliability(&self) -> bool {
        true
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        let procedure = PassProc::from_number(procedure)?;
        // A reply from the cache would name a descriptor that its connection has delivered already.
        Some(Procedure { name: procedure.name(), idempotent: true })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        match PassProc::from_number(call.procedure) {
            None => Answering::Ready(Err(AcceptError::SystemErr)),
            Some(PassProc::Null) => exec::run::<Null<_>>(&self.shared, call),
            Some(PassProc::Pass) => exec::run::<Pass>(&self.shared, call),
        }
    }
}

struct Pass;

impl Answer for Pass {
    type Shared = Core;
    type Args = PassArgs;
    type Status = PassStat;
    const NAME: &'static str = PassProc::Pass.name();

    fn action(cx: &Context<'_>, args: &PassArgs) -> Option<Action> {
        let object = cx.subject(&args.file, None);
        let (protocol, operation) = ("passthrough", Self::NAME);
        Some(Action { kind: Kind::ReadData, protocol, operation, access: None, object, to: None })
    }

    fn answer(cx: &Context<'_>, args: &PassArgs, out: &mut Encoder) -> Result<PassStat, WouldBlock> {
        let (res, status) = match pass(cx, args) {
            Ok(number) => (PassRes::Ok(PassOk { number }), PassStat::Ok),
            Err(Fault::Status(status)) => (PassRes::Fail(status), status),
            Err(Fault::WouldBlock) => return Err(WouldBlock),
        };
        res.encode(out);
        Ok(status)
    }
}

/// Opens a file and sends its descriptor. Returns the number of the descriptor.
fn pass(cx: &Context<'_>, args: &PassArgs) -> Result<u64, Fault<PassStat>> {
    let transport = cx.descriptors().ok_or(PassStat::Peer)?;
    // Another user could not register the file with its kernel, so it needs no descriptor.
    if transport.peer_user().is_none_or(|user| user.uid != ROOT) {
        return Err(PassStat::Peer.into());
    }
    let object = cx.object(&args.file)?;
    let file = open(cx, &object)?;
    match transport.send_descriptor(file.as_fd()) {
        Ok(number) => Ok(number),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(PassStat::Delay.into()),
        Err(error) => {
            tracing::debug!(peer = %cx.peer, %error, "a descriptor cannot be sent");
            Err(PassStat::Failed.into())
        }
    }
}

fn open(cx: &Context<'_>, object: &Object<'_>) -> Result<OwnedFd, Fault<PassStat>> {
    if !object.export.options().passthrough {
        return Err(PassStat::Export.into());
    }
    if object.export.protects(&cx.requester()) {
        return Err(PassStat::Protection.into());
    }
    cx.before_read(object, None)?;
    Ok(object.vfs().pass_file(&object.caller(), &object.handle)?)
}

impl From<PassStat> for Fault<PassStat> {
    fn from(status: PassStat) -> Self {
        Fault::Status(status)
    }
}

impl From<VfsError> for Fault<PassStat> {
    fn from(error: VfsError) -> Self {
        Fault::Status(match error {
            VfsError::WouldBlock => return Fault::WouldBlock,
            VfsError::Pending | VfsError::Delay => PassStat::Delay,
            VfsError::Access | VfsError::Perm => PassStat::Access,
            VfsError::Stale | VfsError::BadHandle | VfsError::NotFound => PassStat::Stale,
            VfsError::IsDir | VfsError::Invalid | VfsError::BadType => PassStat::NotFile,
            VfsError::NotSupported => PassStat::Backend,
            _ => PassStat::Failed,
        })
    }
}

impl From<Conflict> for Fault<PassStat> {
    fn from(conflict: Conflict) -> Self {
        match conflict {
            Conflict::WouldBlock => Fault::WouldBlock,
            Conflict::Recalled => PassStat::Delay.into(),
        }
    }
}

/// The user ID of root, as this process sees it: in a user namespace, another user's root has another ID.
const ROOT: u32 = 0;
