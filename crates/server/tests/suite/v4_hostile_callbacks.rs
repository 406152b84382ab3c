//! Clients that are called and do not answer: how often they are, and that others go on.

use std::time::Duration;

use crate::common::remote::{Served, simulated};
use crate::common::v4::*;
use nfs::v4::{attr::Attr4, callback::CbOpnum4, *};

/// Each file that the silent client has delegated is wanted by another. Its callbacks fill the slots of its own backchannel, and no
/// more are sent; who wants its files hears so at once; and the others are recalled and asked as if it were not there.
#[test]
fn who_never_answers_keeps_others_waiting_for_its_own_files_alone() {
    simulated(|| async {
        let served = Served::kept_up().await;
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
        assert_eq!(holder.give_back(&file, stateid).await, Nfsstat4::Ok);
        other.open("h", OPEN4_SHARE_ACCESS_READ).await.unwrap();
        for file in &files[..20] {
            assert_eq!(other.call([putfh(file), getattr(&[Attr4::Size])]).await.0, Nfsstat4::Delay);
        }
        let heard = || silent.back.heard.lock().unwrap().len();
        while heard() < channel().maxrequests as usize {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(
            heard(),
            channel().maxrequests as usize,
            "one in each slot, of which none has been given up as lost"
        );
        // It is not cut off: it may still do what it should.
        let heard = silent.recalled().await;
        assert_eq!(silent.give_back(&heard.1, heard.0).await, Nfsstat4::Ok);
    });
}
