//! Executes GETATTR by NFSv3 over tcp, one call at a time, with client and server in one process. It prints nothing:
//! its purpose is counting instructions, whose number does not depend on other load of the machine:
//!
//! ```text
//! CARGO_PROFILE_BENCH_DEBUG=1 cargo bench -p slipway-server --bench getattr --no-run
//! valgrind --tool=callgrind target/release/deps/getattr-* 10000
//! callgrind_annotate --inclusive=yes callgrind.out.*
//! ```
//!
//! Compare the inclusive counts of `rpc::server::Server::execute` and `rpc::client::Client::call`. The rest includes
//! polling of the sockets, which depends on timing.

#[path = "../tests/suite/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::{auth_sys, memory};
use nfs::{
    mount::{Dirpath, MountProc3, MountRes},
    v3::{GetAttr, GetAttrArgs, Procedure3},
};
use rpc::{CallOptions, Client, ClientOptions, Credential, ReplyPlan, TcpKind, TransportKind, WorkerOptions, Workers};
use server::{Export, ExportId, HandleKey, NfsServer};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let calls = std::env::args().find_map(|text| text.parse::<u32>().ok()).unwrap_or(10_000);
    let export = Export::new("/m", ExportId::unique(), memory(), Default::default()).expect("export must be valid");
    let nfs = NfsServer::new(export, HandleKey::random());
    let server = nfs.services().into_iter().fold(rpc::Server::builder(), rpc::ServerBuilder::shared).build();
    let kind: Arc<dyn TransportKind> = Arc::new(TcpKind::default());
    let listener = kind.listen(([127, 0, 0, 1], 0).into()).expect("cannot listen");
    let address = listener.local_addr();
    let workers =
        Workers::new(WorkerOptions { threads: 1, ..WorkerOptions::default() }).expect("cannot start the worker");
    workers.listen(server, listener);

    let options =
        ClientOptions { credential: Credential::Sys(auth_sys(1000, 100)), ..ClientOptions::new(nfs::NFS_PROGRAM, 3) };
    let client = Client::connect(kind, address, options).await.expect("cannot connect");
    let (mount, root) = (client.with_program(nfs::MOUNT_PROGRAM, 3), Dirpath::from("/m"));
    let plan = || ReplyPlan { inline_max: 1024, ..ReplyPlan::default() };
    let mounted = mount.call::<MountRes>(MountProc3::Mnt as u32, &root, plan(), CallOptions::default()).await;
    let MountRes::Ok(mounted) = mounted.expect("MNT must be answered").results else { panic!("MNT must succeed") };
    let args = GetAttrArgs { object: mounted.fhandle };
    for _ in 0..calls {
        let procedure = GetAttr::NUMBER as u32;
        let answer =
            client.call::<<GetAttr as Procedure3>::Res>(procedure, &args, plan(), CallOptions::default()).await;
        answer.expect("GETATTR must be answered").results.into_result().expect("GETATTR must succeed");
    }
}
