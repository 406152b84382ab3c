//! The example of a user-defined program works over every transport.

#[path = "../../examples/keyvalue.rs"]
#[allow(dead_code, reason = "this test does not use its command line")]
mod example;

#[tokio::test]
async fn example_runs_over_every_transport() {
    let placed = example::everywhere().await.unwrap();
    assert_eq!(placed, [("rdma", true), ("tcp", true), ("udp", false)]);
}
