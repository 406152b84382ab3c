//! [`Log`]: the events that a test logs on its thread.

use std::{cell::RefCell, fmt, marker::PhantomData, sync::Once};

use tracing::{Event, Level, Metadata, Subscriber, field, level_filters::LevelFilter, span, subscriber::Interest};

thread_local! {
    static CURRENT: RefCell<Option<Collected>> = const { RefCell::new(None) };
}

struct Collected {
    level: Level,
    target: &'static str,
    lines: Vec<String>,
}

impl Collected {
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && metadata.target().ends_with(self.target)
    }
}

/// Collects the events that are logged on this thread, until it is dropped.
///
/// One subscriber serves all threads of the process. One that tracing knows as the default of a thread alone can miss events: when
/// another thread is the first to log an event, tracing disables this event for the whole process.
#[derive(Debug)]
pub struct Log(PhantomData<*const ()>);

impl Log {
    /// Begins with an empty log of the events that are at least as severe as `level`, which is INFO or more severe, and whose target
    /// ends with `target`.
    ///
    /// # Panics
    /// Panics if the process has another global subscriber, or the thread has another log.
    pub fn collect(level: Level, target: &'static str) -> Self {
        static SUBSCRIBE: Once = Once::new();
        SUBSCRIBE
            .call_once(|| tracing::subscriber::set_global_default(Threads).expect("no other subscriber must be there"));
        let former = CURRENT.replace(Some(Collected { level, target, lines: Vec::new() }));
        assert!(former.is_none(), "a thread must have one log");
        Self(PhantomData)
    }

    /// Returns the fields of each event, as "NAME=VALUE NAME=VALUE ".
    pub fn lines(&self) -> Vec<String> {
        CURRENT.with_borrow(|current| current.as_ref().map(|current| current.lines.clone()).unwrap_or_default())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        CURRENT.take();
    }
}

/// Adds each event to the log of the thread that logs it.
struct Threads;

impl Subscriber for Threads {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        CURRENT.with_borrow(|current| current.as_ref().is_some_and(|current| current.wants(metadata)))
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        CURRENT.with_borrow_mut(|current| {
            if let Some(current) = current {
                current.lines.push(line.0);
            }
        });
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl field::Visit for Line {
    fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(number: u32) {
        tracing::info!(number, "logged");
    }

    /// The other thread is the first to reach the event.
    #[test]
    fn events_of_the_thread_are_collected_and_no_others() {
        let lines = Log::collect(Level::INFO, "log::tests");
        std::thread::spawn(|| log(1)).join().unwrap();
        log(2);
        tracing::debug!("not severe enough");
        tracing::error!(target: "elsewhere", "of another target");
        assert_eq!(lines.lines(), ["message=logged number=2 "]);
        drop(lines);
        log(3);
        assert_eq!(Log::collect(Level::INFO, "log::tests").lines(), [""; 0]);
    }
}
