//! Attacks `slipway serve` while good clients use it, and judges the server by the clients' latency and by the resources that it uses.
//!
//! Every attack has a server and clients of its own. It is bounded in count and time, and stays on the loopback, of which each address is
//! another host to the server. [`wire`] encodes what is sent; it shares no code with the server. The server passes if:
//!
//! - no operation of a good client fails, and the 99th percentile of their latency stays within ten times that before the attack, or
//!   below a floor if that is more, in one of three runs;
//! - the server's memory, threads, descriptors and mappings stay within the bounds of [`judge`];
//! - the server does not panic, and answers after the attack;
//! - the attack itself reports no fault.

mod attack;
mod good;
mod judge;
mod processors;
mod random;
mod server;
mod stoppable;
mod wire;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use judge::{Bounds, Verdict};
use processors::Processors;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match Options::parse(&arguments) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let processors = match Processors::divide() {
        Ok(processors) => processors,
        Err(error) => {
            eprintln!("the processors of this process are not known: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut verdicts = Vec::new();
    for attack in attack::ALL.iter().filter(|attack| options.wants(attack.name)) {
        eprintln!("== {}: {}", attack.name, attack.what);
        let verdict = judge::run(attack, &options, &processors);
        println!("{}", verdict.line());
        verdicts.push(verdict);
    }
    println!("\n{}", judge::table(&verdicts));
    ExitCode::from(u8::from(verdicts.iter().any(Verdict::failed)))
}

/// The options of the command line.
pub struct Options {
    slipway: PathBuf,
    load: PathBuf,
    directory: PathBuf,
    only: Option<String>,
    bounds: Bounds,
    duration: Duration,
    seed: u64,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let [slipway, load, directory, rest @ ..] = arguments else { return Err("three arguments are needed".into()) };
        let absolute = |path: &String| std::path::absolute(path).map_err(|error| format!("{path}: {error}"));
        let mut options = Self {
            slipway: absolute(slipway)?,
            load: absolute(load)?,
            directory: absolute(directory)?,
            only: None,
            bounds: Bounds::default(),
            duration: Duration::from_secs(4),
            seed: 1,
        };
        let mut rest = rest.iter();
        while let Some(name) = rest.next() {
            let mut number =
                || rest.next().and_then(|value| value.parse().ok()).ok_or(format!("{name} needs a number"));
            match name.as_str() {
                "--strict" => {
                    options.bounds.latency_floor = Duration::from_millis(5);
                    options.bounds.runs = 1;
                }
                "--seconds" => options.duration = Duration::from_secs(number()?),
                "--seed" => options.seed = number()?,
                "--memory" => options.bounds.memory_mib = number()?,
                "--only" => options.only = Some(rest.next().ok_or("--only needs the name of an attack")?.clone()),
                other => return Err(format!("{other}: unknown option")),
            }
        }
        match &options.only {
            Some(only) if attack::ALL.iter().all(|attack| !options.wants(attack.name)) => {
                Err(format!("{only}: no such attack"))
            }
            _ => Ok(options),
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.split(',').any(|only| only == name))
    }
}

const USAGE: &str = "\
usage: slipway-hostile SLIPWAY LOAD DIRECTORY [options]
  SLIPWAY      the server's program
  LOAD         the example `load` of slipway-client
  DIRECTORY    where servers keep their state, exports and logs; what it has of earlier runs is removed
  --only NAME,…  these attacks alone
  --seconds N  how long each attack lasts (4)
  --memory N   most MiB of the server's resident memory (512)
  --strict     a latency floor of 5 ms, and one run: for a machine without other load
  --seed N     of what is random (1)";
