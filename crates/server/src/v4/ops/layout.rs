//! LAYOUTGET, LAYOUTRETURN, LAYOUTCOMMIT, LAYOUTERROR, LAYOUTSTATS and GETDEVICEINFO: RFC 8881 §18.40, §18.42–18.44, RFC 7862
//! §15.6–15.7.
//!
//! The back end of an export has the layouts ([`vfs::layout`]), and `v4/state/transitions/layout.rs` has who holds them. A
//! server without such a back end answers NOTSUPP.

use std::sync::Arc;

use nfs::v4::{
    GetDeviceInfoArgs, GetDeviceInfoOk, GetDeviceInfoRes, LENGTH_TO_EOF, Layout4, LayoutCommitArgs, LayoutErrorArgs,
    LayoutGetArgs, LayoutGetOk, LayoutGetRes, LayoutReturnArgs, LayoutStatsArgs, Layoutreturn4, Layouttype4, Nfsstat4,
    Stateid4,
    layout::{
        decode_body,
        flex::{FfLayoutReturn4, FfLayoutUpdate4},
    },
};
use vfs::{
    Cred, Kind, Layouts, Time, VfsError,
    layout::{DataUsage, Layout, LayoutCommit, LayoutDeviceId, LayoutHolder, LayoutKind, LayoutRange, LayoutRequest},
};
use xdr::{Array, Encode, Message};

use super::open::check_rights;
use crate::{
    call::{error::Fault, object::Object, transfer::OFFSET_MAX},
    clock,
    export::policy::Purpose,
    handle::FileId,
    v4::{
        cursor::Cursor,
        layouts::{
            Ending, Granting,
            body::{self, transport},
            tell_as,
        },
        place::Place,
        service::Context,
        state::{
            layout::LayoutGrant,
            transitions::layout::{LayoutWanted, LayoutsReturned},
        },
        status::Fault4,
    },
};

pub(super) fn layoutget(cx: &Context<'_>, at: &mut Cursor, args: &LayoutGetArgs) -> Result<LayoutGetRes, Fault4> {
    match try_layoutget(cx, at, args) {
        // This server does not signal when a layout is available: clients ask again.
        Err(Fault::Status(Nfsstat4::LayoutTryLater)) => Ok(LayoutGetRes::TryLater(false)),
        result => result.map(LayoutGetRes::Ok),
    }
}

fn try_layoutget(cx: &Context<'_>, at: &mut Cursor, args: &LayoutGetArgs) -> Result<LayoutGetOk, Fault4> {
    check_supported(cx)?;
    let object = object(cx, at)?;
    let layouts = object.vfs().layouts().ok_or(Nfsstat4::LayoutUnavailable)?;
    if !object.export.permits_layouts(&cx.requester()) {
        return Err(Nfsstat4::LayoutUnavailable.into());
    }
    let kind = supported_kind(layouts, args.layout_type)?;
    let mode = body::mode(args.iomode)?;
    check_lengths(args)?;
    let attr = object.getattr()?;
    if attr.kind != Kind::File {
        return Err(Nfsstat4::WrongType.into());
    }
    if !cx.shared.runs_tasks() {
        // Nothing could recall the layout.
        return Err(Nfsstat4::LayoutTryLater.into());
    }
    // Only a request that also opens the file can use the stateid of the open in this way.
    let with_open = args.stateid == Stateid4::CURRENT;
    let stateid = at.stateid(args.stateid)?;
    let file = (object.export.id(), object.handle.clone());
    let wanted = LayoutWanted {
        client: at.client(),
        file: &file,
        fsid: attr.fsid,
        stateid: &stateid,
        kind,
        mode,
        with_open,
        recalled_by_truncation: layouts.caps().recalled_by_truncation,
        call: at.session.as_ref().map(|session| session.call),
    };
    let granting = object.once("layoutget", || plan(cx, &wanted))?;
    let request = LayoutRequest {
        holder: granting.plan.holder,
        kind,
        mode,
        range: LayoutRange { offset: args.offset, len: args.length },
        transport: transport(cx.transport.name),
        with_open,
        striped_copies: cx.shared.with_state(|state| state.accepts_striped_copies(at.client())),
    };
    let granted = layouts.grant(&object.caller_as(&Cred::root()), &object.handle, &request);
    if granted == Err(VfsError::WouldBlock) && object.is_pending() {
        return Err(Fault::WouldBlock);
    }
    let granted = granted.map_err(no_layout).and_then(|layout| encode(layout, args));
    granting.settle();
    let committed = cx.shared.with_state(|state| match &granted {
        Ok((_, return_on_close)) => state.commit_layout(&granting.plan, *return_on_close).map(Some),
        Err(_) => {
            state.cancel_layout(&granting.plan);
            Ok(None)
        }
    })?;
    let (layout, return_on_close) = granted?;
    let stateid = committed.expect("a granted layout must have a stateid");
    at.set_stateid(stateid);
    Ok(LayoutGetOk { return_on_close, stateid, layout })
}

/// Makes the holder, and keeps it until the back end has answered.
fn plan(cx: &Context<'_>, wanted: &LayoutWanted<'_, FileId>) -> Result<Arc<Granting>, Fault4> {
    let plan = cx.shared.with_state(|state| state.plan_layout(wanted, clock::now()))?;
    let granting = Granting::new(cx.shared, plan);
    // The order is that of `sharing/marks.rs`: a truncation that is not seen here finds the holder.
    if wanted.mode == vfs::layout::LayoutMode::Write && cx.core.conflicts.is_truncating(wanted.file) {
        //= rfc8881-18.43.3-28
        return Err(Nfsstat4::LayoutTryLater.into());
    }
    Ok(Arc::new(granting))
}

/// Returns the layouts of the reply, and whether the client must return them when it closes the file. The one layout is for
/// the whole file, so it fulfils all rules about ranges.
fn encode(layout: Layout, args: &LayoutGetArgs) -> Result<(Array<Layout4, 1024>, bool), Fault4> {
    //= rfc8881-18.43.3-7 rfc8881-18.43.3-14 rfc8881-18.43.3-15 rfc8881-18.43.3-16 rfc8881-18.43.3-18
    //= rfc8881-18.43.3-20 rfc8881-18.43.3-23
    let return_on_close = layout.return_on_close();
    let content = body::layout(layout)?;
    let granted = Layout4 { offset: 0, length: LENGTH_TO_EOF, iomode: args.iomode, content };
    let granted = Array(vec![granted]);
    match encoded_len(&granted) > args.maxcount as usize {
        true => Err(Nfsstat4::TooSmall.into()),
        false => Ok((granted, return_on_close)),
    }
}

/// Returns the status of LAYOUTGET for an error of the back end.
fn no_layout(error: VfsError) -> Fault4 {
    match error {
        // §18.43.3: transient reasons.
        VfsError::Delay => Nfsstat4::LayoutTryLater.into(),
        //= rfc8881-18.43.3-24
        VfsError::NotSupported => Nfsstat4::LayoutUnavailable.into(),
        error => error.into(),
    }
}

fn check_lengths(args: &LayoutGetArgs) -> Result<(), Nfsstat4> {
    //= rfc8881-18.43.3-2 rfc8881-18.43.3-3
    let invalid = args.length < args.minlength
        //= rfc8881-18.43.3-5 rfc8881-18.43.3-6
        || overflows(args.offset, args.minlength)
        || overflows(args.offset, args.length);
    if invalid { Err(Nfsstat4::Inval) } else { Ok(()) }
}

pub(super) fn layoutreturn(
    cx: &Context<'_>,
    at: &mut Cursor,
    args: &LayoutReturnArgs,
) -> Result<Option<Stateid4>, Fault4> {
    check_supported(cx)?;
    let modes = body::modes(args.iomode);
    let kind = body::kind(args.layout_type).ok_or(Nfsstat4::UnknownLayoutType)?;
    let client = at.client();
    match &args.layoutreturn {
        Layoutreturn4::File { offset, length, stateid, body } => {
            let object = object(cx, at)?;
            let layouts = object.vfs().layouts().ok_or(Nfsstat4::UnknownLayoutType)?;
            supported_kind(layouts, args.layout_type)?;
            if *length == 0 || overflows(*offset, *length) {
                return Err(Nfsstat4::Inval.into());
            }
            let reports = match kind {
                LayoutKind::Flexible => decode_body(body).map_err(|_| Nfsstat4::BadXdr)?,
                LayoutKind::Files => FfLayoutReturn4::default(),
            };
            if args.reclaim {
                return return_reclaimed(cx, &object, &reports);
            }
            let stateid = at.stateid(*stateid)?;
            let returned = LayoutsReturned { kind, modes, offset: *offset, length: *length };
            let left = return_file(cx, at, &object, (&stateid, &returned), &reports)?;
            //= rfc8881-18.44.3-7
            at.set_stateid(left.unwrap_or(Stateid4::ANONYMOUS));
            Ok(left)
        }
        //= rfc8881-18.44.3-4
        Layoutreturn4::Fsid | Layoutreturn4::All if args.reclaim => Err(Nfsstat4::Inval.into()),
        Layoutreturn4::Fsid => {
            let object = object(cx, at)?;
            let (export, fsid) = (object.export.id(), object.getattr()?.fsid);
            let of = |file: &FileId, layout: &LayoutGrant| file.0 == export && layout.fsid == fsid;
            cx.shared.with_state(|state| state.return_layouts(client, (kind, modes), of));
            Ok(None)
        }
        Layoutreturn4::All => {
            cx.shared.with_state(|state| state.return_layouts(client, (kind, modes), |_, _| true));
            Ok(None)
        }
    }
}

/// Executes LAYOUTRETURN of one file. A failure of the back end is no failure of the client: it has returned the layout, and
/// the end of the holder is told again in the background.
fn return_file(
    cx: &Context<'_>,
    at: &Cursor,
    object: &Object<'_>,
    (stateid, returned): (&Stateid4, &LayoutsReturned),
    reports: &FfLayoutReturn4,
) -> Result<Option<Stateid4>, Fault4> {
    let (client, file) = (at.client(), (object.export.id(), object.handle.clone()));
    let layouts = object.vfs().layouts().ok_or(Nfsstat4::UnknownLayoutType)?;
    let find = || cx.shared.with_state(|state| state.find_layout(client, &file, stateid).map(holder_of));
    let holder = object.once("holder", find)?;
    report(object, holder, reports)?;
    let ended = || {
        let ended = cx.shared.with_state(|state| state.return_layout(client, &file, stateid, returned));
        ended.map(|(left, ended)| {
            let ending = |end| Arc::new(Ending::new(cx.shared, end));
            (left, ended.into_iter().map(ending).collect::<Vec<_>>())
        })
    };
    let (left, ended) = object.once("layoutreturn", ended)?;
    for ending in ended {
        let cred = Cred::root();
        match tell_as(layouts, &object.caller_as(&cred), &ending.end) {
            Err(VfsError::WouldBlock) if object.is_pending() => return Err(Fault::WouldBlock),
            Ok(()) => ending.settle(),
            // The background task tells the back end.
            Err(error) => tracing::debug!(%error, "the end of a layout"),
        }
    }
    Ok(left)
}

/// Executes LAYOUTRETURN of a layout that was granted before the restart (RFC 9737): the reports count, and there is nothing
/// to return.
fn return_reclaimed(
    cx: &Context<'_>,
    object: &Object<'_>,
    reports: &FfLayoutReturn4,
) -> Result<Option<Stateid4>, Fault4> {
    if !cx.shared.with_state(|state| state.in_grace()) {
        return Err(Nfsstat4::NoGrace.into());
    }
    report(object, None, reports)?;
    Ok(None)
}

/// Passes on the failed I/O and the statistics of a LAYOUTRETURN.
fn report(object: &Object<'_>, holder: Option<LayoutHolder>, reports: &FfLayoutReturn4) -> Result<(), Fault4> {
    let layouts = object.vfs().layouts().ok_or(Nfsstat4::UnknownLayoutType)?;
    let failures: Vec<_> = reports
        .ioerr_report
        .iter()
        .flat_map(|report| {
            let range = LayoutRange { offset: report.offset, len: report.length };
            report.errors.iter().map(move |error| body::failure(range, error))
        })
        .collect();
    if !failures.is_empty() {
        layouts.report(&object.caller_as(&Cred::root()), &object.handle, holder, &failures)?;
    }
    if let Some(holder) = holder {
        let count = || {
            reports.iostats_report.iter().for_each(|stats| layouts.count(&object.handle, holder, &body::usage(stats)));
            Ok::<_, Fault4>(())
        };
        object.once("layout statistics", count)?;
    }
    Ok(())
}

pub(super) fn layoutcommit(cx: &Context<'_>, at: &Cursor, args: &LayoutCommitArgs) -> Result<Option<u64>, Fault4> {
    check_supported(cx)?;
    let object = object(cx, at)?;
    let layouts = object.vfs().layouts().ok_or(Nfsstat4::UnknownLayoutType)?;
    let kind = supported_kind(layouts, args.layoutupdate.layout_type)?;
    let range = match (args.length, args.last_write_offset) {
        // Linux's client names no offset if a COMMIT at a data server is all that it tells, and then the length is 0. The range has no effect
        // (errata 3068 to RFC 5661), but it must be in the layout.
        (0, None) => LayoutRange { offset: args.offset, len: LENGTH_TO_EOF },
        (len, _) => LayoutRange { offset: args.offset, len },
    };
    if range.len == 0 || overflows(range.offset, range.len) {
        return Err(Nfsstat4::Inval.into());
    }
    let within = |last: u64| last >= range.offset && last - range.offset < range.len;
    //= rfc8881-18.42.3-7 rfc8881-18.42.3-8
    if args.last_write_offset.is_some_and(|last| last > OFFSET_MAX || !within(last)) {
        return Err(Nfsstat4::Inval.into());
    }
    let size = args.last_write_offset.map(|last| last.saturating_add(1));
    if size.is_some_and(|size| size > object.vfs().caps().file_size_max.min(OFFSET_MAX)) {
        return Err(Nfsstat4::FBig.into());
    }
    let file = (object.export.id(), object.handle.clone());
    // The truncation of the file waits until the size is set.
    let committing = cx.core.conflicts.begin_commit(&file);
    if let Some(journal) = object.journal() {
        journal.hold("committing", cx.core.conflicts.begin_commit(&file));
    }
    let check = || match args.reclaim {
        true => check_reclaim(cx).map(|()| None),
        false => writer(cx, at, &file, kind, (args, range)).map(Some),
    };
    let holder = object.once("layoutcommit", check)?;
    if args.reclaim {
        // The caller cannot show that it had a layout to write.
        check_rights(&object, (false, true), true)?;
    }
    let before = object.getattr()?;
    let commit = LayoutCommit {
        range,
        size,
        mtime: args.time_modify.and_then(|time| {
            let time = Time { seconds: time.seconds, nanoseconds: time.nseconds };
            // §18.42.3: the times of the file never go back, and a client's clock can be wrong.
            let valid = time.nanoseconds < NANOSECONDS && time > before.mtime && time <= Time::now();
            valid.then_some(time)
        }),
    };
    let change = layouts.commit(&object.caller_as(&Cred::root()), &object.handle, holder, &commit)?;
    drop(committing);
    Ok((change.after.size != change.before.size).then_some(change.after.size))
}

/// Checks that a client has a layout to write, and returns its holder.
///
/// # Errors
/// BAD_STATEID, OLD_STATEID; BADIOMODE if the layout is only for reading; BADLAYOUT if the range is not in it, or if the layout is one
/// of before a restart.
fn writer(
    cx: &Context<'_>,
    at: &Cursor,
    file: &FileId,
    kind: LayoutKind,
    (args, range): (&LayoutCommitArgs, LayoutRange),
) -> Result<LayoutHolder, Nfsstat4> {
    let stateid = at.stateid(args.stateid)?;
    cx.shared.with_state(|state| {
        let layout = state.find_layout(at.client(), file, &stateid).map_err(|status| match status {
            // §15.1.10.1: the client does not hold the layout. The back end finds out by itself what the client has written. Linux's
            // client fails the fsync with EIO after BAD_STATEID, and never sends `loca_reclaim`.
            Nfsstat4::BadStateid if state.is_of_earlier_start(&stateid) => Nfsstat4::BadLayout,
            status => status,
        })?;
        if layout.kind != kind {
            return Err(Nfsstat4::BadLayout);
        }
        let hold = layout.write.as_ref().ok_or(Nfsstat4::BadIomode)?;
        //= rfc8881-18.42.3-1
        let in_layout = hold.ranges.overlaps(range.offset, range.len)
            && args.last_write_offset.is_none_or(|last| hold.ranges.contains(last));
        if in_layout { Ok(hold.holder) } else { Err(Nfsstat4::BadLayout) }
    })
}

/// Checks that a LAYOUTCOMMIT for a layout of before the restart is permitted (§12.7.4). The layout itself is not known: the
/// size of the file can only grow, and nobody truncates it in the grace period.
fn check_reclaim(cx: &Context<'_>) -> Result<(), Nfsstat4> {
    //= rfc8881-18.42.3-5
    if cx.shared.with_state(|state| state.in_grace()) { Ok(()) } else { Err(Nfsstat4::NoGrace) }
}

pub(super) fn layouterror(cx: &Context<'_>, at: &Cursor, args: &LayoutErrorArgs) -> Result<(), Fault4> {
    check_supported(cx)?;
    let object = object(cx, at)?;
    let layouts = object.vfs().layouts().ok_or(Nfsstat4::UnknownLayoutType)?;
    let holder = reporter(cx, at, &object, args.stateid)?;
    let range = LayoutRange { offset: args.offset, len: args.length };
    let failures: Vec<_> = args.errors.iter().map(|error| body::failure(range, error)).collect();
    Ok(layouts.report(&object.caller_as(&Cred::root()), &object.handle, holder, &failures)?)
}

pub(super) fn layoutstats(cx: &Context<'_>, at: &Cursor, args: &LayoutStatsArgs) -> Result<(), Fault4> {
    check_supported(cx)?;
    let object = object(cx, at)?;
    let layouts = object.vfs().layouts().ok_or(Nfsstat4::UnknownLayoutType)?;
    if supported_kind(layouts, args.layoutupdate.layout_type)? == LayoutKind::Flexible {
        // The device and the counts of the operation are all that the back end learns.
        decode_body::<FfLayoutUpdate4>(&args.layoutupdate.body).map_err(|_| Nfsstat4::BadXdr)?;
    }
    if let Some(holder) = reporter(cx, at, &object, args.stateid)? {
        let usage = DataUsage {
            device: LayoutDeviceId(args.deviceid.0),
            reads: args.read.count,
            read_bytes: args.read.bytes,
            writes: args.write.count,
            write_bytes: args.write.bytes,
        };
        layouts.count(&object.handle, holder, &usage);
    }
    Ok(())
}

/// Returns the holder of the layouts about which a client reports.
fn reporter(
    cx: &Context<'_>,
    at: &Cursor,
    object: &Object<'_>,
    stateid: Stateid4,
) -> Result<Option<LayoutHolder>, Fault4> {
    let (stateid, file) = (at.stateid(stateid)?, (object.export.id(), object.handle.clone()));
    let find = || cx.shared.with_state(|state| state.find_layout(at.client(), &file, &stateid).map(holder_of));
    Ok(object.once("holder", find)?)
}

fn holder_of(layout: &LayoutGrant) -> Option<LayoutHolder> {
    layout.write.as_ref().or(layout.read.as_ref()).map(|hold| hold.holder)
}

/// Executes GETDEVICEINFO (§18.40). It has no file handle, so all exports that the caller may use are asked.
pub(super) fn getdeviceinfo(
    cx: &Context<'_>,
    at: &Cursor,
    args: &GetDeviceInfoArgs,
) -> Result<GetDeviceInfoRes, Fault4> {
    check_supported(cx)?;
    let kind = body::kind(args.layout_type).ok_or(Nfsstat4::UnknownLayoutType)?;
    let (id, mut found, mut known) = (LayoutDeviceId(args.device_id.0), None, false);
    for export in cx.core.exports.iter() {
        if export.vfs().layouts().is_none() || cx.export(export.id(), Purpose::Files).is_err() {
            continue;
        }
        let object = cx.object_of(export, export.root().clone())?;
        let Some(layouts) = object.vfs().layouts().filter(|layouts| layouts.caps().kinds.contains(&kind)) else {
            continue;
        };
        known = true;
        match layouts.device(&object.caller_as(&Cred::root()), id, kind) {
            Ok(device) => {
                found = Some(device);
                break;
            }
            Err(VfsError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let device = found.ok_or(if known { Nfsstat4::NoEnt } else { Nfsstat4::UnknownLayoutType })?;
    let supported = [body::NOTIFY_DEVICEID4_CHANGE, body::NOTIFY_DEVICEID4_DELETE];
    let mut notify: Vec<u32> = supported.into_iter().filter(|bit| args.notify_types.contains(*bit)).collect();
    //= rfc8881-18.40.3-2
    let mut device_addr = body::device(&device);
    if args.maxcount == 0 {
        // The client only changes its notifications.
        device_addr.body = Default::default();
    }
    let mut result = GetDeviceInfoOk { device_addr, notification: notify.iter().copied().collect() };
    let len = encoded_len(&result);
    //= rfc8881-18.40.3-1
    if args.maxcount != 0 && len > args.maxcount as usize {
        return Ok(GetDeviceInfoRes::TooSmall(len as u32));
    }
    if !notify.is_empty() && !cx.shared.layouts.notify_of(at.client(), (kind, id)) {
        notify.clear();
        result.notification = Default::default();
    }
    Ok(GetDeviceInfoRes::Ok(result))
}

/// Returns the object of an operation about layouts.
///
/// # Errors
/// LAYOUTUNAVAILABLE for a directory of the pseudo file system.
fn object<'a>(cx: &Context<'a>, at: &Cursor) -> Result<Object<'a>, Fault4> {
    match at.current()? {
        Place::Pseudo(_) => Err(Nfsstat4::LayoutUnavailable.into()),
        place => cx.object4(place),
    }
}

/// Checks that this server has layouts.
fn check_supported(cx: &Context<'_>) -> Result<(), Nfsstat4> {
    if cx.shared.has_layouts() { Ok(()) } else { Err(Nfsstat4::NotSupp) }
}

/// Returns the kind of a layout type that an export has.
///
/// # Errors
/// UNKNOWN_LAYOUTTYPE.
fn supported_kind(layouts: &dyn Layouts, layout_type: Layouttype4) -> Result<LayoutKind, Nfsstat4> {
    //= rfc8881-18.43.3-25
    body::kind(layout_type).filter(|kind| layouts.caps().kinds.contains(kind)).ok_or(Nfsstat4::UnknownLayoutType)
}

/// Returns `true` if a range ends beyond the last possible offset. [`LENGTH_TO_EOF`] never does.
fn overflows(offset: u64, length: u64) -> bool {
    length != LENGTH_TO_EOF && offset.checked_add(length).is_none()
}

fn encoded_len(value: &impl Encode) -> usize {
    Message::encode(value).stream.len()
}

const NANOSECONDS: u32 = 1_000_000_000;
