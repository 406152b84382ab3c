//! Embeds a server with a back end of this program, and reads a file from it.
//!
//! `cargo run -p slipway-transports --example embed_server`

use std::{error::Error, io, net::SocketAddr, sync::Arc};

use buf::Pool;
use rpc::{ServerBuilder, WorkerOptions, Workers};
use server::{
    Config, NfsServer,
    config::{BackendSettings, Backends, Opening, Settings, Tree},
};
use vfs::{
    Caller, CreateMode, Cred, Name, Report, SetAttr, Stability, Vfs,
    memory::{Memory, MemoryOptions},
};

/// Opens the back end `note`: one file with the text of the option `text`.
fn note(settings: &BackendSettings, opening: &Opening<'_>) -> io::Result<Tree> {
    let text = settings.options.get("text").cloned().unwrap_or_default();
    let tree = Memory::new(MemoryOptions { pool: opening.pool().clone(), ..Default::default() });
    let (root, name) = (Cred::root(), Name::new(b"note").expect("valid"));
    let caller = Caller::blocking(&root);
    let file = tree.create(&caller, &tree.root(), name, &CreateMode::Guarded(SetAttr::default()));
    let file = file.map_err(io::Error::other)?.handle;
    tree.write(&caller, &file, 0, &bytes::Bytes::from(text).into(), Stability::Unstable, Report::Nothing)
        .map_err(io::Error::other)?;
    Ok(Tree::volatile(Arc::new(tree)))
}

/// Serves over TCP on a free port while the [`Workers`] exist.
pub async fn serve() -> Result<(SocketAddr, Workers), Box<dyn Error>> {
    let mut backends = Backends::standard();
    backends.register("note", note);
    let text = "[[export]]\nname = '/notes'\nbackend = 'note'\noptions = { text = 'hello' }";
    let config = Config::parse_with(text, &backends)?;
    let pool = Pool::default();
    let nfs = NfsServer::open_with(&config, "unused: nothing survives".as_ref(), &pool, Settings::default())?;
    let server = nfs.services().into_iter().fold(rpc::Server::builder(), ServerBuilder::shared).build();
    let workers = Workers::new(WorkerOptions { threads: 1, ..Default::default() })?;
    let tcp = transports::for_server(&pool).find("tcp").ok_or("no tcp")?;
    let listener = tcp.listen("127.0.0.1:0".parse()?)?;
    let address = listener.local_addr();
    workers.listen(server, listener);
    tokio::spawn(nfs.upkeep());
    Ok((address, workers))
}

/// Runs the example.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let (address, _workers) = serve().await?;
    let mount = client::Mount::connect(&format!("nfs://{address}/notes").parse()?, &transports::for_client()).await?;
    let note = mount.read("note").await?;
    assert_eq!(note, "hello");
    println!("nfs://{address}/notes/note: {}", String::from_utf8_lossy(&note));
    Ok(())
}
