//! The blocking client, called from all kinds of threads.

use std::{
    cell::RefCell,
    io::{Read, Write},
};

use client::{
    ErrorKind, OpenOptions,
    blocking::{File, Mount, Reader, Runtime, Writer},
};
use tokio::runtime::Builder;

use crate::common::{Server, pattern};

/// Uses the API from this thread. The names of all objects that it creates begin with `name`.
fn exercise(mount: &Mount, name: &str) {
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
async fn all_kinds_of_threads_can_call_the_blocking_client() {
    let server = Server::memory().await;
    let url = format!("nfs://{}/m?uid=0&gid=0&vers=4.1", server.address).parse().unwrap();
    let switch = server.switch.clone();
    let threads = std::thread::spawn(move || {
        let runtime = Runtime::start().unwrap();
        let mount = runtime.connect(&url, &switch).unwrap();
        drop(runtime);
        // Several threads without a runtime at the same time.
        std::thread::scope(|scope| {
            for name in ["a", "b", "c"] {
                let mount = mount.clone();
                scope.spawn(move || exercise(&mount, name));
            }
        });
        mount
    });
    let mount = tokio::task::spawn_blocking(|| threads.join().unwrap()).await.unwrap();
    // A worker thread of another runtime, in a task.
    let task = tokio::spawn(async move {
        tokio::task::block_in_place(|| exercise(&mount, "task"));
        exercise(&mount, "worker");
        mount
    });
    let mount = task.await.unwrap();
    let listed = mount.run(|mount| async move { mount.read_dir("").await?.collect().await }).unwrap();
    assert_eq!(listed.len(), 5);
    // Any thread can drop the last reference.
    std::thread::spawn(move || mount.unmount().unwrap()).join().unwrap();
}

#[test]
fn panic_is_raised_in_the_caller_and_the_runtime_continues() {
    let runtime = Runtime::start().unwrap();
    let panics = runtime.clone();
    let caught = std::thread::spawn(move || panics.run(async { panic!("on purpose") })).join().unwrap_err();
    assert_eq!(caught.downcast_ref(), Some(&"on purpose"));
    assert_eq!(runtime.run(async { 7 }), 7);
    let inner = runtime.clone();
    let nested = std::thread::spawn(move || runtime.run(async move { inner.run(async { 7 }) })).join();
    let message = nested.unwrap_err();
    let message = message.downcast_ref::<&str>().unwrap();
    assert!(message.starts_with("a blocking call must not run on the thread"), "{message}");
}

/// Starts a server on threads of its own, which callers cannot block. Returns its address.
fn server() -> (String, rpc::Switch) {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::memory().await;
            sender.send((server.address.to_string(), server.switch.clone())).unwrap();
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().unwrap()
}

fn connect(runtime: &Runtime, (address, switch): &(String, rpc::Switch)) -> Mount {
    let url = format!("nfs://{address}/m?uid=0&gid=0&vers=4.1").parse().unwrap();
    runtime.connect(&url, switch).unwrap()
}

#[test]
fn mount_outlives_the_thread_that_made_it() {
    let server = server();
    let mount = std::thread::spawn(move || connect(&Runtime::start().unwrap(), &server)).join().unwrap();
    exercise(&mount, "after");
}

/// Uses its mount in its destructor.
struct Last(Mount);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.write("last", "words").unwrap();
        assert_eq!(self.0.read("last").unwrap(), "words");
    }
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

#[test]
fn client_can_be_used_and_dropped_in_thread_local_destructors() {
    let server = server();
    let other = connect(&Runtime::start().unwrap(), &server);
    std::thread::spawn(move || {
        // Destructors run in the reverse order of first use, so tokio's thread-local state is destroyed before this one
        // runs.
        LAST.with(|last| drop(last.borrow()));
        let mount = connect(&Runtime::start().unwrap(), &server);
        exercise(&mount, "thread");
        LAST.set(Some(Last(mount)));
    })
    .join()
    .unwrap();
    assert_eq!(other.read("last").unwrap(), "words");
}

/// Returns a value of each type, with outstanding requests.
fn everything(mount: &Mount, name: &str) -> (Mount, File, Reader, Writer) {
    mount.write(name, pattern(3 << 20)).unwrap();
    let file = mount.open(name).unwrap();
    let mut reader = file.reader();
    reader.read_exact(&mut [0; 10]).unwrap();
    let mut writer = mount.create(format!("{name}-new"), 0o644).unwrap().writer_at(0);
    writer.write_all(&pattern(1 << 20)).unwrap();
    (mount.clone(), file, reader, writer)
}

#[test]
fn values_in_use_can_be_dropped_in_asynchronous_code() {
    let server = server();
    for threads in [1, 2] {
        let mut builder = match threads {
            1 => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        };
        let runtime = builder.enable_all().build().unwrap();
        let mount = connect(&Runtime::start().unwrap(), &server);
        let used = everything(&mount, "of a task");
        runtime.block_on(async move {
            // Calls that block in a future, so that nothing else runs on this runtime meanwhile.
            let name = "of a future";
            drop(everything(&mount, name));
            mount.remove(name).unwrap();
            tokio::spawn(async move { drop((used, mount)) }).await.unwrap();
        });
    }
    // Drop on the thread of the client itself, which cannot wait for its own end.
    let runtime = Runtime::start().unwrap();
    let mount = connect(&runtime, &server);
    let used = everything(&mount, "of the client");
    runtime.run(async move { drop((used, mount)) });
    let (done, ended) = std::sync::mpsc::channel();
    let last = runtime.clone();
    let task = async move {
        drop(last);
        done.send(()).unwrap();
    };
    std::thread::spawn(move || runtime.run(task)).join().unwrap();
    ended.recv().unwrap();
}
