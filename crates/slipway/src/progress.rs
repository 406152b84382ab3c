//! How far a long command is: a bar on a terminal, nothing elsewhere.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Counts files and bytes. Cheap to clone.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    files: std::sync::Arc<std::sync::atomic::AtomicU64>,
    skipped: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl Progress {
    /// A bar on standard error if that is a terminal and `wanted`.
    pub fn new(wanted: bool) -> Self {
        let shown = wanted && stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        bar.set_style(ProgressStyle::with_template(TEMPLATE).expect("the template is sound"));
        if shown {
            bar.enable_steady_tick(Duration::from_millis(250));
        }
        Self { bar, files: Default::default(), skipped: Default::default() }
    }

    /// A file of so many bytes will come.
    pub fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// So many bytes have been moved.
    pub fn moved(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// A file is done.
    pub fn file(&self) {
        let files = self.files.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{files} files"));
        }
    }

    /// A file of so many bytes will not come: it is left out.
    pub fn skip(&self, bytes: u64) {
        self.bar.dec_length(bytes);
        self.skipped.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Files left out.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Files done.
    pub fn files(&self) -> u64 {
        self.files.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Bytes moved.
    pub fn bytes(&self) -> u64 {
        self.bar.position()
    }

    /// Prints a line on standard error, above the bar if there is one.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Counts steps of which it is known how many there will be. It ends with its value.
pub struct Steps {
    bar: ProgressBar,
}

impl Steps {
    /// A bar on standard error if that is a terminal and `wanted`.
    pub fn new(wanted: bool, steps: usize) -> Self {
        let shown = wanted && stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        bar.set_style(ProgressStyle::with_template(STEPS).expect("the template is sound"));
        Self { bar }
    }

    /// One more is done.
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
