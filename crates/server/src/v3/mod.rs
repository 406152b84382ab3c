//! NFS version 3: the 22 procedures of RFC 1813 §3.3, one file for each family of them.

pub(crate) mod attr;
mod dir;
mod fsinfo;
mod io;
mod object;
mod readdir;
pub(crate) mod status;

pub(crate) use object::{post_op, with};

use std::{ops::RangeInclusive, sync::Arc};

use nfs::v3::{self, NfsFh3, Proc3, Procedure3};
use rpc::{AcceptError, Answering, Call, Procedure, Service};

use crate::{
    audit::Kind,
    call::{
        audit::Action,
        context::Context,
        core::Core,
        exec::{self, Null},
    },
};

/// The NFS program, version 3.
pub struct Nfs3 {
    shared: Arc<Core>,
}

impl Nfs3 {
    pub(crate) fn new(shared: Arc<Core>) -> Self {
        Self { shared }
    }
}

impl Service for Nfs3 {
    fn program(&self) -> u32 {
        nfs::NFS_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        v3::VERSION..=v3::VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        let procedure = Proc3::from_number(procedure)?;
        Some(Procedure { name: procedure.name(), idempotent: procedure.is_idempotent() })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        let shared = &self.shared;
        match Proc3::from_number(call.procedure) {
            None => Answering::Ready(Err(AcceptError::SystemErr)),
            Some(Proc3::Null) => exec::run::<Null<_>>(shared, call),
            Some(Proc3::GetAttr) => exec::run::<v3::GetAttr>(shared, call),
            Some(Proc3::SetAttr) => exec::run::<v3::SetAttr>(shared, call),
            Some(Proc3::Lookup) => exec::run::<v3::Lookup>(shared, call),
            Some(Proc3::Access) => exec::run::<v3::Access>(shared, call),
            Some(Proc3::ReadLink) => exec::run::<v3::ReadLink>(shared, call),
            Some(Proc3::Read) => exec::run::<v3::Read>(shared, call),
            Some(Proc3::Write) => exec::run::<v3::Write>(shared, call),
            Some(Proc3::Create) => exec::run::<v3::Create>(shared, call),
            Some(Proc3::MkDir) => exec::run::<v3::MkDir>(shared, call),
            Some(Proc3::SymLink) => exec::run::<v3::SymLink>(shared, call),
            Some(Proc3::MkNod) => exec::run::<v3::MkNod>(shared, call),
            Some(Proc3::Remove) => exec::run::<v3::Remove>(shared, call),
            Some(Proc3::RmDir) => exec::run::<v3::RmDir>(shared, call),
            Some(Proc3::Rename) => exec::run::<v3::Rename>(shared, call),
            Some(Proc3::Link) => exec::run::<v3::Link>(shared, call),
            Some(Proc3::ReadDir) => exec::run::<v3::ReadDir>(shared, call),
            Some(Proc3::ReadDirPlus) => exec::run::<v3::ReadDirPlus>(shared, call),
            Some(Proc3::FsStat) => exec::run::<v3::FsStat>(shared, call),
            Some(Proc3::FsInfo) => exec::run::<v3::FsInfo>(shared, call),
            Some(Proc3::PathConf) => exec::run::<v3::PathConf>(shared, call),
            Some(Proc3::Commit) => exec::run::<v3::Commit>(shared, call),
        }
    }
}

/// Implements [`Answer`] for a procedure by a function of the procedure's arguments, and, if the audit log can record it, by
/// its kind and a function that returns its objects.
macro_rules! answers {
    ($($procedure:ident => $function:ident $(, $kind:ident of $action:expr)?);* $(;)?) => {$(
        impl $crate::call::exec::Answer for nfs::v3::$procedure {
            type Shared = $crate::call::core::Core;
            type Args = <nfs::v3::$procedure as nfs::v3::Procedure3>::Args;
            type Status = nfs::v3::Nfsstat3;
            const NAME: &'static str = $crate::v3::name_of::<nfs::v3::$procedure>();

            $(
                fn action(cx: &$crate::call::context::Context<'_>, args: &Self::Args) -> Option<$crate::call::audit::Action> {
                    let of: fn(&Self::Args) -> $crate::v3::Objects<'_> = $action;
                    Some($crate::v3::action(cx, <Self as $crate::call::exec::Answer>::NAME, $crate::audit::Kind::$kind, of(args)))
                }
            )?

            fn answer(
                cx: &$crate::call::context::Context<'_>,
                args: &Self::Args,
                out: &mut xdr::Encoder,
            ) -> Result<nfs::v3::Nfsstat3, $crate::call::error::WouldBlock> {
                $function(cx, args, out)
            }
        }
    )*};
}
pub(crate) use answers;

/// The objects of a procedure: file handle and name, and those of the second object.
pub(crate) type Objects<'a> = ((&'a NfsFh3, Option<&'a [u8]>), Option<(&'a NfsFh3, Option<&'a [u8]>)>);

/// Returns what a procedure is about to do.
pub(crate) fn action(
    cx: &Context<'_>,
    operation: &'static str,
    kind: Kind,
    ((handle, name), to): Objects<'_>,
) -> Action {
    let to = to.map(|(handle, name)| cx.subject(handle, name));
    Action { kind, protocol: "nfs3", operation, access: None, object: cx.subject(handle, name), to }
}

const fn name_of<P: Procedure3>() -> &'static str {
    P::NUMBER.name()
}
