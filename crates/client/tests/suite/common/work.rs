//! Work whose results show if an operation was executed twice or not at all.

use client::{CreateHow, Mount, SetAttr};

use super::pattern;

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
