//! [`Point`]: one load on a server.

use clap::ValueEnum;
use serde::Serialize;

use crate::output;

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// One READ of a block.
    Read,
    /// One READ of a block of a file that is read sequentially, with a read-ahead of as many blocks as are in flight.
    /// With zero in flight, each READ is sent when its data are needed.
    ReadAhead,
    /// One UNSTABLE WRITE of a block, with a COMMIT at the end; with zero in flight, one FILE_SYNC WRITE at a time.
    Write,
    /// One GETATTR.
    Getattr,
    /// One CREATE and one REMOVE of the same name.
    Create,
    /// One file of 1 to 16 KiB, read completely by its path.
    Small,
    /// One transaction: seven of ten READ a block, three WRITE one and COMMIT it.
    Oltp,
    /// One procedure of a build: look up, open and read a source; create, write and commit an object, get its
    /// attributes, remove it.
    Build,
    /// One file that is created, gets the point's block of data, is asked for its attributes, and gets another mode. It is removed when
    /// the time has ended.
    NewFile,
    /// One file that is created with a layout to write, is asked for its attributes, gets another mode, and is closed. It is removed when the
    /// time has ended.
    NewLayout,
    /// One LAYOUTGET, followed by a LAYOUTRETURN that does not count.
    LayoutGet,
    /// One LAYOUTRETURN of a new layout. The LAYOUTGET does not count.
    LayoutReturn,
    /// One GETDEVICEINFO.
    GetDeviceInfo,
    /// One LAYOUTCOMMIT of a byte that was written.
    LayoutCommit,
    /// One large record of a dump, by each of the writers of BTIO (FULL).
    BtioFullWrite,
    /// The same, read and compared.
    BtioFullRead,
    /// One small record of a dump, by each of the writers of BTIO (SIMPLE).
    BtioSimpleWrite,
    /// The same, read and compared.
    BtioSimpleRead,
}

/// A load of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The operation.
    pub operation: Operation,
    /// Random instead of sequential blocks.
    pub random: bool,
    /// Some of the random blocks much more often than others, by Zipf's law.
    pub zipf: bool,
    /// The bytes of each READ and WRITE.
    pub block: usize,
    /// The outstanding operations on each thread.
    pub in_flight: u32,
    /// The number of client threads, each with its own connection and file.
    pub threads: u32,
    /// The number of objects of the layout, with operations on layouts.
    #[serde(skip_serializing_if = "is_zero")]
    pub objects: u32,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl Operation {
    /// Returns `true` if the operation moves blocks of one large file.
    pub fn moves_blocks(self) -> bool {
        matches!(self, Operation::Read | Operation::ReadAhead | Operation::Write | Operation::Oltp)
    }

    /// Returns `true` if the operation only reads blocks, as the loops without NFS do.
    pub fn reads_blocks(self) -> bool {
        matches!(self, Operation::Read | Operation::ReadAhead)
    }

    /// Returns `true` if the operation needs a tree of small files.
    pub fn takes_a_tree(self) -> bool {
        matches!(self, Operation::Small | Operation::Build)
    }

    /// Returns `true` if the operation is about layouts, and is sent by the benchmark itself.
    pub fn is_of_layouts(self) -> bool {
        use Operation::{GetDeviceInfo, LayoutCommit, LayoutGet, LayoutReturn, NewLayout};
        matches!(self, NewLayout | LayoutGet | LayoutReturn | GetDeviceInfo | LayoutCommit)
    }

    /// Returns the name of the operation for people.
    pub fn title(self) -> &'static str {
        match self {
            Operation::Read => "READ",
            Operation::ReadAhead => "sequential READ",
            Operation::Write => "WRITE",
            Operation::Getattr => "GETATTR",
            Operation::Create => "CREATE and REMOVE",
            Operation::Small => "small file",
            Operation::Oltp => "OLTP",
            Operation::Build => "build",
            Operation::NewFile => "CREATE, WRITE, GETATTR, SETATTR",
            Operation::NewLayout => "CREATE, LAYOUTGET, GETATTR, SETATTR",
            Operation::LayoutGet => "LAYOUTGET",
            Operation::LayoutReturn => "LAYOUTRETURN",
            Operation::GetDeviceInfo => "GETDEVICEINFO",
            Operation::LayoutCommit => "LAYOUTCOMMIT",
            Operation::BtioFullWrite => "BTIO FULL, WRITE",
            Operation::BtioFullRead => "BTIO FULL, READ",
            Operation::BtioSimpleWrite => "BTIO SIMPLE, WRITE",
            Operation::BtioSimpleRead => "BTIO SIMPLE, READ",
        }
    }
}

impl Point {
    /// Creates a point with this many operations in flight on one thread.
    pub fn new(operation: Operation, block: usize, in_flight: u32) -> Self {
        Self { operation, random: false, zipf: false, block, in_flight, threads: 1, objects: 0 }
    }

    /// Returns the point of an operation on layouts with this number of objects.
    pub fn layout(operation: Operation, objects: u32) -> Self {
        Self { objects, ..Self::new(operation, 1, 1) }
    }

    /// Returns this point with random blocks.
    pub fn random(self) -> Self {
        Self { random: true, ..self }
    }

    /// Returns this point with random blocks by Zipf's law.
    pub fn zipf(self) -> Self {
        Self { zipf: true, ..self.random() }
    }

    /// Returns this point with this many threads.
    pub fn threads(self, threads: u32) -> Self {
        Self { threads, ..self }
    }

    /// Returns the number of tasks on each thread that execute one operation after the other.
    pub fn tasks(&self) -> u32 {
        if self.operation == Operation::ReadAhead { 1 } else { self.in_flight.max(1) }
    }

    /// Returns the operation and its size: `random READ 4 KiB`, `LAYOUTGET, 16 objects`.
    pub fn title(&self) -> String {
        let order = match (self.zipf, self.random) {
            (true, _) => "Zipf ",
            (false, true) => "random ",
            (false, false) => "",
        };
        let size = match self.objects {
            0 if self.operation.moves_blocks() || self.operation == Operation::NewFile => {
                format!(" {}", block(self.block))
            }
            0 => String::new(),
            1 => ", 1 object".to_owned(),
            objects => format!(", {objects} objects"),
        };
        format!("{order}{}{size}", self.operation.title())
    }

    /// Returns all of it: `READ 128 KiB × 8, 2 threads`.
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

/// Formats a block size without unnecessary digits: `128 KiB`.
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
    fn labels_describe_the_load() {
        assert_eq!(Point::new(Operation::Read, 128 << 10, 8).label(), "READ 128 KiB × 8");
        assert_eq!(
            Point::new(Operation::Read, 4096, 1).random().threads(16).label(),
            "random READ 4 KiB × 1, 16 threads"
        );
        assert_eq!(Point::new(Operation::Read, 1 << 20, 32).zipf().label(), "Zipf READ 1 MiB × 32");
        assert_eq!(Point::new(Operation::Write, 512, 0).label(), "WRITE 512 B synchronous");
        assert_eq!(Point::new(Operation::Getattr, 512, 1).label(), "GETATTR");
        assert_eq!(Point::layout(Operation::LayoutGet, 1).label(), "LAYOUTGET, 1 object");
    }
}
