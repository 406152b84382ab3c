//! LAYOUTCOMMIT and LAYOUTRETURN for layouts of before a restart: RFC 8881 §12.7.4, RFC 9737.

use std::time::Duration;

use crate::common::machine::{Machine, background_work};
use crate::common::remote::{Remote, Served};
use crate::common::toy::*;
use crate::common::v4::*;
use crate::common::*;
use crate::v4_layouts::{FLEX, commit, get, granted, layout_commit, returned};
use nfs::v4::{
    attr::Attr4,
    layout::flex::{FfIoerr4, FfLayoutReturn4},
    *,
};
use tokio::time::sleep;
use vfs::layout::{DataError, DataFailure, DataOperation, LayoutCommit, LayoutRange};

/// Longer than any simulation.
const LONG: Duration = Duration::from_secs(48 * 3600);

/// A machine whose server ends while a client has a layout to write.
async fn with_a_layout(toy: &std::sync::Arc<Toy>) -> (Machine, NfsFh4, Stateid4) {
    let machine = Machine::of(toy.clone());
    let served = Served::around(machine.start(LONG)).run_background_work().await;
    let mut a = Remote::new(&served, "a", 2).await;
    let how = Open { access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, ..Open::default() };
    let (opened, handle) = a.open_as("f", how).await.unwrap();
    let layout = granted(a.ok([putfh(&handle), Argop4::LayoutGet(get(opened.stateid))]).await);
    toy.calls();
    (machine, handle, layout.stateid)
}

/// Returns a LAYOUTRETURN with the error of a WRITE, as RFC 9737 §3 has it.
fn report() -> LayoutReturnArgs {
    let error = DeviceError4 { deviceid: Deviceid4(FLEXIBLE.0), status: Nfsstat4::NxIo, opnum: Opnum4::Write };
    let ioerr = FfIoerr4 { offset: 5, length: 6, stateid: Stateid4::ANONYMOUS, errors: vec![error] };
    let reports = FfLayoutReturn4 { ioerr_report: vec![ioerr], iostats_report: Vec::new() };
    LayoutReturnArgs { reclaim: true, ..returned(Stateid4::ANONYMOUS, (0, LENGTH_TO_EOF), &reports) }
}

fn size(client: &mut Client4) -> Option<u64> {
    client.attrs("/m/f", &[Attr4::Size]).size
}

#[simnet::test]
async fn writes_and_errors_of_before_a_restart_are_reported_in_the_grace_period() {
    let toy = Toy::new(plain_memory());
    let (machine, handle, layout) = with_a_layout(&toy).await;
    let server = machine.start(LONG);
    let mut a = Client4::returning(&server, "a");
    let reclaim = |last| layout_commit(LayoutCommitArgs { reclaim: true, ..commit(layout, last) });
    let on_file = |operation: Argop4| [putfh(&handle), operation];

    let committed = a.ok(on_file(reclaim(99))).pop();
    assert_eq!(committed, Some(Resop4::LayoutCommit(Res4::Ok(Some(100)))));
    let expected = LayoutCommit { range: LayoutRange::ALL, size: Some(100), mtime: None };
    assert_eq!(toy.calls(), [BackEndCall::Commit(None, expected)]);
    assert_eq!(size(&mut a), Some(100));

    let reported = a.ok(on_file(Argop4::LayoutReturn(report()))).pop();
    assert_eq!(reported, Some(Resop4::LayoutReturn(Res4::Ok(None))), "the client has no layout");
    let range = LayoutRange { offset: 5, len: 6 };
    let failure =
        DataFailure { range, device: FLEXIBLE, operation: DataOperation::Write, error: DataError::Unreachable };
    assert_eq!(toy.calls(), [BackEndCall::Report(None, vec![failure])], "no layout is released");

    // Without the flag, the layout must be one of this start.
    assert_eq!(a.status(on_file(layout_commit(commit(layout, 199)))), Nfsstat4::BadLayout);
    let return_former = LayoutReturnArgs { reclaim: false, ..report() };
    assert_eq!(a.status(on_file(Argop4::LayoutReturn(return_former))), Nfsstat4::BadStateid);
    //= rfc8881-18.44.3-4
    for layoutreturn in [Layoutreturn4::Fsid, Layoutreturn4::All] {
        let (iomode, layout_type) = (Layoutiomode4::Any, FLEX);
        let of_all = LayoutReturnArgs { reclaim: true, layout_type, iomode, layoutreturn };
        assert_eq!(a.status(on_file(Argop4::LayoutReturn(of_all))), Nfsstat4::Inval);
    }
    assert_eq!(toy.calls(), []);
}

#[simnet::test]
async fn nothing_is_reclaimed_after_the_grace_period() {
    let toy = Toy::new(plain_memory());
    let (machine, handle, layout) = with_a_layout(&toy).await;
    let server = machine.start(Duration::from_secs(3));
    let mut a = Client4::returning(&server, "a");
    let _background = background_work(&server);
    let wanted = Open { create: false, ..Open::default() };
    while let Err(status) = a.open("/m", "f", wanted) {
        assert_eq!(status, Nfsstat4::Grace);
        a.call([Argop4::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]);
        sleep(Duration::from_millis(100)).await;
    }
    //= rfc8881-18.42.3-5
    let reclaim = layout_commit(LayoutCommitArgs { reclaim: true, ..commit(layout, 99) });
    assert_eq!(a.status([putfh(&handle), reclaim]), Nfsstat4::NoGrace);
    assert_eq!(a.status([putfh(&handle), Argop4::LayoutReturn(report())]), Nfsstat4::NoGrace);
    assert_eq!(toy.calls(), []);
    assert_eq!(size(&mut a), Some(0));
}

/// The client has no layout that shows its right to write.
#[simnet::test]
async fn layoutcommit_is_reclaimed_only_by_users_who_may_write() {
    let toy = Toy::new(plain_memory());
    let (machine, handle, layout) = with_a_layout(&toy).await;
    let server = machine.start(LONG);
    let mut a = Client4::returning(&server, "a");
    let reclaim = |last| [putfh(&handle), layout_commit(LayoutCommitArgs { reclaim: true, ..commit(layout, last) })];
    a.caller = user(1000, 1000);
    assert_eq!(a.status(reclaim(99)), Nfsstat4::Access, "the mode is 0644, and root owns the file");
    assert_eq!((toy.calls(), size(&mut a)), (Vec::new(), Some(0)));
    a.caller = user(0, 0);
    let mode = attr::Attrs { mode: Some(0o444), owner: Some("1000".into()), ..Default::default() };
    a.ok([putfh(&handle), set(mode)]);
    a.caller = user(1000, 1000);
    a.ok(reclaim(99));
    assert_eq!(size(&mut a), Some(100), "the owner can have opened it before");
}
