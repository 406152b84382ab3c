//! What a benchmark measured, and how it is told.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::output::{Align, Table};

/// One run of one transport: counts, times, and what it cost.
pub struct Sample {
    /// Operations completed.
    pub operations: u64,
    /// Bytes of file data moved.
    pub bytes: u64,
    /// Wall clock.
    pub elapsed: Duration,
    /// CPU time of this process.
    pub client_cpu: Duration,
    /// CPU time of the server, if it is ours.
    pub server_cpu: Option<Duration>,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
}

/// All runs of one transport.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The transport.
    pub transport: String,
    /// Runs that were made.
    pub runs: usize,
    /// Operations of all runs.
    pub operations: u64,
    /// Operations a second: the median of the runs.
    pub iops: f64,
    /// The slowest and the fastest run.
    pub iops_range: [f64; 2],
    /// 10^9 bytes of file data a second: the median of the runs. Absent where no data moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gb_per_s: Option<f64>,
    /// Latencies in microseconds, over all runs.
    pub latency_us: Latency,
    /// CPU seconds of the client, over all runs.
    pub client_cpu: Cost,
    /// The same of the server; absent if it is not ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu: Option<Cost>,
}

/// Latencies in microseconds.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // The names say it.
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// CPU seconds, and what they are for.
#[derive(Debug, Serialize)]
pub struct Cost {
    /// CPU seconds in all.
    pub seconds: f64,
    /// For each 10^9 bytes of file data; absent where no data moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_per_gb: Option<f64>,
    /// CPU microseconds for each operation.
    pub us_per_operation: f64,
}

impl Report {
    /// Sums the runs of a transport up.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(transport: &str, samples: &[Sample]) -> Self {
        assert!(!samples.is_empty(), "a report is of at least one run");
        let operations: u64 = samples.iter().map(|sample| sample.operations).sum();
        let bytes: u64 = samples.iter().map(|sample| sample.bytes).sum();
        let mut latency = samples[0].latency.clone();
        samples[1..].iter().for_each(|sample| latency.add(&sample.latency).expect("their bounds are the same"));
        let mut iops: Vec<f64> =
            samples.iter().map(|sample| sample.operations as f64 / sample.elapsed.as_secs_f64()).collect();
        iops.sort_by(f64::total_cmp);
        let mut rates: Vec<f64> =
            samples.iter().map(|sample| sample.bytes as f64 / 1e9 / sample.elapsed.as_secs_f64()).collect();
        rates.sort_by(f64::total_cmp);
        let cost = |time: Duration| Cost {
            seconds: time.as_secs_f64(),
            seconds_per_gb: (bytes > 0).then(|| time.as_secs_f64() / (bytes as f64 / 1e9)),
            us_per_operation: time.as_secs_f64() * 1e6 / operations.max(1) as f64,
        };
        let micros = |nanos: u64| nanos as f64 / 1e3;
        Self {
            transport: transport.to_owned(),
            runs: samples.len(),
            operations,
            iops: median(&iops),
            iops_range: [iops[0], iops[iops.len() - 1]],
            gb_per_s: (bytes > 0).then(|| median(&rates)),
            latency_us: Latency {
                mean: latency.mean() / 1e3,
                p50: micros(latency.value_at_quantile(0.5)),
                p90: micros(latency.value_at_quantile(0.9)),
                p99: micros(latency.value_at_quantile(0.99)),
                p999: micros(latency.value_at_quantile(0.999)),
                max: micros(latency.max()),
            },
            client_cpu: cost(samples.iter().map(|sample| sample.client_cpu).sum()),
            server_cpu: samples.iter().map(|sample| sample.server_cpu).sum::<Option<Duration>>().map(cost),
        }
    }
}

/// The middle of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The reports side by side, one transport a row.
pub fn table(reports: &[Report]) -> String {
    let data = reports.iter().any(|report| report.gb_per_s.is_some());
    let unit = if data { "CPU s/GB" } else { "CPU us/op" };
    let (client, server) = (format!("client {unit}"), format!("server {unit}"));
    let mut table = Table::new(&[
        ("transport", Align::Left),
        ("GB/s", Align::Right),
        ("ops/s", Align::Right),
        ("(range)", Align::Right),
        ("p50 us", Align::Right),
        ("p90", Align::Right),
        ("p99", Align::Right),
        ("p99.9", Align::Right),
        (&client, Align::Right),
        (&server, Align::Right),
    ]);
    for report in reports {
        let cost = |cost: &Cost| match cost.seconds_per_gb {
            Some(seconds) => format!("{seconds:.3}"),
            None => format!("{:.2}", cost.us_per_operation),
        };
        let latency = &report.latency_us;
        table.row(vec![
            report.transport.clone(),
            report.gb_per_s.map_or("-".to_owned(), |rate| format!("{rate:.3}")),
            format!("{:.0}", report.iops),
            format!("{:.0}-{:.0}", report.iops_range[0], report.iops_range[1]),
            format!("{:.0}", latency.p50),
            format!("{:.0}", latency.p90),
            format!("{:.0}", latency.p99),
            format!("{:.0}", latency.p999),
            cost(&report.client_cpu),
            report.server_cpu.as_ref().map_or("-".to_owned(), cost),
        ]);
    }
    table.text()
}

/// An empty histogram of latencies, from 64 ns to ten minutes in nanoseconds, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(64, 600_000_000_000, 3).expect("the bounds are in order")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(operations: u64, bytes: u64, seconds: u64) -> Sample {
        let mut latency = histogram();
        latency.record_n(50_000, operations).unwrap();
        Sample {
            operations,
            bytes,
            elapsed: Duration::from_secs(seconds),
            client_cpu: Duration::from_millis(500),
            server_cpu: Some(Duration::from_millis(1500)),
            latency,
        }
    }

    #[test]
    fn runs_are_summed_up_by_their_median() {
        let report =
            Report::new("tcp", &[sample(100, 1_000_000_000, 1), sample(300, 3_000_000_000, 1), sample(200, 0, 1)]);
        assert_eq!((report.operations, report.iops, report.iops_range), (600, 200.0, [100.0, 300.0]));
        assert_eq!(report.gb_per_s, Some(1.0));
        assert_eq!(report.client_cpu.seconds_per_gb, Some(0.375));
        let server = report.server_cpu.unwrap();
        assert_eq!(server.seconds, 4.5);
        assert!((server.us_per_operation - 7500.0).abs() < 1e-6);
        assert!((report.latency_us.p50 - 50.0).abs() < 0.1);
    }

    #[test]
    fn without_data_costs_are_by_operation() {
        let report = Report::new("rdma", &[sample(1000, 0, 2), sample(1000, 0, 1)]);
        assert_eq!((report.gb_per_s, report.iops), (None, 750.0));
        let text = table(&[report]);
        assert!(text.contains("client CPU us/op") && text.contains("rdma"), "{text}");
    }
}
