//! [`Point`]: what is done to a server, and how much of it at once.

use clap::ValueEnum;
use serde::Serialize;

use crate::output;

/// What one operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// One READ of a block.
    Read,
    /// One READ of a block of a file that is read in order, with so many blocks asked for ahead as are in flight;
    /// none in flight means that each is asked for when it is wanted.
    ReadAhead,
    /// One WRITE of a block, UNSTABLE, with a COMMIT when time is up; with none in flight FILE_SYNC, one at a time.
    Write,
    /// One GETATTR.
    Getattr,
    /// One CREATE and one REMOVE of the same name.
    Create,
    /// One file of 1 to 16 KiB, all of it, by its path.
    Small,
    /// A transaction: seven of ten READ a block, three WRITE one and COMMIT it.
    Oltp,
    /// One procedure of a build: look a source up, open and read it, make, write and commit an object, look at it,
    /// remove it.
    Build,
}

/// One place of the space that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// What is done.
    pub operation: Operation,
    /// In random order rather than one block after the other.
    pub random: bool,
    /// Bytes of each READ and WRITE.
    pub block: usize,
    /// Operations outstanding at once on each thread.
    pub in_flight: u32,
    /// Client threads, each with a connection and a file of its own.
    pub threads: u32,
}

impl Operation {
    /// Whether it moves blocks of one large file.
    pub fn moves_blocks(self) -> bool {
        matches!(self, Operation::Read | Operation::ReadAhead | Operation::Write | Operation::Oltp)
    }

    /// Whether it only reads blocks, as the loops without NFS do.
    pub fn reads_blocks(self) -> bool {
        matches!(self, Operation::Read | Operation::ReadAhead)
    }

    /// Whether it needs a tree of small files.
    pub fn takes_a_tree(self) -> bool {
        matches!(self, Operation::Small | Operation::Build)
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Operation::Read => "READ",
            Operation::ReadAhead => "READ in order",
            Operation::Write => "WRITE",
            Operation::Getattr => "GETATTR",
            Operation::Create => "CREATE and REMOVE",
            Operation::Small => "small file",
            Operation::Oltp => "OLTP",
            Operation::Build => "build",
        }
    }
}

impl Point {
    /// So many of this operation in flight on one thread.
    pub fn new(operation: Operation, block: usize, in_flight: u32) -> Self {
        Self { operation, random: false, block, in_flight, threads: 1 }
    }

    /// The same in random order.
    pub fn random(self) -> Self {
        Self { random: true, ..self }
    }

    /// The same on so many threads.
    pub fn threads(self, threads: u32) -> Self {
        Self { threads, ..self }
    }

    /// Tasks on each thread that do one operation after the other.
    pub fn tasks(&self) -> u32 {
        if self.operation == Operation::ReadAhead { 1 } else { self.in_flight.max(1) }
    }

    /// What is done, without how much of it at once: `random READ 4 KiB`.
    pub fn title(&self) -> String {
        let order = if self.random { "random " } else { "" };
        let block = if self.operation.moves_blocks() { format!(" {}", block(self.block)) } else { String::new() };
        format!("{order}{}{block}", self.operation.title())
    }

    /// All of it: `READ 128 KiB × 8, 2 threads`.
    pub fn label(&self) -> String {
        let at_once = match (self.in_flight, self.threads) {
            (0, _) => " synchronous".to_owned(),
            (1, 1) => String::new(),
            (in_flight, _) => format!(" × {in_flight}"),
        };
        let threads = if self.threads == 1 { String::new() } else { format!(", {} threads", self.threads) };
        format!("{}{at_once}{threads}", self.title())
    }
}

/// A block size without needless digits: `128 KiB`.
pub fn block(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
        bytes => output::size(bytes as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_say_what_is_measured() {
        assert_eq!(Point::new(Operation::Read, 128 << 10, 8).label(), "READ 128 KiB × 8");
        assert_eq!(
            Point::new(Operation::Read, 4096, 1).random().threads(16).label(),
            "random READ 4 KiB × 1, 16 threads"
        );
        assert_eq!(Point::new(Operation::Write, 512, 0).label(), "WRITE 512 B synchronous");
        assert_eq!(Point::new(Operation::Getattr, 512, 1).label(), "GETATTR");
    }
}
