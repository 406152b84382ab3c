//! Project automation. `cargo xtask test` runs everything that CI runs, and says what it skipped and why.
//!
//! ```text
//! cargo xtask test [--all]                     all of it: format, lints, tests, tidy, interop
//! cargo xtask tidy                             the rules of STYLE.md and ARCHITECTURE.md that a program can check, and the citations
//! cargo xtask trace                            write docs/traceability.md, the report of the citations of RFCs
//! cargo xtask interop [--only NAME,...] [--all] a real Linux kernel, libnfs, fio, tshark and attackers against Slipway; --all runs every
//!                                              cell of the matrices of which a commit runs some
//! cargo xtask compare [--seconds N] [--congestion cubic,bbr]   speed beside libnfs's client on NFS-Ganesha, in one run
//! cargo xtask compare --security [--seconds N] [--congestion bbr]   Kerberos and TLS beside AUTH_SYS and beside their ciphers
//! cargo xtask compare --knfsd [--seconds N]    speed beside Linux's own server, both in one emulated guest
//! cargo xtask compare --mount [--seconds N]    speed of slipway mount beside the exported file system, and beside Linux's client in a guest
//! cargo xtask sim --seed N                     replay one seed of the simulated worlds
//! cargo xtask sim --replay [TIMES [--jobs N]] run all simulations twice, or so many times, N programs at once, and compare them
//! cargo xtask fuzz TARGET [--minutes M]        fuzz one target on this toolchain
//! cargo xtask mutants [--part NAME] [--shard K/N]   change one expression at a time; a test must fail (docs/mutants.md)
//! ```

mod checks;
mod compare;
mod debian;
mod functions;
mod fuzz;
mod interop;
mod mutants;
mod report;
mod shell;
mod simulations;
mod tidy;
mod trace;

use std::process::ExitCode;

use report::Report;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    std::env::set_current_dir(shell::project_root()).expect("the project's root is a directory");
    let mut report = Report::default();
    let known = match arguments.as_slice() {
        ["test"] | ["test", "--all"] => {
            // Some tests use what interop needs, where it is there. If it cannot be installed, interop says so.
            let _ = interop::install();
            checks::run(&mut report);
            tidy::run(&mut report);
            trace::check(&mut report);
            interop::run(None, arguments.contains(&"--all"), &mut report);
            true
        }
        ["tidy"] => {
            tidy::run(&mut report);
            trace::check(&mut report);
            true
        }
        ["trace"] => {
            trace::write(&mut report);
            true
        }
        ["interop"] => interop::run(None, false, &mut report),
        ["interop", "--all"] => interop::run(None, true, &mut report),
        ["interop", "--only", suites] => interop::run(Some(suites), false, &mut report),
        ["interop", "--only", suites, "--all"] => interop::run(Some(suites), true, &mut report),
        ["compare", arguments @ ..] => compare::run(arguments, &mut report),
        ["sim", "--seed", seed] => simulations::replay(seed, &mut report),
        ["sim", "--replay"] => simulations::replays("2", "1", &mut report),
        ["sim", "--replay", times] => simulations::replays(times, "1", &mut report),
        ["sim", "--replay", times, "--jobs", jobs] => simulations::replays(times, jobs, &mut report),
        ["mutants", arguments @ ..] => mutants::run(arguments, &mut report),
        ["fuzz", target] => fuzz::run(target, "1", &mut report),
        ["fuzz", target, "--minutes", minutes] => fuzz::run(target, minutes, &mut report),
        _ => false,
    };
    if !known {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    }
    report.finish()
}

const USAGE: &str = "\
usage: cargo xtask test [--all]
       cargo xtask tidy
       cargo xtask trace
       cargo xtask interop [--only client|locks|restarts|knfsd|knfsd4|verbs|hostile|libnfs|fio|mount|capture|kerberos|kerberos-linux|kerberos-state|tls|
                            ganesha|pnfs|pnfs-knfsd|pnfs-gluster|reference,...] [--all]
       cargo xtask compare [--seconds N] [--congestion NAME,... | --knfsd | --mount | --security]
       cargo xtask sim --seed N | --replay [TIMES [--jobs N]]
       cargo xtask fuzz TARGET [--minutes M]
       cargo xtask mutants [--part rpcrdma|iwarp|v4-state|gss|client-session] [--shard K/N] [--names FILE]
                           [--jobs N] [--tree DIRECTORY]
";
