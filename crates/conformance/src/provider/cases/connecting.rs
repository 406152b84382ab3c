//! Setting up and refusing connections.

use std::io;

use rdma::QpOptions;

use crate::provider::{Fabric, pattern};

pub async fn private_data_goes_both_ways(fabric: Fabric) {
    let (connected, asked) = fabric
        .attempt(b"request", |mut request| async move {
            let asked = request.private_data().await.unwrap();
            let qp = request.accept(&QpOptions::default(), b"the reply", Vec::new()).await.unwrap();
            (asked, qp)
        })
        .await;
    let same = |have: &[u8], sent: &[u8]| {
        let (data, padding) = have.split_at(sent.len());
        assert!(data == sent && padding.iter().all(|&byte| byte == 0), "{have:?}");
        assert!(padding.is_empty() || fabric.adapter);
    };
    same(&asked.0, b"request");
    same(&connected.unwrap().private_data, b"the reply");

    let max = fabric.provider.caps().private_data_max;
    let longest = pattern(1, max);
    let (connected, asked) =
        fabric.attempt(&longest, |mut request| async move { request.private_data().await.unwrap() }).await;
    assert!(connected.is_err());
    //= rfc5044-7.1.1-19 rfc5044-7.1.2-12
    same(&asked, &longest);
    let (nobody, options, too_long) = ("127.0.0.1:9".parse().unwrap(), QpOptions::default(), pattern(1, max + 1));
    let error = fabric.provider.connect(nobody, &options, &too_long, Vec::new()).await.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

pub async fn a_dropped_request_rejects_the_peer(fabric: Fabric) {
    let (connected, ()) = fabric
        .attempt(b"", |mut request| async move {
            request.private_data().await.unwrap();
        })
        .await;
    //= rfc5044-7.1.2-4 rfc5044-7.1.2-7
    assert_eq!(connected.err().unwrap().kind(), io::ErrorKind::ConnectionRefused);
    // If a request is dropped before its private data is read, the peer does not always learn the reason.
    let (connected, ()) = fabric.attempt(b"", |request| async move { drop(request) }).await;
    assert!(connected.is_err());
}

pub async fn connection_without_a_listener_is_refused(fabric: Fabric) {
    let at = fabric.provider.listen(fabric.listen).unwrap().local_addr();
    let error = fabric.provider.connect(at, &QpOptions::default(), b"", Vec::new()).await.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}
