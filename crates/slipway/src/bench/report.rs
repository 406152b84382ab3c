//! [`Report`]: what was measured, summed up, as scripts get it.

use std::time::Duration;

use serde::Serialize;

use super::{
    machine::Machine,
    point::Point,
    runner::Cell,
    sample::{Sample, histogram},
    series::Series,
};

/// All that was asked for and measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The subcommand.
    pub benchmark: &'static str,
    /// What it measures, for people.
    pub title: String,
    /// Where.
    pub machine: Machine,
    /// How memory bandwidth was read, or why it was not.
    pub memory_bandwidth: String,
    /// What applied to all series.
    pub conditions: Conditions,
    /// What was compared.
    pub series: Vec<Series>,
    /// What was measured: by point, and for each by series.
    pub results: Vec<Row>,
    /// What could not be measured.
    pub unable: Vec<Unable>,
}

/// What applied to all series.
#[derive(Debug, Serialize)]
pub struct Conditions {
    /// Runs of each series at each point.
    pub rounds: u32,
    /// Seconds of each run.
    pub seconds: f64,
    /// Bytes of each thread's file.
    pub file_size: u64,
    /// The server that was measured.
    pub server: String,
    /// Congestion control of TCP, if it was asked for; else the machine's applies.
    pub congestion_control: Option<String>,
}

/// One series at one point.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The series' name.
    pub series: String,
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// Runs that were made.
    pub rounds: usize,
    /// Operations of all runs.
    pub operations: u64,
    /// Operations a second.
    pub iops: Spread,
    /// 10^9 bytes of file data a second. Absent where no data moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gb_per_s: Option<Spread>,
    /// Latencies in microseconds, over all runs.
    pub latency_us: Latency,
    /// CPU time of the client.
    pub client_cpu: Cost,
    /// The same of the server; absent if there is none, or it is not ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu: Option<Cost>,
    /// 10^9 bytes a second that the machine's memory moved; absent where that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gb_per_s: Option<Spread>,
}

/// What a series could not do.
#[derive(Debug, Serialize)]
pub struct Unable {
    /// The series' name.
    pub series: String,
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// Why.
    pub why: String,
}

/// A figure of several runs.
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
#[allow(missing_docs)] // The names say it.
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// CPU time, and what it is for.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// CPU seconds of all runs.
    pub seconds: f64,
    /// CPU seconds for each second: cores that were busy.
    pub cores: Spread,
    /// CPU seconds for each 10^9 bytes of file data; absent where no data moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_per_gb: Option<Spread>,
    /// CPU microseconds for each operation.
    pub us_per_operation: Spread,
}

impl Report {
    /// Sums the cells of all points and series up into `results` and `unable`.
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

    /// The row of a series at a point, if there is one.
    pub fn row(&self, series: &str, point: &Point) -> Option<&Row> {
        self.results.iter().find(|row| row.series == series && row.point == *point)
    }

    /// The conditions in one line.
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
    /// Sums the runs of one series at one point up.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(series: &str, point: &Point, samples: &[Sample]) -> Self {
        let mut latency = histogram();
        samples.iter().for_each(|sample| latency.add(&sample.latency).expect("their bounds are the same"));
        let moved = samples.iter().any(|sample| sample.bytes > 0);
        let each = |of: &dyn Fn(&Sample) -> f64| Spread::new(samples.iter().map(of).collect());
        let seconds = |sample: &Sample| sample.elapsed.as_secs_f64();
        let cost = |cpu: &dyn Fn(&Sample) -> f64| Cost {
            seconds: samples.iter().map(cpu).sum(),
            cores: each(&|sample| cpu(sample) / seconds(sample)),
            seconds_per_gb: moved.then(|| each(&|sample| cpu(sample) / (sample.bytes.max(1) as f64 / 1e9))),
            us_per_operation: each(&|sample| cpu(sample) * 1e6 / sample.operations.max(1) as f64),
        };
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let quantile = |quantile| micros(latency.value_at_quantile(quantile));
        let known = |cpu: Option<Duration>| cpu.expect("it is known of all samples").as_secs_f64();
        Self {
            series: series.to_owned(),
            point: *point,
            rounds: samples.len(),
            operations: samples.iter().map(|sample| sample.operations).sum(),
            iops: each(&|sample| sample.operations as f64 / seconds(sample)),
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
            server_cpu: (samples.iter().all(|sample| sample.server_cpu.is_some()))
                .then(|| cost(&|sample| known(sample.server_cpu))),
            memory_gb_per_s: (samples.iter().all(|sample| sample.memory_bytes.is_some()))
                .then(|| each(&|sample| sample.memory_bytes.unwrap_or(0) as f64 / 1e9 / seconds(sample))),
        }
    }
}

impl Spread {
    /// Of at least one value.
    ///
    /// # Panics
    /// If there is none.
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
            memory_bytes: Some(4_000_000_000),
            latency,
        }
    }

    fn row(samples: &[Sample]) -> Row {
        Row::new("tcp", &Point::new(Operation::Read, 4096, 1), samples)
    }

    #[test]
    fn runs_are_summed_up_by_their_median() {
        let report =
            row(&[sample(100, 1_000_000_000, 1), sample(300, 3_000_000_000, 1), sample(200, 2_000_000_000, 2)]);
        assert_eq!((report.operations, report.rounds), (600, 3));
        assert_eq!(report.iops, Spread { median: 100.0, low: 100.0, high: 300.0 });
        assert_eq!(report.gb_per_s.unwrap().median, 1.0);
        assert_eq!(report.memory_gb_per_s.unwrap(), Spread { median: 4.0, low: 2.0, high: 4.0 });
        assert_eq!(report.client_cpu.seconds_per_gb.unwrap(), Spread { median: 0.25, low: 0.5 / 3.0, high: 0.5 });
        let server = report.server_cpu.unwrap();
        assert_eq!((server.seconds, server.cores.high), (4.5, 1.5));
        assert!((server.us_per_operation.median - 7500.0).abs() < 1e-6);
        assert!((report.latency_us.p50 - 50.0).abs() < 0.1);
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let mut unknown = sample(1000, 0, 1);
        (unknown.server_cpu, unknown.memory_bytes) = (None, None);
        let json = serde_json::to_value(row(&[sample(1000, 0, 2), unknown])).unwrap();
        for absent in ["gb_per_s", "server_cpu", "memory_gb_per_s"] {
            assert!(json.get(absent).is_none(), "{absent}");
        }
        assert_eq!((&json["iops"]["median"], &json["operation"]), (&750.0.into(), &"read".into()));
    }
}
