//! Tests of the command line: help, usage errors, completions, doctor.

use std::process::{Command, Output};

fn slipway(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slipway")).args(args).env_remove("RUST_LOG").output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn help_lists_the_exit_codes() {
    let output = slipway(&["--help"]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("Exit codes:"));
}

#[test]
fn a_wrong_command_line_exits_2() {
    assert_eq!(slipway(&["no-such-command"]).status.code(), Some(2));
    assert_eq!(slipway(&["doctor", "--no-such-option"]).status.code(), Some(2));
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let output = slipway(&["completions", shell]);
        assert!(output.status.success());
        for command in ["doctor", "completions"] {
            assert!(stdout(&output).contains(command), "{shell} completes {command}");
        }
    }
}

#[test]
fn doctor_gives_a_fix_for_everything_that_is_not_ok() {
    let output = slipway(&["doctor", "--json"]);
    assert!(output.status.success(), "test machines must have everything that Slipway needs");
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(findings.iter().any(|finding| finding["check"] == "rdma providers"));
    for finding in findings {
        assert_eq!(finding["state"] == "ok", finding.get("fix").is_none(), "{finding}");
    }
    assert!(stdout(&slipway(&["doctor"])).lines().count() > 10);
}
