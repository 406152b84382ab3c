//! Tests that idle connections are closed and reopened, in virtual time, and that their users do not notice it.

use std::time::Duration;

use simnet::seeds;
use testkit::world::Setup;

fn idles(after: Duration, query: &str, seed: u64) {
    Setup::new(seed).run(|world| async move {
        let mount = world.client(1, query).await;
        let mut mapped = 0;
        for round in 0..3u8 {
            let content = vec![round; 70_000];
            mount.write("/file", content.clone()).await.unwrap();
            assert_eq!(world.network.connections(), 1);
            tokio::time::sleep(after / 2).await;
            assert_eq!(world.network.connections(), 1, "the connection must be open");
            tokio::time::sleep(after).await;
            assert_eq!(world.network.connections(), 0, "an idle connection must be closed");
            assert_eq!(mount.read("/file").await.unwrap(), content);
            assert_eq!(world.network.connections(), 1, "the client must reconnect");
            // Registered memory belongs to the pool.
            let before = std::mem::replace(&mut mapped, mount.pool().stats().mapped);
            assert!(round == 0 || mapped == before, "the memory must be the same");
        }
    });
}

#[test]
fn the_client_closes_idle_connections() {
    for seed in seeds(5) {
        idles(Duration::from_secs(10), "&idle=10s", seed);
    }
}

#[test]
fn the_server_closes_idle_connections() {
    for seed in seeds(5) {
        idles(Duration::from_secs(360), "&idle=off", seed);
    }
}

#[test]
fn occasional_calls_keep_the_connection() {
    Setup::new(0).run(|world| async move {
        let mount = world.client(1, "&idle=10s").await;
        for _ in 0..100 {
            mount.stat("/").await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(world.network.connections(), 1);
        }
    });
}
