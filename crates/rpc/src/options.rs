//! [`OptionReader`]: parses the options of a transport, with specific error messages.

use std::{fmt::Display, ops::RangeInclusive, time::Duration};

use crate::{OptionError, RawOptions};

/// Parses the options of one transport, one after the other. [`finish`](Self::finish) rejects options that were not
/// read.
///
/// ```
/// use rpc::{OptionReader, RawOptions};
///
/// let raw = RawOptions::from([("nodelay".into(), "off".into()), ("sndbuf".into(), "4m".into())]);
/// let mut options = OptionReader::new("tcp", &raw);
/// assert!(!options.switch("nodelay")?.unwrap_or(true));
/// assert_eq!(options.bytes("sndbuf", 4096..=1 << 30)?, Some(4 << 20));
/// options.finish()?;
/// # Ok::<(), rpc::OptionError>(())
/// ```
pub struct OptionReader<'a> {
    transport: &'static str,
    raw: &'a RawOptions,
    known: Vec<&'static str>,
}

impl<'a> OptionReader<'a> {
    /// Creates a reader of `raw`, none of whose options has been read.
    pub fn new(transport: &'static str, raw: &'a RawOptions) -> Self {
        Self { transport, raw, known: Vec::new() }
    }

    /// Returns the value of an option as text.
    pub fn text(&mut self, name: &'static str) -> Option<&'a str> {
        self.known.push(name);
        self.raw.get(name).map(String::as_str)
    }

    /// Parses an option that is on or off. An empty value means on.
    ///
    /// # Errors
    /// The value is neither on nor off.
    pub fn switch(&mut self, name: &'static str) -> Result<Option<bool>, OptionError> {
        match self.text(name) {
            None => Ok(None),
            Some("" | "on" | "true" | "yes" | "1") => Ok(Some(true)),
            Some("off" | "false" | "no" | "0") => Ok(Some(false)),
            Some(other) => Err(self.error(name, format!("'{other}' is neither on nor off"))),
        }
    }

    /// Parses a number.
    ///
    /// # Errors
    /// The value is not a number, or out of range.
    pub fn number(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>, OptionError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let value = text.parse().map_err(|_| self.error(name, format!("'{text}' is not a number")))?;
        self.check(name, value, &range).map(Some)
    }

    /// Parses a number of bytes. The suffixes `k` and `m` mean KiB and MiB.
    ///
    /// # Errors
    /// The value is not a number of bytes, or out of range.
    pub fn bytes(&mut self, name: &'static str, range: RangeInclusive<usize>) -> Result<Option<usize>, OptionError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let lower = text.to_ascii_lowercase();
        let (digits, unit) = match lower.strip_suffix(['k', 'm']) {
            Some(digits) if lower.ends_with('k') => (digits, 1 << 10),
            Some(digits) => (digits, 1 << 20),
            None => (lower.as_str(), 1),
        };
        let value = digits.parse::<usize>().ok().and_then(|digits| digits.checked_mul(unit));
        let value = value.ok_or_else(|| self.error(name, format!("'{text}' is not a number of bytes (as in 4m)")))?;
        self.check(name, value, &range).map(Some)
    }

    /// Parses a duration, or `off` for none.
    ///
    /// # Errors
    /// The value is neither a duration nor `off`, or it is zero.
    pub fn duration_or_off(&mut self, name: &'static str) -> Result<Option<Option<Duration>>, OptionError> {
        match self.text(name) {
            Some("off") => Ok(Some(None)),
            _ => Ok(self.duration(name)?.map(Some)),
        }
    }

    /// Parses a duration with the suffix `ms`, `s` or `m` (minutes); without a suffix it is in seconds.
    ///
    /// # Errors
    /// The value is not a duration, or it is zero.
    pub fn duration(&mut self, name: &'static str) -> Result<Option<Duration>, OptionError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let (digits, unit_ms) = match text.strip_suffix("ms") {
            Some(digits) => (digits, 1),
            None if text.ends_with('m') => (&text[..text.len() - 1], 60_000),
            None => (text.strip_suffix('s').unwrap_or(text), 1000),
        };
        let ms = digits.parse::<u64>().ok().and_then(|digits| digits.checked_mul(unit_ms)).filter(|&ms| ms > 0);
        let ms = ms.ok_or_else(|| self.error(name, format!("'{text}' is not a time (as in 500ms, 10s or 5m)")))?;
        Ok(Some(Duration::from_millis(ms)))
    }

    /// Creates an error about the option `name`.
    pub fn error(&self, name: &str, problem: String) -> OptionError {
        OptionError { transport: self.transport, option: name.to_owned(), problem }
    }

    /// Rejects every option that has not been read.
    ///
    /// # Errors
    /// Names the first such option and lists the known ones.
    pub fn finish(mut self) -> Result<(), OptionError> {
        let Some(unknown) = self.raw.keys().find(|key| !self.known.contains(&key.as_str())) else { return Ok(()) };
        self.known.sort_unstable();
        self.known.dedup();
        Err(self.error(unknown, format!("no such option; the options are {}", self.known.join(", "))))
    }

    fn check<T: PartialOrd + Display>(
        &self,
        name: &str,
        value: T,
        range: &RangeInclusive<T>,
    ) -> Result<T, OptionError> {
        if range.contains(&value) {
            return Ok(value);
        }
        Err(self.error(name, format!("{value} is not between {} and {}", range.start(), range.end())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(name: &str, value: &str) -> RawOptions {
        RawOptions::from([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn values_are_parsed_with_their_units() {
        let read = |value| OptionReader::new("x", &raw("o", value)).bytes("o", 1..=8 << 20).map_err(|e| e.problem);
        assert_eq!(read("64k"), Ok(Some(64 << 10)));
        assert_eq!(read("8M"), Ok(Some(8 << 20)));
        assert_eq!(read("9m"), Err("9437184 is not between 1 and 8388608".into()));
        assert!(read("99999999999999999999k").unwrap_err().contains("not a number of bytes"));
        let read = |value| OptionReader::new("x", &raw("o", value)).duration("o").map_err(|e| e.problem);
        assert_eq!(read("250ms"), Ok(Some(Duration::from_millis(250))));
        assert_eq!(read("3s"), read("3"));
        assert_eq!(read("5m"), read("300"));
        let read = |value| OptionReader::new("x", &raw("o", value)).duration_or_off("o").map_err(|e| e.problem);
        assert_eq!(read("off"), Ok(Some(None)));
        assert_eq!(read("1s"), Ok(Some(Some(Duration::from_secs(1)))));
        assert!(read("0").is_err() && read("on").is_err());
        assert!(read("0").is_err() && read("soon").is_err());
    }

    #[test]
    fn unknown_option_is_rejected_with_list_of_known_options() {
        let raw = raw("nodely", "on");
        let mut options = OptionReader::new("tcp", &raw);
        assert_eq!(options.switch("nodelay"), Ok(None));
        assert_eq!(options.text("congestion"), None);
        assert_eq!(options.duration_or_off("idle").unwrap(), None);
        let error = options.finish().unwrap_err();
        assert_eq!(
            error.to_string(),
            "transport tcp: option 'nodely': no such option; the options are congestion, idle, nodelay"
        );
    }
}
