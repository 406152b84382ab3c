#[path = "../../../tests/suite/common/moving.rs"]
mod moving;
#[path = "../../../../testkit/src/process.rs"]
mod process;
#[path = "../../../tests/suite/common/wrapped.rs"]
mod wrapped;

use std::{net::SocketAddr, sync::Arc};

use buf::Pool;
use rpc::{Service, Switch, TcpKind, TcpOptions, TransportKind, rpcbind::to_universal};
use server::{Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash};
use simnet::{Network, NetworkOptions};
use tokio::task::JoinSet;
use vfs::{
    Vfs,
    memory::{Memory, MemoryOptions},
};

use self::{
    moving::{Gone, MoveState, Moving},
    process::process,
};
use super::*;
use crate::{LockRange, Mount};

struct Site {
    address: SocketAddr,
    state: Arc<MoveState>,
    _process: JoinSet<()>,
}

fn tcp(network: &Network) -> Arc<dyn TransportKind> {
    Arc::new(TcpKind::simulated(network.clone(), TcpOptions::default(), Pool::default()))
}

/// Runs a test in a simulation.
fn simulated(test: impl AsyncFnOnce(Network)) {
    simnet::simulate(0, || test(Network::new(NetworkOptions::default())));
}

/// Starts a server of one file system, which can move away.
fn site(network: &Network, vfs: Arc<dyn Vfs>) -> Site {
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let export = Export::new("/m", ExportId::unique(), vfs, options).unwrap();
    let nfs = NfsServer::new(export, HandleKey::random());
    let state = Arc::<MoveState>::default();
    let services: Vec<Arc<dyn Service>> = vec![wrapped::wrapped(Arc::new(nfs.nfs4()), Moving(state.clone()))];
    let (address, _process) = process(&*tcp(network), network.take_address(), services);
    Site { address, state, _process }
}

async fn mount(network: &Network, site: &Site) -> Mount {
    let mut switch = Switch::new();
    switch.register(tcp(network));
    let url = format!("nfs://{}/m?vers=4.1&uid=0&gid=0&timeo=600s", site.address).parse().unwrap();
    Mount::connect(&url, &switch).await.unwrap()
}

/// Returns a mount of a server with some files, that server, and another server of the same file system.
async fn filled(network: &Network) -> (Mount, Site, Site) {
    let vfs: Arc<dyn Vfs> = Arc::new(Memory::new(MemoryOptions::default()));
    let (from, to) = (site(network, vfs.clone()), site(network, vfs));
    let mount = mount(network, &from).await;
    mount.mkdir("d", 0o755).await.unwrap();
    for path in ["d/closed", "d/renamed", "open"] {
        mount.write(path, path).await.unwrap();
    }
    (mount, from, to)
}

async fn go_away(mount: &Mount, from: &Site, to: &Site) {
    let (places, fsid) = (vec![(to_universal(to.address), "/m")], mount.stat("").await.unwrap().fsid);
    *from.state.gone.lock() = Some(Gone { fsid, path: "/m", places, lease_moved: false });
}

#[test]
fn evicted_objects_are_found_again_and_open_ones_are_not_evicted() {
    simulated(async |network| {
        let (mount, from, to) = filled(&network).await;
        let direct = self::mount(&network, &to).await;
        let found = async |path| mount.resolve(path).await.unwrap().handle;
        let (dir, closed, renamed) = (found("d").await, found("d/closed").await, found("d/renamed").await);
        let file = mount.open("open").await.unwrap();
        go_away(&mount, &from, &to).await;

        let (v4, range) = (mount.v4().unwrap(), LockRange { offset: 0, length: 5, exclusive: true });
        assert_eq!(v4.lock(file.handle(), b"me", range).await.unwrap(), None);
        mount.write("new", "new").await.unwrap();
        let new = found("new").await;
        for handle in [&closed, &renamed] {
            mount.protocol().getattr(handle).await.unwrap();
        }
        mount.rename("d/renamed", "renamed").await.unwrap();
        let moves = &v4.server.moves;
        let known = |handle: &Handle| moves.known(handle).is_some();
        assert!([&dir, &closed, &renamed, &new, file.handle()].into_iter().all(known));

        let peer = moves.table.lock().servers[0].1.clone();
        for number in 0..2 * KNOWN_MAX {
            let other = Handle::from(Bytes::from(format!("another object {number}")));
            moves.link(&other, &peer, &other);
            assert!(moves.table.lock().links.len() <= KNOWN_MAX + 2);
        }
        assert!(![&dir, &closed, &renamed].into_iter().any(known), "unused objects must be evicted");
        assert!(known(&new) && known(file.handle()));
        // If the new server of the file were unknown, these requests would go to the former one and fail.
        let other_wants =
            async || direct.v4().unwrap().test_lock(direct.open("open").await.unwrap().handle(), b"me", range).await;
        assert!(other_wants().await.unwrap().is_some());
        v4.unlock(file.handle(), b"me", 0, 5).await.unwrap();
        assert_eq!(other_wants().await.unwrap(), None);
        let read =
            async |handle: &Handle| mount.protocol().read(handle, 0, 100).await.unwrap().data.to_bytes().unwrap();
        assert_eq!(
            (read(&closed).await, read(&renamed).await, read(&new).await),
            ("d/closed".into(), "d/renamed".into(), "new".into())
        );
        assert_eq!((found("d").await, found("d/closed").await), (dir, closed));
        mount.unmount().await.unwrap();
    });
}

#[test]
fn object_is_not_looked_up_below_another_file_system() {
    simulated(async |network| {
        let (mount, from, to) = filled(&network).await;
        let (root, v4) = (mount.root(), mount.v4().unwrap());
        let [dir, file] = [mount.resolve("d").await.unwrap(), mount.resolve("d/closed").await.unwrap()];
        go_away(&mount, &from, &to).await;
        mount.stat("").await.unwrap();
        // Set the names as if `d` belonged to another file system, which has moved to another directory of the same server.
        let peer = v4.server.moves.table.lock().servers[0].1.clone();
        let of_another = Attr { fsid: !dir.attr.fsid, ..dir.attr };
        v4.server.opens.found(root, b"d", &dir.handle, Some(&of_another));
        let peer_root = v4.server.moves.table.lock().moved.values().next().unwrap().root.clone();
        v4.server.moves.link(&dir.handle, &peer, &peer_root);
        assert_eq!(mount.protocol().getattr(&file.handle).await.unwrap().fileid, file.attr.fileid);
        mount.unmount().await.unwrap();
    });
}
