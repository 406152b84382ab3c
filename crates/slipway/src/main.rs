//! The `slipway` command: serves directories over NFS, reaches NFS servers, and measures both.
//!
//! `cli` says what can be asked for, `commands` holds one file for each command, and the rest is what commands
//! share.

// The comments on arguments are the text of `--help`, where `[…]` means what can be left out.
#![allow(rustdoc::broken_intra_doc_links)]

mod bench;
mod child;
mod cli;
mod commands;
mod copy;
mod descriptors;
mod exit;
mod fuse;
mod logging;
mod output;
mod process;
mod progress;
mod reach;
mod show;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let name = cli.command.name();
    match cli.command.run(&cli.log) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("slipway {name}: {failure}");
            failure.exit.into()
        }
    }
}
