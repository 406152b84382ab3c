//! The output for people and scripts: sizes, tables, JSON, paths.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    process,
};

use serde::Serialize;

use crate::exit::Exit;

/// Formats `bytes` with a binary unit and three digits: `1.50 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Prints text on standard output. If that fails, ends the process; without a message if the reader of a pipe has
/// closed it.
pub fn print(text: &str) {
    let Err(error) = io::stdout().write_all(text.as_bytes()) else { return };
    if error.kind() == io::ErrorKind::BrokenPipe {
        process::exit(Exit::Ok as i32);
    }
    eprintln!("slipway: standard output: {error}");
    process::exit(Exit::Failed as i32);
}

/// Prints a value as one line of JSON.
pub fn json(value: &impl Serialize) {
    print(&format!("{}\n", serde_json::to_string(value).expect("output values must be valid JSON")));
}

/// Formats the bytes of a name or path as text. Control characters and invalid UTF-8 are escaped, so that a name can
/// neither forge output nor control a terminal.
pub fn name(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                c if c.is_control() => {
                    write!(text, "{}", c.escape_default()).expect("writing to a string must succeed")
                }
                c => text.push(c),
            }
        }
        chunk
            .invalid()
            .iter()
            .for_each(|byte| write!(text, "\\x{byte:02x}").expect("writing to a string must succeed"));
    }
    text
}

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// A table whose columns are as wide as their longest cell.
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these columns. If all titles are empty, it has no title row.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let titles: Vec<_> = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        let rows = if titles.iter().all(String::is_empty) { Vec::new() } else { vec![titles] };
        Self { columns: columns.iter().map(|(_, align)| *align).collect(), rows }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// `cells` does not have one cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a row must have one cell for each column");
        self.rows.push(cells);
    }

    /// Returns the text of the table, with one line for each row.
    pub fn text(&self) -> String {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, align), width) in row.iter().zip(&self.columns).zip(&widths) {
                match align {
                    Align::Left => write!(line, "{cell:<width$}  "),
                    Align::Right => write!(line, "{cell:>width$}  "),
                }
                .expect("writing to a string must succeed");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        assert_eq!(
            [0, 1023, 1024, 1536, 1 << 20, (1 << 20) - 1, 5 << 30].map(size),
            ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "1.00 MiB", "1.00 MiB", "5.00 GiB"]
        );
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(name(b"plain"), "plain");
        assert_eq!(name("gr\u{fc}n".as_bytes()), "gr\u{fc}n");
        assert_eq!(name(b"a\x1b[2Jb\n\xff"), "a\\u{1b}[2Jb\\n\\xff");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("NAME", Align::Left), ("SIZE", Align::Right)]);
        table.row(vec!["a".into(), "1000".into()]);
        table.row(vec!["longer".into(), "7".into()]);
        assert_eq!(table.text(), "NAME    SIZE\na       1000\nlonger     7\n");
    }
}
