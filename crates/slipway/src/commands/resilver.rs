//! `slipway resilver`: shows how many copies of files a running pNFS server still has to make.

use std::thread::sleep;

use crate::{
    administrator::{PAUSE, Polling, ServerArgs},
    exit::{Exit, Failure, Outcome},
    output,
    pnfs::records::{RepairRecord, Request},
    progress::Progress,
};

/// Show how many copies of files a pNFS server on this machine still has to make.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server makes stale copies again, moves copies from data servers that are drained, and compares copies after a failure. It does this
by itself. The command asks the running metadata server with that state directory. Only the server's user and root can use it.

The exit code is 0 if nothing is left to do, and 1 otherwise, also if files have lost their last copy. With --watch, the command
waits until nothing is left, also while the server is restarted.

Examples:
  slipway resilver
  slipway resilver --watch
  slipway resilver --json | jq '.bytes'")]
pub struct Args {
    /// Wait until nothing is left, and show a progress bar
    #[arg(long)]
    watch: bool,
    /// Print each cluster as a line of JSON; with --watch, each time that something has changed
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let progress = Progress::new(args.watch && !args.json);
    let mut polling = Polling::new(&args.server, &progress);
    let (mut former, mut first) = (Vec::new(), None);
    let repairs = loop {
        let repairs: Vec<RepairRecord> = polling.ask(&Request::Repairs {})?;
        if args.json && repairs != former {
            repairs.iter().for_each(output::json);
        }
        if !args.watch || repairs.iter().all(RepairRecord::is_done) {
            break repairs;
        }
        let first = *first.get_or_insert_with(|| copied(&repairs));
        show(&progress, &repairs, first);
        former = repairs;
        sleep(PAUSE);
    };
    progress.finish();
    if !args.json {
        output::print(&repairs.iter().map(line).collect::<String>());
    }
    let lost: u64 = repairs.iter().map(|cluster| cluster.lost).sum();
    match lost {
        0 if repairs.iter().all(RepairRecord::is_done) => Ok(Exit::Ok),
        0 => Ok(Exit::Failed),
        lost => Err(Failure::failed(format!("{lost} files have lost their last copy: see `slipway ds list --json`"))),
    }
}

fn copied(repairs: &[RepairRecord]) -> u64 {
    repairs.iter().map(|cluster| cluster.copied).sum()
}

/// Shows the progress since `first` bytes were copied.
fn show(progress: &Progress, repairs: &[RepairRecord], first: u64) {
    let sum = |number: fn(&RepairRecord) -> u64| repairs.iter().map(number).sum::<u64>();
    let copied = copied(repairs).saturating_sub(first);
    let copies = sum(|cluster| cluster.copies + cluster.moves + cluster.unexamined);
    let message = format!("{copies} copies, {} files to compare", sum(|cluster| cluster.compared));
    progress.show(copied, copied + sum(|cluster| cluster.bytes.unwrap_or(0)), message);
}

fn line(cluster: &RepairRecord) -> String {
    let name = output::name(cluster.cluster.as_bytes());
    let RepairRecord { files, copies, moves, compared, unexamined, scanning, removals, bytes, copied, .. } = cluster;
    let removals = match removals {
        0 => String::new(),
        objects => format!("; {objects} objects to remove"),
    };
    let copied = format!("{} copied since the start{removals}", output::size(*copied));
    if cluster.is_done() {
        return format!("{name}: nothing is left to do; {copied}\n");
    }
    let left = bytes.map_or("many bytes".to_owned(), output::size);
    let unexamined = match unexamined {
        0 => String::new(),
        objects => format!(", {objects} objects on lost data servers to examine"),
    };
    let scanning = if *scanning { "; the layouts of all files are being read: see `slipway ds list`" } else { "" };
    format!(
        "{name}: {copies} stale copies of {files} files, {moves} copies to move, {compared} files to compare{unexamined}; {left} to \
         copy, {copied}{scanning}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_work_counts() {
        let scanning = RepairRecord { scanning: true, bytes: Some(0), ..RepairRecord::default() };
        assert!(!scanning.is_done());
        assert!(line(&scanning).contains("the layouts of all files are being read"), "{}", line(&scanning));
    }

    #[test]
    fn every_kind_of_work_counts() {
        let done = RepairRecord { cluster: "a".to_owned(), bytes: Some(0), ..RepairRecord::default() };
        assert!(done.is_done() && line(&done).contains("nothing is left"));
        let removals = RepairRecord { removals: 3, ..done.clone() };
        assert!(removals.is_done(), "an object that no file has is no copy to repair");
        assert!(line(&removals).contains("; 3 objects to remove"), "{}", line(&removals));
        let lost = RepairRecord { lost: 1, ..done.clone() };
        assert!(lost.is_done(), "a file that has lost its last copy cannot be repaired");
        for left in [
            RepairRecord { files: 1, copies: 2, ..done.clone() },
            RepairRecord { moves: 1, ..done.clone() },
            RepairRecord { compared: 1, ..done.clone() },
            RepairRecord { unexamined: 1, ..done.clone() },
        ] {
            assert!(!left.is_done(), "{left:?}");
            assert!(line(&left).contains(" 1 "), "{}", line(&left));
        }
    }
}
