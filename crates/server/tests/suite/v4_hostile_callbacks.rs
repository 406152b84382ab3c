//! Tests of clients that do not answer callbacks: the number of callbacks is bounded, and other clients are not affected.

use std::time::Duration;

use crate::common::remote::Served;
use crate::common::v4::*;
use nfs::v4::{attr::Attr4, callback::CbOpnum4, *};

/// Another client opens each file that the silent client has delegated. The callbacks fill the slots of the silent
/// client's backchannel, and no more are sent. The opens fail with DELAY at once. The delegations of a third client are
/// recalled as usual.
#[simnet::test]
async fn silent_client_delays_only_access_to_its_own_files() {
    let served = Served::with_background_work().await;
    let (mut silent, mut holder, mut other) =
        (served.client("silent").await, served.client("holder").await, served.client("other").await);
    silent.back.silent.lock().unwrap().extend([CbOpnum4::Recall, CbOpnum4::GetAttr]);
    let mut files = Vec::new();
    for number in 0..200 {
        files.push(silent.delegated(&format!("s{number}")).await.2);
    }
    for number in 0..files.len() {
        let wanted = other.open(&format!("s{number}"), OPEN4_SHARE_ACCESS_READ).await;
        assert_eq!(wanted.unwrap_err(), Nfsstat4::Delay, "file {number}");
    }
    let (_, stateid, file) = holder.delegated("h").await;
    assert_eq!(other.open("h", OPEN4_SHARE_ACCESS_READ).await.unwrap_err(), Nfsstat4::Delay);
    assert_eq!(holder.recalled().await, (stateid, file.clone()));
    assert_eq!(holder.return_delegation(&file, stateid).await, Nfsstat4::Ok);
    other.open("h", OPEN4_SHARE_ACCESS_READ).await.unwrap();
    for file in &files[..20] {
        assert_eq!(other.call([putfh(file), getattr(&[Attr4::Size])]).await.0, Nfsstat4::Delay);
    }
    let received = || silent.back.received.lock().unwrap().len();
    while received() < channel().maxrequests as usize {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(received(), channel().maxrequests as usize, "each slot must carry one callback");
    // The silent client is still connected and can return its delegation.
    let received = silent.recalled().await;
    assert_eq!(silent.return_delegation(&received.1, received.0).await, Nfsstat4::Ok);
}
