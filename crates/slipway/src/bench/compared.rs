//! [`Comparison`]: a table that compares the series of `slipway bench pnfs`, with its aims. Text, JSON and page have the same.

use serde::Serialize;

use super::{
    plan::{Filter, Measure, Plan},
    point::Point,
    report::{Report, Spread},
    svg::number,
};
use crate::output::{Align, Table};

/// A table that compares series at all points.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The meaning of the values and the ratios.
    pub title: String,
    /// The results: by point, and for each point by series.
    pub results: Vec<Compared>,
    #[serde(skip)]
    pairs: Vec<Pair>,
    #[serde(skip)]
    form: Form,
}

/// The result of one series at one point.
#[derive(Debug, Serialize)]
pub struct Compared {
    /// The name of the series.
    pub series: String,
    /// The series or the limit with which it is compared.
    #[serde(flatten)]
    pub to: To,
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// The value of the series.
    pub value: f64,
    /// The value divided by the wanted multiple of that of the other series, or the limit divided by the value.
    pub ratio: Spread,
    /// The aim of the ratio, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aim: Option<Aim>,
    /// `true` if the median of the ratio reaches the aim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
}

/// A series, the other side of its comparison, and the aim.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The title of the column.
    pub title: String,
    /// The name of the series.
    pub series: String,
    /// The series or the limit with which it is compared.
    pub to: To,
    /// The aim of the ratio, and the points that have it.
    pub aim: Option<(Aim, Filter)>,
}

/// The other side of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum To {
    /// A series, which can be the same.
    Series {
        /// Its name.
        to: String,
        /// The multiple of its value that is wanted.
        times: f64,
    },
    /// A limit in the unit of the values.
    Limit {
        /// The limit.
        limit: f64,
    },
}

/// The aim of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// This ratio or a larger one.
    AtLeast(f64),
    /// This ratio or a smaller one.
    AtMost(f64),
}

impl Aim {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }
}

impl std::fmt::Display for Aim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::AtMost(most) => write!(f, "at most {most}"),
        }
    }
}

/// The form of the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The value, and the ratio to another series.
    Values,
    /// The ratio, and its range in all rounds.
    Ratios,
}

impl Pair {
    /// Returns `true` if the series is compared with itself.
    fn is_same(&self) -> bool {
        matches!(&self.to, To::Series { to, .. } if *to == self.series)
    }
}

impl Comparison {
    /// Compares the values of all pairs.
    pub fn new(title: String, form: Form, measure: Measure, pairs: Vec<Pair>, plan: &Plan, report: &Report) -> Self {
        let compared = |pair: &Pair, point: &Point| {
            let row = report.row(&pair.series, point)?;
            let value = measure.of(row)?.median;
            let ratio = match &pair.to {
                To::Series { to, times } => measure.ratio(row, report.row(to, point)?, *times)?,
                To::Limit { limit } => Spread::exactly(limit / value),
            };
            let aim = pair.aim.filter(|(_, of)| of(point)).map(|(aim, _)| aim);
            let met = aim.map(|aim| aim.is_met(ratio.median));
            let (series, to) = (pair.series.clone(), pair.to.clone());
            Some(Compared { series, to, point: *point, value, ratio, aim, met })
        };
        let by_point = |point| pairs.iter().filter_map(move |pair| compared(pair, point));
        let results = plan.points.iter().flat_map(by_point).collect();
        Self { title, results, pairs, form }
    }

    /// Returns the pairs of different series: both names, and the wanted multiple.
    pub fn series(&self) -> impl Iterator<Item = (&str, &str, f64)> {
        self.pairs.iter().filter(|pair| !pair.is_same()).filter_map(|pair| match &pair.to {
            To::Series { to, times } => Some((&pair.series[..], &to[..], *times)),
            To::Limit { .. } => None,
        })
    }

    /// Returns the titles of the columns.
    pub fn titles(&self) -> impl Iterator<Item = &str> {
        std::iter::once("what").chain(self.pairs.iter().map(|pair| &pair.title[..]))
    }

    /// Returns the rows. Each has the label of a point, and the text of a cell for each pair, with `false` if it misses its aim.
    pub fn rows(&self) -> Vec<(String, Vec<(String, bool)>)> {
        let mut rows: Vec<(Point, Vec<(String, bool)>)> = Vec::new();
        let cell = |pair: &Pair, point: &Point| {
            let found = self.results.iter().find(|one| one.series == pair.series && one.point == *point);
            found.map_or(("-".to_owned(), true), |one| (self.cell(pair, one), one.met != Some(false)))
        };
        for Compared { point, .. } in &self.results {
            if rows.last().is_none_or(|(last, _)| last != point) {
                rows.push((*point, self.pairs.iter().map(|pair| cell(pair, point)).collect()));
            }
        }
        rows.into_iter().map(|(point, cells)| (point.label(), cells)).collect()
    }

    fn cell(&self, pair: &Pair, one: &Compared) -> String {
        let Spread { median, low, high } = one.ratio;
        match self.form {
            Form::Ratios => format!("{median:.2} ({low:.2} to {high:.2})"),
            Form::Values if pair.is_same() => number(one.value),
            Form::Values => format!("{} ({median:.2})", number(one.value)),
        }
    }

    /// Returns a line for each aim, and one for each ratio that misses its aim.
    pub fn aims(&self) -> Vec<String> {
        let mut aims: Vec<Aim> = Vec::new();
        for aim in self.results.iter().filter_map(|one| one.aim) {
            if !aims.contains(&aim) {
                aims.push(aim);
            }
        }
        let line = |aim: Aim| {
            let of: Vec<_> = self.results.iter().filter(|one| one.aim == Some(aim)).collect();
            let met = of.iter().filter(|one| one.met == Some(true)).count();
            format!("Aim: {aim}. {met} of {} ratios reach it.", of.len())
        };
        let warning = |one: &Compared| {
            let aim = one.aim.filter(|_| one.met == Some(false))?;
            Some(format!("Warning: {}, {}: {:.3} instead of {aim}.", one.series, one.point.label(), one.ratio.median))
        };
        aims.into_iter().map(line).chain(self.results.iter().filter_map(warning)).collect()
    }

    /// Returns the table, with its title and its aims.
    pub fn text(&self) -> String {
        let align = |(at, title)| (title, if at == 0 { Align::Left } else { Align::Right });
        let mut table = Table::new(&self.titles().enumerate().map(align).collect::<Vec<_>>());
        for (label, cells) in self.rows() {
            table.row(std::iter::once(label).chain(cells.into_iter().map(|(text, _)| text)).collect());
        }
        let aims: String = self.aims().iter().map(|line| format!("{line}\n")).collect();
        format!("{}:\n\n{}{aims}", self.title, table.text())
    }
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
                data_server_cpu: None,
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
            comparisons: Vec::new(),
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

    fn pair(series: &str, times: f64) -> Pair {
        let (title, to) = (series.to_owned(), To::Series { to: "a".to_owned(), times });
        Pair { title: title.clone(), series: title, to, aim: None }
    }

    fn table(form: Form, measure: Measure, pairs: Vec<Pair>, plan: &Plan, report: &Report) -> Comparison {
        Comparison::new("values".to_owned(), form, measure, pairs, plan, report)
    }

    /// Returns the first row of the text, without its columns.
    fn first_row(comparison: &Comparison) -> String {
        let text = comparison.text();
        text.lines().nth(3).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn values_are_divided_by_the_wanted_multiple_of_the_first_series() {
        let plan = plan::pnfs_create(&[1]);
        let report = report(&plan, &[[100, 100], [300, 900], [200, 400]]);
        let rates = table(Form::Values, Measure::Rate, vec![pair("a", 1.0), pair("b", 4.0)], &plan, &report);
        assert!(first_row(&rates).ends_with("200 400 (0.50)"), "{}", rates.text());
        assert_eq!(rates.series().collect::<Vec<_>>(), [("b", "a", 4.0)]);
        let latencies = table(Form::Values, Measure::Median, vec![pair("a", 1.0), pair("b", 1.0)], &plan, &report);
        assert!(first_row(&latencies).ends_with("100 50 (0.50)"), "{}", latencies.text());
        let shares = table(Form::Ratios, Measure::Throughput, vec![pair("b", 1.0)], &plan, &report);
        assert!(first_row(&shares).ends_with("2.00 (1.00 to 3.00)"), "{}", shares.text());
    }

    #[test]
    fn ratios_that_miss_their_aim_are_named() {
        let plan = plan::pnfs_create(&[1]);
        let report = report(&plan, &[[100, 360]]);
        let of = |aim: Aim, of: Filter| Pair { aim: Some((aim, of)), ..pair("b", 4.0) };
        let missed =
            table(Form::Values, Measure::Rate, vec![of(Aim::AtLeast(0.95), plan::is_creation)], &plan, &report);
        let lines = missed.aims();
        assert_eq!(lines[0], "Aim: at least 0.95. 0 of 1 ratios reach it.");
        assert!(lines[1].starts_with("Warning: b, CREATE") && lines[1].ends_with(": 0.900 instead of at least 0.95."));
        assert_eq!((lines.len(), &missed.rows()[0].1[..]), (2, &[("360 (0.90)".to_owned(), false)][..]));
        assert!(missed.text().ends_with(&format!("{}\n", lines.join("\n"))), "{}", missed.text());
        let json = serde_json::to_value(&missed).unwrap();
        let result = &json["results"][0];
        assert_eq!((&result["series"], &result["to"], &result["times"]), (&"b".into(), &"a".into(), &4.0.into()));
        assert_eq!((&result["aim"]["at_least"], &result["met"]), (&0.95.into(), &false.into()));
        assert!(json["results"][1].get("met").is_none(), "files with data have no aim");
        let met = table(Form::Values, Measure::Rate, vec![of(Aim::AtLeast(0.9), |_| true)], &plan, &report);
        assert_eq!(met.aims(), ["Aim: at least 0.9. 3 of 3 ratios reach it."]);
    }

    #[test]
    fn a_limit_is_divided_by_the_value_without_limits() {
        let plan = plan::pnfs_limited(&[1 << 20], &[1], 1);
        // The first point has 1 GB a second, the second one 2, and so on.
        let report = report(&plan, &[[1000, 1]]);
        let aim = Some((Aim::AtMost(0.6), (|_| true) as Filter));
        let pair = Pair { to: To::Limit { limit: 1.5 }, aim, ..pair("a", 1.0) };
        let ceiling = table(Form::Values, Measure::Throughput, vec![pair], &plan, &report);
        let met: Vec<_> = ceiling.results.iter().map(|one| (one.ratio.median, one.met)).collect();
        assert_eq!(met, [(1.5, Some(false)), (0.75, Some(false)), (0.5, Some(true)), (0.375, Some(true))]);
        assert_eq!(ceiling.series().count(), 0, "a limit is no series");
    }
}
