//! `slipway showmount`: lists the exports of a server, and the clients that have mounted them.

use client::{MountClient, NfsUrl};
use serde::Serialize;

use crate::{
    exit::{Exit, Outcome},
    output::{self, Align, Table},
    reach::{self, Reach},
};

/// List the exports of a server, or the clients that have mounted them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command asks the server's rpcbind for the port. If it has no rpcbind, give the port: nfs://host?mountport=2049

Examples:
  slipway showmount server
  slipway showmount -a server
  slipway showmount --json 'nfs://server?mountport=2049'")]
pub struct Args {
    /// List exports and the clients that can mount them (the default without -a)
    #[arg(short, long)]
    exports: bool,
    /// List clients and the exports that they have mounted, as the server remembers them
    #[arg(short, long, conflicts_with = "exports")]
    all: bool,
    /// Print one line of JSON for each export or mount
    #[arg(long)]
    json: bool,
    /// A host, or a URL: nfs://host[?mountport=…&mountproto=…]
    #[arg(value_name = "HOST", value_parser = server)]
    server: NfsUrl,
}

fn server(text: &str) -> Result<NfsUrl, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("nfs://{text}") };
    url.parse().map_err(|error: client::UrlError| error.problem)
}

#[derive(Serialize)]
struct Export {
    path: String,
    clients: Vec<String>,
}

#[derive(Serialize)]
struct Mounted {
    host: String,
    path: String,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let url = &args.server;
    reach::run(async {
        let reach = Reach::new();
        let mountd = MountClient::connect(url, reach.switch()).await.map_err(|error| reach::failure(url, &error))?;
        if args.all {
            let mounts = mountd.mounts().await.map_err(|error| reach::failure(url, &error))?;
            let mounts = mounts
                .iter()
                .map(|mount| Mounted { host: output::name(&mount.hostname), path: output::name(&mount.directory) });
            show(args, mounts, |mount| [mount.host.clone(), mount.path.clone()]);
        } else {
            let exports = mountd.exports().await.map_err(|error| reach::failure(url, &error))?;
            let exports = exports.iter().map(|export| Export {
                path: output::name(&export.dir),
                clients: export.groups.0.iter().map(|group| output::name(group)).collect(),
            });
            let clients = |export: &Export| match export.clients.is_empty() {
                true => "(everyone)".to_owned(),
                false => export.clients.join(","),
            };
            show(args, exports, |export| [export.path.clone(), clients(export)]);
        }
        Ok(Exit::Ok)
    })
}

fn show<T: Serialize>(args: &Args, items: impl Iterator<Item = T>, row: impl Fn(&T) -> [String; 2]) {
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
    for item in items {
        if args.json { output::json(&item) } else { table.row(row(&item).to_vec()) }
    }
    output::print(&table.text());
}
