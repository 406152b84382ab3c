//! Reading and writing data, against a server in the same process.

use std::sync::atomic::Ordering;

use crate::common::{Server, faulty::Faulty, for_each_version, memory, pattern};
use buf::Buffer;
use bytes::{Bytes, BytesMut};
use client::{File, Mount, Status};
use nfs::v3::StableHow;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

for_each_version! {
    read_at_fills_and_returns_the_buffer
    failed_read_returns_the_buffer
    read_ahead_and_write_behind_transfer_any_size
    skipped_ranges_are_holes_that_read_as_zeros
    data_lost_in_a_server_restart_are_written_again
    small_file_costs_one_write_and_no_commit
    flush_returns_write_errors_and_later_calls_repeat_them
    operations_by_handle_work
}

async fn read_all(file: &File) -> Bytes {
    let mut all = BytesMut::new();
    let mut reader = file.reader();
    while let Some(bytes) = reader.next().await.unwrap() {
        assert!(!bytes.is_empty());
        all.extend_from_slice(&bytes);
    }
    all.freeze()
}

async fn read_at_fills_and_returns_the_buffer(vers: &str) {
    let server = Server::memory().await;
    let mount = server.mount(&format!("{vers}&rsize=64K")).await;
    let data = pattern(300_000);
    mount.write("f", data.clone()).await.unwrap();
    let file = mount.open("f").await.unwrap();
    for (offset, len) in [(0, 65536), (1, 100), (0, 300_000), (299_990, 100), (65_535, 200_000), (400_000, 10), (5, 0)]
    {
        for buffer in [Buffer::zeroed(len), mount.pool().take(len)] {
            let at = buffer.as_ptr();
            let (read, buffer) = file.read_at(offset, buffer).await;
            let expected = &data[data.len().min(offset as usize)..data.len().min(offset as usize + len)];
            assert_eq!(read.unwrap(), expected.len());
            assert_eq!((buffer.len(), buffer.as_ptr()), (len, at), "the same buffer must return");
            assert_eq!(&buffer[..expected.len()], expected);
        }
        assert_eq!(
            file.read_bytes(offset, len).await.unwrap(),
            data.slice(data.len().min(offset as usize)..data.len().min(offset as usize + len))
        );
    }
    let buffers = (0..6).map(|_| mount.pool().take(65536)).collect();
    let (read, buffers) = file.read_many_at(10, buffers).await;
    assert_eq!(read.unwrap(), data.len() - 10);
    let joined: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.to_vec()).take(data.len() - 10).collect();
    assert_eq!(joined, data[10..]);
}

async fn failed_read_returns_the_buffer(vers: &str) {
    let server = Server::memory().await;
    let mount = server.mount(vers).await;
    let dir = File::new(mount.clone(), mount.root().clone(), "the root");
    for len in [100, 3 << 20] {
        let (result, buffer) = dir.read_at(0, Buffer::zeroed(len)).await;
        let error = result.unwrap_err();
        assert!(matches!(error.status(), Some(Status::IsADirectory | Status::InvalidArgument)), "{error}");
        assert!(error.to_string().starts_with("the root: "), "{error}");
        assert_eq!(buffer.len(), len);
    }
}

async fn read_ahead_and_write_behind_transfer_any_size(vers: &str) {
    let server = Server::memory().await;
    let mut rng = StdRng::seed_from_u64(7);
    for round in 0..30 {
        let (rsize, wsize) = (512 * rng.random_range(1..100), 512 * rng.random_range(1..100));
        let (ahead, behind) = (rng.random_range(0..400_000), rng.random_range(0..400_000));
        let query = format!("{vers}&rsize={rsize}&wsize={wsize}&readahead={ahead}&writebehind={behind}");
        let mount = server.mount(&query).await;
        let data = pattern(rng.random_range(0..1_500_000));
        let file = mount.create(format!("f{round}"), 0o644).await.unwrap();
        let mut writer = file.writer();
        let mut at = 0;
        while at < data.len() {
            let most = if rng.random_bool(0.5) { 3000 } else { 200_000 };
            let len = rng.random_range(1..most).min(data.len() - at);
            writer.write(data.slice(at..at + len)).await.unwrap();
            at += len;
            assert_eq!(writer.position(), at as u64);
            if rng.random_bool(0.05) {
                writer.flush().await.unwrap();
            }
        }
        writer.close().await.unwrap();
        assert_eq!(read_all(&file).await, data, "seed 7, round {round}: {query}");
        let (start, end) = (rng.random_range(0..1_500_000), rng.random_range(0..1_500_000));
        let mut reader = file.reader_range(start, end);
        let mut range = Vec::new();
        reader.read_to_end(&mut range).await.unwrap();
        let from = data.len().min(start as usize);
        assert_eq!(range, data[from..data.len().min(end as usize).max(from)]);
    }
}

#[tokio::test]
async fn readers_and_writers_implement_tokio_traits() {
    let server = Server::memory().await;
    let mount = server.mount("wsize=4K&rsize=4K&writebehind=20K").await;
    let data = pattern(100_001);
    let mut writer = mount.create("f", 0o644).await.unwrap().writer();
    for chunk in data.chunks(777) {
        writer.write_all(chunk).await.unwrap();
    }
    writer.shutdown().await.unwrap();
    let mut back = Vec::new();
    let mut reader = mount.open("f").await.unwrap().reader();
    tokio::io::copy(&mut reader, &mut back).await.unwrap();
    assert_eq!(back, data);
}

async fn skipped_ranges_are_holes_that_read_as_zeros(vers: &str) {
    let server = Server::memory().await;
    let mount = server.mount(vers).await;
    let file = mount.create("f", 0o644).await.unwrap();
    let mut writer = file.writer();
    writer.write(Bytes::from_static(b"begin")).await.unwrap();
    writer.skip(10 << 20);
    writer.write(Bytes::from_static(b"end")).await.unwrap();
    writer.skip(5);
    assert_eq!(writer.position(), (10 << 20) + 13);
    writer.close().await.unwrap();
    let attr = file.stat().await.unwrap();
    assert_eq!(attr.size, (10 << 20) + 13);
    assert!(attr.used < 1 << 20, "{} bytes used", attr.used);
    let data = read_all(&file).await;
    assert_eq!((&data[..5], &data[data.len() - 8..]), (&b"begin"[..], &b"end\0\0\0\0\0"[..]));
    assert!(data[5..data.len() - 8].iter().all(|&byte| byte == 0));
}

async fn data_lost_in_a_server_restart_are_written_again(vers: &str) {
    let mut rng = StdRng::seed_from_u64(11);
    for round in 0..20 {
        let restarts = (0..rng.random_range(1..6)).map(|_| rng.random_range(0..36)).collect();
        let vfs = Faulty::new(memory(), restarts);
        let server = Server::start(vfs.clone()).await;
        let mount = server.mount(&format!("{vers}&wsize=16K&writebehind={}K", rng.random_range(32..2000))).await;
        let data = pattern(600_000 + round);
        let file = mount.create("f", 0o644).await.unwrap();
        let mut writer = file.writer();
        for chunk in data.chunks(50_000) {
            writer.write(data.slice_ref(chunk)).await.unwrap();
        }
        writer.close().await.unwrap();
        // Committed data survive a restart.
        vfs.restart();
        assert_eq!(read_all(&file).await, data, "seed 11, round {round}");
        assert!(vfs.boots() > 1, "the server must have restarted during the writes");
    }
}

async fn small_file_costs_one_write_and_no_commit(vers: &str) {
    let vfs = Faulty::new(memory(), Vec::new());
    let server = Server::start(vfs.clone()).await;
    let mount = server.mount(vers).await;
    mount.write("f", &b"small"[..]).await.unwrap();
    assert_eq!((vfs.writes(), vfs.commits.load(Ordering::SeqCst)), (1, 0));
    mount.create("g", 0o644).await.unwrap().writer().close().await.unwrap();
    assert_eq!((vfs.writes(), vfs.commits.load(Ordering::SeqCst)), (1, 0));
    mount.write("h", pattern(5 << 20)).await.unwrap();
    assert_eq!((vfs.writes(), vfs.commits.load(Ordering::SeqCst)), (6, 1));
}

async fn flush_returns_write_errors_and_later_calls_repeat_them(vers: &str) {
    let server = Server::memory().await;
    let mount = server.mount(vers).await;
    let root = File::new(mount.clone(), mount.root().clone(), "the root");
    let mut writer = root.writer();
    writer.write(Bytes::from_static(b"not to a directory")).await.unwrap();
    let error = writer.flush().await.unwrap_err();
    assert!(error.to_string().starts_with("the root: "), "{error}");
    assert_eq!(writer.write(Bytes::from_static(b"x")).await.unwrap_err().to_string(), error.to_string());
    assert_eq!(writer.close().await.unwrap_err().to_string(), error.to_string());
}

async fn operations_by_handle_work(vers: &str) {
    let server = Server::memory().await;
    let mount: Mount = server.mount(vers).await;
    let file = mount.create("f", 0o644).await.unwrap();
    let protocol = mount.protocol();
    let ok = protocol.write(file.handle(), 3, Bytes::from_static(b"abc").into(), StableHow::Unstable).await.unwrap();
    assert_eq!(ok.count, 3);
    assert_eq!(protocol.commit(file.handle()).await.unwrap(), ok.verf);
    let read = protocol.read(file.handle(), 0, 100).await.unwrap();
    assert_eq!((read.data.to_bytes().unwrap(), read.eof), (Bytes::from_static(b"\0\0\0abc"), true));
    let found = protocol.lookup(mount.root(), b"f").await.unwrap();
    assert_eq!(&found.handle, file.handle());
    assert_eq!(protocol.getattr(file.handle()).await.unwrap().size, 6);
}
