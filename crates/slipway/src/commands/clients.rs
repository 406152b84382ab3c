//! `slipway clients`: lists the clients of a running server and their state.

use server::admin::{ClientName, ClientRecord, ConnectionRecord, FileRecord, Record, Request};

use crate::{
    administrator::{self, ServerArgs},
    exit::{Exit, Outcome},
    output::{self, Align, Table},
};

/// List the clients of a server on this machine and their state, and evict a client.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command asks the running server with that state directory. Only the server's user and root can use it. CLIENT is the ID of a
client in the list.

An evicted client loses all its state at once, as if its lease had expired, and cannot reclaim it. It notices this and registers
again. A host that locks by NFSv3 (nlm…) does not notice.

Examples:
  slipway clients
  slipway clients 6741a53c00000001
  slipway clients --json | jq 'select(.type == \"lock\")'
  slipway clients --evict 6741a53c00000001")]
pub struct Args {
    /// Show only this client, with its state
    #[arg(value_name = "ID")]
    client: Option<ClientName>,
    /// Revoke all state of this client, and forget it
    #[arg(long, value_name = "ID", conflicts_with = "client")]
    evict: Option<ClientName>,
    /// Print all clients and all their state, each as a line of JSON
    #[arg(long, conflicts_with = "evict")]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let request = match args.evict {
        Some(client) => Request::Evict { client },
        None => Request::List { client: args.client },
    };
    let mut listed = Listed::default();
    for record in administrator::ask(&args.server, &request)? {
        let record: Record = record?;
        if args.json { output::json(&record) } else { listed.add(record) }
    }
    if !args.json {
        output::print(&listed.text(args.client.is_some()));
    }
    Ok(Exit::Ok)
}

/// The records received so far.
#[derive(Default)]
struct Listed {
    clients: Vec<Client>,
}

struct Client {
    record: ClientRecord,
    connections: Vec<ConnectionRecord>,
    /// The numbers of sessions, opens, locks, delegations and layouts.
    counts: [u64; 5],
    /// The columns: kind, export, file, mode, owner.
    held: Vec<Vec<String>>,
}

impl Listed {
    fn add(&mut self, record: Record) {
        if let Record::Client(record) = record {
            return self.clients.push(Client { record, connections: Vec::new(), counts: [0; 5], held: Vec::new() });
        }
        let Some(client) = self.clients.last_mut() else { return };
        match record {
            Record::Session { session, slots, connections, .. } => {
                let how = connections.iter().map(connection).collect::<Vec<_>>().join(", ");
                client.hold(0, ["session", "", &session, &format!("{slots} slots, {how}"), ""]);
                client.connections.extend(connections);
            }
            Record::Open { file, owner, read, write, deny_read, deny_write, .. } => {
                let how = format!("{}{}", bits("", read, write), bits(", denies ", deny_read, deny_write));
                client.hold(1, ["open", &file.export, &number(&file), &how, &owner]);
            }
            Record::Lock { file, owner, exclusive, start, length, waiting, .. } => {
                let end = length.map_or("the end".to_owned(), |length| (start + (length - 1)).to_string());
                let how = format!("{} {start} to {end}", if exclusive { "exclusive" } else { "shared" });
                let kind = if waiting { "waits" } else { "lock" };
                client.hold(2, [kind, &file.export, &number(&file), &how, &owner]);
            }
            Record::Delegation { file, write, recalled, .. } => {
                let how = format!("{}{}", bits("", !write, write), if recalled { ", being recalled" } else { "" });
                client.hold(3, ["delegation", &file.export, &number(&file), &how, ""]);
            }
            Record::Layout { file, read, write, recalled, .. } => {
                let how = format!("{}{}", bits("", read, write), if recalled { ", being recalled" } else { "" });
                client.hold(4, ["layout", &file.export, &number(&file), &how, ""]);
            }
            Record::Client(_) | Record::Error { .. } | Record::End => {
                unreachable!("only records of a client are listed")
            }
        }
    }

    fn text(&self, details: bool) -> String {
        let (left, right) = (Align::Left, Align::Right);
        let mut table = Table::new(&[
            ("Client", left),
            ("Version", left),
            ("Sessions", right),
            ("Opens", right),
            ("Locks", right),
            ("Delegations", right),
            ("Layouts", right),
            ("Silent", right),
            ("State", left),
            ("Address", left),
            ("Name", left),
        ]);
        for client in &self.clients {
            table.row(client.row());
        }
        if self.clients.is_empty() {
            return String::new();
        }
        let mut held = Table::new(&[("Holds", left), ("Export", left), ("File", left), ("How", left), ("Owner", left)]);
        let rows = self.clients.iter().flat_map(|client| &client.held);
        rows.for_each(|row| held.row(row.clone()));
        if details { format!("{}\n{}", table.text(), held.text()) } else { table.text() }
    }
}

impl Client {
    fn hold(&mut self, kind: usize, cells: [&str; 5]) {
        self.counts[kind] += 1;
        self.held.push(cells.map(|cell| output::name(cell.as_bytes())).to_vec());
    }

    fn row(&self) -> Vec<String> {
        let record = &self.record;
        let state = match (record.confirmed, record.expired) {
            (false, _) => "unconfirmed",
            (true, true) => "expired",
            (true, false) => "active",
        };
        let address = self.connections.first().map(connection).or(record.address.clone());
        let silent = record.silent_s.map_or(String::new(), |seconds| format!("{seconds} s"));
        let [sessions, opens, locks, delegations, layouts] = self.counts.map(|count| count.to_string());
        let text = |text: &str| output::name(text.as_bytes());
        let (address, name) = (text(&address.unwrap_or_default()), text(&record.name));
        let (client, protocol) = (record.client.to_string(), text(&record.protocol));
        vec![client, protocol, sessions, opens, locks, delegations, layouts, silent, state.to_owned(), address, name]
    }
}

fn connection(connection: &ConnectionRecord) -> String {
    format!("{}://{}", connection.transport, connection.address)
}

fn number(file: &FileRecord) -> String {
    file.fileid.map_or("gone".to_owned(), |fileid| fileid.to_string())
}

/// Returns `read and write` after the prefix `before`; an empty string if both are `false`.
fn bits(before: &str, read: bool, write: bool) -> String {
    match (read, write) {
        (true, true) => format!("{before}read and write"),
        (true, false) => format!("{before}read"),
        (false, true) => format!("{before}write"),
        (false, false) => String::new(),
    }
}
