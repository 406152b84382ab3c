//! GETATTR of a file with a write delegation of another client: the holder's answer, and the result.

use crate::common::remote::{Remote, Served};
use crate::common::v4::*;
use nfs::v4::{
    attr::{Attr4, Attrs, Purpose},
    callback::{CbArgop4, CbGetAttrArgs, CbOpnum4, CbResop4, ReferringCall4},
    *,
};

/// Sets the answer of a holder to CB_GETATTR.
fn set_answer(holder: &Remote, change: Option<u64>, size: Option<u64>) {
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

#[simnet::test]
async fn getattr_asks_the_holder_without_a_recall() {
    let served = Served::with_long_lease().await;
    let (mut a, mut b) = (served.client("a").await, served.client("b").await);
    let (_, stateid, handle) = a.delegated("f").await;
    a.ok([putfh(&handle), write(stateid, 0, b"0123456789")]).await;
    let (given, size) = attrs(&mut a, &handle).await.unwrap();
    assert_eq!(
        (size, a.back.received.lock().unwrap().len()),
        (10, 0),
        "the server must not ask the holder about its own file"
    );

    // The holder has written back everything, but its change attribute differs from that of the delegation.
    set_answer(&a, Some(given), Some(10));
    let (seen, size) = attrs(&mut b, &handle).await.unwrap();
    assert!(seen > given && size == 10, "{given} {seen}");
    let fh = handle.clone();
    let attr_request = [Attr4::Change, Attr4::Size].into_iter().map(|attr| attr as u32).collect();
    let asked = CbArgop4::GetAttr(CbGetAttrArgs { fh, attr_request });
    assert_eq!(a.back.receive_operation(CbOpnum4::GetAttr).await, asked);

    // The holder has a larger size than the server. It may change the file at any time, so the change attribute grows
    // with each GETATTR.
    set_answer(&a, None, Some(4096));
    let (second, size) = attrs(&mut b, &handle).await.unwrap();
    let (third, _) = attrs(&mut b, &handle).await.unwrap();
    //= rfc8881-10.4.3-3 rfc8881-10.7-1
    assert!(seen < second && second < third && size == 4096);
    assert!(a.back.received.lock().unwrap().iter().all(|received| received.operation.opnum() == CbOpnum4::GetAttr));
    // The holder returns the delegation without writing. The server then reports its own size again.
    assert_eq!(a.return_delegation(&handle, stateid).await, Nfsstat4::Ok);
    let (last, size) = attrs(&mut b, &handle).await.unwrap();
    assert!(last >= third && size == 10);
}

#[simnet::test]
async fn file_unchanged_by_its_holder_has_the_servers_attributes() {
    let served = Served::with_long_lease().await;
    let (mut a, mut b) = (served.client("a").await, served.client("b").await);
    let (open, _, handle) = b.open("f", OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG).await.unwrap();
    b.ok([putfh(&handle), close(open)]).await;
    let before = attrs(&mut b, &handle).await.unwrap();
    let (_, _, handle) = a.delegated("f").await;
    set_answer(&a, Some(before.0), Some(before.1));
    assert_eq!(attrs(&mut b, &handle).await, Ok(before));
    assert_eq!(attrs(&mut b, &handle).await, Ok(before), "the attributes must stay the same");
    // Two GETATTR operations in one compound.
    let both = [putfh(&handle), getattr(&[Attr4::Size]), putfh(&handle), getattr(&[Attr4::Change])];
    b.ok(both).await;
    assert_eq!(a.back.received.lock().unwrap().len(), 4);
}

#[simnet::test]
async fn delegation_with_timestamps_is_granted_without_them() {
    let served = Served::with_long_lease().await;
    let (mut a, mut b) = (Remote::new(&served, "a", 2).await, served.client("b").await);
    let access =
        OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG | OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS;
    let (_, delegation, handle) = a.open("f", access).await.unwrap();
    assert!(matches!(delegation, OpenDelegation4::Write(_)), "{delegation:?}");
    // The holder reports timestamps all the same. The server ignores them.
    let time_deleg_modify = Some(Nfstime4 { seconds: 1, nseconds: 0 });
    let answer = Attrs { size: Some(5), time_deleg_modify, ..Attrs::default() };
    a.back.answer(CbResop4::GetAttr(Res4::Ok(answer.into())));
    assert_eq!(attrs(&mut b, &handle).await.unwrap().1, 5);
}

#[simnet::test]
async fn holder_that_rejects_cb_getattr_is_recalled() {
    let served = Served::with_background_work().await;
    let (mut a, mut b) = (served.client("a").await, served.client("b").await);
    for (name, answer) in [("refuses", Some(Nfsstat4::BadHandle)), ("is silent", None)] {
        let (_, stateid, handle) = a.delegated(name).await;
        match answer {
            Some(status) => a.back.answer(CbResop4::GetAttr(Res4::Fail(status))),
            None => a.back.silent.lock().unwrap().push(CbOpnum4::GetAttr),
        }
        assert_eq!(attrs(&mut b, &handle).await, Err(Nfsstat4::Delay), "{name}");
        assert_eq!(a.recalled().await, (stateid, handle.clone()));
        assert_eq!(a.return_delegation(&handle, stateid).await, Nfsstat4::Ok);
        assert_eq!(attrs(&mut b, &handle).await.map(|(_, size)| size), Ok(0));
    }
}

#[simnet::test]
async fn cb_getattr_names_the_open_that_granted_the_delegation() {
    let served = Served::with_long_lease().await;
    let (mut a, mut b) = (served.client("a").await, served.client("b").await);
    let (_, _, handle) = a.delegated("f").await;
    set_answer(&a, None, Some(5));
    let mut names: Vec<Vec<_>> = Vec::new();
    for _ in 0..2 {
        attrs(&mut b, &handle).await.unwrap();
        let asked = a.back.receive(CbOpnum4::GetAttr).await.sequence.unwrap();
        names.push(
            asked.referring_call_lists.0.iter().map(|list| (list.sessionid, list.referring_calls.0[0])).collect(),
        );
        a.ok([Argop4::PutRootFh]).await;
    }
    let open = ReferringCall4 { sequenceid: Sequenceid4(a.sequence - 2), slotid: Slotid4(0) };
    assert_eq!(names, [vec![(a.session, open)], vec![]]);
}
