//! The blocking client, called from threads of every kind.

use std::io::{Read, Write};

use client::{ErrorKind, OpenOptions, blocking::Runtime};

use crate::common::{Server, pattern};

/// Uses the API from this thread; whatever it creates begins with `name`.
fn exercise(mount: &client::blocking::Mount, name: &str) {
    let path = |what: &str| format!("{name}-{what}");
    let data = pattern(3 << 20);
    mount.write(path("file"), data.clone()).unwrap();
    assert_eq!(mount.read(path("file")).unwrap(), data);
    assert_eq!(mount.stat(path("file")).unwrap().size, data.len() as u64);

    let file = mount.open(path("file")).unwrap();
    let mut into = vec![0; 100_000];
    assert_eq!(file.read_at(&mut into, 12_345).unwrap(), into.len());
    assert_eq!(into, data[12_345..][..into.len()]);
    assert_eq!(file.read_at(&mut into, data.len() as u64 - 7).unwrap(), 7);
    file.write_at(5, bytes::Bytes::from_static(b"five")).unwrap();
    let (read, buffer) = file.read_buffer(5, mount.as_async().pool().take(4));
    assert_eq!(&buffer[..read.unwrap()], b"five");

    mount.mkdir(path("dir"), 0o755).unwrap();
    let copy = mount.create(path("dir/copy"), 0o644).unwrap();
    let mut writer = copy.writer_at(0);
    data.chunks(70_000).for_each(|chunk| writer.write_all(chunk).unwrap());
    writer.flush().unwrap();
    let mut back = Vec::new();
    copy.reader().read_to_end(&mut back).unwrap();
    assert!(back == data, "the copy differs");
    let names: Vec<_> = mount.read_dir(path("dir")).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["copy"]);

    mount.rename(path("dir/copy"), path("moved")).unwrap();
    mount.rmdir(path("dir")).unwrap();
    mount.remove(path("moved")).unwrap();
    assert!(mount.stat(path("moved")).unwrap_err().is_not_found());
    let new = OpenOptions { create: Some(0o600), exclusive: true, ..OpenOptions::default() };
    assert!(matches!(mount.open_with(path("file"), new).err().unwrap().kind(), ErrorKind::Status(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_thread_may_call_the_blocking_client() {
    let server = Server::memory().await;
    let url = format!("nfs://{}/m?uid=0&gid=0&vers=4.1", server.address).parse().unwrap();
    let switch = server.switch.clone();
    let threads = std::thread::spawn(move || {
        let runtime = Runtime::start().unwrap();
        let mount = runtime.connect(&url, &switch).unwrap();
        drop(runtime);
        // Threads of no runtime, several at once.
        std::thread::scope(|scope| {
            for name in ["a", "b", "c"] {
                let mount = mount.clone();
                scope.spawn(move || exercise(&mount, name));
            }
        });
        mount
    });
    let mount = tokio::task::spawn_blocking(|| threads.join().unwrap()).await.unwrap();
    // A worker thread of another runtime, inside a task.
    let task = tokio::spawn(async move {
        tokio::task::block_in_place(|| exercise(&mount, "task"));
        exercise(&mount, "worker");
        mount
    });
    let mount = task.await.unwrap();
    let listed = mount.run(|mount| async move { mount.read_dir("").await?.collect().await }).unwrap();
    assert_eq!(listed.len(), 5);
    // The last owner may be any thread, too.
    std::thread::spawn(move || mount.unmount().unwrap()).join().unwrap();
}

#[test]
fn a_panic_in_an_operation_is_raised_in_its_caller_and_the_runtime_goes_on() {
    let runtime = Runtime::start().unwrap();
    let panics = runtime.clone();
    let caught = std::thread::spawn(move || panics.run(async { panic!("on purpose") })).join().unwrap_err();
    assert_eq!(caught.downcast_ref(), Some(&"on purpose"));
    assert_eq!(runtime.run(async { 7 }), 7);
    let inner = runtime.clone();
    let nested = std::thread::spawn(move || runtime.run(async move { inner.run(async { 7 }) })).join();
    let message = nested.unwrap_err();
    let message = message.downcast_ref::<&str>().unwrap();
    assert!(message.starts_with("a blocking call on the thread that drives"), "{message}");
}
