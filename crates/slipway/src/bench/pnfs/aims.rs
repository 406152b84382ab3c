//! [`comparisons`]: which series of `slipway bench pnfs` are compared, and with which aims.

use super::{
    super::compared::{Aim, Comparison, Form, Pair, To},
    Chosen, DataServerKind, OneSeries, Pattern, Servers, series_of,
};
use crate::bench::{
    plan::{self, Filter, Measure, Plan},
    report::Report,
};

/// Returns the comparisons of a measurement.
pub fn comparisons(chosen: &Chosen, plan: &Plan, report: &Report) -> Vec<Comparison> {
    let all = series_of(chosen);
    let table =
        |title: &str, form, measure, pairs| Comparison::new(title.to_owned(), form, measure, pairs, plan, report);
    let of = |one: &OneSeries| !is_direct(one);
    let first = |is_first: fn(&OneSeries, &OneSeries) -> bool| pairs(chosen.pattern, &all, of, is_first);
    match chosen.pattern {
        Pattern::Limited => limited(chosen, &all, plan, report),
        Pattern::Direct => vec![table(
            "Throughput, divided by that of one server directly in the same round (median, and range)",
            Form::Ratios,
            Measure::Throughput,
            first(|one, other| is_direct(other) && other.transport == one.transport),
        )],
        Pattern::Create => vec![table(
            "Files a second (and that divided by the rate of the first cluster of the same kind)",
            Form::Values,
            Measure::Rate,
            first(|one, other| other.kind == one.kind),
        )],
        Pattern::Latency => vec![table(
            "Median latency in microseconds (and that divided by that over the first transport)",
            Form::Values,
            Measure::Median,
            first(is_same_cluster),
        )],
        Pattern::Btio => vec![table(
            "10^9 bytes a second (and that divided by the rate over the first transport)",
            Form::Values,
            Measure::Throughput,
            first(is_same_cluster),
        )],
    }
}

/// Returns the comparisons of limited data servers: with more of them, with the rate without limits, and that over several transports.
fn limited(chosen: &Chosen, all: &[OneSeries], plan: &Plan, report: &Report) -> Vec<Comparison> {
    let table = |title, pairs| Comparison::new(title, Form::Values, Measure::Throughput, pairs, plan, report);
    let mut tables = Vec::new();
    for transport in &chosen.transports {
        let of = |one: &OneSeries, is_limited| one.transport == *transport && one.limit.is_some() == is_limited;
        let title =
            format!("10^9 bytes a second over {transport} (and that divided by N times the rate of the first cluster)");
        let is_first = |one: &OneSeries, other: &OneSeries| other.kind == one.kind && of(other, true);
        tables.push(table(title, pairs(chosen.pattern, all, |one| of(one, true), is_first)));
        let title = format!(
            "10^9 bytes a second over {transport} without limits (and the sum of the limits divided by that, which must be small enough that \
             the limits decide, and not the machine)"
        );
        let ceiling = |one: &OneSeries| {
            let limit = chosen.limit.unwrap_or(0) as f64 * count(one) / 1e9;
            let aim = Some((Aim::AtMost(OF_CEILING_MAX), EVERY));
            Pair { title: one.name.clone(), series: one.name.clone(), to: To::Limit { limit }, aim }
        };
        tables.push(table(title, all.iter().filter(|one| of(one, false)).map(ceiling).collect()));
    }
    if chosen.transports.len() > 1 {
        let is_first = |one: &OneSeries, other: &OneSeries| other.limit.is_none() && is_same_cluster(one, other);
        let title =
            "10^9 bytes a second without limits (and that divided by the rate over the first transport)".to_owned();
        tables.push(table(title, pairs(chosen.pattern, all, |one| one.limit.is_none(), is_first)));
    }
    tables
}

/// Returns a pair of each series that `of` selects and the first one that `is_first` accepts for it.
fn pairs(
    pattern: Pattern,
    all: &[OneSeries],
    of: impl Fn(&OneSeries) -> bool,
    is_first: impl Fn(&OneSeries, &OneSeries) -> bool,
) -> Vec<Pair> {
    let pair = |one: &OneSeries| {
        let first = all.iter().find(|other| is_first(one, other)).expect("a series must be comparable with itself");
        let is_multiple = pattern == Pattern::Limited && one.limit.is_some();
        let times = if is_multiple { count(one) / count(first) } else { 1.0 };
        let to = To::Series { to: first.name.clone(), times };
        Pair { title: one.name.clone(), series: one.name.clone(), to, aim: aim(pattern, one, first) }
    };
    all.iter().filter(|one| of(one)).map(pair).collect()
}

/// Returns the aim of a series beside the first one, and the points that have it.
fn aim(pattern: Pattern, one: &OneSeries, first: &OneSeries) -> Option<(Aim, Filter)> {
    let is_larger = count(one) > count(first);
    match (pattern, one.servers) {
        (Pattern::Limited, Servers::Cluster(servers)) if is_larger => {
            let least = if servers <= 8 { 0.95 } else { 0.9 };
            Some((Aim::AtLeast(least), |point| point.block == 1 << 20 && !point.zipf))
        }
        (Pattern::Direct, Servers::Cluster(2)) => Some((Aim::AtLeast(0.9), |point| !point.random)),
        (Pattern::Create, _) if is_larger && one.kind == DataServerKind::Slipway => {
            Some((Aim::AtLeast(0.9), plan::is_creation))
        }
        _ => None,
    }
}

fn is_direct(one: &OneSeries) -> bool {
    one.servers == Servers::Direct(1)
}

/// Returns `true` if only the transports of the clusters differ.
fn is_same_cluster(one: &OneSeries, other: &OneSeries) -> bool {
    other.servers == one.servers && other.kind == one.kind
}

fn count(one: &OneSeries) -> f64 {
    match one.servers {
        Servers::Cluster(count) | Servers::Direct(count) => count.into(),
    }
}

/// Selects all points.
const EVERY: Filter = |_| true;
/// The largest sum of the limits, as a part of what the same data servers move without limits.
const OF_CEILING_MAX: f64 = 0.6;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{super::tests::Line, *};

    /// Returns the aim of a series beside another one, and the points that have it.
    fn aim_of(args: &[&str], name: &str, first: &str) -> Option<(Aim, Vec<String>)> {
        let chosen = Chosen::new(&Line::parse_from([&["bench", "--pattern"], args].concat()).args);
        let all = series_of(&chosen);
        let find = |name: &str| all.iter().find(|one| one.name == name).expect("the series must exist");
        let (aim, of) = aim(chosen.pattern, find(name), find(first))?;
        let points = chosen.plan(1).points;
        Some((aim, points.iter().filter(|point| of(point)).map(|point| point.label()).collect()))
    }

    #[test]
    fn larger_clusters_have_the_aims_of_the_documentation() {
        let limited = ["limited", "--clients", "1"];
        let points = ["READ 1 MiB × 32", "WRITE 1 MiB × 32"].map(str::to_owned).to_vec();
        let aim = |least| Some((Aim::AtLeast(least), points.clone()));
        assert_eq!(aim_of(&limited, "8 data servers", "1 data server"), aim(0.95));
        assert_eq!(aim_of(&limited, "16 data servers", "1 data server"), aim(0.9));
        assert_eq!(aim_of(&limited, "1 data server", "1 data server"), None);
        let unlimited = "16 data servers, unlimited";
        assert_eq!(aim_of(&limited, unlimited, unlimited), None);
        let points = ["READ 128 KiB × 8", "WRITE 128 KiB × 8"].map(str::to_owned).to_vec();
        let aim = aim_of(&["direct"], "2 data servers over shm", "one server directly over shm");
        assert_eq!(aim, Some((Aim::AtLeast(0.9), points)));
        let aim = aim_of(&["create"], "16 data servers, slipway", "1 data server, slipway").unwrap();
        let threads = ["", " × 1, 4 threads", " × 1, 16 threads"];
        let created = threads.map(|threads| format!("CREATE, LAYOUTGET, GETATTR, SETATTR{threads}"));
        assert_eq!(aim, (Aim::AtLeast(0.9), created.to_vec()), "transfers of data are no part of it");
        assert_eq!(aim_of(&["create"], "16 data servers, nfs3", "1 data server, nfs3"), None);
    }
}
