//! Tests of callbacks between a version 4 server and our client, on the simulated network and in virtual time.

use std::time::Duration;

use bytes::Bytes;
use client::{LockRange, Mount, V4};
use rdma::sim::Cut;
use testkit::world::{Setup, World};
use tokio::time::Instant;

async fn two(world: &World) -> (Mount, Mount) {
    (world.client(1, "&vers=4.2").await, world.client(2, "&vers=4.2").await)
}

fn v4(mount: &Mount) -> &V4 {
    mount.v4().expect("mount must have version 4")
}

#[test]
fn a_waiting_client_gets_a_lock_as_soon_as_it_is_free() {
    Setup::new(1).run(|world| async move {
        let (one, other) = two(&world).await;
        one.write("/f", &b"0123456789"[..]).await.unwrap();
        let file = one.resolve("/f").await.unwrap().handle;
        let all = LockRange { offset: 0, length: u64::MAX, exclusive: true };
        assert_eq!(v4(&one).lock(&file, b"a", all).await.unwrap(), None);
        let waiting = {
            let (other, file) = (other.clone(), file.clone());
            tokio::spawn(async move { v4(&other).lock_wait(&file, b"b", all).await.map(|()| Instant::now()) })
        };
        // Much less than the interval of the client's own retries.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished());
        let freed = Instant::now();
        v4(&one).unlock(&file, b"a", 0, u64::MAX).await.unwrap();
        let had = waiting.await.unwrap().unwrap();
        assert!(had - freed < Duration::from_secs(1), "{:?}", had - freed);
    });
}

#[test]
fn getattr_sees_writes_and_leaves_the_delegation() {
    Setup::new(2).run(|world| async move {
        let (one, other) = two(&world).await;
        other.write("/f", &b"old"[..]).await.unwrap();
        // The creator has closed the file by then.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let file = one.open("/f").await.unwrap();
        let before = other.stat("/f").await.unwrap();
        for size in [1000, 2000] {
            file.write_at(0, Bytes::from(vec![7; size])).await.unwrap();
            let asked = Instant::now();
            let seen = other.stat("/f").await.unwrap();
            assert_eq!(seen.size, size as u64);
            assert!(seen.mtime > before.mtime);
            // A DELAY would cause a longer pause.
            assert!(asked.elapsed() < Duration::from_millis(90), "{:?}", asked.elapsed());
            assert!(v4(&one).is_delegated(file.handle()), "the server must ask without recalling");
        }
        // An OPEN recalls the delegation.
        assert_eq!(other.read("/f").await.unwrap(), vec![7; 2000]);
        assert!(!v4(&one).is_delegated(file.handle()));
    });
}

#[test]
fn a_server_side_copy_completes_despite_lost_connections() {
    // More than the server copies before it replies.
    const LEN: u64 = 100 << 20;
    // The last run is not cut at all.
    for message in (0..12).chain([u64::from(u32::MAX)]) {
        Setup::new(message).run(|world| async move {
            let mount = world.client(1, "&vers=4.2").await;
            let from = mount.create("/from", 0o600).await.unwrap();
            from.write_at(LEN - 5, Bytes::from_static(b"bytes")).await.unwrap();
            let to = mount.create("/to", 0o600).await.unwrap();
            to.write_at(0, Bytes::from_static(b"other")).await.unwrap();
            world.network.cut_at(world.network.messages() + message, Cut::After);
            let (mut done, mut copies) = (0, 0);
            while done < LEN {
                let (count, _) = v4(&mount).copy((from.handle(), done), (to.handle(), done), LEN - done).await.unwrap();
                assert!(count > 0);
                (done, copies) = (done + count, copies + 1);
            }
            // If the client cannot be called at the moment, the server replies after a part of the copy.
            assert!(done == LEN && (copies == 1 || message < 12), "cut at {message}: {copies}");
            assert_eq!(to.read_bytes(LEN - 6, 6).await.unwrap(), &b"\0bytes"[..]);
            assert_eq!(to.read_bytes(0, 5).await.unwrap(), &b"\0\0\0\0\0"[..]);
        });
    }
}
