//! [`Waits`]: the operations of a mount that wait for their server.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    session::{InFlight, Waiting},
    tree::Tree,
};

/// The operations of a mount in progress, by server.
#[derive(Clone)]
pub struct Waits {
    pub(super) in_flight: Arc<InFlight>,
    pub(super) tree: Arc<Tree>,
}

/// The operations that wait for one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerWaits {
    /// The server, as the URL of its mount names it.
    pub server: String,
    /// The number of operations that wait for it.
    pub operations: usize,
    /// The seconds for which the oldest of them has waited.
    pub since_s: u64,
    /// The name of the oldest operation.
    pub operation: String,
    /// The inode number of its object.
    pub ino: u64,
    /// The thread that waits for it; 0 if it is not visible here.
    pub pid: u32,
}

impl Waits {
    /// Returns the operations that have waited for at least `seconds`, by server.
    pub fn by_server(&self, seconds: u64) -> Vec<ServerWaits> {
        let mut servers = BTreeMap::new();
        for waiting in self.in_flight.waiting() {
            if waiting.since.as_secs() >= seconds {
                let node = self.tree.node(waiting.ino);
                let mount = node.as_ref().map_or(&self.tree.mount, |node| node.mount());
                add(&mut servers, mount.url().authority(), &waiting);
            }
        }
        servers.into_values().collect()
    }
}

fn add(servers: &mut BTreeMap<String, ServerWaits>, server: String, waiting: &Waiting) {
    let Waiting { operation, ino, pid, since } = *waiting;
    let (since_s, operation) = (since.as_secs(), operation.to_owned());
    match servers.get_mut(&server) {
        Some(waits) => {
            waits.operations += 1;
            if since_s > waits.since_s {
                *waits = ServerWaits { since_s, operation, ino, pid, ..waits.clone() };
            }
        }
        None => {
            let waits = ServerWaits { server: server.clone(), operations: 1, since_s, operation, ino, pid };
            servers.insert(server, waits);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn oldest_operation_stands_for_its_server() {
        let mut servers = BTreeMap::new();
        for (server, since, pid) in [("a", 3, 1), ("a", 9, 2), ("b", 1, 3), ("a", 4, 4)] {
            let waiting = Waiting { operation: "READ", ino: 7, pid, since: Duration::from_secs(since) };
            add(&mut servers, server.to_owned(), &waiting);
        }
        let found: Vec<_> =
            servers.values().map(|waits| (&*waits.server, waits.operations, waits.since_s, waits.pid)).collect();
        assert_eq!(found, [("a", 3, 9, 2), ("b", 1, 1, 3)]);
    }
}
