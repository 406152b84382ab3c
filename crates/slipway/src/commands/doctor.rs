//! `slipway doctor`: shows what this machine supports, and how to add what is missing.

mod checks;
mod clashes;
mod clocks;
mod computed;
mod data_servers;
mod kernel;
mod modules;
mod tls;

use std::{borrow::Cow, path::PathBuf, sync::Arc, time::SystemTime};

use clap::ValueEnum as _;
use serde::Serialize;
use server::Config;

use crate::{
    exit::{Exit, Failure, Outcome},
    output, pnfs,
};

/// Show which transports and mounts this machine supports, and what is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command changes nothing. The exit code is 0 unless something that Slipway needs is missing.

With --config, the command also checks the data servers of a pNFS metadata server, on its host and as its user: the addresses, the
rights of the metadata server and of clients, the clock, the free space, and that clients know each server from the others. It creates
an object on each data server, and removes it. On a client of pNFS, with or without --config, it examines the kernel: modules, timeouts, and mounts.
It also examines the files of TLS: whether a server can use them, which names the certificates have, and when they and the
revocation lists expire.

Examples:
  slipway doctor
  slipway doctor --config /etc/slipway.toml --name nfs.example.com
  slipway doctor --json | jq '.[] | select(.state != \"ok\")'")]
pub struct Args {
    /// Print the findings as one JSON array
    #[arg(long)]
    json: bool,
    /// Check the data servers and the files of TLS of this configuration, too
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A name or address that clients mount, which the certificates must have
    #[arg(long = "name", value_name = "NAME", requires = "config")]
    names: Vec<String>,
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
    pub check: Cow<'static, str>,
    /// The severity.
    pub state: State,
    /// The result, as text.
    pub found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn ok(check: impl Into<Cow<'static, str>>, found: impl Into<String>) -> Self {
        Self { check: check.into(), state: State::Ok, found: found.into(), fix: None }
    }

    fn note(check: impl Into<Cow<'static, str>>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check: check.into(), state: State::Note, found: found.into(), fix: Some(fix.into()) }
    }

    fn bad(check: impl Into<Cow<'static, str>>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check: check.into(), state: State::Bad, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Runs all checks and prints the findings.
pub fn run(args: &Args) -> Outcome {
    let mut findings = checks::all();
    if let Some(path) = &args.config {
        let config = Config::load_with(path, &pnfs::backends(Arc::default())).map_err(Failure::usage)?;
        findings.extend(data_servers::all(&config).map_err(Failure::failed)?);
        findings.extend(tls::of(config, &args.names, SystemTime::now())?);
    }
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
