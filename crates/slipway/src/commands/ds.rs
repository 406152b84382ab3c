//! `slipway ds`: lists the data servers of a running pNFS server, adds some, takes one out of service, moves copies between them, and
//! finds objects that no file has.

use std::thread::sleep;

use server::config::ByteSize;

use crate::{
    administrator::{self, PAUSE, Polling, ServerArgs},
    exit::{Exit, Failure, Outcome},
    output::{self, Align, Table},
    pnfs::records::{
        AddedRecord, DataServerRecord, DataServerState, OrphanRecord, PlanRecord, PlannedServer, RebalanceRecord,
        Request, ScanRecord, ServerRef, Service, label,
    },
    progress::Progress,
};

/// List the data servers of a pNFS server on this machine, add some, take one out of service, move copies between them, and find
/// objects that no file has.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command asks the running metadata server with that state directory. Only the server's user and root can use it. ID is the
number of a data server in the configuration, or its name. The states are durable, and the work continues after a restart of the server.

To add a data server, add a [[pnfs.server]] to the configuration of the running server, and run `slipway ds add`. New files use it.
`slipway ds rebalance` moves copies of existing files to it.

Examples:
  slipway ds list
  slipway ds add && slipway ds rebalance --dry-run
  slipway ds rebalance --rate 50M --watch
  slipway ds drain 3 && slipway resilver --watch
  slipway ds lost 2 --cluster fast
  slipway ds orphans && slipway ds orphans --remove
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
    /// Use the data servers that were added to the configuration file of the running server
    Add {
        /// Print each new data server as a line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Move copies from data servers with many bytes to those with few. Files stay in use meanwhile
    Rebalance(Rebalance),
    /// Move all copies to other data servers, and create no new ones there. Files stay in use meanwhile
    Drain(Target),
    /// Return a data server to service
    Undrain(Target),
    /// Make all copies again that were on this data server, which is gone with its objects and is never contacted again. The exit
    /// code is 1 if files have lost their last copy; standard error lists them
    Lost(Target),
    /// Search the data servers for objects that no file has, for example because a program on the metadata server has removed files
    Orphans(OrphanArgs),
}

#[derive(Debug, clap::Args)]
struct OrphanArgs {
    /// Remove these objects. All exports with files on these data servers must be exports of the running server
    #[arg(long)]
    remove: bool,
    /// Print each object as a line of JSON
    #[arg(long)]
    json: bool,
    /// Search only the data servers of the [[pnfs]] table with this name
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Rebalance {
    /// Maximum bytes to copy in a second; 0 for no maximum
    #[arg(long, value_name = "SIZE", default_value = "100M", conflicts_with_all = ["dry_run", "status", "stop"])]
    rate: ByteSize,
    /// Show what would be moved, and move nothing
    #[arg(long)]
    dry_run: bool,
    /// Show the rebalancing that was ordered before; with --watch, wait for its end
    #[arg(long, conflicts_with_all = ["dry_run", "stop"])]
    status: bool,
    /// End the rebalancing. Copies that were moved stay where they are
    #[arg(long, conflicts_with_all = ["dry_run", "watch"])]
    stop: bool,
    /// Wait for the end, and show a progress bar. The exit code is 1 if copies could not be moved
    #[arg(long, conflicts_with = "dry_run")]
    watch: bool,
    /// Print lines of JSON; with --watch, each time that something has changed
    #[arg(long)]
    json: bool,
    /// The name of the [[pnfs]] table, if exports use several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Target {
    /// The number or the name of the data server in the configuration
    #[arg(value_name = "ID")]
    server: ServerRef,
    /// The name of the [[pnfs]] table, if exports use several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    match &args.action {
        Action::List { json } => list(args, *json),
        Action::Add { json } => add(args, *json),
        Action::Rebalance(options) => rebalance(args, options),
        Action::Drain(target) => {
            set(args, target, Service::Draining)?;
            let left = find(data_servers(args)?, target)?;
            let moved = match left.scan {
                None => format!("{} copies are being moved.", left.objects),
                Some(_) => {
                    "Copies are moved when the layouts of all files were read: see `slipway ds list`.".to_owned()
                }
            };
            output::print(&format!("{moved} `slipway resilver --watch` waits for the end.\n"));
            Ok(Exit::Ok)
        }
        Action::Undrain(target) => set(args, target, Service::Active),
        Action::Lost(target) => {
            set(args, target, Service::Lost)?;
            report_lost(args, target)
        }
        Action::Orphans(options) => orphans(args, options),
    }
}

fn data_servers(args: &Args) -> Result<Vec<DataServerRecord>, Failure> {
    administrator::ask(&args.server, &Request::DataServers {})?.collect()
}

fn set(args: &Args, target: &Target, service: Service) -> Outcome {
    let (cluster, server) = (target.cluster.clone(), target.server.clone());
    let request = Request::SetService { cluster, server, service };
    administrator::ask::<DataServerRecord, _>(&args.server, &request)?.try_for_each(|record| record.map(drop))?;
    Ok(Exit::Ok)
}

fn add(args: &Args, json: bool) -> Outcome {
    let added: Vec<AddedRecord> =
        administrator::ask(&args.server, &Request::AddServers {})?.collect::<Result<_, _>>()?;
    for record in &added {
        let (cluster, url) = (output::name(record.cluster.as_bytes()), output::name(record.url.as_bytes()));
        let server = label(record.id, record.name.as_deref());
        match json {
            true => output::json(record),
            false => output::print(&format!("data server {server} of cluster {cluster} is in service: {url}\n")),
        }
    }
    if added.is_empty() && !json {
        output::print("The configuration has no data server that is not in use.\n");
    }
    Ok(Exit::Ok)
}

fn rebalance(args: &Args, options: &Rebalance) -> Outcome {
    let Rebalance { rate, dry_run, status, stop, watch, json, cluster } = options;
    if *dry_run {
        let request = Request::PlanRebalance { cluster: cluster.clone() };
        let plans: Vec<PlanRecord> = administrator::ask(&args.server, &request)?.collect::<Result<_, _>>()?;
        match json {
            true => plans.iter().for_each(output::json),
            false => output::print(&plans.iter().map(plan_text).collect::<String>()),
        }
        return Ok(Exit::Ok);
    }
    if !status {
        let request = Request::Rebalance { cluster: cluster.clone(), rate: (!stop).then_some(rate.0) };
        administrator::ask::<RebalanceRecord, _>(&args.server, &request)?.try_for_each(|record| record.map(drop))?;
    }
    let (progress, mut former) = (Progress::new(*watch && !json), Vec::new());
    let mut polling = Polling::new(&args.server, &progress);
    let records = loop {
        let mut records: Vec<RebalanceRecord> = polling.ask(&Request::Rebalances {})?;
        records.retain(|record| cluster.as_ref().is_none_or(|cluster| *cluster == record.cluster));
        if *json && records != former {
            records.iter().for_each(output::json);
        }
        if !watch || records.iter().all(|record| !record.running) {
            break records;
        }
        let sum = |number: fn(&RebalanceRecord) -> u64| records.iter().map(number).sum::<u64>();
        let moved = sum(|record| record.bytes);
        progress.show(
            moved,
            moved + sum(|record| record.left),
            format!("{} copies moved", sum(|record| record.copies)),
        );
        former = records;
        sleep(PAUSE);
    };
    progress.finish();
    if !json {
        output::print(&records.iter().map(rebalance_line).collect::<String>());
    }
    let failed = records.iter().any(|record| record.failed > 0 && !record.running);
    Ok(if *watch && failed { Exit::Failed } else { Exit::Ok })
}

fn plan_text(plan: &PlanRecord) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[("ID", Align::Left), ("Now", right), ("After", right), ("URL", Align::Left)]);
    for PlannedServer { id, name, url, before, after } in &plan.servers {
        let url = output::name(url.as_deref().unwrap_or_default().as_bytes());
        table.row(vec![label(*id, name.as_deref()), output::size(*before), output::size(*after), url]);
    }
    let (name, bytes) = (output::name(plan.cluster.as_bytes()), output::size(plan.bytes));
    format!("{}{name}: {} copies with {bytes} would be moved\n", table.text(), plan.copies)
}

fn rebalance_line(record: &RebalanceRecord) -> String {
    let RebalanceRecord { cluster, running, copies, bytes, left, failed, reason, .. } = record;
    let (name, bytes, left) = (output::name(cluster.as_bytes()), output::size(*bytes), output::size(*left));
    let moved = format!("{copies} copies with {bytes} were moved");
    let state = match running {
        true => format!("is in progress; {moved}, about {left} are left (`slipway ds rebalance --status --watch`)"),
        false => format!("has ended; {moved}"),
    };
    let failed = match (failed, reason) {
        (0, _) | (_, None) => String::new(),
        (failed, Some(reason)) => format!("; {failed} copies cannot be moved now: {reason}"),
    };
    format!("{name}: the rebalancing {state}{failed}\n")
}

fn find(servers: Vec<DataServerRecord>, target: &Target) -> Result<DataServerRecord, Failure> {
    let wanted = |server: &DataServerRecord| {
        target.server.is(server.id, server.name.as_deref())
            && target.cluster.as_ref().is_none_or(|cluster| *cluster == server.cluster)
    };
    let found = servers.into_iter().find(wanted);
    found.ok_or_else(|| Failure::failed(format!("there is no data server {}", target.server)))
}

/// Waits until the server has examined all objects of a lost data server, and reports the files without a copy.
fn report_lost(args: &Args, target: &Target) -> Outcome {
    let progress = Progress::new(false);
    let mut polling = Polling::new(&args.server, &progress);
    let server = loop {
        let server = find(polling.ask(&Request::DataServers {})?, target)?;
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
        server.lost, server.id
    )))
}

fn orphans(args: &Args, OrphanArgs { remove, json, cluster }: &OrphanArgs) -> Outcome {
    let request = Request::Orphans { cluster: cluster.clone(), remove: *remove };
    let (mut found, mut outcome) = (Vec::new(), Ok(Exit::Ok));
    for record in administrator::ask::<OrphanRecord, _>(&args.server, &request)? {
        match record {
            Ok(record) if *json => output::json(&record),
            Ok(record) => found.push(record),
            // What was found before is shown in any case.
            Err(failure) => outcome = Err(failure),
        }
    }
    if !json && (outcome.is_ok() || !found.is_empty()) {
        output::print(&orphans_text(&found, *remove));
    }
    outcome
}

fn orphans_text(found: &[OrphanRecord], remove: bool) -> String {
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[("Cluster", left), ("ID", left), ("Object", left), ("Size", right)]);
    for OrphanRecord { cluster, server, server_name, object, bytes, .. } in found {
        let size = bytes.map_or("unknown".to_owned(), output::size);
        table.row(vec![output::name(cluster.as_bytes()), label(*server, server_name.as_deref()), object.clone(), size]);
    }
    let bytes = output::size(found.iter().filter_map(|orphan| orphan.bytes).sum());
    match (found.len(), remove) {
        (0, _) => "No object was found that no file has.\n".to_owned(),
        (count, true) => format!("{}{count} objects with {bytes} are being removed\n", table.text()),
        (count, false) => {
            format!("{}{count} objects with {bytes}; `slipway ds orphans --remove` removes them\n", table.text())
        }
    }
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
        ("ID", left),
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
        let label = label(server.id, server.name.as_deref());
        let url =
            server.url.as_deref().map_or("not in the configuration".to_owned(), |url| output::name(url.as_bytes()));
        table.row(vec![
            output::name(server.cluster.as_bytes()),
            label.clone(),
            state,
            server.objects.to_string(),
            server.stale.to_string(),
            server.lost.to_string(),
            url,
        ]);
        if let Some(reason) = &server.reason {
            notes.push_str(&format!("{} copies cannot be moved from {label} now: {reason}\n", server.unmovable));
        }
    }
    let mut clusters: Vec<_> = servers.iter().filter_map(|server| Some((&server.cluster, server.scan?))).collect();
    clusters.dedup_by(|one, other| one.0 == other.0);
    for (cluster, ScanRecord { files, unreadable }) in clusters {
        let cluster = output::name(cluster.as_bytes());
        notes.push_str(&format!(
            "{cluster}: the database was lost, and the layouts of all files are being read, {files} so far. Until the end, the numbers are too \
             small, and drains, losses and rebalancings wait\n"
        ));
        if unreadable > 0 {
            notes.push_str(&format!(
                "{cluster}: {unreadable} files or directories could not be read, and the log names those with a damaged layout. They are tried \
                 again every minute\n"
            ));
        }
    }
    format!("{}{notes}", table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_rebalancing_has_what_is_left_and_the_reason() {
        let running = RebalanceRecord {
            cluster: "a".to_owned(),
            running: true,
            copies: 3,
            bytes: 2 << 20,
            left: 1 << 20,
            failed: 7,
            reason: Some("they are full".to_owned()),
            ..RebalanceRecord::default()
        };
        let line = rebalance_line(&running);
        assert!(line.contains("3 copies with 2.00 MiB were moved, about 1.00 MiB are left"), "{line}");
        assert!(line.contains("7 copies cannot be moved now: they are full"), "{line}");
        let ended = RebalanceRecord { running: false, failed: 0, ..running };
        assert!(rebalance_line(&ended).ends_with("has ended; 3 copies with 2.00 MiB were moved\n"));
    }

    #[test]
    fn table_names_the_state_and_the_reason() {
        let server = DataServerRecord {
            cluster: "fast".to_owned(),
            id: 3,
            name: Some("rack2".to_owned()),
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
            scan: None,
        };
        let scan = Some(ScanRecord { files: 77, unreadable: 2 });
        let failing = DataServerRecord { state: DataServerState::Failing, reason: None, scan, ..server.clone() };
        let text = text(&[server, failing.clone(), failing]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].contains("draining, failing") && lines[1].ends_with("not in the configuration"), "{text}");
        assert!(lines[2].contains("failing for 7 s"), "{text}");
        assert_eq!(lines[4], "2 copies cannot be moved from 3 (rack2) now: all are full");
        assert!(lines[5].starts_with("fast: the database was lost") && lines[5].contains(" 77 so far"), "{text}");
        assert!(lines[6].starts_with("fast: 2 files or directories could not be read"), "{text}");
        assert_eq!(lines.len(), 7, "a cluster is named once: {text}");
    }
}
