//! `slipway df`: total and free space on servers.

use client::NfsUrl;
use serde::Serialize;

use crate::{
    exit::{Failure, Outcome},
    output::{self, Align, Table},
    reach::{self, Reach, Tally},
};

/// Show total and free space of exports.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway df nfs://server/export
  slipway df -i nfs://server/export
  slipway df --json nfs://server/export | jq .bytes_available")]
pub struct Args {
    /// Count files instead of bytes
    #[arg(short, long)]
    inodes: bool,
    /// Print each export as a line of JSON
    #[arg(long)]
    json: bool,
    /// The exports: nfs://host[:port]/export[?proto=tcp|udp|rdma&…]
    #[arg(value_name = "URL", required = true)]
    urls: Vec<NfsUrl>,
}

#[derive(Serialize)]
struct Space {
    url: String,
    bytes_total: u64,
    bytes_free: u64,
    bytes_available: u64,
    files_total: u64,
    files_free: u64,
    files_available: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    reach::run(async {
        let (reach, mut tally) = (Reach::new(), Tally::new("df"));
        let mut spaces = Vec::new();
        for url in &args.urls {
            spaces.extend(tally.check(space(&reach, url).await));
        }
        if args.json {
            spaces.iter().for_each(output::json);
        } else if !spaces.is_empty() {
            output::print(&table(&spaces, args.inodes));
        }
        Ok(tally.exit())
    })
}

async fn space(reach: &Reach, url: &NfsUrl) -> Result<Space, Failure> {
    let mount = reach.mount(url).await?;
    let ok = mount.statfs("").await.map_err(|error| reach::failure(url, &error))?;
    Ok(Space {
        url: url.to_string(),
        bytes_total: ok.tbytes,
        bytes_free: ok.fbytes,
        bytes_available: ok.abytes,
        files_total: ok.tfiles,
        files_free: ok.ffiles,
        files_available: ok.afiles,
    })
}

fn table(spaces: &[Space], inodes: bool) -> String {
    let total = if inodes { "Files" } else { "Size" };
    let right = Align::Right;
    let columns = [("Export", Align::Left), (total, right), ("Used", right), ("Available", right), ("Use%", right)];
    let mut table = Table::new(&columns);
    for space in spaces {
        let (total, free, available) = match inodes {
            false => (space.bytes_total, space.bytes_free, space.bytes_available),
            true => (space.files_total, space.files_free, space.files_available),
        };
        let used = total.saturating_sub(free);
        // As in df: the part of the usable space that is used, rounded up.
        let usable = u128::from(used) + u128::from(available);
        let percent = (u128::from(used) * 100).div_ceil(usable.max(1));
        let number = |value: u64| if inodes { value.to_string() } else { output::size(value) };
        table.row(vec![space.url.clone(), number(total), number(used), number(available), format!("{percent}%")]);
    }
    table.text()
}
