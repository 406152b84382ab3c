//! The signals of a running server: to end, or to report.

use std::{io, io::Read, thread, time::Duration};

use rpc::{ProcedureStats, Server};
use server::recovery::StorageReport;
use tokio::{
    signal::unix::{self, SignalKind},
    sync::watch,
};

use crate::output::{Align, Table};

/// A signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Answer the calls in progress, and end.
    End,
    /// Read the certificates again, and open the audit log again, which another program may have renamed.
    Reload,
    /// Print the counters.
    Report,
}

/// The sources of signals.
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    /// `None` if SIGHUP is ignored, as under nohup(1).
    hangup: Option<unix::Signal>,
    /// `true` if SIGHUP reloads.
    reloads: bool,
    report: unix::Signal,
    /// Becomes `true` when standard input is closed.
    eof: Option<watch::Receiver<bool>>,
}

impl Signals {
    /// Listens for signals, and for the end of standard input if `until_eof`. SIGHUP reloads if `reloads`, even if the process
    /// was started with SIGHUP ignored.
    pub fn new(until_eof: bool, reloads: bool) -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            reloads,
            hangup: (reloads || !ignores_hangup()).then(|| unix::signal(SignalKind::hangup())).transpose()?,
            report: unix::signal(SignalKind::user_defined1())?,
            eof: until_eof.then(end_of_input),
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Signal {
        let eof = async {
            match &mut self.eof {
                Some(eof) => drop(eof.wait_for(|&ended| ended).await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Signal::End,
            _ = self.interrupt.recv() => Signal::End,
            () = received(&mut self.hangup) => if self.reloads { Signal::Reload } else { Signal::End },
            _ = self.report.recv() => Signal::Report,
            () = eof => Signal::End,
        }
    }

    /// Waits for another signal that ends the server.
    pub async fn ended(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = received(&mut self.hangup), if !self.reloads => {}
        }
    }
}

async fn received(signal: &mut Option<unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns `true` if the process was started with SIGHUP ignored, according to proc(5).
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (SignalKind::hangup().as_raw_value() - 1)) != 0
}

/// Returns a channel that becomes `true` when standard input is closed.
fn end_of_input() -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    thread::spawn(move || {
        let mut waste = [0; 256];
        while io::stdin().lock().read(&mut waste).is_ok_and(|count| count > 0) {}
        sender.send_replace(true);
    });
    receiver
}

/// Prints the call counters of every procedure, and the state of the storage, on standard error.
pub fn report<'a>(servers: impl Iterator<Item = &'a std::sync::Arc<Server>>, storage: &StorageReport) {
    let stats: Vec<_> = servers.flat_map(|server| server.stats()).collect();
    eprint!("{}{}", table(&stats), line(storage));
}

fn line(storage: &StorageReport) -> String {
    let StorageReport { is_failing, failures, refusals } = storage;
    let now = if *is_failing { "cannot be written" } else { "ok" };
    format!("recovery database: {now}; {failures} failed writes, {refusals} requests rejected meanwhile\n")
}

fn table(stats: &[ProcedureStats]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("program", right),
        ("version", right),
        ("procedure", Align::Left),
        ("calls", right),
        ("errors", right),
        ("mean us", right),
        ("p50 us <", right),
        ("p99 us <", right),
        ("call bytes", right),
        ("reply bytes", right),
    ]);
    for stats in stats.iter().filter(|stats| stats.calls > 0) {
        let micros = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6);
        table.row(vec![
            stats.program.to_string(),
            stats.version.to_string(),
            stats.name.to_owned(),
            stats.calls.to_string(),
            stats.errors.to_string(),
            format!("{:.1}", stats.total.as_secs_f64() * 1e6 / stats.calls as f64),
            micros(stats.quantile(0.5)),
            micros(stats.quantile(0.99)),
            stats.call_bytes.to_string(),
            stats.reply_bytes.to_string(),
        ]);
    }
    table.text()
}
