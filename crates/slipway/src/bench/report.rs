//! [`Report`]: the summary of a measurement, also as JSON for scripts.

use std::time::Duration;

use serde::Serialize;

use super::{
    compared::Comparison,
    machine::Machine,
    point::Point,
    runner::Cell,
    sample::{Sample, histogram},
    series::Series,
};

/// The results of a measurement.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The name of the subcommand.
    pub benchmark: &'static str,
    /// A description of the measurement.
    pub title: String,
    /// The machine.
    pub machine: Machine,
    /// The source of the memory bandwidth, or the reason if there is none.
    pub memory_bandwidth: String,
    /// The conditions that apply to all series.
    pub conditions: Conditions,
    /// The series.
    pub series: Vec<Series>,
    /// The results: by point, and for each point by series.
    pub results: Vec<Row>,
    /// The combinations that could not be measured.
    pub unable: Vec<Unable>,
    /// The comparisons of the series with their aims, if the subcommand has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Comparison>,
}

/// The conditions that apply to all series.
#[derive(Debug, Serialize)]
pub struct Conditions {
    /// The number of runs of each series at each point.
    pub rounds: u32,
    /// The seconds of each run.
    pub seconds: f64,
    /// The bytes of each thread's file.
    pub file_size: u64,
    /// A description of the server.
    pub server: String,
    /// The congestion control of TCP, if it was selected; else that of the machine applies.
    pub congestion_control: Option<String>,
}

/// The result of one series at one point.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The name of the series.
    pub series: String,
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// The number of runs.
    pub rounds: usize,
    /// The number of operations of all runs.
    pub operations: u64,
    /// Operations a second.
    pub iops: Spread,
    /// Operations a second of each run, in the order of the rounds.
    pub iops_of_rounds: Vec<f64>,
    /// 10^9 bytes of file data a second; absent if no data move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gb_per_s: Option<Spread>,
    /// The number of READs and WRITEs at the data servers in all runs; absent if there is no cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_server_calls: Option<u64>,
    /// Latencies in microseconds, over all runs.
    pub latency_us: Latency,
    /// The CPU time of the client.
    pub client_cpu: Cost,
    /// The CPU time of the server; absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu: Option<Cost>,
    /// The CPU time of all data servers; absent if there is no cluster, or if it is part of that of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_server_cpu: Option<Cost>,
    /// 10^9 bytes a second that the machine's memory moved; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gb_per_s: Option<Spread>,
}

/// A point that a series could not measure.
#[derive(Debug, Serialize)]
pub struct Unable {
    /// The name of the series.
    pub series: String,
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// The reason.
    pub why: String,
}

/// A value of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

/// Latencies in microseconds.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // The names are clear.
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// CPU time in several units.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// The CPU seconds of all runs.
    pub seconds: f64,
    /// The CPU seconds for each second, which is the number of busy cores.
    pub cores: Spread,
    /// The CPU seconds for each 10^9 bytes of file data; absent if no data move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_per_gb: Option<Spread>,
    /// The CPU microseconds for each operation.
    pub us_per_operation: Spread,
}

impl Report {
    /// Summarizes the cells of all points and series in `results` and `unable`.
    pub fn fill(&mut self, points: &[Point], cells: &[Vec<Cell>]) {
        for (point, cells) in points.iter().zip(cells) {
            for (series, cell) in self.series.iter().zip(cells) {
                match cell {
                    Cell::Samples(samples) if !samples.is_empty() => {
                        self.results.push(Row::new(&series.name, point, samples));
                    }
                    Cell::Samples(_) => {}
                    Cell::Unable(why) => {
                        let why = why.clone();
                        self.unable.push(Unable { series: series.name.clone(), point: *point, why });
                    }
                }
            }
        }
    }

    /// Returns the result of a series at a point, if there is one.
    pub fn row(&self, series: &str, point: &Point) -> Option<&Row> {
        self.results.iter().find(|row| row.series == series && row.point == *point)
    }

    /// Returns the conditions in one line.
    pub fn summary(&self) -> String {
        let Conditions { rounds, seconds, file_size, server, congestion_control } = &self.conditions;
        let congestion = congestion_control.as_ref().unwrap_or(&self.machine.congestion_control);
        format!(
            "{rounds} rounds of {seconds} s; files of {}; {server}; congestion control {congestion}",
            crate::output::size(*file_size)
        )
    }
}

impl Row {
    /// Summarizes the runs of one series at one point.
    ///
    /// # Panics
    /// `samples` is empty.
    pub fn new(series: &str, point: &Point, samples: &[Sample]) -> Self {
        let mut latency = histogram();
        samples.iter().for_each(|sample| latency.add(&sample.latency).expect("histograms must have the same bounds"));
        let moved = samples.iter().any(|sample| sample.bytes > 0);
        let each = |of: &dyn Fn(&Sample) -> f64| Spread::new(samples.iter().map(of).collect());
        let seconds = |sample: &Sample| sample.elapsed.as_secs_f64();
        let cost = |cpu: &dyn Fn(&Sample) -> f64| Cost {
            seconds: samples.iter().map(cpu).sum(),
            cores: each(&|sample| cpu(sample) / seconds(sample)),
            seconds_per_gb: moved.then(|| each(&|sample| cpu(sample) / (sample.bytes.max(1) as f64 / 1e9))),
            us_per_operation: each(&|sample| cpu(sample) * 1e6 / sample.operations.max(1) as f64),
        };
        let iops_of_rounds: Vec<f64> =
            samples.iter().map(|sample| sample.operations as f64 / seconds(sample)).collect();
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let quantile = |quantile| micros(latency.value_at_quantile(quantile));
        let known = |cpu: fn(&Sample) -> Option<Duration>| {
            let seconds =
                move |sample: &Sample| cpu(sample).expect("value must be known for all samples").as_secs_f64();
            samples.iter().all(|sample| cpu(sample).is_some()).then(|| cost(&seconds))
        };
        Self {
            series: series.to_owned(),
            point: *point,
            rounds: samples.len(),
            operations: samples.iter().map(|sample| sample.operations).sum(),
            iops: Spread::new(iops_of_rounds.clone()),
            iops_of_rounds,
            data_server_calls: samples.iter().map(|sample| sample.data_server_calls).sum(),
            gb_per_s: moved.then(|| each(&|sample| sample.bytes as f64 / 1e9 / seconds(sample))),
            latency_us: Latency {
                mean: latency.mean() / 1e3,
                p50: quantile(0.5),
                p90: quantile(0.9),
                p99: quantile(0.99),
                p999: quantile(0.999),
                max: micros(latency.max()),
            },
            client_cpu: cost(&|sample| sample.client_cpu.as_secs_f64()),
            server_cpu: known(|sample| sample.server_cpu),
            data_server_cpu: known(|sample| sample.data_server_cpu),
            memory_gb_per_s: (samples.iter().all(|sample| sample.memory_bytes.is_some()))
                .then(|| each(&|sample| sample.memory_bytes.unwrap_or(0) as f64 / 1e9 / seconds(sample))),
        }
    }

    /// Returns the rate divided by that of another row. Each round is compared by itself, because the speed of a shared machine changes
    /// from round to round.
    ///
    /// # Panics
    /// A row has no rounds.
    pub fn ratio(&self, to: &Row) -> Spread {
        Spread::new(self.iops_of_rounds.iter().zip(&to.iops_of_rounds).map(|(rate, other)| rate / other).collect())
    }
}

impl Spread {
    /// Returns the summary of one value.
    pub fn exactly(value: f64) -> Self {
        Self { median: value, low: value, high: value }
    }

    /// Summarizes at least one value.
    ///
    /// # Panics
    /// `values` is empty.
    pub fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Self { median, low: values[0], high: values[values.len() - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::super::point::Operation;
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
            data_server_cpu: Some(Duration::from_millis(2500)),
            data_server_calls: Some(operations * 2),
            memory_bytes: Some(4_000_000_000),
            latency,
        }
    }

    fn row(samples: &[Sample]) -> Row {
        Row::new("tcp", &Point::new(Operation::Read, 4096, 1), samples)
    }

    #[test]
    fn runs_are_summarized_by_their_median() {
        let report =
            row(&[sample(100, 1_000_000_000, 1), sample(300, 3_000_000_000, 1), sample(200, 2_000_000_000, 2)]);
        assert_eq!((report.operations, report.rounds), (600, 3));
        assert_eq!(report.data_server_calls, Some(1200));
        assert_eq!(report.iops, Spread { median: 100.0, low: 100.0, high: 300.0 });
        assert_eq!(report.gb_per_s.unwrap().median, 1.0);
        assert_eq!(report.memory_gb_per_s.unwrap(), Spread { median: 4.0, low: 2.0, high: 4.0 });
        assert_eq!(report.client_cpu.seconds_per_gb.unwrap(), Spread { median: 0.25, low: 0.5 / 3.0, high: 0.5 });
        let server = report.server_cpu.unwrap();
        assert_eq!((server.seconds, server.cores.high), (4.5, 1.5));
        assert_eq!(report.data_server_cpu.unwrap().seconds, 7.5);
        assert!((server.us_per_operation.median - 7500.0).abs() < 1e-6);
        assert!((report.latency_us.p50 - 50.0).abs() < 0.1);
    }

    #[test]
    fn rates_are_compared_within_a_round() {
        // The machine is fast, slow, and fast again.
        let (one, other) =
            (row(&[200, 100, 160].map(|n| sample(n, 0, 1))), row(&[100, 50, 200].map(|n| sample(n, 0, 1))));
        assert_eq!(one.ratio(&other), Spread { median: 2.0, low: 0.8, high: 2.0 });
    }

    #[test]
    fn unknown_values_are_absent() {
        let mut unknown = sample(1000, 0, 1);
        (unknown.server_cpu, unknown.data_server_cpu) = (None, None);
        (unknown.data_server_calls, unknown.memory_bytes) = (None, None);
        let json = serde_json::to_value(row(&[sample(1000, 0, 2), unknown])).unwrap();
        for absent in ["gb_per_s", "server_cpu", "data_server_cpu", "data_server_calls", "memory_gb_per_s"] {
            assert!(json.get(absent).is_none(), "{absent}");
        }
        assert_eq!((&json["iops"]["median"], &json["operation"]), (&750.0.into(), &"read".into()));
    }
}
