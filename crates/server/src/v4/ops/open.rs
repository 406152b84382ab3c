//! OPEN, OPEN_DOWNGRADE, CLOSE and DELEGRETURN: RFC 8881 §18.2, §18.6, §18.16, §18.18.
//!
//! OPEN has three steps. An OPEN that fails leaves no state behind:
//!
//! 1. [`plan`]: the state rejects what can be rejected without the file. A plan reserves nothing.
//! 2. [`find`]: the file system finds or creates the file. Nobody else uses a file that was just created, so its share
//!    reservation cannot conflict.
//! 3. [`commit`]: the state grants the share reservation and the delegation in one step. An existing file gets its
//!    share reservation before it is truncated, and its delegation afterwards, with the new change attribute.

use bytes::Bytes;
use nfs::v4::{
    Bitmap4, ChangeInfo4, Clientid4, CloseArgs, Createhow4, DelegReturnArgs, Nfsstat4, OPEN4_RESULT_CONFIRM,
    OPEN4_RESULT_LOCKTYPE_POSIX, OPEN4_RESULT_MAY_NOTIFY_LOCK, OPEN4_SHARE_ACCESS_READ,
    OPEN4_SHARE_ACCESS_WANT_DELEG_MASK, OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS,
    OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED, OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL,
    OPEN4_SHARE_ACCESS_WRITE, OpenArgs, OpenClaim4, OpenDelegation4, OpenDowngradeArgs, OpenOk, OpenReadDelegation4,
    OpenWriteDelegation4, Openflag4, Stateid4,
    attr::{Attr4, Fattr4},
};
use rpc::{Identity, Xprtsec};
use vfs::{Attr, CreateMode, Created, Handle, Kind, Name, Rights, SetAttr, VfsError};

use super::{
    data::check_regular_file,
    filehandle::{find_entry, not_a_directory},
    namespace::{set_initial_acl, unchanged},
};
use crate::{
    call::{error::Fault, object::Object},
    clock,
    handle::ExportId,
    sharing::locks::LockClient,
    v4::{
        attr::{Wanted, change_info, set_attr},
        cursor::Cursor,
        place::{Filehandle, Known, Place, component},
        service::Context,
        state::transitions::open::{Claim, OpenPlan, OpenRequest, OpenTarget, Opened},
        status::Fault4,
    },
};

/// A file to be opened.
struct Target {
    handle: Handle,
    cinfo: ChangeInfo4,
    attrset: Bitmap4,
    /// `true` if the file must be truncated after its share reservation was granted.
    truncate: bool,
    /// `true` if this OPEN created the file. The client may then open it with any access, whatever its mode.
    created: bool,
    kind: Kind,
    /// The change attribute, if it is known.
    change: Option<u64>,
    /// The attributes of a file that this OPEN created and has not changed since.
    attr: Option<Box<Attr>>,
}

pub(super) fn open(cx: &Context<'_>, at: &mut Cursor, args: &OpenArgs) -> Result<OpenOk, Fault4> {
    let plan = match at.current() {
        // The plan is made once in all runs: it must not be refused after the file was created.
        Ok(place @ Place::Object(id, _)) if completes_later(cx, *id) => {
            cx.object4(place)?.once("plan", || plan(cx, at, args))?
        }
        Ok(place @ Place::Object(..)) => {
            cx.file_id(place)?;
            plan(cx, at, args)?
        }
        _ => plan(cx, at, args)?,
    };
    let mut target = find(cx, at, args)?;
    at.created = target.created;
    let Place::Object(id, _) = at.current()? else { return Err(Nfsstat4::Inval.into()) };
    let file = cx.object4(&Place::Object(*id, target.handle.clone()))?;
    check_regular_file(target.kind)?;
    if !target.created {
        check_permission(&file, plan.request())?;
    }
    if target.change.is_none() && !target.truncate && plan.is_delegable() {
        target.change = Some(file.getattr()?.change);
    }
    //= rfc8881-18.16.4-12
    let Opened { stateid, confirm, delegation } = commit(cx, &plan, &file, &target)?;
    let Target { cinfo, attrset, attr, .. } = target;
    at.current = Some(Filehandle::new(file.place(), attr.map_or(Known::Nothing, Known::Attr)));
    at.set_stateid(stateid);
    let mut rflags = OPEN4_RESULT_LOCKTYPE_POSIX;
    if confirm {
        rflags |= OPEN4_RESULT_CONFIRM;
    }
    if at.minor > 0 && cx.shared.runs_tasks() {
        rflags |= OPEN4_RESULT_MAY_NOTIFY_LOCK;
    }
    Ok(OpenOk { stateid, cinfo, rflags, attrset, delegation })
}

/// Returns `true` if operations of an export can be pending, so that an OPEN can run again after it has created the file.
fn completes_later(cx: &Context<'_>, export: ExportId) -> bool {
    cx.core.exports.find(export).is_some_and(|export| export.vfs().caps().completes_later)
}

/// Returns `true` if a recall of what this call gets is as protected as the call. Callbacks of 4.0 have no TLS, and the flavour
/// with which the client has introduced itself (RFC 7530 §3.3.3).
fn is_recall_protected(cx: &Context<'_>, at: &Cursor) -> bool {
    if at.minor > 0 || at.connection.tls != Xprtsec::None {
        return at.minor > 0;
    }
    match cx.identity {
        // The numbers of krb5, krb5i and krb5p ascend.
        Identity::Principal(principal) => {
            let flavor = cx.shared.with_state(|state| state.callback_flavor40(at.client()));
            flavor.is_some_and(|flavor| flavor >= principal.pseudo_flavor)
        }
        _ => true,
    }
}

/// Has the state accept an OPEN before the file is known. If the client must be stored first (§8.4.2.1), this stores
/// it.
fn plan(cx: &Context<'_>, at: &Cursor, args: &OpenArgs) -> Result<OpenPlan, Fault4> {
    let want_bits = match at.minor {
        0 => 0,
        1 => WANT_BITS,
        // RFC 9754: this bit is accepted, but a delegation comes without timestamps.
        _ => WANT_BITS | OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS,
    };
    let claim = match &args.claim {
        OpenClaim4::Previous(kind) => Claim::Reclaim(*kind),
        OpenClaim4::DelegateCur { delegate_stateid: stateid, .. } | OpenClaim4::DelegCurFh(stateid) => {
            Claim::Delegated(at.stateid(*stateid)?)
        }
        _ => Claim::New,
    };
    let request = OpenRequest {
        //= rfc8881-18.16.3-8 rfc8881-18.16.3-9 rfc8881-18.16.3-10
        client: at.client(),
        owner: args.owner.owner.0.clone(),
        access: args.share_access & !want_bits,
        deny: args.share_deny,
        want: args.share_access & want_bits,
        claim,
        can_recall: cx.shared.runs_tasks() && is_recall_protected(cx, at),
        //= rfc8881-2.10.6.3-1
        call: at.session.as_ref().map(|session| session.call),
    };
    cx.shared.may_grant()?;
    //= rfc8881-18.16.4-5 rfc8881-18.16.4-6 rfc8881-18.16.4-7 rfc8881-18.16.4-8 rfc8881-8.4.3-1
    let plan = cx.shared.with_locks(|state, locks| state.plan_open(locks, request, clock::now()))?;
    //= rfc8881-8.4.3-2
    if let Some(owner) = plan.unstored_owner() {
        store_client(cx, at.client(), owner.clone())?;
    }
    Ok(plan)
}

/// Finds or creates the file.
fn find(cx: &Context<'_>, at: &Cursor, args: &OpenArgs) -> Result<Target, Fault4> {
    match &args.claim {
        OpenClaim4::Null(name) => {
            // The check of the name takes precedence over that of the directory.
            let name = component(name)?;
            let Place::Object(..) = at.current()? else { return Err(pseudo(cx, at, name, args)) };
            let dir = cx.object4(at.current()?)?;
            match &args.openhow {
                Openflag4::NoCreate => existing(&dir, name, None),
                Openflag4::Create(how) => create(cx, at, &dir, name, how),
            }
        }
        OpenClaim4::DelegateCur { file, .. } => {
            let name = component(file)?;
            let Place::Object(..) = at.current()? else { return Err(pseudo(cx, at, name, args)) };
            existing(&cx.object4(at.current()?)?, name, None)
        }
        //= rfc8881-18.16.3-1
        OpenClaim4::Fh | OpenClaim4::Previous(_) | OpenClaim4::DelegCurFh(_) if args.openhow != Openflag4::NoCreate => {
            Err(Nfsstat4::Inval.into())
        }
        OpenClaim4::Fh | OpenClaim4::Previous(_) | OpenClaim4::DelegCurFh(_) => {
            let Place::Object(..) = at.current()? else { return Err(Nfsstat4::IsDir.into()) };
            let file = cx.object4(at.current()?)?;
            let attr = file.getattr()?;
            Ok(Target {
                handle: file.handle,
                // The directory of the file is unknown.
                cinfo: ChangeInfo4::default(),
                attrset: Bitmap4::new(),
                truncate: false,
                created: false,
                kind: attr.kind,
                change: Some(attr.change),
                attr: None,
            })
        }
        // §18.16.3: for servers that keep delegations across a client's restart. Those support DELEGPURGE.
        OpenClaim4::DelegatePrev(_) | OpenClaim4::DelegPrevFh => Err(Nfsstat4::NotSupp.into()),
    }
}

/// Grants the open, and truncates the file if the client asks for that.
fn commit(cx: &Context<'_>, plan: &OpenPlan, file: &Object<'_>, target: &Target) -> Result<Opened, Fault4> {
    if target.truncate && !cx.may_block && file.journal().is_none() {
        // The share reservation is granted first. After that the operation must not run again without a journal.
        return Err(Fault::WouldBlock);
    }
    let client = plan.request().client;
    let changing = target.truncate.then(|| cx.before_truncation(file, Some(LockClient::V4(client.0)))).transpose()?;
    let name = (file.export.id(), file.handle.clone());
    let to = OpenTarget { file: &name, change: target.change, truncates: target.truncate };
    let commit = || {
        cx.shared.may_grant()?;
        // The file must still exist. From now on it keeps its data.
        let mut held = Some(file.vfs().hold(&file.caller(), &file.handle)?);
        //= rfc8881-9.9-2
        let opened = cx.shared.with_locks(|state, locks| {
            let opened = state.commit_open(locks, plan, to, clock::now())?;
            held = held.take().and_then(|held| state.hold(&name, held));
            Ok::<_, Nfsstat4>(opened)
        });
        Ok::<_, Fault4>(opened?)
    };
    let mut opened = file.once("commit", commit)?;
    if let Err(status) = cx.shared.may_grant() {
        // Storage failed in the meantime. The client repeats the OPEN and gets the same open, but would not learn of
        // the delegation.
        if let OpenDelegation4::Read(OpenReadDelegation4 { stateid, .. })
        | OpenDelegation4::Write(OpenWriteDelegation4 { stateid, .. }) = opened.delegation
        {
            let _ = cx.shared.with_state(|state| state.delegreturn(client, &name, &stateid));
        }
        return Err(status.into());
    }
    if target.truncate {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        match file.vfs().setattr(&file.caller(), &file.handle, &set, None) {
            Ok(changed) => {
                cx.end_change(file, changing.flatten());
                let to = (&name, Some(changed.after.change));
                opened.delegation =
                    cx.shared.with_locks(|state, locks| state.delegate_open(locks, plan, to, clock::now()));
            }
            Err(error) => {
                if opened.stateid.seqid == 1 {
                    let _ = cx.shared.with_locks(|state, locks| state.close(locks, client, &name, &opened.stateid));
                }
                return Err(error.into());
            }
        }
    }
    Ok(opened)
}

pub(super) fn open_downgrade(cx: &Context<'_>, at: &mut Cursor, args: &OpenDowngradeArgs) -> Result<Stateid4, Fault4> {
    let file = cx.file_id(at.current()?)?;
    let args = OpenDowngradeArgs { open_stateid: at.stateid(args.open_stateid)?, ..args.clone() };
    let client = at.client();
    //= rfc8881-18.18.3-1 rfc8881-18.18.3-2 rfc8881-18.18.3-3
    let stateid = cx.shared.with_locks(|state, locks| state.open_downgrade(locks, client, &file, &args))?;
    at.set_stateid(stateid);
    Ok(stateid)
}

pub(super) fn close(cx: &Context<'_>, at: &mut Cursor, args: &CloseArgs) -> Result<Stateid4, Fault4> {
    let file = cx.file_id(at.current()?)?;
    //= rfc8881-8.2.3-3
    let stateid = at.stateid(args.open_stateid)?;
    //= rfc8881-18.2.3-2
    let client = at.client();
    let closed = cx.shared.with_locks(|state, locks| {
        let closed = state.close(locks, client, &file, &stateid)?;
        state.recall_closed_layouts(client, &file, clock::now());
        Ok::<_, Nfsstat4>(closed)
    })?;
    at.set_stateid(closed);
    Ok(closed)
}

/// Returns the error of an OPEN in the pseudo file system, which has only directories and is read-only.
fn pseudo(cx: &Context<'_>, at: &Cursor, name: &Name, args: &OpenArgs) -> Fault4 {
    let Ok(Place::Pseudo(node)) = at.current() else { return Nfsstat4::NoFileHandle.into() };
    let there = cx.shared.pseudo.child(*node, name.as_bytes()).is_some();
    match &args.openhow {
        _ if there => Nfsstat4::IsDir.into(),
        Openflag4::NoCreate => Nfsstat4::NoEnt.into(),
        Openflag4::Create(_) => Nfsstat4::RoFs.into(),
    }
}

/// Finds an existing file, or returns NOENT.
fn existing(dir: &Object<'_>, name: &Name, how: Option<&SetAttr>) -> Result<Target, Fault4> {
    let (handle, kind) = find_entry(dir, name)?;
    let cinfo = unchanged(dir.getattr()?);
    // §18.16.3: an existing file gets only a size from the attributes for its creation, and only if that is zero.
    let truncate = how.is_some_and(|set| set.size == Some(0));
    let attrset = if truncate { [Attr4::Size as u32].into_iter().collect() } else { Bitmap4::new() };
    Ok(Target { handle, cinfo, attrset, truncate, created: false, kind, change: None, attr: None })
}

fn create(cx: &Context<'_>, at: &Cursor, dir: &Object<'_>, name: &Name, how: &Createhow4) -> Result<Target, Fault4> {
    let none = Fattr4::default();
    let (Createhow4::Unchecked(attrs) | Createhow4::Guarded(attrs) | Createhow4::Exclusive41 { attrs, .. }) = how
    else {
        let Createhow4::Exclusive(verf) = how else { unreachable!("all other modes have attributes") };
        return create_exclusive(dir, name, *verf, SetAttr::default(), none.attrmask);
    };
    let Wanted { set, acl } = set_attr(cx, attrs, at.minor, dir.vfs().caps())?;
    let mut target = match how {
        Createhow4::Unchecked(_) => {
            match existing(dir, name, Some(&set)) {
                Err(Fault::Status(Nfsstat4::NoEnt)) => {}
                found => return found,
            }
            // Another client may create the file in the meantime. Then it exists.
            match create_file(dir, name, &CreateMode::Guarded(set.clone()), attrs.attrmask.clone()) {
                Err(Fault::Status(Nfsstat4::Exist)) => return existing(dir, name, Some(&set)),
                created => created?,
            }
        }
        Createhow4::Exclusive41 { verf, .. } => {
            // The attributes that suppattr_exclcreat omits.
            //= rfc8881-18.16.3-3
            if set.size.is_some() || set.atime.is_some() || set.mtime.is_some() {
                return Err(Nfsstat4::Inval.into());
            }
            create_exclusive(dir, name, *verf, set, attrs.attrmask.clone())?
        }
        _ => create_file(dir, name, &CreateMode::Guarded(set), attrs.attrmask.clone())?,
    };
    if acl.is_some() {
        target.attr = None;
    }
    set_initial_acl(cx, dir, &target.handle, acl.as_deref(), &mut target.attrset)?;
    Ok(target)
}

fn create_exclusive(
    dir: &Object<'_>,
    name: &Name,
    verf: [u8; 8],
    set: SetAttr,
    mask: Bitmap4,
) -> Result<Target, Fault4> {
    //= rfc8881-18.16.4-1
    let mut target = create_file(dir, name, &CreateMode::Exclusive(verf), mask)?;
    if set != SetAttr::default() {
        // The verifier identifies the file as the client's. If this fails, the client repeats the OPEN and gets here
        // again.
        dir.vfs().setattr(&dir.caller(), &target.handle, &set, None)?;
        target.attr = None;
    }
    // The times hold the verifier, so the client must set them (§18.16.3).
    target.attrset.insert(Attr4::TimeAccess as u32);
    target.attrset.insert(Attr4::TimeModify as u32);
    Ok(target)
}

fn create_file(dir: &Object<'_>, name: &Name, mode: &CreateMode, attrset: Bitmap4) -> Result<Target, Fault4> {
    //= rfc8881-18.16.3-13
    let created = dir.writable()?.vfs().create(&dir.caller(), &dir.handle, name, mode);
    let Created { handle, attr, dir: parent } = created.map_err(|error| match error {
        VfsError::NotDir => not_a_directory(dir),
        error => error.into(),
    })?;
    Ok(Target {
        handle,
        cinfo: change_info(&parent),
        attrset,
        truncate: false,
        created: true,
        kind: attr.kind,
        change: Some(attr.change),
        attr: Some(attr.into()),
    })
}

/// Checks that the caller may open an existing file.
fn check_permission(file: &Object<'_>, request: &OpenRequest) -> Result<(), Fault4> {
    let access = request.access;
    let uses = (access & OPEN4_SHARE_ACCESS_READ != 0, access & OPEN4_SHARE_ACCESS_WRITE != 0);
    // The file's owner had the right when the client opened the file or got the delegation.
    check_rights(file, uses, request.claim != Claim::New)
}

/// Checks that the caller may read or write a file. If it had the right before, the file's owner still has it.
///
/// # Errors
/// ACCESS; ROFS if the export is read-only.
pub(super) fn check_rights(file: &Object<'_>, (read, write): (bool, bool), had_right: bool) -> Result<(), Fault4> {
    if write {
        file.writable()?;
    }
    let has = |wanted| file.vfs().permits(&file.caller(), &file.handle, wanted).map(|granted| granted == wanted);
    let may_write = !write || has(Rights { modify: true, ..Rights::default() })?;
    // A client must be able to read a program to execute it.
    let may_read = !read
        || has(Rights { read: true, ..Rights::default() })?
        || has(Rights { execute: true, ..Rights::default() })?;
    let may = may_read && may_write || had_right && file.getattr()?.uid == file.caller().cred.uid;
    //= rfc8881-18.16.4-9 rfc8881-8.4.2.1.1-1
    if may { Ok(()) } else { Err(Nfsstat4::Access.into()) }
}

/// Executes DELEGRETURN (§18.6).
pub(super) fn delegreturn(cx: &Context<'_>, at: &Cursor, args: &DelegReturnArgs) -> Result<(), Fault4> {
    let file = cx.file_id(at.current()?)?;
    let stateid = at.stateid(args.deleg_stateid)?;
    let client = at.client();
    Ok(cx.shared.with_state(|state| state.delegreturn(client, &file, &stateid))?)
}

/// Stores a client, so that it can reclaim after a restart what it gets now (§8.4.2.1).
fn store_client(cx: &Context<'_>, client: Clientid4, owner: Bytes) -> Result<(), Fault4> {
    let recovery = &cx.core.recovery;
    if !cx.may_block && recovery.is_persistent() {
        return Err(Fault::WouldBlock);
    }
    let written = recovery.add_v4_client(owner.clone());
    cx.shared.with_state(|state| state.client_stored(client, &owner, written.is_ok()));
    written.map_err(|error| {
        tracing::debug!(%error, "an OPEN was refused because the client could not be stored");
        Nfsstat4::Delay.into()
    })
}

const WANT_BITS: u32 = OPEN4_SHARE_ACCESS_WANT_DELEG_MASK
    | OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL
    | OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED;
