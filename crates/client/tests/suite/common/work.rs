//! Work of a client, and checks of its results.

use client::{CreateHow, DataWays, File, Mount, SetAttr};

use super::pattern;

/// Writes a new file that has the [pattern].
pub async fn written(mount: &Mount, name: &str, len: usize) -> File {
    let file = mount.create(name, 0o644).await.unwrap();
    let mut writer = file.writer();
    writer.write(pattern(len)).await.unwrap();
    writer.close().await.unwrap();
    file
}

/// Checks that a file has the [pattern].
pub async fn check(mount: &Mount, name: &str, len: usize) {
    assert!(mount.read(name).await.unwrap() == pattern(len), "{name} must have what was written");
}

/// Returns how much data went through the metadata server, and how much directly to data servers.
pub fn ways(mount: &Mount) -> DataWays {
    mount.v4().unwrap().data_ways()
}

/// Writes a file in the root of `mount`, and meanwhile executes operations that would fail if they were executed twice.
pub async fn all_is_done_once(mount: &Mount, about: &str) {
    let data = pattern(500_000);
    let mut writer = mount.create("data", 0o644).await.unwrap().writer();
    for (i, chunk) in data.chunks(20_000).enumerate() {
        writer.write(data.slice_ref(chunk)).await.unwrap();
        let (dir, from, to) = (format!("dir{i}"), format!("dir{i}/from"), format!("dir{i}/to"));
        mount.mkdir(&dir, 0o755).await.unwrap_or_else(|error| panic!("{about}: {error}"));
        let (_, handle, _) = mount.parent(from.as_bytes()).await.unwrap();
        mount.protocol().create(&handle, b"from", CreateHow::Guarded(SetAttr::default())).await.unwrap();
        mount.rename(&from, &to).await.unwrap();
        mount.link(&to, format!("link{i}")).await.unwrap();
        mount.remove(&to).await.unwrap();
        mount.rmdir(&dir).await.unwrap();
    }
    writer.close().await.unwrap();
    assert!(mount.read("data").await.unwrap() == data, "{about}");
}

/// Checks through another mount that the results of [`all_is_done_once`] exist.
pub async fn all_was_done_once(mount: &Mount, about: &str) {
    assert!(mount.read("data").await.unwrap() == pattern(500_000), "{about}");
    assert_eq!(mount.read_dir("").await.unwrap().collect().await.unwrap().len(), 26, "{about}");
}
