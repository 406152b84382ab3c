//! `slipway ls`: lists directories on servers.

use std::collections::VecDeque;

use bytes::Bytes;
use client::NfsUrl;

use crate::{
    copy::{Kind, Meta, Remote},
    exit::{Exit, Outcome},
    output::{self, Align, Table},
    reach::{self, Reach, Tally},
    show::{self, ObjectJson},
};

/// List directories on servers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Times are UTC. Control characters in names are escaped; --json has the exact names.

Examples:
  slipway ls nfs://server/export
  slipway ls -lR nfs://server/export/src
  slipway ls 'nfs://10.0.0.1:20049/export?proto=rdma'
  slipway ls --json nfs://server/export | jq -r 'select(.size > 1e9).path'")]
pub struct Args {
    /// Show mode, links, owner, group, size and time of the last write
    #[arg(short)]
    long: bool,
    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Also show names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// Show a directory itself, not its entries
    #[arg(short, long)]
    directory: bool,
    /// Print each object as a line of JSON, including names with a dot
    #[arg(long)]
    json: bool,
    /// The objects: nfs://host[:port]/export/path[?proto=tcp|udp|rdma&…]
    #[arg(value_name = "URL", required = true)]
    urls: Vec<NfsUrl>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    reach::run(async {
        let reach = Reach::new();
        let mut listing = Listing { args, tally: Tally::new("ls"), first: true };
        for url in &args.urls {
            // As ls does, follow a link to list its target, and show the link itself with -l or -d.
            let found = reach.object(url, !(args.directory || args.long)).await;
            if let Some((node, meta)) = listing.tally.check(found) {
                listing.argument(node, meta).await;
            }
        }
        Ok(listing.tally.exit())
    })
}

struct Listing<'a> {
    args: &'a Args,
    tally: Tally,
    first: bool,
}

impl Listing<'_> {
    async fn argument(&mut self, node: Remote, meta: Meta) {
        if meta.kind != Kind::Dir || self.args.directory {
            let name = node.path().clone();
            self.show(vec![(name.clone(), node, meta)]).await;
        } else {
            self.tree(node).await;
        }
    }

    async fn tree(&mut self, root: Remote) {
        let heads = self.args.recursive || self.args.urls.len() > 1;
        let mut pending = VecDeque::from([root]);
        while let Some(dir) = pending.pop_front() {
            let mut entries = match dir.list().await {
                Ok(entries) => entries,
                Err(error) => {
                    self.tally.fail(Exit::Failed, &error.to_string());
                    continue;
                }
            };
            if !self.args.all && !self.args.json {
                entries.retain(|(name, _, _)| !name.starts_with(b"."));
            }
            if heads && !self.args.json {
                let gap = if std::mem::take(&mut self.first) { "" } else { "\n" };
                output::print(&format!("{gap}{}:\n", output::name(dir.path())));
            }
            if self.args.recursive {
                // Depth first, in the order of names: new directories precede pending ones.
                let below = entries.iter().filter(|(_, _, meta)| meta.kind == Kind::Dir).rev();
                below.for_each(|(_, node, _)| pending.push_front(node.clone()));
            }
            self.show(entries).await;
        }
    }

    async fn show(&mut self, entries: Vec<(Bytes, Remote, Meta)>) {
        let columns = [Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Left, Align::Left];
        let mut table = Table::new(&columns.map(|align| ("", align)));
        for (name, node, meta) in &entries {
            let mut target = None;
            if meta.kind == Kind::Symlink && (self.args.long || self.args.json) {
                match node.read_link().await {
                    Ok(text) => target = Some(text),
                    Err(error) => self.tally.fail(Exit::Failed, &error.to_string()),
                }
            }
            if self.args.json {
                output::json(&ObjectJson::new(node.path(), meta, target.as_deref()));
            } else if self.args.long {
                table.row(show::long(name, meta, target.as_deref()));
            } else {
                output::print(&format!("{}\n", output::name(name)));
            }
        }
        output::print(&table.text());
    }
}
