//! `slipway stat`: shows the attributes of objects on servers.

use client::NfsUrl;

use crate::{
    copy::{Kind, Meta},
    exit::Outcome,
    output,
    reach::{self, Reach, Tally},
    show::{self, ObjectJson},
};

/// Show the attributes of files and directories on servers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Times are UTC.

Examples:
  slipway stat nfs://server/export/file
  slipway stat --json nfs://server/export/file | jq .size")]
pub struct Args {
    /// Follow a symbolic link at the end of a path
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print each object as a line of JSON
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
        let mut tally = Tally::new("stat");
        for url in &args.urls {
            let Some((node, meta)) = tally.check(reach.object(url, args.dereference).await) else { continue };
            let target = match meta.kind {
                Kind::Symlink => tally.check(node.read_link().await.map_err(crate::exit::Failure::failed)),
                _ => None,
            };
            if args.json {
                output::json(&ObjectJson::new(node.path(), &meta, target.as_deref()));
            } else {
                output::print(&text(node.path(), &meta, target.as_deref()));
            }
        }
        Ok(tally.exit())
    })
}

fn text(path: &[u8], meta: &Meta, target: Option<&[u8]>) -> String {
    let arrow = target.map_or(String::new(), |target| format!(" -> {}", output::name(target)));
    let device = match meta.kind {
        Kind::Block | Kind::Char => format!(", device {}:{}", meta.device.0, meta.device.1),
        _ => String::new(),
    };
    let fileid = meta.id.map_or("unknown".to_owned(), |(fsid, fileid)| format!("{fileid} on file system {fsid:#x}"));
    format!(
        "  File: {}{arrow}\n  Type: {}{device}\n  Size: {} bytes, {} bytes of storage\n  Mode: {:04o} ({})\n Owner: {}, \
         group {}\n Links: {}\nFileid: {}\nAccess: {}\nModify: {}\nChange: {}\n",
        output::name(path),
        meta.kind.name(),
        meta.size,
        meta.used,
        meta.mode,
        show::mode(meta),
        meta.uid,
        meta.gid,
        meta.nlink,
        fileid,
        show::time(meta.atime),
        show::time(meta.mtime),
        show::time(meta.ctime),
    )
}
