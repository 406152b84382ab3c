//! What a server of version 4 and our client say to each other unasked, on the simulated fabric and in virtual time.

use std::time::Duration;

use bytes::Bytes;
use client::{LockRange, Mount, V4};
use testkit::world::{Setup, World};
use tokio::time::Instant;

async fn two(world: &World) -> (Mount, Mount) {
    (world.client(1, "&vers=4.2").await, world.client(2, "&vers=4.2").await)
}

fn v4(mount: &Mount) -> &V4 {
    mount.v4().expect("a mount of version 4")
}

#[test]
fn who_waits_for_a_lock_has_it_as_soon_as_it_is_free() {
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
        // Far less than the time after which it asks again by itself.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished());
        let freed = Instant::now();
        v4(&one).unlock(&file, b"a", 0, u64::MAX).await.unwrap();
        let had = waiting.await.unwrap().unwrap();
        assert!(had - freed < Duration::from_secs(1), "{:?}", had - freed);
    });
}

#[test]
fn what_a_writer_has_written_is_seen_by_others_and_leaves_him_his_delegation() {
    Setup::new(2).run(|world| async move {
        let (one, other) = two(&world).await;
        other.write("/f", &b"old"[..]).await.unwrap();
        // Whoever made it has closed it by then.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let file = one.open("/f").await.unwrap();
        let before = other.stat("/f").await.unwrap();
        for size in [1000, 2000] {
            file.write_at(0, Bytes::from(vec![7; size])).await.unwrap();
            let asked = Instant::now();
            let seen = other.stat("/f").await.unwrap();
            assert_eq!(seen.size, size as u64);
            assert!(seen.mtime > before.mtime);
            // Who is told to come again waits longer.
            assert!(asked.elapsed() < Duration::from_millis(90), "{:?}", asked.elapsed());
            assert!(v4(&one).is_delegated(file.handle()), "it was asked, and nothing taken from it");
        }
        // But who opens it is another matter.
        assert_eq!(other.read("/f").await.unwrap(), vec![7; 2000]);
        assert!(!v4(&one).is_delegated(file.handle()));
    });
}
