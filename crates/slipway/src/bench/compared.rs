//! Tables that compare the series of `slipway bench pnfs`, in the form in which documents have them.

use super::{
    plan::{Measure, Plan},
    point::{Operation, Point},
    report::{Report, Row, Spread},
    svg::number,
};
use crate::output::{Align, Table};

/// A series and the one with which it is compared, which can be the same.
pub struct Pair {
    /// The title of the column.
    pub title: String,
    /// The name of the series.
    pub name: String,
    /// The name of the other series.
    pub first: String,
    /// The ratio that is wanted.
    pub times: f64,
}

/// Returns a table with a row for each point and a column for each pair: the value of the series, and its rate divided by the wanted
/// multiple of that of the other one (the median of all rounds).
pub fn rates(pairs: &[Pair], plan: &Plan, report: &Report, measure: Measure) -> String {
    by_point(pairs, plan, report, |row, first, times| {
        let value = measure.of(row).map_or("-".to_owned(), |value| number(value.median));
        format!("{value} ({:.2})", row.ratio(first).median / times)
    })
}

/// Returns a table like [`rates`] with latencies (medians in microseconds).
pub fn latencies(pairs: &[Pair], plan: &Plan, report: &Report) -> String {
    by_point(pairs, plan, report, |row, first, _| {
        let (value, first) = (row.latency_us.p50, first.latency_us.p50);
        format!("{} ({:.2})", number(value), value / first)
    })
}

/// Returns a table like [`rates`] with the range of the ratios of all rounds instead of the values.
pub fn shares(pairs: &[Pair], plan: &Plan, report: &Report) -> String {
    by_point(pairs, plan, report, |row, first, _| {
        let Spread { median, low, high } = row.ratio(first);
        format!("{median:.2} ({low:.2} to {high:.2})")
    })
}

/// Returns a table of BTIO: 10^9 bytes a second that were written, and read back.
pub fn dumps(plan: &Plan, report: &Report) -> String {
    let reads = |point: &&Point| matches!(point.operation, Operation::BtioFullRead | Operation::BtioSimpleRead);
    let (reads, writes): (Vec<&Point>, Vec<&Point>) = plan.points.iter().partition(reads);
    let titles: Vec<_> =
        report.series.iter().flat_map(|series| ["WRITE", "READ"].map(|of| format!("{}: {of}", series.name))).collect();
    let columns = [("records", Align::Left), ("writers", Align::Right)].into_iter();
    let mut table =
        Table::new(&columns.chain(titles.iter().map(|title| (title.as_str(), Align::Right))).collect::<Vec<_>>());
    for (write, read) in writes.into_iter().zip(reads) {
        let way = if write.operation == Operation::BtioFullWrite { "FULL" } else { "SIMPLE" };
        let value = |name: &str, point: &Point| {
            let rate = report.row(name, point).and_then(|row| row.gb_per_s);
            rate.map_or("-".to_owned(), |rate| number(rate.median))
        };
        let values = report.series.iter().flat_map(|series| [write, read].map(|point| value(&series.name, point)));
        table.row([way.to_owned(), write.threads.to_string()].into_iter().chain(values).collect());
    }
    table.text()
}

fn by_point(pairs: &[Pair], plan: &Plan, report: &Report, cell: impl Fn(&Row, &Row, f64) -> String) -> String {
    let columns = pairs.iter().map(|pair| (pair.title.as_str(), Align::Right));
    let mut table = Table::new(&[("what", Align::Left)].into_iter().chain(columns).collect::<Vec<_>>());
    for point in &plan.points {
        let cell = |pair: &Pair| {
            let rows = report.row(&pair.name, point).zip(report.row(&pair.first, point));
            rows.map_or("-".to_owned(), |(row, first)| cell(row, first, pair.times))
        };
        table.row(std::iter::once(point.label()).chain(pairs.iter().map(cell)).collect());
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{
        machine::Machine, plan, report::Conditions, runner::Cell, sample::Sample, sample::histogram, series::Series,
    };
    use super::*;

    /// Returns a report of two series with these numbers of operations in each round, times the number of the point. The second one has half the
    /// latency.
    fn report(plan: &Plan, rounds: &[[u64; 2]]) -> Report {
        let series = |name: &str| {
            let (options, mount) = Default::default();
            Series { name: name.to_owned(), transport: "tcp".to_owned(), options, mount, backend: "pnfs".to_owned() }
        };
        let sample = |operations: u64, nanos: u64| {
            let mut latency = histogram();
            latency.record_n(nanos, operations).unwrap();
            Sample {
                operations,
                bytes: operations * 1_000_000,
                elapsed: Duration::from_secs(1),
                client_cpu: Duration::ZERO,
                server_cpu: None,
                data_server_calls: None,
                memory_bytes: None,
                latency,
            }
        };
        let mut report = Report {
            benchmark: plan.name,
            title: plan.title.clone(),
            machine: Machine::this(),
            memory_bandwidth: String::new(),
            conditions: Conditions {
                rounds: rounds.len() as u32,
                seconds: 1.0,
                file_size: 1,
                server: String::new(),
                congestion_control: None,
            },
            series: ["a", "b"].map(series).into(),
            results: Vec::new(),
            unable: Vec::new(),
        };
        let cells: Vec<_> = (1..=plan.points.len() as u64)
            .map(|point| {
                let cell = |(at, nanos): (usize, u64)| {
                    Cell::Samples(rounds.iter().map(|round| sample(round[at] * point, nanos)).collect())
                };
                [(0, 100_000), (1, 50_000)].map(cell).into()
            })
            .collect();
        report.fill(&plan.points, &cells);
        report
    }

    fn pair(name: &str, times: f64) -> Pair {
        Pair { title: name.to_owned(), name: name.to_owned(), first: "a".to_owned(), times }
    }

    #[test]
    fn values_are_divided_by_the_wanted_multiple_of_the_first_series() {
        let plan = plan::pnfs_create(&[1]);
        let report = report(&plan, &[[100, 100], [300, 900], [200, 400]]);
        let table = rates(&[pair("a", 1.0), pair("b", 4.0)], &plan, &report, Measure::Rate);
        let row = table.lines().nth(1).unwrap();
        assert!(row.ends_with("200 (1.00)  400 (0.50)"), "{table}");
        let table = latencies(&[pair("a", 1.0), pair("b", 1.0)], &plan, &report);
        assert!(table.lines().nth(1).unwrap().ends_with("100 (1.00)  50 (0.50)"), "{table}");
        let table = shares(&[pair("b", 1.0)], &plan, &report);
        assert!(table.lines().nth(1).unwrap().ends_with("2.00 (1.00 to 3.00)"), "{table}");
    }

    #[test]
    fn dumps_have_a_row_for_each_way_and_number_of_writers() {
        let plan = plan::pnfs_btio(1, 8);
        let table = dumps(&plan, &report(&plan, &[[100, 200]]));
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        let wanted = [("FULL", "1"), ("FULL", "4"), ("FULL", "16"), ("SIMPLE", "1"), ("SIMPLE", "4"), ("SIMPLE", "16")];
        // Each point has another rate: that of the writes comes before that of the reads.
        for (at, (line, (way, writers))) in lines[1..].iter().zip(wanted).enumerate() {
            let rate = |tenths: usize| number(tenths as f64 / 10.0);
            let [write, read] = [2 * at + 1, 2 * at + 2];
            let values = [write, read, 2 * write, 2 * read].map(rate);
            assert_eq!(line[..2], [way, writers], "{table}");
            assert_eq!(line[2..], values, "{table}");
        }
        assert_eq!(lines.len(), 7);
    }
}
