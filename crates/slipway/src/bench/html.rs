//! The HTML page of a report: one self-contained file, which loads nothing from the network.

use std::{fmt::Write as _, fs, path::Path};

use super::{
    compared::Comparison,
    plan::{Chart, Measure, Plan, Shape},
    point::{self, Point},
    report::{Cost, Report, Row, Spread},
    svg::{Bars, Dot, Lines, Surface, escape, number},
    text::{self, sides},
};
use crate::{exit::Failure, output};

/// The file of a page, if one is wanted.
pub struct Page<'a>(Option<&'a Path>);

impl<'a> Page<'a> {
    /// Checks that the file can be written, before a measurement that takes minutes.
    ///
    /// # Errors
    /// It cannot.
    pub fn open(path: Option<&'a Path>) -> Result<Self, Failure> {
        let page = Self(path);
        page.store("")?;
        Ok(page)
    }

    /// Writes the page of a report.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, plan: &Plan, report: &Report) -> Result<(), Failure> {
        if self.0.is_some() { self.store(&page(plan, report)) } else { Ok(()) }
    }

    fn store(&self, text: &str) -> Result<(), Failure> {
        let Some(path) = self.0 else { return Ok(()) };
        fs::write(path, text).map_err(|error| Failure::usage(format!("--html: {}: {error}", path.display())))
    }
}

/// Returns the page of a report.
pub fn page(plan: &Plan, report: &Report) -> String {
    let mut body = String::new();
    for chart in &plan.charts {
        body.push_str(&figure(plan, chart, report));
    }
    body.extend(report.comparisons.iter().map(comparison));
    for line in text::unable(report) {
        write!(body, "<p class=\"unable\">{}</p>", escape(&line)).expect("writing to a string must succeed");
    }
    // Escape `<`, because a closing tag inside the data would end the element.
    let json = serde_json::to_string(report).expect("report must be valid JSON").replace('<', "\\u003c");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>slipway bench {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>slipway bench {name}</h1>\n<p>{title}</p>\n{machine}\n{body}\n\
         <details><summary>All figures</summary>{table}</details>\n\
         <script type=\"application/json\" id=\"results\">{json}</script>\n</body>\n</html>\n",
        name = escape(report.benchmark),
        title = escape(&report.title),
        machine = machine(report),
        table = table(report),
    )
}

/// Returns a chart with the published claim and our ratios.
fn figure(plan: &Plan, chart: &Chart, report: &Report) -> String {
    let points: Vec<&Point> = plan.points.iter().filter(|point| (chart.of)(point)).collect();
    let plots = match chart.shape {
        Shape::Surface => surfaces(&points, report),
        Shape::OverThreads(measure) => over_threads(&points, measure, report),
        Shape::OverThroughput(measure) => over_throughput(&points, measure, report),
        Shape::Bars(measure) => bars(&points, measure, report),
    };
    let mut aside = String::new();
    if let Some(claim) = chart.claim {
        let (text, source) = (escape(claim.text), escape(claim.source));
        write!(aside, "<h3>Published</h3><p>{text}</p><p class=\"source\">{source}</p>")
            .expect("writing to a string must succeed");
    }
    let ratios = ratios(&points, chart.shape, report);
    if !ratios.is_empty() {
        write!(aside, "<h3>Here</h3><ul>{ratios}</ul>").expect("writing to a string must succeed");
    }
    let title = escape(&chart.title);
    format!("<section><h2>{title}</h2><div class=\"plots\">{plots}</div><aside>{aside}</aside></section>\n")
}

fn surfaces(points: &[&Point], report: &Report) -> String {
    let (blocks, at_once) = sides(points);
    let rate = |series: &str, block: usize, in_flight: u32| {
        let point = points.iter().find(|point| (point.block, point.in_flight) == (block, in_flight))?;
        report.row(series, point)?.gb_per_s.map(|rate| rate.median)
    };
    // All series share one colour scale, so that they can be compared.
    let drawn = report.results.iter().filter(|row| points.contains(&&row.point));
    let most = drawn.filter_map(|row| row.gb_per_s).map(|rate| rate.median).fold(0.0, f64::max);
    let plot = |name: &str| {
        let row = |&in_flight: &u32| blocks.iter().map(|&block| rate(name, block, in_flight)).collect();
        let values: Vec<Vec<Option<f64>>> = at_once.iter().map(row).collect();
        let x = ("block", blocks.iter().map(|&block| point::block(block).replace(' ', "")).collect());
        let y = ("in flight", at_once.iter().map(u32::to_string).collect());
        format!("<figure><figcaption>{}</figcaption>{}</figure>", escape(name), Surface { x, y, values, most }.svg())
    };
    report.series.iter().map(|series| plot(&series.name)).collect()
}

/// Returns the name and the dots of each series that has dots.
fn dots<'a>(points: &[&Point], report: &'a Report, dot: impl Fn(&Row) -> Option<Dot>) -> Vec<(&'a str, Vec<Dot>)> {
    let of = |name: &str| points.iter().filter_map(|point| report.row(name, point)).filter_map(&dot).collect();
    report.series.iter().map(|series| (series.name.as_str(), of(&series.name))).collect()
}

fn over_threads(points: &[&Point], measure: Measure, report: &Report) -> String {
    let series = dots(points, report, |row| Some((row.point.threads.into(), measure.of(row)?)));
    Lines { x: "threads", y: measure.title(), doubling: true, joined: true, series }.svg()
}

fn over_throughput(points: &[&Point], measure: Measure, report: &Report) -> String {
    let series = dots(points, report, |row| Some((row.gb_per_s?.median, measure.of(row)?)));
    Lines { x: "GB/s", y: measure.title(), doubling: false, joined: false, series }.svg()
}

fn bars(points: &[&Point], measure: Measure, report: &Report) -> String {
    let group = |point: &&Point| {
        let value = |name: &str| report.row(name, point).and_then(|row| measure.of(row));
        (point.label(), report.series.iter().map(|series| value(&series.name)).collect())
    };
    let series = report.series.iter().map(|series| series.name.as_str()).collect();
    Bars { y: measure.title(), series, groups: points.iter().map(group).collect() }.svg()
}

/// Returns a table that compares series, beside its aims.
fn comparison(comparison: &Comparison) -> String {
    let titles: String = comparison.titles().map(|title| format!("<th>{}</th>", escape(title))).collect();
    let cell = |(text, is_met): &(String, bool)| {
        let class = if *is_met { "" } else { " class=\"missed\"" };
        format!("<td{class}>{}</td>", escape(text))
    };
    let row = |(label, cells): &(String, Vec<(String, bool)>)| {
        format!("<tr><td>{}</td>{}</tr>", escape(label), cells.iter().map(cell).collect::<String>())
    };
    let rows: String = comparison.rows().iter().map(row).collect();
    let aims: String = comparison.aims().iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
    let title = escape(&comparison.title);
    format!(
        "<section><h2>{title}</h2><div><table><tr>{titles}</tr>{rows}</table></div><aside><ul>{aims}</ul></aside></section>\n"
    )
}

/// Returns the pairs of series that are compared, and the wanted multiple: those of the comparisons, or else each with the first one.
fn pairs(report: &Report) -> Vec<(&str, &str, f64)> {
    let mut pairs: Vec<_> = report.comparisons.iter().flat_map(Comparison::series).collect();
    if let (true, Some((first, others))) = (report.comparisons.is_empty(), report.series.split_first()) {
        pairs.extend(others.iter().map(|other| (&other.name[..], &first.name[..], 1.0)));
    }
    pairs
}

/// Returns the ratios of the series to those with which they are compared.
fn ratios(points: &[&Point], shape: Shape, report: &Report) -> String {
    let measure = match shape {
        Shape::Surface => Measure::Throughput,
        // There the CPU at the same throughput matters.
        Shape::OverThroughput(_) => Measure::ClientPerGb,
        Shape::OverThreads(measure) | Shape::Bars(measure) => measure,
    };
    let mut items = String::new();
    for (name, to, times) in pairs(report) {
        let ratio = |point: &&Point| {
            let (row, other) = report.row(name, point).zip(report.row(to, point))?;
            Some(measure.ratio(row, other, times)?.median).filter(|ratio| ratio.is_finite())
        };
        let ratios: Vec<f64> = points.iter().filter_map(ratio).collect();
        if ratios.is_empty() {
            continue;
        }
        let Spread { median, low, high } = Spread::new(ratios);
        let range = if low == high { String::new() } else { format!(" ({} to {})", number(low), number(high)) };
        let multiple = if times == 1.0 { String::new() } else { format!("{} × ", number(times)) };
        let (name, to) = (escape(name), escape(to));
        write!(items, "<li>{name} over {multiple}{to}, {}: <b>{}</b>{range}</li>", measure.title(), number(median))
            .expect("writing to a string must succeed");
    }
    items
}

fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let kind = if machine.virtual_machine { " (a virtual machine)" } else { "" };
    let build = if machine.optimized { "" } else { ", built without optimization" };
    let congestion = report.conditions.congestion_control.as_ref().unwrap_or(&machine.congestion_control);
    let rows = [
        ("Processor", format!("{}, {} cores{kind}", machine.cpu, machine.cores)),
        ("Memory", output::size(machine.memory)),
        ("Kernel", machine.kernel.clone()),
        ("Huge pages", machine.huge_pages.clone()),
        ("Congestion control", congestion.clone()),
        ("Memory bandwidth", report.memory_bandwidth.clone()),
        ("Slipway", format!("{}{build}", machine.version)),
        ("Server", report.conditions.server.clone()),
        ("Measured", report.summary()),
    ];
    let row = |(name, value): &(&str, String)| format!("<tr><th>{name}</th><td>{}</td></tr>", escape(value));
    format!("<table class=\"machine\">{}</table>", rows.iter().map(row).collect::<String>())
}

fn table(report: &Report) -> String {
    let spread = |value: &Spread| format!("{} ({} to {})", number(value.median), number(value.low), number(value.high));
    let cost = |cost: &Cost| match &cost.seconds_per_gb {
        Some(seconds) => format!("{} s/GB", spread(seconds)),
        None => format!("{} µs", spread(&cost.us_per_operation)),
    };
    let row = |row: &Row| {
        let latency = &row.latency_us;
        let cells = [
            row.point.label(),
            row.series.clone(),
            row.gb_per_s.as_ref().map_or("–".to_owned(), spread),
            spread(&row.iops),
            [latency.p50, latency.p90, latency.p99, latency.p999].map(number).join(" / "),
            cost(&row.client_cpu),
            row.server_cpu.as_ref().map_or("–".to_owned(), cost),
            row.data_server_cpu.as_ref().map_or("–".to_owned(), cost),
            row.memory_gb_per_s.as_ref().map_or("–".to_owned(), spread),
        ];
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        format!("<tr>{cells}</tr>")
    };
    let titles = [
        "what",
        "series",
        "GB/s",
        "operations/s",
        "latency, µs: p50 / p90 / p99 / p99.9",
        "client CPU",
        "server CPU",
        "data servers' CPU",
        "memory GB/s",
    ];
    let titles: String = titles.iter().map(|title| format!("<th>{title}</th>")).collect();
    format!("<table><tr>{titles}</tr>{}</table>", report.results.iter().map(row).collect::<String>())
}

const STYLE: &str = "
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff; max-width: 1280px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.6em } h2 { font-size: 1.15em; margin: 0 0 .5em } h3 { font-size: 1em; margin: .8em 0 .2em }
section { border-top: 1px solid #ccc; padding: 1.2em 0; display: grid; grid-template-columns: minmax(0, 1fr) 300px; gap: 0 2em }
section h2 { grid-column: 1 / 3 }
.plots svg { max-width: 820px } figure { margin: 0 }
 figcaption { font-weight: 600 }
svg { width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #333 }
aside { font-size: .93em } aside ul { padding-left: 1.2em; margin: 0 } .source { color: #666; font-size: .9em }
table { border-collapse: collapse; font-size: .93em } th, td { text-align: left; padding: .15em .9em .15em 0; vertical-align: top }
th { font-weight: 600 } .missed { font-weight: 600; color: #b00 } .unable { color: #666 } details { margin: 1.5em 0 } summary { cursor: pointer }
@media (max-width: 900px) { section { grid-template-columns: minmax(0, 1fr) } section h2 { grid-column: 1 } }
";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{
        compared::{Aim, Form, Pair, To},
        machine::Machine,
        plan,
        plan::Filter,
        report::Conditions,
        runner::Cell,
        sample::Sample,
        sample::histogram,
        series::Series,
    };
    use super::*;

    fn report(plan: &Plan) -> Report {
        let series = |name: &&str| Series {
            name: (*name).to_owned(),
            transport: (*name).to_owned(),
            options: Default::default(),
            mount: Default::default(),
            backend: "memory".to_owned(),
        };
        let mut report = Report {
            benchmark: plan.name,
            title: plan.title.clone(),
            machine: Machine::this(),
            memory_bandwidth: "unreadable: </script><script src=http://x/>".to_owned(),
            conditions: Conditions {
                rounds: 1,
                seconds: 1.0,
                file_size: 1,
                server: "own".to_owned(),
                congestion_control: None,
            },
            series: ["tcp", "r<d>ma"].iter().map(series).collect(),
            results: Vec::new(),
            unable: Vec::new(),
            comparisons: Vec::new(),
        };
        let sample = || Sample {
            operations: 10,
            bytes: 1 << 20,
            elapsed: Duration::from_secs(1),
            client_cpu: Duration::from_millis(1),
            server_cpu: Some(Duration::from_millis(2)),
            data_server_cpu: None,
            data_server_calls: None,
            memory_bytes: None,
            latency: histogram(),
        };
        let cells: Vec<Vec<Cell>> = plan
            .points
            .iter()
            .map(|_| vec![Cell::Samples(vec![sample()]), Cell::Unable("it is <small>".to_owned())])
            .collect();
        report.fill(&plan.points, &cells);
        report
    }

    /// No page may contain an external address, or an element that loads one.
    #[test]
    fn pages_load_nothing_external() {
        let pnfs = [plan::pnfs_limited(&[1 << 20], &[1, 8], 32), plan::pnfs_latency()];
        for plan in
            [plan::sweep(), plan::threads(), plan::iops(), plan::mixed(), plan::baseline()].into_iter().chain(pnfs)
        {
            let page = page(&plan, &report(&plan));
            for fetches in ["src=", "href", "url(", "@import", "<link", "<img", "<iframe", "<object", "fetch("] {
                let found = page.replace("\\u003cscript src=http://x/", "").replace("&lt;script src=http://x/", "");
                assert!(!found.contains(fetches), "{}: {fetches}", plan.name);
            }
            assert_eq!(page.matches("<script").count(), 1, "the page must have only the data element: {}", plan.name);
            assert_eq!(page.matches("<section>").count(), plan.charts.len());
            assert!(page.contains("<svg") && !page.contains("r<d>ma") && !page.contains("<small>"));
            for chart in plan.charts.iter().filter_map(|chart| chart.claim) {
                assert!(page.contains(&escape(chart.text)) && page.contains(&escape(chart.source)));
            }
        }
    }

    #[test]
    fn comparisons_are_tables_with_marks_where_aims_are_missed() {
        let plan = plan::pnfs_limited(&[1 << 20], &[1], 1);
        let mut report = report(&plan);
        let (to, aim) = (To::Limit { limit: 1.0 }, Some((Aim::AtMost(0.6), is_every as Filter)));
        let pairs = vec![Pair { title: "t<c>p".to_owned(), series: "tcp".to_owned(), to, aim }];
        let title = "sum of < limits".to_owned();
        report.comparisons = vec![Comparison::new(title, Form::Values, Measure::Throughput, pairs, &plan, &report)];
        let page = page(&plan, &report);
        assert_eq!(page.matches("<section>").count(), plan.charts.len() + 1);
        assert!(page.contains("<h2>sum of &lt; limits</h2>") && page.contains("<th>t&lt;c&gt;p</th>"), "{page}");
        assert_eq!(page.matches("<td class=\"missed\">").count(), plan.points.len());
        assert!(page.contains("<li>Warning: tcp, READ 1 MiB: 953.674 instead of at most 0.6.</li>"), "{page}");
    }

    fn is_every(_: &Point) -> bool {
        true
    }

    #[test]
    fn page_contains_its_report_as_data() {
        let plan = plan::iops();
        let report = report(&plan);
        let page = page(&plan, &report);
        let data = page.split("id=\"results\">").nth(1).unwrap().split("</script>").next().unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data, serde_json::to_value(&report).unwrap());
    }
}
