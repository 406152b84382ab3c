//! Tests that the fault injector cuts connections at the requested operation, on every provider.

mod common;

use std::sync::Arc;

use bytes::Bytes;
use conformance::provider::{Fabric, Pair};
use rdma::{
    QpError, QpOptions, Status, WorkId,
    hook::{FaultInjector, Hook, Hooked, QpId, Verdict},
    iwarp::{Iwarp, IwarpOptions},
    shm::ShmOptions,
    sim::{NetworkOptions, Sim},
};

async fn run(fabric: &Fabric) -> Pair {
    let mut pair = fabric.pair_with(&QpOptions::default(), &QpOptions::default(), 1).await;
    pair.client.send(Bytes::from_static(b"hello"));
    pair.until(|pair| {
        pair.server.has(&[WorkId(1000)]) && (pair.client.error.is_some() || !pair.client.done.is_empty())
    })
    .await;
    pair
}

async fn every_operation_can_be_cut_at(provider: impl Fn(Arc<FaultInjector>) -> Fabric) {
    let injector = Arc::new(FaultInjector::new(0, 0.0));
    run(&provider(injector.clone())).await;
    // The operations are a post, its completion, and a receive.
    assert_eq!((injector.operations(), injector.cuts()), (3, 0));
    for operation in 0..3 {
        let injector = Arc::new(FaultInjector::new(0, 0.0));
        injector.cut_at(operation);
        let mut pair = run(&provider(injector.clone())).await;
        let errors = pair.until_ended().await;
        assert!(matches!(errors, (QpError::Io(_), QpError::Io(_))), "{errors:?}");
        assert_eq!(injector.cuts(), 1);
        if operation == 0 {
            assert_eq!(
                pair.server.find(WorkId(1000)).unwrap().status,
                Status::Flushed,
                "the request must not reach the server"
            );
        }
    }
}

#[simnet::test]
async fn every_operation_of_sim_can_be_cut_at() {
    every_operation_can_be_cut_at(|injector| {
        Fabric::new(Hooked::new(Sim::new(NetworkOptions::default()), injector as Arc<dyn Hook>))
    })
    .await;
}

#[tokio::test]
async fn every_operation_of_iwarp_can_be_cut_at() {
    every_operation_can_be_cut_at(|injector| {
        Fabric::new(Hooked::new(Iwarp::new(IwarpOptions::default()), injector as Arc<dyn Hook>))
    })
    .await;
}

#[tokio::test]
async fn every_operation_of_shm_can_be_cut_at() {
    every_operation_can_be_cut_at(|injector| {
        common::shm_as(ShmOptions::default(), |shm| Hooked::new(shm, injector as Arc<dyn Hook>))
    })
    .await;
}

#[test]
fn random_faults_are_determined_by_the_seed() {
    let faults = |seed| {
        let injector = FaultInjector::new(seed, 0.1);
        let request = || rdma::WorkRequest::Invalidate { id: WorkId(0), stag: rdma::Stag(0) };
        (0..200).map(|_| injector.posted(QpId(0), &request()) == Verdict::Cut).collect::<Vec<_>>()
    };
    assert_eq!(faults(1), faults(1));
    assert_ne!(faults(1), faults(2));
    assert!((5..50).contains(&faults(1).iter().filter(|&&cut| cut).count()));
}
