//! Tests the server of this crate with its back end.

use std::sync::{Arc, atomic::AtomicU64};

#[tokio::test]
async fn clients_reach_the_back_end() {
    let changes = Arc::new(AtomicU64::new(0));
    let config = "[[export]]\nname = '/audited'\nbackend = 'audited'\nsize = '1 MiB'";
    let (address, _workers) = outside::serve(config, changes.clone()).await.unwrap();
    for version in ["3", "4.2"] {
        let url = format!("nfs://{address}/audited?vers={version}").parse().unwrap();
        let mount = client::Mount::connect(&url, &transports::for_client()).await.unwrap();
        mount.write(version, "hello").await.unwrap();
        assert_eq!(mount.read(version).await.unwrap(), "hello");
        mount.remove(version).await.unwrap();
    }
    assert_eq!(changes.load(std::sync::atomic::Ordering::Relaxed), 4, "creating and removing two files must count four changes");
    let unknown = outside::serve("[[export]]\nname = '/a'\nbackend = 'other'", changes).await.err().unwrap();
    assert!(unknown.to_string().contains("there are audited, memory, posix"), "{unknown}");
}
