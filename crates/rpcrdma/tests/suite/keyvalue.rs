//! The example of a user's own program does what it says, over every transport.

#[path = "../../examples/keyvalue.rs"]
#[allow(dead_code, reason = "its command line is not called here")]
mod example;

#[tokio::test]
async fn the_example_runs_over_every_transport() {
    let placed = example::everywhere().await.unwrap();
    assert_eq!(placed, [("rdma", true), ("tcp", true), ("udp", false)]);
}
