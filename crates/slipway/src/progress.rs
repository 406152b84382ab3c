//! The progress of a long command: a bar on a terminal, and no output otherwise.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Counts files and bytes. Clones share the counts and are cheap.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    files: std::sync::Arc<std::sync::atomic::AtomicU64>,
    skipped: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl Progress {
    /// Creates a progress with a bar on standard error, if that is a terminal and `wanted`.
    pub fn new(wanted: bool) -> Self {
        let shown = wanted && stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        bar.set_style(ProgressStyle::with_template(TEMPLATE).expect("template must be valid"));
        if shown {
            bar.enable_steady_tick(Duration::from_millis(250));
        }
        Self { bar, files: Default::default(), skipped: Default::default() }
    }

    /// Adds a file of this many bytes to the expected total.
    pub fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// Counts this many bytes as copied.
    pub fn moved(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Shows these bytes of a total, which can change, and a message.
    pub fn show(&self, bytes: u64, total: u64, message: String) {
        self.bar.set_length(total);
        self.bar.set_position(bytes);
        self.bar.set_message(message);
    }

    /// Counts one complete file.
    pub fn file(&self) {
        let files = self.files.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{files} files"));
        }
    }

    /// Counts a skipped file, and removes its bytes from the expected total.
    pub fn skip(&self, bytes: u64) {
        self.bar.dec_length(bytes);
        self.skipped.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Returns the number of skipped files.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the number of complete files.
    pub fn files(&self) -> u64 {
        self.files.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the number of copied bytes.
    pub fn bytes(&self) -> u64 {
        self.bar.position()
    }

    /// Prints a line on standard error, above the bar if there is one.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Counts steps of a known total. Dropping it removes its bar.
pub struct Steps {
    bar: ProgressBar,
}

impl Steps {
    /// Creates a bar on standard error, if that is a terminal and `wanted`.
    pub fn new(wanted: bool, steps: usize) -> Self {
        let shown = wanted && stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        bar.set_style(ProgressStyle::with_template(STEPS).expect("template must be valid"));
        Self { bar }
    }

    /// Counts one step.
    pub fn step(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

const STEPS: &str = "{wide_bar} run {pos} of {len}, {eta} left";
const TEMPLATE: &str = "{spinner} {wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {msg}";
