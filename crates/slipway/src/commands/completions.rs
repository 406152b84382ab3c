//! `slipway completions`: shell scripts that complete this command line.

use std::io;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{
    cli::Cli,
    exit::{Exit, Outcome},
};

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway completions bash > ~/.local/share/bash-completion/completions/slipway
  slipway completions zsh  > ~/.zfunc/_slipway
  slipway completions fish > ~/.config/fish/completions/slipway.fish")]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    clap_complete::generate(args.shell, &mut Cli::command(), "slipway", &mut io::stdout());
    Ok(Exit::Ok)
}
