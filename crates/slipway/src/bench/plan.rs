//! [`Plan`]: the points and charts of a subcommand.

use super::{
    btio::Btio,
    claim::{self, Claim},
    layouts::{ALL_STRIPES, ONE_STRIPE},
    point::{Operation, Point},
    report::{Cost, Row, Spread},
};

/// The measurement of a subcommand.
pub struct Plan {
    /// The name of the subcommand.
    pub name: &'static str,
    /// A description of the measurement.
    pub title: String,
    /// The points.
    pub points: Vec<Point>,
    /// The charts.
    pub charts: Vec<Chart>,
    /// The default seconds of each run.
    pub seconds: f64,
    /// The default bytes of each thread's file.
    pub file_size: u64,
}

/// A chart of some of the points.
pub struct Chart {
    /// The title.
    pub title: String,
    /// The published result, if there is one.
    pub claim: Option<&'static Claim>,
    /// Selects the points of the chart.
    pub of: Filter,
    /// The form of the chart.
    pub shape: Shape,
}

/// Selects points.
pub type Filter = fn(&Point) -> bool;

/// The form of a chart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Throughput as colour by block size and operations in flight, one surface for each series.
    Surface,
    /// A line for each series, by the number of threads.
    OverThreads(Measure),
    /// A dot for each row, by its throughput.
    OverThroughput(Measure),
    /// A bar for each series, grouped by point.
    Bars(Measure),
}

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Bytes a second.
    Throughput,
    /// Operations a second.
    Rate,
    /// The CPU time of the client for each GB.
    ClientPerGb,
    /// The CPU time of the server for each GB.
    ServerPerGb,
    /// The CPU time of both for each GB; only of the client if the server's is unknown.
    PerGb,
    /// The CPU time of both for each operation.
    PerOperation,
    /// The number of busy cores of the client.
    ClientCores,
    /// The median latency.
    Median,
    /// The 99th percentile of the latency.
    Slowest,
}

impl Measure {
    /// Returns the name of the value, and its unit.
    pub fn title(self) -> &'static str {
        match self {
            Measure::Throughput => "GB/s",
            Measure::Rate => "operations/s",
            Measure::ClientPerGb => "client CPU s/GB",
            Measure::ServerPerGb => "server CPU s/GB",
            Measure::PerGb => "CPU s/GB, both ends",
            Measure::PerOperation => "CPU µs/operation, both ends",
            Measure::ClientCores => "client's busy cores",
            Measure::Median => "latency p50, µs",
            Measure::Slowest => "latency p99, µs",
        }
    }

    /// Returns the value, if the row has one.
    pub fn of(self, row: &Row) -> Option<Spread> {
        let both = |of: fn(&Cost) -> Option<Spread>| {
            let server = row.server_cpu.as_ref().and_then(of);
            of(&row.client_cpu).map(|client| server.map_or(client, |server| sum(client, server)))
        };
        let exactly = |value| Some(Spread::exactly(value));
        match self {
            Measure::Throughput => row.gb_per_s,
            Measure::Rate => Some(row.iops),
            Measure::ClientPerGb => row.client_cpu.seconds_per_gb,
            Measure::ServerPerGb => row.server_cpu.and_then(|cost| cost.seconds_per_gb),
            Measure::PerGb => both(|cost| cost.seconds_per_gb),
            Measure::PerOperation => both(|cost| Some(cost.us_per_operation)),
            Measure::ClientCores => Some(row.client_cpu.cores),
            Measure::Median => exactly(row.latency_us.p50),
            Measure::Slowest => exactly(row.latency_us.p99),
        }
    }
}

impl Measure {
    /// Returns the value of a row, divided by this multiple of the value of another row. Rates are compared round by round.
    pub fn ratio(self, row: &Row, other: &Row, times: f64) -> Option<Spread> {
        let Spread { median, low, high } = match self {
            Measure::Throughput | Measure::Rate => row.ratio(other),
            _ => Spread::exactly(self.of(row)?.median / self.of(other)?.median),
        };
        Some(Spread { median: median / times, low: low / times, high: high / times })
    }
}

fn sum(a: Spread, b: Spread) -> Spread {
    Spread { median: a.median + b.median, low: a.low + b.low, high: a.high + b.high }
}

impl Chart {
    fn new(title: &str, of: Filter, shape: Shape) -> Self {
        Self { title: title.to_owned(), claim: None, of, shape }
    }

    fn with_claim(self, claim: &'static Claim) -> Self {
        Self { claim: Some(claim), ..self }
    }
}

/// Returns the plan of a single point, for `read`, `write`, `getattr` and `create`.
pub fn single(name: &'static str, point: Point) -> Plan {
    let data = point.operation.moves_blocks();
    let charts =
        [(Measure::Throughput, data), (Measure::Rate, !data), (Measure::PerGb, data), (Measure::PerOperation, !data)];
    let charts = charts.into_iter().filter(|(_, wanted)| *wanted);
    Plan {
        name,
        title: point.label(),
        points: vec![point],
        charts: charts.map(|(measure, _)| Chart::new(measure.title(), |_| true, Shape::Bars(measure))).collect(),
        seconds: 3.0,
        file_size: 256 << 20,
    }
}

/// Returns the plan of READ and WRITE with one block size, for the first table of `slipway demo`.
pub fn demo(block: usize, in_flight: u32) -> Plan {
    let points = [Operation::Read, Operation::Write].map(|operation| Point::new(operation, block, in_flight));
    Plan {
        name: "demo",
        title: "READ and WRITE from memory".to_owned(),
        points: points.into(),
        charts: vec![Chart::new(Measure::Throughput.title(), |_| true, Shape::Bars(Measure::Throughput))],
        seconds: 0.5,
        file_size: 64 << 20,
    }
}

/// Returns the plan of sequential READ and WRITE, by block size and read-ahead.
pub fn sweep() -> Plan {
    let blocks = || (9..=20).map(|shift| 1 << shift);
    let at_once = [0, 1, 2, 4, 8, 16];
    let points = [Operation::ReadAhead, Operation::Write].into_iter().flat_map(|operation| {
        blocks().flat_map(move |block| at_once.map(|in_flight| Point::new(operation, block, in_flight)))
    });
    Plan {
        name: "sweep",
        title: "sequential READ and WRITE, by block size and operations in flight".to_owned(),
        points: points.collect(),
        charts: vec![
            Chart::new("READ throughput, GB/s", is_read, Shape::Surface).with_claim(&claim::SUN_THROUGHPUT),
            Chart::new("WRITE throughput, GB/s", is_write, Shape::Surface).with_claim(&claim::SUN_THROUGHPUT),
            Chart::new(
                "READ: the client's CPU against throughput",
                is_read,
                Shape::OverThroughput(Measure::ClientCores),
            )
            .with_claim(&claim::SUN_CPU),
            Chart::new(
                "WRITE: the client's CPU against throughput",
                is_write,
                Shape::OverThroughput(Measure::ClientCores),
            )
            .with_claim(&claim::SUN_CPU),
        ],
        seconds: 0.3,
        file_size: 256 << 20,
    }
}

/// Returns the plan of READ and WRITE of 128 KiB, by the number of threads.
pub fn threads() -> Plan {
    Plan { charts: over_threads(&claim::OPENSOLARIS_DESIGN), ..by_threads("threads", &[1, 2, 4, 8, 16, 32]) }
}

/// Returns the same plan with fewer threads, for the ways of registration.
pub fn registration() -> Plan {
    Plan { charts: over_threads(&claim::OPENSOLARIS_REGISTRATION), ..by_threads("registration", &[1, 2, 4, 8]) }
}

fn by_threads(name: &'static str, threads: &[u32]) -> Plan {
    let points = [Operation::Read, Operation::Write]
        .into_iter()
        .flat_map(|operation| threads.iter().map(move |&threads| Point::new(operation, 128 << 10, 1).threads(threads)));
    Plan {
        name,
        title: "READ and WRITE of 128 KiB, by the number of threads, each with one outstanding".to_owned(),
        points: points.collect(),
        charts: Vec::new(),
        seconds: 1.0,
        file_size: 16 << 20,
    }
}

fn over_threads(claim: &'static Claim) -> Vec<Chart> {
    let kinds: [(&str, Filter); 2] = [("READ", is_read), ("WRITE", is_write)];
    let measures = [Measure::Throughput, Measure::ClientPerGb, Measure::ServerPerGb];
    let charts = kinds.iter().flat_map(|(kind, of)| {
        measures.map(|measure| {
            let chart = Chart::new(&format!("{kind}: {}", measure.title()), *of, Shape::OverThreads(measure));
            if measure == Measure::Throughput { chart.with_claim(claim) } else { chart }
        })
    });
    charts.collect()
}

/// Returns the plan of small operations: with 16 threads, and with one.
pub fn iops() -> Plan {
    let blocks = [2 << 10, 4 << 10, 8 << 10];
    let points = [16, 1].into_iter().flat_map(|threads| {
        [Operation::Read, Operation::Write]
            .into_iter()
            .flat_map(move |operation| blocks.map(|block| Point::new(operation, block, 1).random().threads(threads)))
    });
    let alone = Point::new(Operation::Getattr, 1, 1);
    let many: Filter = |point| point.threads > 1;
    let one: Filter = |point| point.threads == 1;
    Plan {
        name: "iops",
        title: "Random READ and WRITE of 2, 4 and 8 KiB: 16 threads with one outstanding each, and one thread"
            .to_owned(),
        points: points.chain([alone]).collect(),
        charts: vec![
            Chart::new("16 threads: operations/s", many, Shape::Bars(Measure::Rate)).with_claim(&claim::NVIDIA_IOPS),
            Chart::new("16 threads: CPU", many, Shape::Bars(Measure::PerOperation)),
            Chart::new("16 threads: latency", many, Shape::Bars(Measure::Slowest)),
            Chart::new("One, synchronous: operations/s", one, Shape::Bars(Measure::Rate))
                .with_claim(&claim::NETAPP_SMALL),
            Chart::new("One, synchronous: CPU", one, Shape::Bars(Measure::PerOperation))
                .with_claim(&claim::NETAPP_SMALL),
            Chart::new("One, synchronous: latency", one, Shape::Bars(Measure::Median)),
        ],
        seconds: 1.0,
        file_size: 16 << 20,
    }
}

/// Returns the plan of database transactions and of a build.
pub fn mixed() -> Plan {
    let is_oltp: Filter = |point| point.operation == Operation::Oltp;
    let is_build: Filter = |point| point.operation == Operation::Build;
    Plan {
        name: "mixed",
        title: "Transactions of 8 KiB (70 % READ, 30 % WRITE with COMMIT), and the procedures of a build".to_owned(),
        points: vec![
            Point::new(Operation::Oltp, 8 << 10, 1).random(),
            Point::new(Operation::Oltp, 8 << 10, 16).random(),
            Point::new(Operation::Oltp, 8 << 10, 4).random().threads(8),
            Point::new(Operation::Build, 4 << 10, 1),
            Point::new(Operation::Build, 4 << 10, 8),
        ],
        charts: vec![
            Chart::new("Transactions/s", is_oltp, Shape::Bars(Measure::Rate)),
            Chart::new("Transactions: CPU", is_oltp, Shape::Bars(Measure::PerOperation)),
            Chart::new("Transactions: latency", is_oltp, Shape::Bars(Measure::Slowest)),
            Chart::new("Build: procedures/s", is_build, Shape::Bars(Measure::Rate)),
            Chart::new("Build: CPU", is_build, Shape::Bars(Measure::PerOperation)),
        ],
        seconds: 1.0,
        file_size: 64 << 20,
    }
}

/// Returns the plan of READ next to the loops without NFS.
pub fn baseline() -> Plan {
    let bulk: Filter = |point| !point.random;
    let small: Filter = |point| point.random;
    Plan {
        name: "baseline",
        title: "READ next to loops without NFS".to_owned(),
        points: vec![
            Point::new(Operation::Read, 128 << 10, 8),
            Point::new(Operation::Read, 1 << 20, 8),
            Point::new(Operation::Read, 4 << 10, 16).random(),
            Point::new(Operation::Read, 4 << 10, 1).random(),
        ],
        charts: vec![
            Chart::new("Bulk: GB/s", bulk, Shape::Bars(Measure::Throughput)).with_claim(&claim::NVIDIA_BANDWIDTH),
            Chart::new("Bulk: CPU", bulk, Shape::Bars(Measure::PerGb)),
            Chart::new("Random: operations/s", small, Shape::Bars(Measure::Rate)),
            Chart::new("Random: CPU", small, Shape::Bars(Measure::PerOperation)),
        ],
        seconds: 1.0,
        file_size: 256 << 20,
    }
}

/// Returns the plan of bulk data and of small operations, for security flavours and TLS.
pub fn security() -> Plan {
    let small: Filter = |point| !point.operation.moves_blocks();
    let bulk: Filter = |point| point.operation.moves_blocks();
    Plan {
        name: "security",
        title: "READ and WRITE of 128 KiB with 8 outstanding, GETATTR with 16".to_owned(),
        points: vec![
            Point::new(Operation::Read, 128 << 10, 8),
            Point::new(Operation::Write, 128 << 10, 8),
            Point::new(Operation::Getattr, 1, 16),
        ],
        charts: vec![
            Chart::new("Bulk: GB/s", bulk, Shape::Bars(Measure::Throughput)),
            Chart::new("Bulk: CPU", bulk, Shape::Bars(Measure::PerGb)),
            Chart::new("GETATTR: operations/s", small, Shape::Bars(Measure::Rate)),
            Chart::new("GETATTR: CPU", small, Shape::Bars(Measure::PerOperation)),
        ],
        seconds: 1.0,
        file_size: 256 << 20,
    }
}

/// Returns the plan of `slipway bench pnfs --pattern limited`. Each series is a cluster. All clients together have `in_flight` operations
/// outstanding, because a data server that is limited needs a long time for many.
pub fn pnfs_limited(blocks: &[usize], clients: &[u32], in_flight: u32) -> Plan {
    let both = |block| [Operation::Read, Operation::Write].map(|operation| Point::new(operation, block, in_flight));
    let by_clients = |point: Point| {
        let share = |&clients: &u32| Point { in_flight: in_flight.div_ceil(clients), ..point.threads(clients) };
        clients.iter().map(share).collect::<Vec<_>>()
    };
    let successive = blocks.iter().flat_map(|block| both(*block)).flat_map(by_clients);
    let zipf = blocks.iter().flat_map(|block| both(*block)).map(Point::zipf);
    Plan {
        name: "pnfs",
        title: format!(
            "data servers that are limited in bytes per second; several clients of one file, with {in_flight} operations outstanding \
             in all"
        ),
        points: successive.chain(zipf).collect(),
        charts: vec![
            Chart::new(
                "READ by several clients",
                |point| is_read(point) && !point.zipf,
                Shape::Bars(Measure::Throughput),
            )
            .with_claim(&claim::OSU_THROUGHPUT),
            Chart::new(
                "WRITE by several clients",
                |point| is_write(point) && !point.zipf,
                Shape::Bars(Measure::Throughput),
            )
            .with_claim(&claim::OSU_THROUGHPUT),
            Chart::new("Some blocks more often than others", |point| point.zipf, Shape::Bars(Measure::Throughput))
                .with_claim(&claim::OSU_ZIPF),
        ],
        seconds: 1.0,
        file_size: 512 << 20,
    }
}

/// Returns the plan of `slipway bench pnfs --pattern direct`. Each series is a cluster, or one server without layouts.
pub fn pnfs_direct(block: usize, in_flight: u32) -> Plan {
    Plan {
        name: "pnfs",
        title: format!("one client, {in_flight} operations outstanding: by layouts, and from one server directly"),
        points: vec![
            Point::new(Operation::Read, block, in_flight),
            Point::new(Operation::Write, block, in_flight),
            Point::new(Operation::Read, block, in_flight).random(),
        ],
        charts: vec![
            Chart::new("READ", is_read, Shape::Bars(Measure::Throughput)),
            Chart::new("WRITE", is_write, Shape::Bars(Measure::Throughput)),
            Chart::new("CPU time of the client", |_| true, Shape::Bars(Measure::ClientPerGb)),
        ],
        seconds: 2.0,
        file_size: 64 << 20,
    }
}

/// Returns the plan of `slipway bench pnfs --pattern create`. Each series is a cluster.
pub fn pnfs_create(clients: &[u32]) -> Plan {
    let of = |operation, block| clients.iter().map(move |count| Point::new(operation, block, 1).threads(*count));
    let with_data = [NEW_SMALL, NEW_LARGE].into_iter().flat_map(|block| of(Operation::NewFile, block));
    Plan {
        name: "pnfs",
        title: "clients that make files, whose objects the data servers have from the first byte on".to_owned(),
        points: of(Operation::NewLayout, 1).chain(with_data).collect(),
        charts: vec![
            Chart::new("Files with layouts", is_creation, Shape::Bars(Measure::Rate)).with_claim(&claim::OSU_CREATE),
            Chart::new("Small files with data", |point| point.block == NEW_SMALL, Shape::Bars(Measure::Rate)),
            Chart::new("Larger files with data", |point| point.block == NEW_LARGE, Shape::Bars(Measure::Rate)),
        ],
        seconds: 1.0,
        file_size: 1 << 20,
    }
}

/// Selects the points at which files are created without data.
pub fn is_creation(point: &Point) -> bool {
    point.operation == Operation::NewLayout
}

/// Returns the plan of `slipway bench pnfs --pattern latency`. Each series is a cluster with one data server, which has no part in the
/// operations: the file is not longer than the threshold. Larger layouts are those of a second cluster.
pub fn pnfs_latency() -> Plan {
    let payloads = [1, 64, 1 << 10, 4 << 10, 16 << 10, 32 << 10];
    let of = |operation| payloads.map(|block| Point::new(operation, block, 1).random());
    let layouts = [1, ONE_STRIPE, ALL_STRIPES].map(|objects| Point::layout(Operation::LayoutGet, objects));
    let others = [Operation::GetDeviceInfo, Operation::LayoutCommit, Operation::LayoutReturn];
    let others = others.map(|operation| Point::layout(operation, 1));
    let points = [Operation::Read, Operation::Write].into_iter().flat_map(of).chain(layouts).chain(others);
    Plan {
        name: "pnfs",
        title: "operations at the metadata server with payloads of 1 byte to 32 KiB, one outstanding".to_owned(),
        points: std::iter::once(Point::new(Operation::Getattr, 1, 1)).chain(points).collect(),
        charts: vec![
            Chart::new("GETATTR", |point| point.operation == Operation::Getattr, Shape::Bars(Measure::Median)),
            Chart::new("READ: replies with payloads", is_read, Shape::Bars(Measure::Median))
                .with_claim(&claim::OSU_LATENCY),
            Chart::new("WRITE: calls with payloads", is_write, Shape::Bars(Measure::Median))
                .with_claim(&claim::OSU_LATENCY),
            Chart::new("Layouts", |point| point.objects > 0, Shape::Bars(Measure::Median))
                .with_claim(&claim::OSU_LATENCY),
        ],
        seconds: 1.0,
        file_size: 64 << 10,
    }
}

/// Returns the plan of `slipway bench pnfs --pattern btio`. Each series is a cluster. A point that reads follows the one that has written.
pub fn pnfs_btio(dumps: u64, in_flight: u32) -> Plan {
    let of = |write, read, in_flight| {
        let both = move |writers| [write, read].map(|operation| Point::new(operation, 1, in_flight).threads(writers));
        WRITERS.iter().copied().flat_map(both)
    };
    let full = of(Operation::BtioFullWrite, Operation::BtioFullRead, 1);
    let simple = of(Operation::BtioSimpleWrite, Operation::BtioSimpleRead, in_flight);
    let is_full: Filter = |point| matches!(point.operation, Operation::BtioFullWrite | Operation::BtioFullRead);
    let is_simple: Filter = |point| matches!(point.operation, Operation::BtioSimpleWrite | Operation::BtioSimpleRead);
    Plan {
        name: "pnfs",
        title: format!("BTIO class A, {dumps} dumps; 1, 4 and 16 writers of one file, which is then read and compared"),
        points: full.chain(simple).collect(),
        charts: vec![
            Chart::new("FULL: large contiguous records", is_full, Shape::Bars(Measure::Throughput))
                .with_claim(&claim::OSU_BTIO),
            Chart::new("SIMPLE: small records", is_simple, Shape::Bars(Measure::Throughput))
                .with_claim(&claim::OSU_BTIO),
        ],
        // The work is fixed, and not the time.
        seconds: 0.0,
        file_size: Btio::file_size(dumps),
    }
}

/// The numbers of clients that write to a cluster: squares, as BTIO needs them.
pub const WRITERS: [u32; 3] = [1, 4, 16];
/// The bytes of new files.
const NEW_SMALL: usize = 4 << 10;
pub const NEW_LARGE: usize = 128 << 10;

fn is_read(point: &Point) -> bool {
    point.operation.reads_blocks()
}

fn is_write(point: &Point) -> bool {
    point.operation == Operation::Write
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chart_has_points_and_every_point_has_a_chart() {
        let plans = [demo(128 << 10, 8), sweep(), threads(), registration(), iops(), mixed(), baseline(), security()];
        let pnfs = [
            pnfs_limited(&[32 << 10, 1 << 20], &[1, 8], 32),
            pnfs_direct(128 << 10, 8),
            pnfs_create(&WRITERS),
            pnfs_latency(),
            pnfs_btio(40, 8),
        ];
        for plan in plans.into_iter().chain(pnfs) {
            for chart in &plan.charts {
                assert!(plan.points.iter().any(chart.of), "{}: {}", plan.name, chart.title);
            }
            for point in &plan.points {
                assert!(plan.charts.iter().any(|chart| (chart.of)(point)), "{}: {}", plan.name, point.label());
                assert!(plan.file_size >= point.block as u64);
            }
        }
    }

    #[test]
    fn sweep_has_the_points_of_the_paper() {
        let points = sweep().points;
        let blocks: Vec<usize> = points.iter().filter(|p| p.in_flight == 0 && is_write(p)).map(|p| p.block).collect();
        assert_eq!((blocks[0], blocks[11], blocks.len()), (512, 1 << 20, 12));
        assert_eq!(points.len(), 2 * 12 * 6);
    }
}
