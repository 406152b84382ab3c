//! [`Limited`]: limits the number of log lines of each kind.
//!
//! A peer can cause many log lines at will: refused connections, mounts, storage errors in each call. Each place in the
//! code that logs may write [`LINES_MAX`] lines in [`WINDOW`]. Further lines are counted, and the count is written
//! before the next line of that place. A filter with debug messages disables the limit: with `-vv`, every line is
//! written.

use std::{
    collections::HashMap,
    fmt,
    sync::Mutex,
    time::{Duration, Instant},
};

use tracing::{Event, Subscriber, callsite::Identifier};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

/// Formats an event, unless there were too many of its kind.
pub struct Limited<F> {
    format: F,
    windows: Mutex<Windows>,
}

/// The recent lines of each place in the code. The number of entries is bounded by the number of such places.
#[derive(Default)]
struct Windows(HashMap<Identifier, Window>);

struct Window {
    began: Instant,
    lines: u64,
}

/// The decision about a line.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The line is written. If lines were suppressed before, their number is written first.
    Write {
        left_out: u64,
    },
    /// The line is written, as the last one of this window.
    WriteLast,
    LeaveOut,
}

impl Windows {
    fn judge(&mut self, place: Identifier, now: Instant) -> Verdict {
        let window = self.0.entry(place).or_insert(Window { began: now, lines: 0 });
        let left_out = window.lines.saturating_sub(LINES_MAX);
        let is_new = now.duration_since(window.began) >= WINDOW;
        if is_new {
            *window = Window { began: now, lines: 0 };
        }
        window.lines += 1;
        match window.lines {
            ..LINES_MAX => Verdict::Write { left_out: if is_new { left_out } else { 0 } },
            LINES_MAX => Verdict::WriteLast,
            _ => Verdict::LeaveOut,
        }
    }
}

impl<F> Limited<F> {
    /// Returns a formatter that limits the lines of `format`.
    pub fn new(format: F) -> Self {
        Self { format, windows: Mutex::default() }
    }
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let place = event.metadata().callsite();
        // Messages of the limiter itself are not limited; each stands for many lines.
        let verdict = match event.metadata().target() == TARGET {
            true => Verdict::Write { left_out: 0 },
            false => self.windows.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).judge(place, Instant::now()),
        };
        match verdict {
            Verdict::Write { left_out: 0 } => {}
            Verdict::Write { left_out } => {
                tracing::warn!(target: TARGET, left_out, "lines like the next one were suppressed");
            }
            Verdict::WriteLast => tracing::warn!(
                target: TARGET,
                seconds = WINDOW.as_secs(),
                "further lines like the next one will be suppressed for a time; -vv writes all"
            ),
            Verdict::LeaveOut => return Ok(()),
        }
        self.format.format_event(context, writer, event)
    }
}

/// The log target of messages about suppressed lines.
const TARGET: &str = "slipway::log_limit";
/// The maximum number of lines from one place in one window.
const LINES_MAX: u64 = 50;
const WINDOW: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_place_has_its_own_limit() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_writer(move || writer.clone()).map_event_format(Limited::new).finish();
        tracing::subscriber::with_default(subscriber, || {
            for i in 0..1000 {
                tracing::warn!(i, "often");
            }
            tracing::warn!("once");
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().filter(|line| line.contains("often")).count() as u64, LINES_MAX, "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("once")).count(), 1);
    }

    #[test]
    fn suppressed_lines_are_counted() {
        let mut windows = Windows::default();
        let place = tracing::callsite!(name: "place", kind: tracing::metadata::Kind::EVENT, fields: );
        let place = tracing::callsite::Callsite::metadata(place).callsite();
        let start = Instant::now();
        for _ in 1..LINES_MAX {
            assert_eq!(windows.judge(place.clone(), start), Verdict::Write { left_out: 0 });
        }
        assert_eq!(windows.judge(place.clone(), start), Verdict::WriteLast);
        for _ in 0..7 {
            assert_eq!(windows.judge(place.clone(), start + WINDOW / 2), Verdict::LeaveOut);
        }
        assert_eq!(windows.judge(place.clone(), start + WINDOW), Verdict::Write { left_out: 7 });
        assert_eq!(windows.judge(place, start + WINDOW), Verdict::Write { left_out: 0 });
    }
}
