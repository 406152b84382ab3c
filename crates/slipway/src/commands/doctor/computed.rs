//! The check of a data server of kind `slipway`: whether it accepts the handles that the metadata server computes, and refuses all
//! others.

use buf::Rope;
use client::{Caller, Error, Handle, Mount, Protocol, SetAttr, StableHow, Status};
use nfs::v4::Stateid4;
use pnfs::objects::{
    self,
    handle::{ClusterKey, ObjectHandle, Right},
};
use rpc::AuthSys;
use server::DataHandle;
use vfs::Time;

use super::{
    Finding, clocks,
    data_servers::{Check, GROUP, OPEN_ELSEWHERE, OWNER},
};
use crate::pnfs::servers;

/// Creates an object as clients do, uses it with handles that permit it and with others, and removes it. `newer` is the connection by
/// the version of clients, if they use NFSv4.
pub async fn check(check: &Check<'_>, key: &ClusterKey, (mount, newer): (&Mount, Option<&Mount>)) -> Vec<Finding> {
    let object = entropy::random();
    let seal = |handle: &ObjectHandle| servers::seal(mount.root(), key, handle);
    let Ok(control) = seal(&ObjectHandle::control(object, true)) else {
        let found = "its export has no objects of kind \"slipway\"";
        return vec![
            check.bad(found, "export the directory there with `backend = \"objects\"`, or remove `kind` here"),
        ];
    };
    let sealed = |right, epoch| {
        let handle = ObjectHandle { right, create_until: objects::create_until(), epoch, object };
        seal(&handle).expect("the export has objects")
    };
    let before = Time::now();
    if let Err(error) = write(mount.protocol(), &control).await {
        return vec![refused(check, &error)];
    }
    let after = Time::now();
    let mut findings = Vec::new();
    if let Ok(attr) = mount.protocol().getattr(&control).await {
        findings.extend(clocks::finding(&check.name, attr.mtime, (before, after)));
    }
    let (v3, gids) = (mount.protocol(), std::iter::empty().collect());
    let caller = Caller::new(AuthSys { uid: OWNER, gid: GROUP, gids, ..AuthSys::of_process() });
    findings.extend(clients(check, &v3.with_caller(Some(&caller)), |right| sealed(right, 1)).await);
    if let Some(v4) = newer.and_then(Mount::v4) {
        let stateid = if check.by_handle { OPEN_ELSEWHERE } else { Stateid4::ANONYMOUS };
        let protocol = Protocol::V4(v4.clone().with_stateid(stateid)).with_caller(Some(&caller));
        let handle = |right| match check.by_handle {
            true => {
                let object = bytes::Bytes::copy_from_slice(&sealed(right, 1));
                Handle::from(DataHandle { uid: OWNER, gid: GROUP, object }.encode())
            }
            false => sealed(right, 1),
        };
        findings.extend(clients(check, &protocol, handle).await);
    }
    let fence = SetAttr { uid: Some(2), gid: Some(2), ..SetAttr::default() };
    let fenced = v3.setattr(&control, fence).await.map(drop);
    if fenced.is_err() || write(v3, &sealed(Right::Write, 1)).await.is_ok() {
        findings.push(check.bad(
            format!("it does not refuse a client that was fenced ({})", text(fenced)),
            "look into the log of the data server; its state directory must be writable",
        ));
    }
    let store = seal(&ObjectHandle::store()).expect("the export has objects");
    if let Err(error) = v3.remove(&store, objects::name(object).as_bytes()).await {
        let found = format!("the test object {} cannot be removed: {error}", objects::name(object));
        findings.push(check.bad(found, "remove it"));
    }
    findings
}

/// Checks that a client with a layout to write can write, and that one with a layout to read can only read.
async fn clients(check: &Check<'_>, protocol: &Protocol, handle: impl Fn(Right) -> Handle) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version = protocol.version();
    let written = write(protocol, &handle(Right::Write)).await;
    let read = protocol.read(&handle(Right::Read), 0, 14).await.map(drop);
    if let Err(error) = written.and(read) {
        findings.push(check.bad(
            format!("a client with a layout cannot use its object by version {version}: {error}"),
            "let the hosts of clients use the export (`clients`), for writing",
        ));
    }
    if write(protocol, &handle(Right::Read)).await.is_ok() {
        findings.push(check.bad(
            format!("a client with a layout to read can write by version {version}"),
            "update slipway on the data server",
        ));
    }
    findings
}

async fn write(protocol: &Protocol, handle: &Handle) -> Result<(), Error> {
    let data = Rope::from(bytes::Bytes::from_static(b"slipway doctor"));
    protocol.write(handle, 0, data, StableHow::FileSync).await.map(drop)
}

fn refused(check: &Check<'_>, error: &Error) -> Finding {
    let fix = match error.status() {
        Some(Status::StaleHandle | Status::BadHandle) => {
            "give both servers the same key: `key_file` of [[pnfs]] here, and of the `options` of the export there"
        }
        Some(Status::NotPermitted | Status::AccessDenied) => {
            "do not squash root of this host there: { host = …, squash = \"none\" } in `clients`; the URL must have no `uid`"
        }
        Some(Status::ReadOnly) => "export the directory for writing (rw)",
        Some(Status::NoSpace | Status::QuotaExceeded) => {
            "free space on the data server, or drain it (`slipway ds drain`)"
        }
        _ => "look into the log of the data server",
    };
    check.bad(format!("this host cannot create an object: {error}"), fix)
}

fn text(result: Result<(), Error>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "the fence succeeds".to_owned())
}
