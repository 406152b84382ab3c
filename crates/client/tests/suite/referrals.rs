//! Referrals: file systems that are on other servers, in all minor versions of NFSv4, by path (RFC 8881 §11).

use std::{net::SocketAddr, sync::Arc};

use crate::common::{for_each, memory, port::Port, process, switch, tcp};
use client::{ErrorKind, Mount, Status};
use rpc::rpcbind::to_universal;
use server::{Client, Export, ExportId, ExportOptions, Exports, HandleKey, NfsServer, Referral, Squash};
use tokio::task::JoinSet;

/// Starts a server of `/m` with a referral at `/away` to these locations.
fn serve(address: SocketAddr, places: &[String]) -> (SocketAddr, JoinSet<()>) {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let mut exports = Exports::new();
    exports.add(Export::new("/m", ExportId::unique(), Arc::new(memory()), options).unwrap()).unwrap();
    if !places.is_empty() {
        let places = places.iter().map(|place| place.parse().unwrap()).collect();
        exports.refer(Referral::new("/away", places, vec![Client::any()]).unwrap()).unwrap();
    }
    process(&*tcp(), address, NfsServer::new(exports, HandleKey::random()).services())
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn place(address: SocketAddr, path: &str) -> String {
    format!("{}:{path}", to_universal(address))
}

async fn mount(address: SocketAddr, path: &str, vers: &str) -> Mount {
    let url = format!("nfs://{address}{path}?vers={vers}&uid=0&gid=0").parse().unwrap();
    Mount::connect(&url, &switch()).await.unwrap()
}

for_each! {
    [path_crosses_to_another_server unreachable_servers_are_named referral_loops_end]
    v4_0 = "4.0"
    v4_1 = "4.1"
    v4_2 = "4.2"
}

async fn path_crosses_to_another_server(vers: &str) {
    let (there, _there) = serve(anywhere(), &[]);
    let nowhere = Port::take();
    let (here, _here) = serve(anywhere(), &[place(nowhere.address(), "/m"), place(there, "/m/dir")]);
    let (direct, mount) = (mount(there, "/m", vers).await, mount(here, "/", vers).await);
    direct.mkdir("dir", 0o755).await.unwrap();
    mount.write("away/f", &b"content"[..]).await.unwrap();
    assert_eq!(direct.read("dir/f").await.unwrap(), "content");
    assert_eq!(mount.read("away/f").await.unwrap(), "content");
    mount.mkdir("away/d", 0o755).await.unwrap();
    mount.rename("away/f", "away/d/g").await.unwrap();
    mount.link("away/d/g", "away/h").await.unwrap();
    assert_eq!(mount.stat("away/h").await.unwrap().nlink, 2);
    let mut names: Vec<_> = mount.read_dir("away").await.unwrap().collect().await.unwrap();
    names.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(names.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), [&b"d"[..], b"h"]);
    // Leave the other server by `..`, and by a symbolic link.
    mount.write("away/../m/here", &b"here"[..]).await.unwrap();
    mount.symlink("/m/here", "away/link").await.unwrap();
    assert_eq!(mount.read("away/link").await.unwrap(), "here");
    let across = mount.rename("away/h", "m/h").await.unwrap_err();
    assert_eq!(across.status(), Some(Status::CrossDevice), "{across}");
    let found = mount.resolve("away/d").await.unwrap();
    assert_ne!(found.mount.number(), mount.number());
    assert_eq!(found.mount.url().port, Some(there.port()));
    mount.unmount().await.unwrap();
    // The path of a URL can cross to another server too.
    let mount = self::mount(here, "/away/d", vers).await;
    assert_eq!(mount.read("g").await.unwrap(), "content");
    assert_eq!(mount.stat("none").await.unwrap_err().status(), Some(Status::NotFound));
}

async fn unreachable_servers_are_named(vers: &str) {
    let nowhere = [Port::take(), Port::take()];
    let [gone, other] = [0, 1].map(|at| nowhere[at].address());
    let (here, _here) = serve(anywhere(), &[place(gone, "/m"), place(other, "/n")]);
    let mount = mount(here, "/", vers).await;
    let error = mount.read_dir("away").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Referral(_)), "{error}");
    for place in [place(gone, "/m"), place(other, "/n")] {
        assert!(error.to_string().contains(&place), "{error}");
    }
    mount.write("m/f", &b"local"[..]).await.unwrap();
}

async fn referral_loops_end(vers: &str) {
    let port = Port::take();
    let address = port.address();
    let (_, _server) = serve(address, &[place(address, "/")]);
    let mount = mount(address, "/", vers).await;
    mount.write("m/f", &b"content"[..]).await.unwrap();
    let through = |times| format!("{}m/f", "away/".repeat(times));
    assert_eq!(mount.read(through(3)).await.unwrap(), "content");
    let error = mount.read(through(20)).await.unwrap_err();
    assert!(error.to_string().contains("too many referrals"), "{error}");
}
