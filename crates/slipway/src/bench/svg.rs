//! Plots as inline SVG: lines or dots, grouped bars, and surfaces as colours.
//!
//! The code is deliberately small: it converts numbers to text, without fonts, scripts or files. Every mark has a
//! `<title>`, which browsers show under the pointer.

use std::fmt::Write as _;

use super::report::Spread;

/// A value at a position of the horizontal axis.
pub type Dot = (f64, Spread);

/// Lines, or dots, over a horizontal axis.
pub struct Lines<'a> {
    /// The title of the horizontal axis.
    pub x: &'a str,
    /// The title of the vertical axis.
    pub y: &'a str,
    /// The horizontal axis is logarithmic with base two.
    pub doubling: bool,
    /// The dots of a series are joined.
    pub joined: bool,
    /// The names and dots of the series.
    pub series: Vec<(&'a str, Vec<Dot>)>,
}

/// Grouped bars.
pub struct Bars<'a> {
    /// The title of the vertical axis.
    pub y: &'a str,
    /// The names of the bars in each group.
    pub series: Vec<&'a str>,
    /// The name and the bars of each group, `None` if there is no value.
    pub groups: Vec<(String, Vec<Option<Spread>>)>,
}

/// A surface of values over two axes.
pub struct Surface<'a> {
    /// The title of the horizontal axis, and its labels.
    pub x: (&'a str, Vec<String>),
    /// The title of the vertical axis, and its labels from the bottom.
    pub y: (&'a str, Vec<String>),
    /// The values by row, from the bottom.
    pub values: Vec<Vec<Option<f64>>>,
    /// The value of the darkest colour.
    pub most: f64,
}

impl Lines<'_> {
    /// Returns the plot.
    pub fn svg(&self) -> String {
        let dots = || self.series.iter().flat_map(|(_, dots)| dots);
        let y = Scale::up_to(dots().map(|(_, y)| y.high).fold(0.0, f64::max), BOTTOM, TOP);
        let mut xs: Vec<f64> = dots().map(|(x, _)| *x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let linear = Scale::up_to(xs.last().copied().unwrap_or(1.0), LEFT, RIGHT);
        let at = |x: f64| {
            let rank = xs.iter().position(|&other| other == x).unwrap_or(0);
            let step = (RIGHT - LEFT) / xs.len().max(1) as f64;
            if self.doubling { LEFT + (rank as f64 + 0.5) * step } else { linear.at(x) }
        };
        let mut svg = open(self.series.len());
        frame(&mut svg, &y, self.x, self.y);
        let ticks = if self.doubling { xs.clone() } else { linear.ticks() };
        for tick in ticks {
            text(&mut svg, at(tick), BOTTOM + 18.0, "middle", &number(tick));
        }
        for (rank, (name, dots)) in self.series.iter().enumerate() {
            let colour = COLOURS[rank % COLOURS.len()];
            if self.joined {
                let points: Vec<String> =
                    dots.iter().map(|(x, value)| format!("{:.1},{:.1}", at(*x), y.at(value.median))).collect();
                put(
                    &mut svg,
                    format_args!(
                        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                        points.join(" ")
                    ),
                );
            }
            for (x, value) in dots {
                if self.joined {
                    whisker(&mut svg, at(*x), &y, value, colour);
                }
                put(
                    &mut svg,
                    format_args!(
                        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{}: {} at {}</title></circle>",
                        at(*x),
                        y.at(value.median),
                        escape(name),
                        number(value.median),
                        number(*x)
                    ),
                );
            }
            legend(&mut svg, rank, name);
        }
        svg + "</svg>"
    }
}

impl Bars<'_> {
    /// Returns the plot.
    pub fn svg(&self) -> String {
        let values = || self.groups.iter().flat_map(|(_, bars)| bars.iter().flatten());
        let y = Scale::up_to(values().map(|value| value.high).fold(0.0, f64::max), BOTTOM, TOP);
        let mut svg = open(self.series.len());
        frame(&mut svg, &y, "", self.y);
        let group = (RIGHT - LEFT) / self.groups.len().max(1) as f64;
        let width = (group * 0.8 / self.series.len().max(1) as f64).min(56.0);
        for (rank, (title, bars)) in self.groups.iter().enumerate() {
            let middle = LEFT + (rank as f64 + 0.5) * group;
            let first = middle - width * bars.len() as f64 / 2.0;
            for (rank, value) in bars.iter().enumerate() {
                let Some(value) = value else { continue };
                let (x, colour) = (first + rank as f64 * width, COLOURS[rank % COLOURS.len()]);
                put(
                    &mut svg,
                    format_args!(
                        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{}: {} ({} to {})</title></rect>",
                        x + 1.0,
                        y.at(value.median),
                        width - 2.0,
                        BOTTOM - y.at(value.median),
                        escape(self.series[rank]),
                        number(value.median),
                        number(value.low),
                        number(value.high)
                    ),
                );
                whisker(&mut svg, x + width / 2.0, &y, value, "#222");
                let shown = if width >= 34.0 { number(value.median) } else { String::new() };
                text(&mut svg, x + width / 2.0, y.at(value.high) - 5.0, "middle", &shown);
            }
            // The names of neighbours alternate between two lines, so that long names do not overlap.
            let below = if self.groups.len() > 3 && rank % 2 == 1 { 33.0 } else { 18.0 };
            text(&mut svg, middle, BOTTOM + below, "middle", title);
        }
        for (rank, name) in self.series.iter().enumerate() {
            legend(&mut svg, rank, name);
        }
        svg + "</svg>"
    }
}

impl Surface<'_> {
    /// Returns the plot.
    pub fn svg(&self) -> String {
        let mut svg = open(0);
        let (columns, rows) = (self.x.1.len().max(1) as f64, self.y.1.len().max(1) as f64);
        let (width, height) = ((RIGHT - LEFT) / columns, (BOTTOM - TOP) / rows);
        for (row, (title, values)) in self.y.1.iter().zip(&self.values).enumerate() {
            let top = BOTTOM - (row as f64 + 1.0) * height;
            text(&mut svg, LEFT - 8.0, top + height / 2.0 + 4.0, "end", title);
            for (column, value) in values.iter().enumerate() {
                let left = LEFT + column as f64 * width;
                let shade = value.map_or(0.0, |value| (value / self.most.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0));
                let shown = value.map_or("–".to_owned(), number);
                put(
                    &mut svg,
                    format_args!(
                        "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{} × {}: {shown}</title></rect>",
                        width - 1.0,
                        height - 1.0,
                        colour(shade),
                        escape(&self.x.1[column]),
                        escape(title)
                    ),
                );
                let ink = if shade > 0.55 { "#fff" } else { "#222" };
                put(
                    &mut svg,
                    format_args!(
                        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" style=\"fill:{ink};font-size:10px\">{shown}</text>",
                        left + width / 2.0,
                        top + height / 2.0 + 4.0
                    ),
                );
            }
        }
        for (column, title) in self.x.1.iter().enumerate() {
            text(&mut svg, LEFT + (column as f64 + 0.5) * width, BOTTOM + 18.0, "middle", title);
        }
        axes(&mut svg, self.x.0, self.y.0);
        svg + "</svg>"
    }
}

/// Maps values to positions, with ticks at round numbers. It begins at zero.
struct Scale {
    step: f64,
    steps: usize,
    from: f64,
    to: f64,
}

impl Scale {
    fn up_to(most: f64, from: f64, to: f64) -> Self {
        let most = if most > 0.0 && most.is_finite() { most } else { 1.0 };
        let magnitude = 10f64.powf((most / 5.0).log10().floor());
        let round = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * magnitude);
        let step = round.into_iter().find(|step| step * 5.0 >= most).unwrap_or(magnitude * 10.0);
        Self { step, steps: ((most / step).ceil() as usize).max(1), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * value / (self.step * self.steps as f64)
    }

    fn ticks(&self) -> Vec<f64> {
        (0..=self.steps).map(|tick| tick as f64 * self.step).collect()
    }
}

fn open(series: usize) -> String {
    let height = HEIGHT + (series.div_ceil(LEGEND_COLUMNS) * LEGEND_ROW) as f64;
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n")
}

fn frame(svg: &mut String, y: &Scale, x_title: &str, y_title: &str) {
    for tick in y.ticks() {
        let at = y.at(tick);
        put(svg, format_args!("<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"));
        text(svg, LEFT - 8.0, at + 4.0, "end", &number(tick));
    }
    axes(svg, x_title, y_title);
}

fn axes(svg: &mut String, x_title: &str, y_title: &str) {
    text(svg, (LEFT + RIGHT) / 2.0, BOTTOM + 38.0, "middle", x_title);
    let middle = (TOP + BOTTOM) / 2.0;
    put(
        svg,
        format_args!(
            "<text x=\"16\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {middle})\">{}</text>",
            escape(y_title)
        ),
    );
}

fn whisker(svg: &mut String, x: f64, y: &Scale, value: &Spread, colour: &str) {
    let (low, high) = (y.at(value.low), y.at(value.high));
    put(
        svg,
        format_args!(
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        ),
    );
}

fn legend(svg: &mut String, rank: usize, name: &str) {
    let x = LEFT + (rank % LEGEND_COLUMNS) as f64 * (RIGHT - LEFT) / LEGEND_COLUMNS as f64;
    let y = HEIGHT + (rank / LEGEND_COLUMNS * LEGEND_ROW) as f64;
    let colour = COLOURS[rank % COLOURS.len()];
    put(svg, format_args!("<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>", y - 4.0));
    text(svg, x + 18.0, y + 6.0, "start", name);
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    if !content.is_empty() {
        let content = escape(content);
        put(svg, format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"));
    }
}

fn put(svg: &mut String, element: std::fmt::Arguments) {
    writeln!(svg, "{element}").expect("writing to a string must succeed");
}

/// Returns a colour from nearly white to dark blue, with perceptually even steps.
fn colour(shade: f64) -> String {
    let mix = |light: f64, dark: f64| (light + (dark - light) * shade) as u8;
    format!("#{:02x}{:02x}{:02x}", mix(240.0, 8.0), mix(246.0, 48.0), mix(252.0, 107.0))
}

/// Formats a number with about three digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1e6 => format!("{}M", short(value / 1e6)),
        size if size >= 1e4 => format!("{}k", short(value / 1e3)),
        _ => short(value),
    }
}

fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

/// Escapes text for HTML and SVG, also inside quotation marks.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Okabe and Ito's colours, which are distinguishable with all kinds of colour vision.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"];
const WIDTH: f64 = 640.0;
/// The height without the legend.
const HEIGHT: f64 = 344.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 630.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 286.0;
const LEGEND_COLUMNS: usize = 2;
const LEGEND_ROW: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn exactly(value: f64) -> Spread {
        Spread { median: value, low: value, high: value }
    }

    #[test]
    fn scales_end_at_round_numbers() {
        let scale = Scale::up_to(8.3, 0.0, 100.0);
        assert_eq!(scale.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!((scale.at(0.0), scale.at(10.0)), (0.0, 100.0));
        assert_eq!(Scale::up_to(0.0, 0.0, 1.0).ticks().last(), Some(&1.0), "an empty scale must not divide by zero");
    }

    #[test]
    fn numbers_have_three_digits() {
        let numbers = [0.0, 0.1234, 2.5, 12.34, 123.4, 9999.0, 118_638.0, 2_500_000.0].map(number);
        assert_eq!(numbers, ["0", "0.123", "2.5", "12.3", "123", "9999", "119k", "2.5M"]);
    }

    #[test]
    fn marks_are_at_the_positions_of_their_values() {
        let bars = Bars {
            y: "GB/s",
            series: vec!["a<b", "c"],
            groups: vec![("one".to_owned(), vec![Some(exactly(10.0)), None])],
        };
        let svg = bars.svg();
        assert_eq!(svg.matches("<rect").count(), 1 + 2, "the plot must have one bar, and two squares in the legend");
        assert!(svg.contains(&format!("y=\"{TOP:.1}\"")), "the largest value must reach the top");
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        let series = vec![("s", vec![(1.0, exactly(1.0)), (2.0, exactly(2.0)), (32.0, exactly(1.0))])];
        let lines = Lines { x: "threads", y: "GB/s", doubling: true, joined: true, series }.svg();
        assert!(lines.contains("<polyline") && lines.matches("<circle").count() == 3);
        let values = vec![vec![Some(4.0), None]];
        let x = ("block", vec!["1".to_owned(), "2".to_owned()]);
        let surface = Surface { x, y: ("in flight", vec!["0".to_owned()]), values, most: 4.0 }.svg();
        assert!(surface.contains(&colour(1.0)) && surface.contains("–"));
    }
}
