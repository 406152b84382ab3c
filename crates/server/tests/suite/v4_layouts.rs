//! Layouts of NFSv4.1 and 4.2: the operations, the callbacks, and what the server calls of the back end.

use std::{sync::Arc, task::Poll, time::Duration};

use crate::common::remote::{Remote, Served};
use crate::common::toy::*;
use crate::common::v4::*;
use crate::common::*;
use bytes::Bytes;
use nfs::{
    v3::{Nfsstat3, SetAttr, SetAttrArgs as SetAttrArgs3},
    v4::{
        attr::{Attr4, Attrs},
        callback::{
            CbArgop4, CbLayoutRecallArgs, CbNotifyDeviceidArgs, CbOpnum4, CbResop4, Layoutrecall4,
            NotifyDeviceidDelete4,
        },
        compound::CompoundArgs,
        layout::{
            encode_body,
            files::{FileLayout4, FileLayoutDsAddr4},
            flex::{FfDeviceAddr4, FfIoLatency4, FfIoerr4, FfLayout4, FfLayoutReturn4, FfLayoutUpdate4},
        },
        *,
    },
};
use rpc::{Identity, security::Principal};
use server::{Export, ExportId, ExportOptions, Exports, Sec, SecFlavors, Squash};
use testkit::deferred::{Deferred, Pace};
use tokio::time::{sleep, timeout};
use vfs::{
    Time, VfsError,
    layout::*,
    memory::{Memory, MemoryOptions},
};
use xdr::{Decode, Message, Opaque};

pub const FLEX: Layouttype4 = Layouttype4::FLEX_FILES;

/// A server with an export of a toy back end, and a client that has a file open.
struct Rig {
    served: Served,
    toy: Arc<Toy>,
    a: Remote,
    open: Stateid4,
    handle: NfsFh4,
}

impl Rig {
    async fn new() -> Self {
        let toy = Toy::new(plain_memory());
        let served = Served::serving(toy.clone()).await;
        Self::with(served, toy).await
    }

    async fn with(served: Served, toy: Arc<Toy>) -> Self {
        let mut a = Remote::new(&served, "a", 2).await;
        let (open, handle) = opened(&mut a, "f").await;
        Self { served, toy, a, open, handle }
    }

    /// Gets a layout with the stateid of the open.
    async fn layout(&mut self, iomode: Layoutiomode4) -> LayoutGetOk {
        let args = LayoutGetArgs { iomode, ..get(self.open) };
        granted(self.a.ok([putfh(&self.handle), Argop4::LayoutGet(args)]).await)
    }

    async fn status(&mut self, operation: Argop4) -> Nfsstat4 {
        self.a.call([putfh(&self.handle), operation]).await.0
    }

    async fn truncate(&self, by: &mut Remote, size: u64) -> Nfsstat4 {
        by.call([putfh(&self.handle), set(Attrs { size: Some(size), ..Attrs::default() })]).await.0
    }

    async fn attrs(&mut self, wanted: &[Attr4]) -> Attrs {
        let got = self.a.ok([putfh(&self.handle), getattr(wanted)]).await;
        let Resop4::GetAttr(Res4::Ok(fattr)) = got else { panic!("{got:?}") };
        fattr.to_attrs(2, nfs::v4::attr::Purpose::Get).unwrap()
    }

    async fn size(&mut self) -> u64 {
        self.attrs(&[Attr4::Size]).await.size.unwrap()
    }
}

/// Opens a file without a delegation.
async fn opened(client: &mut Remote, name: &str) -> (Stateid4, NfsFh4) {
    let how = Open { access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, ..Open::default() };
    let (opened, handle) = client.open_as(name, how).await.unwrap();
    (opened.stateid, handle)
}

pub fn get(stateid: Stateid4) -> LayoutGetArgs {
    LayoutGetArgs {
        signal_layout_avail: false,
        layout_type: FLEX,
        iomode: Layoutiomode4::Rw,
        offset: 0,
        length: LENGTH_TO_EOF,
        minlength: 4096,
        stateid,
        maxcount: 4096,
    }
}

pub fn granted(result: Resop4) -> LayoutGetOk {
    let Resop4::LayoutGet(LayoutGetRes::Ok(granted)) = result else { panic!("{result:?}") };
    granted
}

pub fn returned(stateid: Stateid4, (offset, length): (u64, u64), reports: &FfLayoutReturn4) -> LayoutReturnArgs {
    let body = encode_body(reports);
    let layoutreturn = Layoutreturn4::File { offset, length, stateid, body };
    LayoutReturnArgs { reclaim: false, layout_type: FLEX, iomode: Layoutiomode4::Any, layoutreturn }
}

fn return_whole(stateid: Stateid4) -> Argop4 {
    Argop4::LayoutReturn(returned(stateid, (0, LENGTH_TO_EOF), &FfLayoutReturn4::default()))
}

pub fn commit(stateid: Stateid4, last: u64) -> LayoutCommitArgs {
    LayoutCommitArgs {
        offset: 0,
        length: LENGTH_TO_EOF,
        reclaim: false,
        stateid,
        last_write_offset: Some(last),
        time_modify: None,
        layoutupdate: LayoutBody4 { layout_type: FLEX, body: Opaque::default() },
    }
}

fn device(maxcount: u32) -> GetDeviceInfoArgs {
    let notify_types = [1, 2, 5].into_iter().collect();
    GetDeviceInfoArgs { device_id: Deviceid4(FLEXIBLE.0), layout_type: FLEX, maxcount, notify_types }
}

/// The arguments of a LAYOUTSTATS.
fn stats(stateid: Stateid4) -> LayoutStatsArgs {
    let latency = FfIoLatency4 { ops_requested: 1, ..FfIoLatency4::default() };
    let update = FfLayoutUpdate4 {
        addr: Netaddr4 { netid: "tcp".into(), addr: "192.0.2.9.8.1".into() },
        fhandle: "object".into(),
        read: latency,
        write: latency,
        duration: Nfstime4 { seconds: 60, nseconds: 0 },
        local: false,
    };
    LayoutStatsArgs {
        offset: 0,
        length: 9,
        stateid,
        read: IoInfo4 { count: 1, bytes: 2 },
        write: IoInfo4 { count: 3, bytes: 4 },
        deviceid: Deviceid4(FLEXIBLE.0),
        layoutupdate: LayoutBody4::new(FLEX, &update),
    }
}

fn layout_stats(args: LayoutStatsArgs) -> Argop4 {
    Argop4::LayoutStats(Box::new(args))
}

pub fn layout_commit(args: LayoutCommitArgs) -> Argop4 {
    Argop4::LayoutCommit(Box::new(args))
}

/// Waits for a call of the back end that `is` accepts.
async fn called(toy: &Toy, is: impl Fn(&BackEndCall) -> bool) -> BackEndCall {
    loop {
        if let Some(calls) = toy.calls().into_iter().find(&is) {
            return calls;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn recalled(client: &Remote) -> CbLayoutRecallArgs {
    let CbArgop4::LayoutRecall(args) = client.back.receive_operation(CbOpnum4::LayoutRecall).await else { panic!() };
    args
}

fn body<T: Decode>(body: &LayoutBody4) -> T {
    body.decode_as(body.layout_type).unwrap()
}

#[simnet::test]
async fn layout_is_granted_and_returned() {
    let mut rig = Rig::new().await;
    let granted = rig.layout(Layoutiomode4::Rw).await;
    assert_eq!(granted.stateid.seqid, 1);
    let [layout] = &granted.layout.0[..] else { panic!("{granted:?}") };
    //= rfc8881-18.43.3-7 rfc8881-18.43.3-14 rfc8881-18.43.3-15 rfc8881-18.43.3-16 rfc8881-18.43.3-18
    //= rfc8881-18.43.3-20 rfc8881-18.43.3-23
    assert_eq!((layout.offset, layout.length, layout.iomode), (0, LENGTH_TO_EOF, Layoutiomode4::Rw));
    assert_eq!(layout.content.layout_type, FLEX);
    let content: FfLayout4 = body(&layout.content);
    assert_eq!((content.mirrors.len(), content.stats_collect_hint, content.flags), (2, 60, 2));
    let data = &content.mirrors[0].data_servers[0];
    assert_eq!((&data.user, &data.group, data.stateid), (&"17".into(), &"18".into(), Stateid4::ANONYMOUS));
    assert_eq!(data.deviceid, Deviceid4(FLEXIBLE.0));
    let asked = rig.toy.calls();
    let [BackEndCall::Grant(request)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((request.mode, request.transport), (LayoutMode::Write, DataTransport::Tcp));
    assert!(!request.striped_copies);
    // The current stateid is that of the layout, which the next operation uses.
    let current = Argop4::LayoutGet(LayoutGetArgs { iomode: Layoutiomode4::Read, ..get(Stateid4::CURRENT) });
    let again = Argop4::LayoutGet(get(granted.stateid));
    let both = rig.a.ok([putfh(&rig.handle), again, current]).await;
    let Resop4::LayoutGet(LayoutGetRes::Ok(both)) = both else { panic!("{both:?}") };
    assert_eq!(both.stateid, Stateid4 { seqid: 3, ..granted.stateid });
    assert_eq!(rig.toy.state().holders.len(), 2);
    rig.toy.calls();
    // The last return has no stateid, and the current one is not valid any more.
    let after = layout_commit(commit(Stateid4::CURRENT, 0));
    let (status, results) = rig.a.call([putfh(&rig.handle), return_whole(both.stateid), after]).await;
    //= rfc8881-18.44.3-6 rfc8881-18.44.3-7
    assert_eq!(status, Nfsstat4::BadStateid);
    assert_eq!(results[1], Resop4::LayoutReturn(Res4::Ok(None)));
    let released = rig.toy.calls();
    assert!(
        released.iter().all(|calls| matches!(calls, BackEndCall::Release(..))) && released.len() == 2,
        "{released:?}"
    );
    assert!(rig.toy.state().holders.is_empty());
}

/// LAYOUTGET follows OPEN in the same compound.
#[simnet::test]
async fn layout_is_granted_with_the_open() {
    let mut rig = Rig::new().await;
    let how = Open { access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, ..Open::default() };
    let operations = at("/m").into_iter().chain([open("g", how), Argop4::LayoutGet(get(Stateid4::CURRENT))]);
    assert_eq!(granted(rig.a.ok(operations).await).stateid.seqid, 1);
}

#[simnet::test]
async fn callers_whose_data_must_be_protected_get_no_layouts() {
    let caller = |sec: Sec| match sec {
        Sec::Sys => user(0, 0),
        sec => Identity::Principal(Principal { name: "alice@EXAMPLE.COM".into(), pseudo_flavor: sec.number() }),
    };
    for (flavors, own, permitted) in [
        (&[Sec::Sys, Sec::Krb5p][..], Sec::Sys, true),
        (&[Sec::Sys, Sec::Krb5p], Sec::Krb5p, false),
        (&[Sec::Krb5], Sec::Krb5, false),
    ] {
        let sec = SecFlavors::new(flavors.to_vec()).unwrap();
        let options = ExportOptions { squash: Squash::None, sec, ..Default::default() };
        let vfs = Memory::new(MemoryOptions { mode: 0o777, ..Default::default() });
        let export = Export::new("/m", ExportId::unique(), Toy::new(Arc::new(vfs)), options).unwrap();
        let server = server_of(export);
        let mut client = Client4::stranger(&server, 2);
        client.caller = caller(own);
        client.introduce("client", channel());
        let (stateid, file) = client.open("m", "f", Open::default()).unwrap();
        let got = client.status([putfh(&file), Argop4::LayoutGet(get(stateid))]);
        // This server runs no background work, without which it grants no layout.
        let expected = if permitted { Nfsstat4::LayoutTryLater } else { Nfsstat4::LayoutUnavailable };
        assert_eq!(got, expected, "{flavors:?} by {own:?}");
        let types = client.attrs("m", &[Attr4::FsLayoutTypes]).fs_layout_types;
        assert_eq!(types.is_some_and(|types| !types.is_empty()), permitted, "{flavors:?} by {own:?}");
    }
}

#[simnet::test]
async fn files_layout_and_its_device_are_encoded() {
    let mut rig = Rig::new().await;
    let args = LayoutGetArgs { layout_type: Layouttype4::NFSV4_1_FILES, ..get(rig.open) };
    let granted = granted(rig.a.ok([putfh(&rig.handle), Argop4::LayoutGet(args)]).await);
    let content: FileLayout4 = body(&granted.layout.0[0].content);
    assert!(content.util.is_dense() && content.util.stripe_unit() == 1 << 16 && content.fh_list.len() == 2);
    let args =
        GetDeviceInfoArgs { device_id: content.deviceid, layout_type: Layouttype4::NFSV4_1_FILES, ..device(4096) };
    let info = rig.a.ok([Argop4::GetDeviceInfo(args)]).await;
    let Resop4::GetDeviceInfo(GetDeviceInfoRes::Ok(info)) = info else { panic!("{info:?}") };
    let address: FileLayoutDsAddr4 = body(&info.device_addr);
    assert_eq!((address.stripe_indices, address.multipath_ds_list.len()), (vec![0, 1], 2));
}

#[simnet::test]
async fn device_info_has_addresses_and_notifications() {
    let mut rig = Rig::new().await;
    let info = rig.a.ok([Argop4::GetDeviceInfo(device(4096))]).await;
    let Resop4::GetDeviceInfo(GetDeviceInfoRes::Ok(info)) = info else { panic!("{info:?}") };
    //= rfc8881-18.40.3-2
    assert_eq!(info.device_addr.layout_type, FLEX);
    let address: FfDeviceAddr4 = body(&info.device_addr);
    let netids: Vec<_> = address.netaddrs.iter().map(|address| address.netid.clone()).collect();
    assert_eq!(netids, ["rdma".into(), "tcp".into()]);
    assert_eq!(address.versions.len(), 1);
    assert_eq!(info.notification.iter().collect::<Vec<_>>(), [1, 2], "the server knows no others");
    let needed = Message::encode(&info).stream.len() as u32;
    let fits = |maxcount| Argop4::GetDeviceInfo(device(maxcount));
    assert!(matches!(rig.a.ok([fits(needed)]).await, Resop4::GetDeviceInfo(GetDeviceInfoRes::Ok(_))));
    let small = rig.a.call([fits(needed - 1)]).await.1.pop().unwrap();
    assert_eq!(small, Resop4::GetDeviceInfo(GetDeviceInfoRes::TooSmall(needed)));
    //= rfc8881-18.40.3-1
    let Resop4::GetDeviceInfo(GetDeviceInfoRes::Ok(none)) = rig.a.ok([fits(0)]).await else { panic!() };
    assert!(none.device_addr.body.0.is_empty());
    let unknown = GetDeviceInfoArgs { device_id: Deviceid4([9; 16]), ..device(4096) };
    assert_eq!(rig.a.call([Argop4::GetDeviceInfo(unknown)]).await.0, Nfsstat4::NoEnt);
    let other = GetDeviceInfoArgs { layout_type: Layouttype4::SCSI, ..device(4096) };
    assert_eq!(rig.a.call([Argop4::GetDeviceInfo(other)]).await.0, Nfsstat4::UnknownLayoutType);
    // The client is notified when the device is removed, once.
    for _ in 0..2 {
        rig.toy.notify(LayoutEvent::DeviceRemoved { device: FLEXIBLE, kind: LayoutKind::Flexible });
    }
    let CbArgop4::NotifyDeviceid(CbNotifyDeviceidArgs { changes }) =
        rig.a.back.receive_operation(CbOpnum4::NotifyDeviceid).await
    else {
        panic!()
    };
    assert_eq!(changes[0].mask.iter().collect::<Vec<_>>(), [2]);
    let delete: NotifyDeviceidDelete4 = Message::from(changes[0].vals.0.clone()).decode().unwrap();
    assert_eq!(delete, NotifyDeviceidDelete4 { layout_type: FLEX, deviceid: Deviceid4(FLEXIBLE.0) });
    sleep(Duration::from_secs(60)).await;
    assert!(rig.a.back.received.lock().unwrap().is_empty());
}

#[simnet::test]
async fn layoutget_rejects_what_it_cannot_grant() {
    let mut rig = Rig::new().await;
    let base = get(rig.open);
    let cases = [
        //= rfc8881-18.43.3-27
        (LayoutGetArgs { iomode: Layoutiomode4::Any, ..base.clone() }, Nfsstat4::BadIomode),
        //= rfc8881-18.43.3-25
        (LayoutGetArgs { layout_type: Layouttype4::SCSI, ..base.clone() }, Nfsstat4::UnknownLayoutType),
        //= rfc8881-18.43.3-2 rfc8881-18.43.3-3
        (LayoutGetArgs { length: 1, minlength: 2, ..base.clone() }, Nfsstat4::Inval),
        //= rfc8881-18.43.3-5
        (LayoutGetArgs { offset: 8, length: LENGTH_TO_EOF, minlength: u64::MAX - 1, ..base.clone() }, Nfsstat4::Inval),
        //= rfc8881-18.43.3-6
        (LayoutGetArgs { offset: 8, length: u64::MAX - 1, minlength: 1, ..base.clone() }, Nfsstat4::Inval),
        (LayoutGetArgs { maxcount: 16, ..base.clone() }, Nfsstat4::TooSmall),
        (LayoutGetArgs { stateid: Stateid4::ANONYMOUS, ..base.clone() }, Nfsstat4::BadStateid),
        (LayoutGetArgs { stateid: Stateid4 { other: [5; 12], seqid: 1 }, ..base.clone() }, Nfsstat4::BadStateid),
    ];
    for (args, status) in cases {
        assert_eq!(rig.status(Argop4::LayoutGet(args.clone())).await, status, "{args:?}");
    }
    for (error, status) in [
        //= rfc8881-18.43.3-4 rfc8881-18.43.3-28
        (VfsError::Delay, Nfsstat4::LayoutTryLater),
        //= rfc8881-18.43.3-24
        (VfsError::NotSupported, Nfsstat4::LayoutUnavailable),
        (VfsError::NoSpace, Nfsstat4::NoSpc),
    ] {
        rig.toy.state().refuse.push_back(error);
        assert_eq!(rig.status(Argop4::LayoutGet(base.clone())).await, status);
    }
    let dir = at("/m").into_iter().chain([Argop4::LayoutGet(base.clone())]);
    assert_eq!(rig.a.call(dir).await.0, Nfsstat4::WrongType);
    let pseudo = [Argop4::PutRootFh, Argop4::LayoutGet(base.clone())];
    assert_eq!(rig.a.call(pseudo).await.0, Nfsstat4::LayoutUnavailable);
    // The refused grants leave nothing: TOOSMALL was granted by the back end, and is released.
    called(&rig.toy, |calls| matches!(calls, BackEndCall::Release(..))).await;
    while !rig.toy.state().holders.is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    let read =
        Open { access: OPEN4_SHARE_ACCESS_READ | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, owner: "r", ..Open::default() };
    let (read, _) = rig.a.open_as("f", read).await.unwrap();
    assert_eq!(rig.status(Argop4::LayoutGet(get(read.stateid))).await, Nfsstat4::OpenMode);
}

#[simnet::test]
async fn stateids_of_others_are_refused() {
    let mut rig = Rig::new().await;
    let layout = rig.layout(Layoutiomode4::Rw).await.stateid;
    let mut b = Remote::new(&rig.served, "b", 2).await;
    let (_, other) = opened(&mut b, "g").await;
    rig.toy.calls();
    let error = |stateid| Argop4::LayoutError(LayoutErrorArgs { offset: 0, length: 1, stateid, errors: Vec::new() });
    let all = |stateid| {
        let commit = layout_commit(commit(stateid, 9));
        [Argop4::LayoutGet(get(stateid)), return_whole(stateid), commit, error(stateid), layout_stats(stats(stateid))]
    };
    // It begins with the number of this start of the server.
    let mut unknown = layout;
    unknown.other[4..].fill(5);
    let forged = [unknown, Stateid4 { seqid: 99, ..layout }, Stateid4 { seqid: 0, ..layout }];
    for operation in forged.into_iter().flat_map(all) {
        assert_eq!(rig.status(operation.clone()).await, Nfsstat4::BadStateid, "{operation:?}");
    }
    for operation in all(layout) {
        assert_eq!(b.call([putfh(&rig.handle), operation.clone()]).await.0, Nfsstat4::BadStateid, "{operation:?}");
        assert_eq!(rig.a.call([putfh(&other), operation.clone()]).await.0, Nfsstat4::BadStateid, "{operation:?}");
    }
    assert_eq!(rig.status(write(layout, 0, b"no")).await, Nfsstat4::BadStateid, "it is no stateid for WRITE");
    assert_eq!(rig.toy.calls(), []);
    let mut last = layout;
    for _ in 0..=64 * 64 {
        last = granted(rig.a.ok([putfh(&rig.handle), Argop4::LayoutGet(get(last))]).await).stateid;
    }
    for operation in all(layout) {
        assert_eq!(rig.status(operation.clone()).await, Nfsstat4::OldStateid, "{operation:?}");
    }
}

#[simnet::test]
async fn layoutcommit_extends_the_file_and_never_shrinks_it() {
    let mut rig = Rig::new().await;
    let layout = rig.layout(Layoutiomode4::Rw).await.stateid;
    let commit_to = async |rig: &mut Rig, args: LayoutCommitArgs| match rig
        .a
        .call([putfh(&rig.handle), layout_commit(args)])
        .await
        .1
        .pop()
        .unwrap()
    {
        Resop4::LayoutCommit(Res4::Ok(size)) => Ok(size),
        other => Err(other.status()),
    };
    assert_eq!(commit_to(&mut rig, commit(layout, 99)).await, Ok(Some(100)));
    assert_eq!(commit_to(&mut rig, commit(layout, 49)).await, Ok(None));
    assert_eq!(rig.size().await, 100);
    //= rfc8881-18.42.3-7
    assert_eq!(commit_to(&mut rig, commit(layout, u64::MAX)).await, Err(Nfsstat4::Inval));
    //= rfc8881-18.42.3-8
    let outside = LayoutCommitArgs { length: 10, ..commit(layout, 10) };
    assert_eq!(commit_to(&mut rig, outside).await, Err(Nfsstat4::Inval));
    let nothing = LayoutCommitArgs { length: 0, ..commit(layout, 0) };
    assert_eq!(commit_to(&mut rig, nothing.clone()).await, Err(Nfsstat4::Inval));
    // Linux sends this after a COMMIT, if the size is known already.
    let no_offset = LayoutCommitArgs { last_write_offset: None, ..nothing };
    assert_eq!(commit_to(&mut rig, no_offset.clone()).await, Ok(None));
    assert_eq!(rig.size().await, 100);
    // A layout of another start of the server is not held any more. The number of the start comes first.
    for (byte, status) in [(0, Nfsstat4::BadLayout), (11, Nfsstat4::BadStateid)] {
        let mut other = layout;
        other.other[byte] ^= 1;
        assert_eq!(commit_to(&mut rig, commit(other, 10)).await, Err(status));
    }
    //= rfc8881-18.42.3-5
    let reclaim = LayoutCommitArgs { reclaim: true, ..commit(layout, 10) };
    assert_eq!(commit_to(&mut rig, reclaim).await, Err(Nfsstat4::NoGrace));
    let other = LayoutBody4 { layout_type: Layouttype4::NFSV4_1_FILES, body: Opaque::default() };
    let other = LayoutCommitArgs { layoutupdate: other, ..commit(layout, 10) };
    assert_eq!(commit_to(&mut rig, other).await, Err(Nfsstat4::BadLayout));
    //= rfc8881-18.42.3-1
    let part = Argop4::LayoutReturn(returned(layout, (50, LENGTH_TO_EOF), &FfLayoutReturn4::default()));
    assert_eq!(rig.status(part).await, Nfsstat4::Ok);
    assert_eq!(commit_to(&mut rig, commit(layout, 60)).await, Err(Nfsstat4::BadLayout));
    assert_eq!(commit_to(&mut rig, commit(layout, 40)).await, Ok(None));
    assert_eq!(rig.status(return_whole(layout)).await, Nfsstat4::Ok);
    assert_eq!(commit_to(&mut rig, no_offset).await, Err(Nfsstat4::BadStateid));
    let layout = rig.layout(Layoutiomode4::Read).await.stateid;
    assert_eq!(commit_to(&mut rig, commit(layout, 40)).await, Err(Nfsstat4::BadIomode));
}

#[simnet::test]
async fn layoutcommit_sets_the_time_that_the_client_proposes_if_it_is_valid() {
    let mut rig = Rig::new().await;
    let layout = rig.layout(Layoutiomode4::Rw).await.stateid;
    let at = |seconds| Nfstime4 { seconds, nseconds: 123_456_789 };
    sleep(Duration::from_secs(60)).await;
    let valid = at(Time::now().seconds - 50);
    rig.toy.calls();
    // A time in the past or in the future is not set.
    for proposed in [valid, at(valid.seconds - 1), at(1), at(i64::MAX)] {
        let args = LayoutCommitArgs { time_modify: Some(proposed), ..commit(layout, 10) };
        assert_eq!(rig.status(layout_commit(args)).await, Nfsstat4::Ok);
        let expected = (proposed == valid).then_some(Time { seconds: valid.seconds, nanoseconds: valid.nseconds });
        let calls = rig.toy.calls();
        let [BackEndCall::Commit(Some(_), LayoutCommit { mtime, size: Some(11), .. })] = calls[..] else {
            panic!("{calls:?}")
        };
        assert_eq!(mtime, expected, "{proposed:?}");
        let now = rig.attrs(&[Attr4::TimeModify]).await.time_modify.unwrap();
        assert_eq!(now == proposed, proposed == valid, "{now:?} after {proposed:?}");
    }
}

#[simnet::test]
async fn truncation_waits_for_layouts_of_others() {
    let mut rig = Rig::new().await;
    let layout = rig.layout(Layoutiomode4::Rw).await.stateid;
    assert_eq!(rig.status(layout_commit(commit(layout, 99))).await, Nfsstat4::Ok);
    let own = set(Attrs { size: Some(90), ..Attrs::default() });
    assert_eq!(rig.status(own).await, Nfsstat4::Ok, "its own layout does not conflict");
    let mut b = Remote::new(&rig.served, "b", 2).await;
    assert_eq!(rig.truncate(&mut b, 10).await, Nfsstat4::Delay);
    let recall = recalled(&rig.a).await;
    assert_eq!((recall.layout_type, recall.iomode, recall.changed), (FLEX, Layoutiomode4::Rw, false));
    let stateid = Stateid4 { seqid: layout.seqid + 1, ..layout };
    let whole = Layoutrecall4::File { fh: rig.handle.clone(), offset: 0, length: LENGTH_TO_EOF, stateid };
    assert_eq!(recall.recall, whole);
    //= rfc8881-18.43.3-29
    assert_eq!(rig.status(Argop4::LayoutGet(get(layout))).await, Nfsstat4::RecallConflict);
    // Version 3 waits too.
    let v3 = crate::common::Rig::calling(&rig.served.nfs);
    let attributes = nfs::v3::Sattr3 { size: Some(10), ..Default::default() };
    let args = SetAttrArgs3 { object: rig.handle.0.clone().into(), new_attributes: attributes, guard: None };
    let status = v3.call::<SetAttr>(args).into_result().map_or_else(|(status, _)| status, |_| Nfsstat3::Ok);
    assert_eq!(status, Nfsstat3::Jukebox);
    // The client commits before it returns the layout. After the truncation, it cannot.
    assert_eq!(rig.status(layout_commit(commit(layout, 199))).await, Nfsstat4::Ok);
    assert_eq!(rig.status(return_whole(stateid)).await, Nfsstat4::Ok);
    assert_eq!(rig.truncate(&mut b, 10).await, Nfsstat4::Ok);
    assert_eq!(rig.status(layout_commit(commit(stateid, 199))).await, Nfsstat4::BadStateid);
    assert_eq!(rig.size().await, 10);
}

/// A LAYOUTCOMMIT that the back end executes late does not give the file its old size again.
#[simnet::test]
async fn truncation_waits_for_a_pending_layoutcommit() {
    let toy = Toy::new(plain_memory());
    let fs = Deferred::new(toy.clone(), Pace::Manual);
    fs.0.hold(false);
    let served = Served::serving(fs.clone()).await;
    let mut rig = Rig::with(served, toy).await;
    let mut b = Remote::new(&rig.served, "b", 2).await;
    let layout = rig.layout(Layoutiomode4::Rw).await.stateid;
    fs.0.hold(true);
    let session = rig.a.session;
    let in_slot = |slot| {
        Argop4::Sequence(SequenceArgs {
            sessionid: session,
            sequenceid: Sequenceid4(1),
            slotid: Slotid4(slot),
            highest_slotid: Slotid4(slot),
            cachethis: false,
        })
    };
    let committing = rig.a.compound(vec![in_slot(1), putfh(&rig.handle), layout_commit(commit(layout, 999))]);
    let others = async {
        while fs.0.in_flight() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        // The first pending operation is the look at the attributes, the next one the commit.
        fs.0.complete(1);
        while fs.0.in_flight() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        fs.0.hold(false);
        assert_eq!(rig.truncate(&mut b, 0).await, Nfsstat4::Delay);
        recalled(&rig.a).await;
        let (status, _) = rig.a.compound(vec![in_slot(2), putfh(&rig.handle), return_whole(layout)]).await;
        assert_eq!(status, Nfsstat4::Ok);
        assert_eq!(rig.truncate(&mut b, 0).await, Nfsstat4::Delay, "the commit is in progress");
        fs.0.complete(1);
    };
    let ((status, _), ()) = tokio::join!(committing, others);
    assert_eq!(status, Nfsstat4::Ok);
    assert_eq!(rig.truncate(&mut b, 0).await, Nfsstat4::Ok);
    assert_eq!(rig.size().await, 0);
}

#[simnet::test]
async fn silent_client_is_fenced_before_others_truncate() {
    let mut rig = Rig::new().await;
    rig.toy.state().failing_fences = 2;
    let layout = rig.layout(Layoutiomode4::Rw).await.stateid;
    let mut b = Remote::new(&rig.served, "b", 2).await;
    assert_eq!(rig.truncate(&mut b, 10).await, Nfsstat4::Delay);
    recalled(&rig.a).await;
    let mut refused = 0;
    while rig.truncate(&mut b, 10).await == Nfsstat4::Delay {
        refused += 1;
        assert!(!rig.toy.state().holders.is_empty());
        // Both clients renew their leases.
        rig.a.ok([Argop4::PutRootFh]).await;
        sleep(Duration::from_secs(10)).await;
    }
    assert!(refused >= 9, "the client has a lease of 90 s to return the layout");
    assert!(rig.toy.state().holders.is_empty());
    let calls = rig.toy.calls();
    let fences = calls.iter().filter(|calls| matches!(calls, BackEndCall::Fence(..))).count();
    assert_eq!(fences, 3, "a fence is tried until it succeeds: {calls:?}");
    assert_eq!(rig.status(layout_commit(commit(layout, 99))).await, Nfsstat4::BadStateid);
    assert_eq!(rig.status(return_whole(layout)).await, Nfsstat4::BadStateid);
    let again = rig.layout(Layoutiomode4::Rw).await;
    assert_ne!(again.stateid.other, layout.other);
}

#[simnet::test]
async fn writer_whose_lease_expires_is_fenced_although_nobody_wants_the_file() {
    let mut rig = Rig::new().await;
    let layout = rig.layout(Layoutiomode4::Rw).await.stateid;
    let fence = called(&rig.toy, |call| matches!(call, BackEndCall::Fence(..)));
    timeout(Duration::from_secs(100), fence).await.expect("the lease has 90 s");
    // The client returns. It has lost the layout, and keeps its open.
    assert_eq!(rig.status(layout_commit(commit(layout, 99))).await, Nfsstat4::BadStateid);
    rig.layout(Layoutiomode4::Rw).await;
}

#[simnet::test]
async fn back_end_recalls_layouts_and_forgetful_clients_release_them() {
    let mut rig = Rig::new().await;
    let layout = rig.layout(Layoutiomode4::Rw).await.stateid;
    let file = rig.toy.file("f");
    // A client that uses the layout answers DELAY, which is not the end of the recall.
    rig.a.back.answer(CbResop4::LayoutRecall(Res4::Fail(Nfsstat4::Delay)));
    rig.toy.notify(LayoutEvent::Recall { file: file.clone(), modes: LayoutModes::ALL, changed: true });
    let recall = recalled(&rig.a).await;
    assert!(recall.changed && recall.iomode == Layoutiomode4::Rw);
    recalled(&rig.a).await;
    assert!(!rig.toy.state().holders.is_empty());
    rig.a.back.answer(CbResop4::LayoutRecall(Res4::Fail(Nfsstat4::NoMatchingLayout)));
    rig.toy.calls();
    let released = called(&rig.toy, |calls| matches!(calls, BackEndCall::Release(..) | BackEndCall::Fence(..))).await;
    assert!(matches!(released, BackEndCall::Release(_, LayoutModes::WRITE)), "{released:?}");
    assert_eq!(rig.status(return_whole(layout)).await, Nfsstat4::BadStateid);
    // A recall of a file without layouts has no effect.
    rig.a.back.received.lock().unwrap().clear();
    rig.toy.notify(LayoutEvent::Recall { file, modes: LayoutModes::ALL, changed: true });
    rig.a.ok([Argop4::PutRootFh]).await;
    assert!(rig.a.back.received.lock().unwrap().is_empty());
}

#[simnet::test]
async fn back_end_recalls_a_whole_tree() {
    let mut rig = Rig::new().await;
    rig.layout(Layoutiomode4::Rw).await;
    let (open, second) = opened(&mut rig.a, "g").await;
    rig.a.ok([putfh(&second), Argop4::LayoutGet(get(open))]).await;
    let fsid = rig.a.ok([putfh(&second), getattr(&[Attr4::Fsid])]).await;
    let Resop4::GetAttr(Res4::Ok(fattr)) = fsid else { panic!() };
    let fsid = fattr.to_attrs(2, nfs::v4::attr::Purpose::Get).unwrap().fsid.unwrap();
    rig.a.back.answer(CbResop4::LayoutRecall(Res4::Ok(())));
    rig.toy.notify(LayoutEvent::RecallAll { changed: false });
    let recall = recalled(&rig.a).await;
    assert_eq!((recall.recall, recall.iomode), (Layoutrecall4::Fsid(fsid), Layoutiomode4::Any));
    let all = LayoutReturnArgs {
        reclaim: false,
        layout_type: FLEX,
        iomode: Layoutiomode4::Any,
        layoutreturn: Layoutreturn4::Fsid,
    };
    assert_eq!(rig.status(Argop4::LayoutReturn(all.clone())).await, Nfsstat4::Ok);
    while !rig.toy.state().holders.is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    assert!(rig.a.back.received.lock().unwrap().is_empty(), "one callback is enough for both files");
    // LAYOUTRETURN4_ALL needs no file handle of the tree.
    rig.layout(Layoutiomode4::Read).await;
    let everything = LayoutReturnArgs { layoutreturn: Layoutreturn4::All, ..all.clone() };
    assert_eq!(rig.a.call([Argop4::PutRootFh, Argop4::LayoutReturn(everything)]).await.0, Nfsstat4::Ok);
    while !rig.toy.state().holders.is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    //= rfc8881-18.44.3-4
    let reclaim = LayoutReturnArgs { reclaim: true, ..all };
    assert_eq!(rig.status(Argop4::LayoutReturn(reclaim)).await, Nfsstat4::Inval);
}

/// A client has layouts of two exports of one file system: their fsids differ in the number of the export only.
#[simnet::test]
async fn return_of_a_tree_leaves_the_layouts_of_others() {
    let inner = plain_memory();
    let toys = [(); 2].map(|()| Toy::new(inner.clone()));
    let export = |path, toy: &Arc<Toy>| {
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        Export::new(path, ExportId::unique(), toy.clone(), options).unwrap()
    };
    let mut exports = Exports::new();
    ["/m", "/n"].into_iter().zip(&toys).for_each(|(path, toy)| exports.add(export(path, toy)).unwrap());
    let served = Served::around(server_of(exports)).run_background_work().await;
    let mut client = Remote::new(&served, "a", 2).await;
    let mut files = Vec::new();
    for path in ["/m", "/n"] {
        let how = Open { access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, ..Open::default() };
        let opening = [open("f", how), Argop4::LayoutGet(get(Stateid4::CURRENT)), Argop4::GetFh];
        let got = client.ok(at(path).into_iter().chain(opening)).await;
        let Resop4::GetFh(Res4::Ok(handle)) = got else { panic!("{got:?}") };
        files.push(handle);
    }
    let held = || toys.each_ref().map(|toy| toy.state().holders.len());
    assert_eq!(held(), [1, 1]);
    let return_all = |layoutreturn| {
        let iomode = Layoutiomode4::Any;
        Argop4::LayoutReturn(LayoutReturnArgs { reclaim: false, layout_type: FLEX, iomode, layoutreturn })
    };
    let fsid = [putfh(&files[1]), return_all(Layoutreturn4::Fsid)];
    assert_eq!(client.call(fsid).await.0, Nfsstat4::Ok);
    called(&toys[1], |call| matches!(call, BackEndCall::Release(..))).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(held(), [1, 0], "FSID returns the layouts of its tree only");
    let again = [putfh(&files[1]), return_all(Layoutreturn4::All)];
    assert_eq!(client.call(again).await.0, Nfsstat4::Ok);
    called(&toys[0], |call| matches!(call, BackEndCall::Release(..))).await;
    assert_eq!(held(), [0, 0]);
}

#[simnet::test]
async fn errors_and_statistics_reach_the_back_end() {
    let mut rig = Rig::new().await;
    let layout = rig.layout(Layoutiomode4::Rw).await.stateid;
    let holder = *rig.toy.state().holders.keys().next().unwrap();
    rig.toy.calls();
    let failed = |status, opnum| DeviceError4 { deviceid: Deviceid4(FLEXIBLE.0), status, opnum };
    let errors = vec![failed(Nfsstat4::NxIo, Opnum4::Write), failed(Nfsstat4::NoSpc, Opnum4::Commit)];
    let args = LayoutErrorArgs { offset: 5, length: 6, stateid: layout, errors };
    assert_eq!(rig.status(Argop4::LayoutError(args)).await, Nfsstat4::Ok);
    let range = LayoutRange { offset: 5, len: 6 };
    let failure = |operation, error| DataFailure { range, device: FLEXIBLE, operation, error };
    let failures =
        vec![failure(DataOperation::Write, DataError::Unreachable), failure(DataOperation::Commit, DataError::NoSpace)];
    assert_eq!(rig.toy.calls(), [BackEndCall::Report(Some(holder), failures)]);
    assert_eq!(rig.status(layout_stats(stats(layout))).await, Nfsstat4::Ok);
    let usage = DataUsage { device: FLEXIBLE, reads: 1, read_bytes: 2, writes: 3, write_bytes: 4 };
    assert_eq!(rig.toy.calls(), [BackEndCall::Count(holder, usage)]);
    // The report of a return precedes the release.
    let ioerr = FfIoerr4 { offset: 5, length: 6, stateid: layout, errors: vec![failed(Nfsstat4::Stale, Opnum4::Read)] };
    let reports = FfLayoutReturn4 { ioerr_report: vec![ioerr], iostats_report: Vec::new() };
    let returning = returned(layout, (0, LENGTH_TO_EOF), &reports);
    assert_eq!(rig.status(Argop4::LayoutReturn(returning.clone())).await, Nfsstat4::Ok);
    let failures = vec![failure(DataOperation::Read, DataError::Stale)];
    let released = BackEndCall::Release(holder, LayoutModes::WRITE);
    assert_eq!(rig.toy.calls(), [BackEndCall::Report(Some(holder), failures), released]);
    let reclaim = LayoutReturnArgs { reclaim: true, ..returning.clone() };
    assert_eq!(rig.status(Argop4::LayoutReturn(reclaim)).await, Nfsstat4::NoGrace);
    let other = LayoutReturnArgs { layout_type: Layouttype4::SCSI, ..returning };
    assert_eq!(rig.status(Argop4::LayoutReturn(other)).await, Nfsstat4::UnknownLayoutType);
}

#[simnet::test]
async fn malformed_statistics_are_refused() {
    let mut rig = Rig::new().await;
    let good = stats(rig.layout(Layoutiomode4::Rw).await.stateid);
    rig.toy.calls();
    let bytes = good.layoutupdate.body.0.clone();
    let longer = [&bytes[..], &[0; 4]].concat();
    // The last four bytes are a boolean.
    let no_boolean = [&bytes[..bytes.len() - 4], &[0, 0, 0, 2]].concat();
    for body in [&[], &bytes[..bytes.len() - 4], &longer, &no_boolean] {
        let body = Opaque(Bytes::copy_from_slice(body));
        let bad = LayoutStatsArgs { layoutupdate: LayoutBody4 { layout_type: FLEX, body }, ..good.clone() };
        assert_eq!(rig.status(layout_stats(bad.clone())).await, Nfsstat4::BadXdr, "{bad:?}");
    }
    assert_eq!(rig.toy.calls(), []);
    // A files layout has no statistics of its own in this operation (RFC 8881 §13).
    let files = LayoutBody4 { layout_type: Layouttype4::NFSV4_1_FILES, body: Opaque::default() };
    assert_eq!(rig.status(layout_stats(LayoutStatsArgs { layoutupdate: files, ..good })).await, Nfsstat4::Ok);
}

#[simnet::test]
async fn layout_is_recalled_after_close_if_it_had_to_be_returned() {
    let mut rig = Rig::new().await;
    rig.toy.state().return_on_close = true;
    assert!(rig.layout(Layoutiomode4::Rw).await.return_on_close);
    let closing = close(rig.open);
    assert_eq!(rig.status(closing).await, Nfsstat4::Ok);
    //= rfc8881-18.43.3-22
    recalled(&rig.a).await;
}

/// The call ends while the back end works on the LAYOUTGET.
#[simnet::test]
async fn dropped_layoutget_leaves_no_holder() {
    let toy = Toy::new(plain_memory());
    let fs = Deferred::new(toy.clone(), Pace::Manual);
    fs.0.hold(false);
    let rig = Rig::with(Served::serving(fs.clone()).await, toy.clone()).await;
    fs.0.hold(true);
    let client = Client4 { session: rig.a.session, ..Client4::stranger(&rig.served.nfs, 2) };
    let argarray = vec![client.sequence_op(1, 1), putfh(&rig.handle), Argop4::LayoutGet(get(rig.open))];
    let message = Message::encode(&CompoundArgs { tag: "".into(), minorversion: 2, argarray });
    let mut getting = client.paper.call(&*client.nfs, PROC_COMPOUND, (client.peer, &client.caller), &message);
    while toy.state().holders.is_empty() {
        let polled = std::future::poll_fn(|cx| Poll::Ready(getting.as_mut().poll(cx))).await;
        assert!(polled.is_pending() && fs.0.in_flight() == 1);
        if toy.state().holders.is_empty() {
            // It is the look at the attributes, which precedes the grant.
            fs.0.complete(1);
        }
    }
    fs.0.hold(false);
    drop(getting);
    called(&toy, |calls| matches!(calls, BackEndCall::Release(..))).await;
    assert!(toy.state().holders.is_empty());
}

#[simnet::test]
async fn attributes_describe_the_layouts() {
    let mut rig = Rig::new().await;
    let wanted =
        [Attr4::FsLayoutTypes, Attr4::LayoutTypes, Attr4::LayoutBlksize, Attr4::LayoutAlignment, Attr4::Mdsthreshold];
    let got = rig.a.ok([putfh(&rig.handle), getattr(&wanted)]).await;
    let Resop4::GetAttr(Res4::Ok(fattr)) = got else { panic!("{got:?}") };
    let attrs = fattr.to_attrs(2, nfs::v4::attr::Purpose::Get).unwrap();
    let types = vec![FLEX, Layouttype4::NFSV4_1_FILES];
    assert_eq!((attrs.fs_layout_types.as_ref(), attrs.layout_types.as_ref()), (Some(&types), Some(&types)));
    assert_eq!((attrs.layout_blksize, attrs.layout_alignment), (Some(1 << 16), Some(4096)));
    let threshold = attrs.mdsthreshold.unwrap();
    let hint = &threshold.hints[0];
    assert_eq!((threshold.hints.len(), hint.layout_type), (2, FLEX));
    assert_eq!(hint.hintset.iter().collect::<Vec<_>>(), [0, 3]);
    let hints: Vec<u8> = [4096_u64, 512].into_iter().flat_map(u64::to_be_bytes).collect();
    assert_eq!(hint.hintlist.0, hints);
}

#[simnet::test]
async fn roles_are_told_by_exchange_id() {
    let roles = async |served: &Served| {
        let client = Remote::new(served, "x", 1).await;
        let (_, results) = client.compound(vec![exchange_id("y")]).await;
        let [Resop4::ExchangeId(Res4::Ok(exchanged))] = &results[..] else { panic!("{results:?}") };
        exchanged.flags & EXCHGID4_FLAG_MASK_PNFS
    };
    let rig = Rig::new().await;
    assert_eq!(roles(&rig.served).await, EXCHGID4_FLAG_USE_PNFS_MDS);
    let plain = Served::with_background_work().await;
    assert_eq!(roles(&plain).await, EXCHGID4_FLAG_USE_NON_PNFS);
    let data = Served::data_server();
    assert_eq!(roles(&data).await, EXCHGID4_FLAG_USE_PNFS_DS);
}

#[simnet::test]
async fn export_without_layouts_is_as_before() {
    let served = Served::with_background_work().await;
    let mut a = Remote::new(&served, "a", 2).await;
    let (open, handle) = opened(&mut a, "f").await;
    for operation in [Argop4::LayoutGet(get(open)), return_whole(open), layout_commit(commit(open, 0))] {
        assert_eq!(a.call([putfh(&handle), operation]).await.0, Nfsstat4::NotSupp);
    }
    assert_eq!(a.call([Argop4::GetDeviceInfo(device(4096))]).await.0, Nfsstat4::NotSupp);
    let got = a.ok([putfh(&handle), getattr(&[Attr4::SupportedAttrs, Attr4::FsLayoutTypes])]).await;
    let Resop4::GetAttr(Res4::Ok(fattr)) = got else { panic!("{got:?}") };
    assert!(!fattr.attrmask.contains(Attr4::FsLayoutTypes as u32));
    let attrs = fattr.to_attrs(2, nfs::v4::attr::Purpose::Get).unwrap();
    assert!(!attrs.supported_attrs.unwrap().contains(Attr4::LayoutBlksize as u32));
}
