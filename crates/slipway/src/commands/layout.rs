//! `slipway layout show`: shows on which data servers the data of a file are.

use std::path::{Path, PathBuf};

use serde_json::json;
use server::admin::{self, ClientName, Record};

use crate::{
    administrator::{self, ServerArgs},
    exit::{Exit, Failure, Outcome},
    output::{self, Align, Table},
    pnfs::records::{DataRecord, LayoutRecord, Request, label},
};

/// Show on which data servers the data of a file are.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command asks the running metadata server with that state directory. Only the server's user and root can use it. FILE is the path
of the file on the metadata server, in the directory of an export with backend = \"pnfs\".

Examples:
  slipway layout show /srv/data/file
  slipway layout show --json /srv/data/file | jq '.data.copies[] | select(.state != \"in_sync\")'")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the copies of a file, and who holds layouts
    Show {
        /// The path of the file on this machine
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print one object of JSON
        #[arg(long)]
        json: bool,
    },
}

/// A layout that a client holds.
struct Holder {
    client: ClientName,
    write: bool,
    recalled: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let Action::Show { file, json } = &args.action;
    let path = absolute(file)?;
    let answer: Vec<LayoutRecord> =
        administrator::ask(&args.server, &Request::Layout { path })?.collect::<Result<_, _>>()?;
    let [layout] = &answer[..] else { return Err(Failure::failed("the server has another version")) };
    let holders = if layout.layouts == 0 { Vec::new() } else { holders(args, layout)? };
    if *json {
        let mut value = json!(layout);
        let holder =
            |holder: &Holder| json!({ "client": holder.client, "write": holder.write, "recalled": holder.recalled });
        value["holders"] = holders.iter().map(holder).collect();
        output::json(&value);
    } else {
        output::print(&text(layout, &holders));
    }
    Ok(Exit::Ok)
}

/// Returns the path with symbolic links in its directories resolved, as the server knows it.
fn absolute(file: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("{}: {error}", file.display()));
    let path = std::path::absolute(file).map_err(failed)?;
    let path = match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(parent), Some(name)) => parent.map_err(failed)?.join(name),
        _ => path,
    };
    let text = path.into_os_string().into_string();
    text.map_err(|_| Failure::failed(format!("{}: the path is not UTF-8", file.display())))
}

/// Returns the clients that hold layouts of a file.
fn holders(args: &Args, layout: &LayoutRecord) -> Result<Vec<Holder>, Failure> {
    let mut holders = Vec::new();
    for record in administrator::ask(&args.server, &admin::Request::List { client: None })? {
        if let Record::Layout { client, file, write, recalled, .. } = record?
            && file.export == layout.export
            && file.fileid == Some(layout.fileid)
        {
            holders.push(Holder { client, write, recalled });
        }
    }
    Ok(holders)
}

fn text(layout: &LayoutRecord, holders: &[Holder]) -> String {
    let LayoutRecord { export, fileid, size, data, .. } = layout;
    let mut text = format!("inode {fileid} of {}, {}\n", output::name(export.as_bytes()), output::size(*size));
    match data {
        None => text.push_str("The data are on the metadata server.\n"),
        Some(data) => text.push_str(&copies(data)),
    }
    for Holder { client, write, recalled } in holders {
        let mode = if *write { "read and write" } else { "read" };
        let recalled = if *recalled { ", being recalled" } else { "" };
        text.push_str(&format!("client {client} holds a layout to {mode}{recalled}\n"));
    }
    text
}

fn copies(data: &DataRecord) -> String {
    let DataRecord { cluster, generation, write_epoch, read_epoch, compared, stripes, stripe_unit, copies } = data;
    let mut text = format!(
        "cluster {}, generation {generation}, epoch of writers {write_epoch}, of readers {read_epoch}\n",
        output::name(cluster.as_bytes())
    );
    if *compared {
        text.push_str("The copies may differ after a failure, and are being compared. Only the first one is read.\n");
    }
    if *stripes > 1 {
        text.push_str(&format!("{stripes} stripes, in units of {}\n", output::size(*stripe_unit)));
    }
    let (left, right) = (Align::Left, Align::Right);
    let columns = [("Stripe", right), ("Server", left), ("State", left), ("Object", left), ("URL", left)];
    let mut table = Table::new(&columns);
    for copy in copies {
        let url = copy.url.as_deref().map_or("not in the configuration".to_owned(), |url| output::name(url.as_bytes()));
        table.row(vec![
            copy.stripe.to_string(),
            label(copy.server, copy.server_name.as_deref()),
            copy.state.to_string(),
            copy.object.clone(),
            url,
        ]);
    }
    text.push_str(&table.text());
    text
}
