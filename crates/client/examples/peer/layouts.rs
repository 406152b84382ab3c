//! Checks of layouts of pNFS at the metadata server of another implementation: the way of the data, sizes, and two clients that use
//! one file in turn, so that the server recalls the layouts of each.

use client::Mount;

use crate::{data, mount, v4};

/// Runs all checks through the URL of an export whose server grants layouts for whole files.
pub async fn all(url: &str) {
    check_data_pass_the_server_by(url).await;
    check_sizes(url).await;
    check_two_clients(url).await;
}

async fn check_data_pass_the_server_by(url: &str) {
    let (mount, content) = (mount(url).await, data(LEN, 3));
    let file = mount.create("laid-out", 0o644).await.unwrap();
    // Not in the order of the file.
    for offset in (0..LEN).step_by(PART).rev() {
        let part = content.slice(offset as usize..LEN.min(offset + PART as u32) as usize);
        file.write_at(offset.into(), part).await.unwrap();
    }
    assert_eq!(file.stat().await.unwrap().size, u64::from(LEN));
    for (offset, len) in [(0, LEN as usize), (12_345, 234_567), (LEN - 1, 1)] {
        let read = file.read_bytes(offset.into(), len).await.unwrap();
        assert!(read == content.slice(offset as usize..offset as usize + len), "{len} bytes at {offset}");
    }
    let (by, through) = ways(&mount);
    assert!(by.0 >= u64::from(LEN) && by.1 == u64::from(LEN), "data servers: {by:?}");
    // A file has no layout before it is larger than the threshold. The first WRITE of this one is at its end.
    assert_eq!(through, (0, 0), "through the metadata server");
    drop(file);
    mount.unmount().await.unwrap();
}

/// The size is right while the client has layouts, and so are the bytes between two ends of the file.
async fn check_sizes(url: &str) {
    let (mount, other, content) = (mount(url).await, mount(url).await, data(LEN, 5));
    mount.write("resized", content.clone()).await.unwrap();
    let file = mount.open("resized").await.unwrap();
    for (cut, grown) in [(300_001, 500_000), (1, 200_000)] {
        file.set_len(cut).await.unwrap();
        assert_eq!(other.stat("resized").await.unwrap().size, cut);
        file.set_len(grown).await.unwrap();
        file.write_at(grown, content.slice(0..PART)).await.unwrap();
        assert_eq!(file.stat().await.unwrap().size, grown + PART as u64);
        assert_eq!(other.stat("resized").await.unwrap().size, grown + PART as u64);
        let expected = [&content[..cut as usize], &vec![0; (grown - cut) as usize], &content[..PART]].concat();
        assert!(file.read_bytes(0, LEN as usize).await.unwrap() == expected, "cut to {cut} and grown to {grown}");
        assert!(other.read("resized").await.unwrap() == expected, "cut to {cut} and grown to {grown}, by the other");
    }
    drop(file);
    mount.unmount().await.unwrap();
    other.unmount().await.unwrap();
}

/// Each client reads what the other has written, until both have read and written by layouts repeatedly.
async fn check_two_clients(url: &str) {
    let mounts = [mount(url).await, mount(url).await];
    let first = mounts[0].create("in-turn", 0o644).await.unwrap();
    first.write_at(0, data(LEN, 7)).await.unwrap();
    let files = [first, mounts[1].open("in-turn").await.unwrap()];
    let mut round = 0;
    let is_enough = |mount: &Mount| {
        let (by, _) = ways(mount);
        by.0 >= 5 * PART as u64 && by.1 >= 5 * PART as u64
    };
    while !mounts.iter().all(is_enough) {
        assert!(round < ROUNDS_MAX, "layouts: {:?}", mounts.map(|mount| ways(&mount)));
        let (writer, reader) = (&files[round % 2], &files[(round + 1) % 2]);
        let (offset, written) = ((round * 12_345 % LEN as usize) as u64, data(PART as u32, round as u32));
        writer.write_at(offset, written.clone()).await.unwrap();
        assert!(reader.read_bytes(offset, PART).await.unwrap() == written, "round {round}");
        round += 1;
    }
    drop(files);
    for mount in mounts {
        mount.unmount().await.unwrap();
    }
}

/// Returns the bytes that were read and written at data servers, and through the metadata server.
fn ways(mount: &Mount) -> ((u64, u64), (u64, u64)) {
    let ways = v4(mount).data_ways();
    let bytes = |count: client::DataCount| (count.read_bytes, count.write_bytes);
    (bytes(ways.data_servers), bytes(ways.server))
}

/// Bytes of a file.
const LEN: u32 = 1_000_003;
/// Bytes of each WRITE.
const PART: usize = 100_000;
const ROUNDS_MAX: usize = 5000;
