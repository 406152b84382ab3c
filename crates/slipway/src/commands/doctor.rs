//! `slipway doctor`: shows what this machine supports, and how to add what is missing.

mod checks;

use clap::ValueEnum as _;
use serde::Serialize;

use crate::{
    exit::{Exit, Outcome},
    output,
};

/// Show which transports and mounts this machine supports, and what is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command changes nothing. The exit code is 0 unless something that Slipway needs is missing.

Examples:
  slipway doctor
  slipway doctor --json | jq '.[] | select(.state != \"ok\")'")]
pub struct Args {
    /// Print the findings as one JSON array
    #[arg(long)]
    json: bool,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The check passed.
    Ok,
    /// Slipway works, but a feature is missing or slow.
    Note,
    /// Slipway needs something that is missing.
    Bad,
}

/// The result of one check.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// The short name of the check.
    pub check: &'static str,
    /// The severity.
    pub state: State,
    /// The result, as text.
    pub found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, state: State::Ok, found: found.into(), fix: None }
    }

    fn note(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, state: State::Note, found: found.into(), fix: Some(fix.into()) }
    }

    fn bad(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, state: State::Bad, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Runs all checks and prints the findings.
pub fn run(args: &Args) -> Outcome {
    let findings = checks::all();
    if args.json {
        output::json(&findings);
    } else {
        output::print(&text(&findings));
    }
    let bad = findings.iter().any(|finding| finding.state == State::Bad);
    Ok(if bad { Exit::Failed } else { Exit::Ok })
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    for Finding { check, state, found, fix } in findings {
        let state = state.to_possible_value().expect("every state must have a name");
        text.push_str(&format!("{:<4}  {check:<width$}  {found}\n", state.get_name()));
        if let Some(fix) = fix {
            text.push_str(&format!("{:6}{:width$}  fix: {fix}\n", "", ""));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_is_printed_below_its_finding() {
        let findings = [Finding::ok("tcp", "there"), Finding::note("longer", "slow", "make it fast")];
        assert_eq!(text(&findings), "ok    tcp     there\nnote  longer  slow\n              fix: make it fast\n");
    }
}
