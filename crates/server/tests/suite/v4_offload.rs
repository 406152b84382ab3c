//! Asynchronous copies: CB_OFFLOAD, OFFLOAD_STATUS and OFFLOAD_CANCEL.

use crate::common::remote::{Remote, Served};
use crate::common::v4::*;
use nfs::v4::{
    attr::Attrs,
    callback::{CbArgop4, CbOffloadArgs, CbOpnum4, CbResop4, OffloadInfo4},
    *,
};

const LEN: u64 = 20 << 20;

/// A client that has two files open and copies one to the other.
struct Copier {
    remote: Remote,
    from: (Stateid4, NfsFh4),
    to: (Stateid4, NfsFh4),
}

impl Copier {
    async fn new(served: &Served, name: &str) -> Self {
        let mut remote = Remote::new(served, name, 2).await;
        let access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
        let (from, _, source) = remote.open("from", access).await.unwrap();
        let (to, _, target) = remote.open("to", access).await.unwrap();
        let size = set(Attrs { size: Some(LEN), ..Attrs::default() });
        let end = write(from, LEN - 3, b"end");
        remote.ok([putfh(&source), size, write(from, 0, b"begin"), end]).await;
        Self { remote, from: (from, source), to: (to, target) }
    }

    async fn copy(&mut self, count: u64, synchronous: bool) -> CopyOk {
        let args = CopyArgs {
            src_stateid: self.from.0,
            dst_stateid: self.to.0,
            src_offset: 0,
            dst_offset: 0,
            count,
            consecutive: true,
            synchronous,
            source_server: Default::default(),
        };
        let operations = [putfh(&self.from.1), Argop4::SaveFh, putfh(&self.to.1), Argop4::Copy(args)];
        match self.remote.ok(operations).await {
            Resop4::Copy(CopyRes::Ok(ok)) => ok,
            other => panic!("{other:?}"),
        }
    }

    /// Begins an asynchronous copy. Returns its stateid and the write verifier.
    async fn begin(&mut self) -> (Stateid4, Verifier4) {
        let CopyOk { response, requirements } = self.copy(0, false).await;
        assert_eq!((response.count, requirements.synchronous), (0, false));
        (response.callback_id.expect("the copy must be asynchronous"), response.writeverf)
    }

    async fn status(&mut self, stateid: Stateid4) -> Result<(u64, Option<Nfsstat4>), Nfsstat4> {
        let ask = Argop4::OffloadStatus(OffloadArgs { stateid });
        match self.remote.call([putfh(&self.to.1), ask]).await.1.pop() {
            Some(Resop4::OffloadStatus(result)) => result.into_result().map(|ok| (ok.count, ok.complete)),
            other => panic!("{other:?}"),
        }
    }

    async fn cancel(&mut self, stateid: Stateid4) -> Nfsstat4 {
        self.remote.call([putfh(&self.to.1), Argop4::OffloadCancel(OffloadArgs { stateid })]).await.0
    }

    /// Waits for CB_OFFLOAD on any connection of the client.
    async fn receives_end(remote: &Remote, fh: &NfsFh4, (stateid, writeverf): (Stateid4, Verifier4)) {
        let response = WriteResponse4 { callback_id: None, count: LEN, committed: StableHow4::Unstable, writeverf };
        let told = CbOffloadArgs { fh: fh.clone(), stateid, offload_info: OffloadInfo4::Ok(response) };
        assert_eq!(remote.back.receive_operation(CbOpnum4::Offload).await, CbArgop4::Offload(told));
    }

    /// Waits until the stateid of a copy is no longer valid.
    async fn wait_until_removed(&mut self, stateid: Stateid4) {
        while self.status(stateid).await != Err(Nfsstat4::BadStateid) {
            tokio::task::yield_now().await;
        }
    }
}

#[simnet::test]
async fn large_copy_is_asynchronous_and_ends_with_cb_offload() {
    let served = Served::with_background_work().await;
    let mut client = Copier::new(&served, "a").await;
    let copy = client.begin().await;
    Copier::receives_end(&client.remote, &client.to.1, copy).await;
    client.wait_until_removed(copy.0).await;
    for (offset, wanted) in [(0, &b"begin\0"[..]), (LEN - 4, b"\0end")] {
        let got = client.remote.ok([putfh(&client.to.1), read(client.to.0, offset, wanted.len() as u32)]).await;
        let Resop4::Read(Res4::Ok(got)) = got else { panic!("{got:?}") };
        assert_eq!((got.eof, got.data), (offset > 0, bytes::Bytes::from_static(wanted).into()));
    }
    // A small copy, and one that the client wants to be synchronous, ends with its reply.
    for (count, synchronous) in [(4096, false), (0, true)] {
        let CopyOk { response, requirements } = client.copy(count, synchronous).await;
        assert!(response.callback_id.is_none() && requirements.synchronous);
        assert_eq!(response.count, if count == 0 { LEN } else { count });
    }
}

#[simnet::test]
async fn ended_copy_can_be_queried_until_the_client_acknowledges_it() {
    let served = Served::with_background_work().await;
    let (mut client, mut other) = (Copier::new(&served, "a").await, Copier::new(&served, "b").await);
    client.remote.back.answer(CbResop4::Offload(Res4::Fail(Nfsstat4::Delay)));
    let (first, _) = client.begin().await;
    client.remote.back.receive_operation(CbOpnum4::Offload).await;
    assert_eq!(client.status(first).await, Ok((LEN, Some(Nfsstat4::Ok))));
    assert_eq!(other.status(first).await, Err(Nfsstat4::BadStateid), "the copy belongs to another client");
    assert_eq!(other.cancel(first).await, Nfsstat4::BadStateid);
    assert_eq!(client.cancel(first).await, Nfsstat4::Ok);
    assert_eq!(client.status(first).await, Err(Nfsstat4::BadStateid));

    // The connection is lost, and the client returns with another session.
    let copy = client.begin().await;
    let Copier { remote, to, .. } = client;
    drop(remote);
    let again = Remote::new(&served, "a", 2).await;
    Copier::receives_end(&again, &to.1, copy).await;
}

#[simnet::test]
async fn copies_can_be_cancelled_and_are_bounded() {
    let served = Served::new();
    let upkeep = tokio::spawn(served.nfs.upkeep());
    tokio::task::yield_now().await;
    let mut client = Copier::new(&served, "a").await;
    // From here on no copy is executed, so the state of the copies is stable.
    upkeep.abort();
    assert!(upkeep.await.unwrap_err().is_cancelled());
    let mut begun = Vec::new();
    let CopyOk { response, .. } = loop {
        match client.copy(0, false).await {
            ok @ CopyOk { response: WriteResponse4 { callback_id: None, .. }, .. } => break ok,
            ok => begun.extend(ok.response.callback_id),
        }
    };
    assert_eq!((response.count, begun.len()), (LEN, 16), "a copy above the limit must be synchronous");
    assert_eq!(client.status(begun[0]).await, Ok((0, None)));
    assert_eq!(client.cancel(begun[0]).await, Nfsstat4::Ok);
    assert_eq!(client.cancel(begun[0]).await, Nfsstat4::BadStateid);
    assert!(client.copy(0, false).await.response.callback_id.is_some(), "an ended copy must make room for another one");
}
