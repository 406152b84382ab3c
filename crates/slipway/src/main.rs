//! The `slipway` command: serves directories over NFS, accesses NFS servers, and measures both.
//!
//! `cli` defines the command line, `commands` has one file for each command, and the other modules are shared by
//! commands.

// The doc comments of arguments are the text of `--help`, where `[…]` marks an optional part.
#![allow(rustdoc::broken_intra_doc_links)]

mod administrator;
mod bench;
mod child;
mod cli;
mod cluster;
mod commands;
mod copy;
mod counters;
mod exit;
mod fuse;
mod logging;
mod output;
mod pnfs;
mod process;
mod progress;
mod reach;
mod resources;
mod show;
mod socket;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let name = cli.command.name();
    resources::raise_locked_memory();
    client::map_owner_names();
    match cli.command.run(&cli.log) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("slipway {name}: {failure}");
            failure.exit.into()
        }
    }
}
