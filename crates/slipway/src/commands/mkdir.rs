//! `slipway mkdir`: makes directories on servers.

use bytes::Bytes;
use client::{NfsUrl, Status};

use crate::{
    copy::{Kind, Remote},
    exit::{Failure, Outcome},
    reach::{self, Reach, Tally},
};

/// Make directories on servers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway mkdir nfs://server/export/new
  slipway mkdir -p nfs://server/export/a/b/c
  slipway mkdir -m 700 nfs://server/export/private")]
pub struct Args {
    /// Make missing parents, and accept a directory that exists
    #[arg(short, long)]
    parents: bool,
    /// Permission bits of the new directory, in octal
    #[arg(short, long, default_value = "755", value_parser = mode)]
    mode: u32,
    /// The directories: nfs://host[:port]/export/path[?proto=tcp|udp|rdma&…]
    #[arg(value_name = "URL", required = true)]
    urls: Vec<NfsUrl>,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o7777);
    mode.ok_or_else(|| "a mode has up to four octal digits, for example 755".to_owned())
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    reach::run(async {
        let (reach, mut tally) = (Reach::new(), Tally::new("mkdir"));
        for url in &args.urls {
            let made = if args.parents { all(&reach, url, args.mode).await } else { one(&reach, url, args.mode).await };
            tally.check(made);
        }
        Ok(tally.exit())
    })
}

async fn one(reach: &Reach, url: &NfsUrl, mode: u32) -> Result<(), Failure> {
    let (dir, name) = reach.parent(url).await?;
    dir.make_new_dir(&name, mode).await.map_err(|error| reach::failure(url, &error))
}

/// Makes the missing directories, from the top.
async fn all(reach: &Reach, url: &NfsUrl, mode: u32) -> Result<(), Failure> {
    let mount = reach.mount(url).await?;
    // A part of the URL's path that could not be mounted may be missing. Walk its parents.
    let mut missing: Vec<Bytes> = Vec::new();
    let mut path = url.path.clone();
    let mut found = mount.resolve("").await;
    while found.as_ref().is_err_and(client::Error::is_not_found) {
        let Some((dir, name)) = reach::split(&path) else { break };
        missing.push(name);
        found = reach.mount(&url.with_path(dir.clone())).await?.resolve("").await;
        path = dir;
    }
    let object = found.map_err(|error| reach::failure(url, &error))?;
    let mut node = Remote::new(object.mount, object.handle, path);
    while let Some(name) = missing.pop() {
        // The owner must be able to enter the parents, whatever the mode of the last directory.
        let mode = if missing.is_empty() { mode } else { 0o755 };
        match node.make_new_dir(&name, mode).await {
            Ok(()) => {}
            Err(error) if error.status() == Some(Status::AlreadyExists) => {}
            Err(error) => return Err(reach::failure(url, &error)),
        }
        let child = node.child(&name).await.map_err(Failure::failed)?;
        node = child.ok_or_else(|| Failure::failed(format!("{url}: was removed by another program")))?.0;
    }
    match node.meta().await.map_err(Failure::failed)?.kind {
        Kind::Dir => Ok(()),
        kind => Err(Failure::failed(format!("{url}: is a {}", kind.name()))),
    }
}
