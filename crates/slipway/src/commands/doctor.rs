//! `slipway doctor`: what this machine can do, and for everything it cannot, what would change that.

mod checks;

use clap::ValueEnum as _;
use serde::Serialize;

use crate::{
    exit::{Exit, Outcome},
    output,
};

/// Say what this machine can do, and how it could do more.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nothing is changed. The exit code is 0 unless something that Slipway cannot do without is missing.

Examples:
  slipway doctor
  slipway doctor --json | jq '.[] | select(.state != \"ok\")'")]
pub struct Args {
    /// Print the findings as one JSON array
    #[arg(long)]
    json: bool,
}

/// How a finding bears on Slipway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Works, but something is not available or not at its best.
    Note,
    /// Something that Slipway cannot do without is missing.
    Bad,
}

/// One thing found out.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// A short fixed name of what was looked at.
    pub check: &'static str,
    /// What it means.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it.
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

/// Looks at everything and prints it.
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
        let state = state.to_possible_value().expect("no state is hidden");
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
    fn a_fix_stands_under_its_finding() {
        let findings = [Finding::ok("tcp", "there"), Finding::note("longer", "slow", "make it fast")];
        assert_eq!(text(&findings), "ok    tcp     there\nnote  longer  slow\n              fix: make it fast\n");
    }
}
