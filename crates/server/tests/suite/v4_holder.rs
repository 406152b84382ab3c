//! GETATTR of a file that somebody else has a delegation to write: what the holder says of it, and what others hear.

use crate::common::remote::{Remote, Served, simulated};
use crate::common::v4::*;
use nfs::v4::{
    attr::{Attr4, Attrs, Purpose},
    callback::{CbArgop4, CbGetAttrArgs, CbOpnum4, CbResop4},
    *,
};

/// A holder says this of its file from now on.
fn says(holder: &Remote, change: Option<u64>, size: Option<u64>) {
    holder.back.answer(CbResop4::GetAttr(Res4::Ok(Attrs { change, size, ..Attrs::default() }.into())));
}

async fn attrs(remote: &mut Remote, handle: &NfsFh4) -> Result<(u64, u64), Nfsstat4> {
    let (status, mut results) = remote.call([putfh(handle), getattr(&[Attr4::Change, Attr4::Size])]).await;
    match results.pop() {
        Some(Resop4::GetAttr(Res4::Ok(fattr))) => {
            let attrs = fattr.to_attrs(2, Purpose::Get).unwrap();
            Ok((attrs.change.unwrap(), attrs.size.unwrap()))
        }
        _ => Err(status),
    }
}

#[test]
fn the_holder_is_asked_and_keeps_what_it_has() {
    simulated(|| async {
        let served = Served::patient().await;
        let (mut a, mut b) = (served.client("a").await, served.client("b").await);
        let (_, stateid, handle) = a.delegated("f").await;
        a.ok([putfh(&handle), write(stateid, 0, b"0123456789")]).await;
        let (given, size) = attrs(&mut a, &handle).await.unwrap();
        assert_eq!((size, a.back.heard.lock().unwrap().len()), (10, 0), "it is not asked about its own");

        // It has written back all that it had, but its change attribute is not the one of the delegation.
        says(&a, Some(given), Some(10));
        let (seen, size) = attrs(&mut b, &handle).await.unwrap();
        assert!(seen > given && size == 10, "{given} {seen}");
        let fh = handle.clone();
        let attr_request = [Attr4::Change, Attr4::Size].into_iter().map(|attr| attr as u32).collect();
        let asked = CbArgop4::GetAttr(CbGetAttrArgs { fh, attr_request });
        assert_eq!(a.back.called(CbOpnum4::GetAttr).await, asked);

        // It has more than the server, and may have changed it again at any time, also where it says the same.
        says(&a, None, Some(4096));
        let (second, size) = attrs(&mut b, &handle).await.unwrap();
        let (third, _) = attrs(&mut b, &handle).await.unwrap();
        assert!(seen < second && second < third && size == 4096);
        assert!(a.back.heard.lock().unwrap().iter().all(|heard| heard.operation.opnum() == CbOpnum4::GetAttr));
        // It gives back without having written: nothing goes backwards but the size that never was.
        assert_eq!(a.give_back(&handle, stateid).await, Nfsstat4::Ok);
        let (last, size) = attrs(&mut b, &handle).await.unwrap();
        assert!(last >= third && size == 10);
    });
}

#[test]
fn a_file_that_its_holder_has_not_changed_is_as_the_server_knows_it() {
    simulated(|| async {
        let served = Served::patient().await;
        let (mut a, mut b) = (served.client("a").await, served.client("b").await);
        let (open, _, handle) = b.open("f", OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG).await.unwrap();
        b.ok([putfh(&handle), close(open)]).await;
        let before = attrs(&mut b, &handle).await.unwrap();
        let (_, _, handle) = a.delegated("f").await;
        says(&a, Some(before.0), Some(before.1));
        assert_eq!(attrs(&mut b, &handle).await, Ok(before));
        assert_eq!(attrs(&mut b, &handle).await, Ok(before), "and stays so");
        // Two questions in one request.
        let both = [putfh(&handle), getattr(&[Attr4::Size]), putfh(&handle), getattr(&[Attr4::Change])];
        b.ok(both).await;
        assert_eq!(a.back.heard.lock().unwrap().len(), 4);
    });
}

#[test]
fn a_delegation_that_was_to_have_the_times_comes_without() {
    simulated(|| async {
        let served = Served::patient().await;
        let (mut a, mut b) = (Remote::new(&served, "a", 2).await, served.client("b").await);
        let access =
            OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG | OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS;
        let (_, delegation, handle) = a.open("f", access).await.unwrap();
        assert!(matches!(delegation, OpenDelegation4::Write(_)), "{delegation:?}");
        // It tells them all the same.
        let time_deleg_modify = Some(Nfstime4 { seconds: 1, nseconds: 0 });
        let said = Attrs { size: Some(5), time_deleg_modify, ..Attrs::default() };
        a.back.answer(CbResop4::GetAttr(Res4::Ok(said.into())));
        assert_eq!(attrs(&mut b, &handle).await.unwrap().1, 5);
    });
}

#[test]
fn a_holder_that_will_not_say_has_to_give_back() {
    simulated(|| async {
        let served = Served::kept_up().await;
        let (mut a, mut b) = (served.client("a").await, served.client("b").await);
        for (name, answer) in [("refuses", Some(Nfsstat4::BadHandle)), ("is silent", None)] {
            let (_, stateid, handle) = a.delegated(name).await;
            match answer {
                Some(status) => a.back.answer(CbResop4::GetAttr(Res4::Fail(status))),
                None => a.back.silent.lock().unwrap().push(CbOpnum4::GetAttr),
            }
            assert_eq!(attrs(&mut b, &handle).await, Err(Nfsstat4::Delay), "{name}");
            assert_eq!(a.recalled().await, (stateid, handle.clone()));
            assert_eq!(a.give_back(&handle, stateid).await, Nfsstat4::Ok);
            assert_eq!(attrs(&mut b, &handle).await.map(|(_, size)| size), Ok(0));
        }
    });
}
