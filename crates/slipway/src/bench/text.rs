//! The report as text for a terminal: surfaces as grids, all else as one table.

use std::collections::BTreeMap;

use super::{
    plan::{Chart, Plan, Shape},
    point::{self, Point},
    report::{Cost, Report, Unable},
};
use crate::output::{Align, Table};

/// Returns the text of a report.
pub fn report(plan: &Plan, report: &Report) -> String {
    let mut text = format!("{}: {}\n{}\n", report.benchmark, report.title, report.summary());
    text.push_str(&format!("Memory bandwidth: {}\n", report.memory_bandwidth));
    let is_surface = |chart: &&Chart| chart.shape == Shape::Surface;
    let surfaces: Vec<&Chart> = plan.charts.iter().filter(is_surface).collect();
    if surfaces.is_empty() {
        text.push_str(&format!("\n{}", table(report)));
    }
    for chart in surfaces {
        for series in &report.series {
            text.push_str(&format!("\n{}: {}\n{}", series.name, chart.title, grid(plan, chart, report, &series.name)));
        }
    }
    for line in unable(report) {
        text.push_str(&format!("\n{line}\n"));
    }
    for comparison in &report.comparisons {
        text.push_str(&format!("\n{}", comparison.text()));
    }
    text
}

/// Returns the points that could not be measured, one line for each reason.
pub fn unable(report: &Report) -> Vec<String> {
    let mut reasons: BTreeMap<(&str, &str), Vec<&Point>> = BTreeMap::new();
    for Unable { series, point, why } in &report.unable {
        reasons.entry((series, why)).or_default().push(point);
    }
    let line = |((series, why), points): (_, Vec<&Point>)| match &points[..] {
        [point] => format!("Not measured: {series}, {}: {why}", point.label()),
        [first, ..] => format!("Not measured: {series}, {} points from {} on: {why}", points.len(), first.label()),
        [] => unreachable!("a reason must have a point"),
    };
    reasons.into_iter().map(line).collect()
}

fn table(report: &Report) -> String {
    let several = report.results.iter().any(|row| row.point != report.results[0].point);
    let memory = report.results.iter().any(|row| row.memory_gb_per_s.is_some());
    let mut columns = vec![("series", Align::Left), ("GB/s", Align::Right), ("ops/s", Align::Right)];
    columns.extend(["(range)", "p50 us", "p90", "p99", "p99.9"].map(|title| (title, Align::Right)));
    columns.extend([("client CPU", Align::Right), ("server CPU", Align::Right)]);
    if several {
        columns.insert(0, ("what", Align::Left));
    }
    let data_servers = report.results.iter().any(|row| row.data_server_cpu.is_some());
    if data_servers {
        columns.push(("data servers' CPU", Align::Right));
    }
    if memory {
        columns.push(("memory GB/s", Align::Right));
    }
    let mut table = Table::new(&columns);
    for row in &report.results {
        let latency = &row.latency_us;
        let mut cells = vec![
            row.series.clone(),
            row.gb_per_s.map_or("-".to_owned(), |rate| format!("{:.3}", rate.median)),
            format!("{:.0}", row.iops.median),
            format!("{:.0}-{:.0}", row.iops.low, row.iops.high),
        ];
        cells.extend([latency.p50, latency.p90, latency.p99, latency.p999].map(micros));
        cells.extend([cost(&row.client_cpu), row.server_cpu.as_ref().map_or("-".to_owned(), cost)]);
        if several {
            cells.insert(0, row.point.label());
        }
        if data_servers {
            cells.push(row.data_server_cpu.as_ref().map_or("-".to_owned(), cost));
        }
        if memory {
            cells.push(row.memory_gb_per_s.map_or("-".to_owned(), |rate| format!("{:.2}", rate.median)));
        }
        table.row(cells);
    }
    table.text()
}

fn micros(value: f64) -> String {
    if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn cost(cost: &Cost) -> String {
    match cost.seconds_per_gb {
        Some(seconds) => format!("{:.3} s/GB", seconds.median),
        None => format!("{:.2} us/op", cost.us_per_operation.median),
    }
}

/// Formats throughput with a row for each block size and a column for each number of operations in flight.
fn grid(plan: &Plan, chart: &Chart, report: &Report, series: &str) -> String {
    let points: Vec<&Point> = plan.points.iter().filter(|point| (chart.of)(point)).collect();
    let (blocks, at_once) = sides(&points);
    let titles: Vec<String> = at_once.iter().map(|in_flight| format!("× {in_flight}")).collect();
    let columns = titles.iter().map(|title| (title.as_str(), Align::Right));
    let mut table = Table::new(&[("block", Align::Right)].into_iter().chain(columns).collect::<Vec<_>>());
    for &block in &blocks {
        let cell = |in_flight: &u32| {
            let point = points.iter().find(|point| (point.block, point.in_flight) == (block, *in_flight));
            let row = point.and_then(|point| report.row(series, point));
            row.and_then(|row| row.gb_per_s).map_or("-".to_owned(), |rate| format!("{:.3}", rate.median))
        };
        table.row([point::block(block)].into_iter().chain(at_once.iter().map(cell)).collect());
    }
    table.text()
}

/// Returns the block sizes and the numbers of operations in flight of the points, in order.
pub fn sides(points: &[&Point]) -> (Vec<usize>, Vec<u32>) {
    let mut blocks: Vec<usize> = points.iter().map(|point| point.block).collect();
    let mut at_once: Vec<u32> = points.iter().map(|point| point.in_flight).collect();
    blocks.sort_unstable();
    blocks.dedup();
    at_once.sort_unstable();
    at_once.dedup();
    (blocks, at_once)
}
