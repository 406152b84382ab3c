//! `slipway ds`: lists the data servers of a running pNFS server, and takes one out of service.

use std::{num::NonZeroU32, thread::sleep, time::Duration};

use crate::{
    administrator::{self, ServerArgs},
    exit::{Exit, Failure, Outcome},
    output::{self, Align, Table},
    pnfs::records::{DataServerRecord, DataServerState, Request, Service},
};

/// List the data servers of a pNFS server on this machine, and take one out of service.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command asks the running metadata server with that state directory. Only the server's user and root can use it. ID is the
number of a data server in the configuration. The states are durable, and the work continues after a restart of the server.

A data server that is added to the configuration is used after a restart of the metadata server.

Examples:
  slipway ds list
  slipway ds drain 3 && slipway resilver --watch
  slipway ds lost 2 --cluster fast
  slipway ds list --json | jq 'select(.state == \"failing\")'")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the data servers: their state, objects, and stale copies
    List {
        /// Print each data server as a line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Move all copies to other data servers, and create no new ones there. Files stay in use meanwhile
    Drain(Target),
    /// Return a data server to service
    Undrain(Target),
    /// Make all copies again that were on this data server, which is gone with its objects and is never contacted again. The exit
    /// code is 1 if files have lost their last copy; standard error lists them
    Lost(Target),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// The number of the data server in the configuration
    #[arg(value_name = "ID")]
    id: NonZeroU32,
    /// The name of the [[pnfs]] table, if exports use several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    match &args.action {
        Action::List { json } => list(args, *json),
        Action::Drain(target) => {
            set(args, target, Service::Draining)?;
            let left = find(args, target)?;
            output::print(&format!(
                "{} copies are being moved. `slipway resilver --watch` waits for the end.\n",
                left.objects
            ));
            Ok(Exit::Ok)
        }
        Action::Undrain(target) => set(args, target, Service::Active),
        Action::Lost(target) => {
            set(args, target, Service::Lost)?;
            report_lost(args, target)
        }
    }
}

fn data_servers(args: &Args) -> Result<Vec<DataServerRecord>, Failure> {
    administrator::ask(&args.server, &Request::DataServers {})?.collect()
}

fn set(args: &Args, target: &Target, service: Service) -> Outcome {
    let (cluster, server) = (target.cluster.clone(), target.id.get());
    let request = Request::SetService { cluster, server, service };
    administrator::ask::<DataServerRecord, _>(&args.server, &request)?.try_for_each(|record| record.map(drop))?;
    Ok(Exit::Ok)
}

fn find(args: &Args, target: &Target) -> Result<DataServerRecord, Failure> {
    let wanted = |server: &DataServerRecord| {
        server.id == target.id.get() && target.cluster.as_ref().is_none_or(|cluster| *cluster == server.cluster)
    };
    let found = data_servers(args)?.into_iter().find(wanted);
    found.ok_or_else(|| Failure::failed(format!("there is no data server {}", target.id)))
}

/// Waits until the server has examined all objects of a lost data server, and reports the files without a copy.
fn report_lost(args: &Args, target: &Target) -> Outcome {
    let server = loop {
        let server = find(args, target)?;
        if server.state != DataServerState::Lost || server.examined {
            break server;
        }
        sleep(PAUSE);
    };
    if server.lost == 0 {
        output::print(
            "No file has lost its last copy. `slipway resilver --watch` waits until all copies are made again.\n",
        );
        return Ok(Exit::Ok);
    }
    for file in &server.lost_files {
        let directory = output::name(file.directory.as_bytes());
        eprintln!("lost: inode {} of {directory} (find {directory} -xdev -inum {})", file.fileid, file.fileid);
    }
    if (server.lost_files.len() as u64) < server.lost {
        eprintln!("and {} more", server.lost - server.lost_files.len() as u64);
    }
    Err(Failure::failed(format!(
        "{} files have lost their last copy. If the data server is found again, `slipway ds undrain {}` recovers them",
        server.lost, target.id
    )))
}

fn list(args: &Args, json: bool) -> Outcome {
    let servers = data_servers(args)?;
    if json {
        servers.iter().for_each(output::json);
    } else {
        output::print(&text(&servers));
    }
    Ok(Exit::Ok)
}

fn text(servers: &[DataServerRecord]) -> String {
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("Cluster", left),
        ("ID", right),
        ("State", left),
        ("Objects", right),
        ("Stale", right),
        ("Lost files", right),
        ("URL", left),
    ]);
    let mut notes = String::new();
    for server in servers {
        let state = match server.failing_s {
            Some(seconds) if server.state == DataServerState::Failing => format!("failing for {seconds} s"),
            Some(_) if server.state != DataServerState::Lost => format!("{}, failing", server.state),
            _ => server.state.to_string(),
        };
        let url =
            server.url.as_deref().map_or("not in the configuration".to_owned(), |url| output::name(url.as_bytes()));
        table.row(vec![
            output::name(server.cluster.as_bytes()),
            server.id.to_string(),
            state,
            server.objects.to_string(),
            server.stale.to_string(),
            server.lost.to_string(),
            url,
        ]);
        if let Some(reason) = &server.reason {
            notes.push_str(&format!("{} copies cannot be moved from {} now: {reason}\n", server.unmovable, server.id));
        }
    }
    format!("{}{notes}", table.text())
}

/// The time between two looks at the progress.
const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_the_state_and_the_reason() {
        let server = DataServerRecord {
            cluster: "fast".to_owned(),
            id: 3,
            url: None,
            state: DataServerState::Draining,
            failing_s: Some(7),
            objects: 12,
            stale: 1,
            examined: true,
            unmovable: 2,
            reason: Some("all are full".to_owned()),
            lost: 0,
            lost_files: Vec::new(),
        };
        let failing = DataServerRecord { state: DataServerState::Failing, reason: None, ..server.clone() };
        let text = text(&[server, failing]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].contains("draining, failing") && lines[1].ends_with("not in the configuration"), "{text}");
        assert!(lines[2].contains("failing for 7 s"), "{text}");
        assert_eq!(lines[3], "2 copies cannot be moved from 3 now: all are full");
    }
}
