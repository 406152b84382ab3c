//! `slipway cat`: the content of files on servers, on standard output.

use std::io::{self, Write};

use client::NfsUrl;

use crate::{
    copy::Kind,
    exit::{Exit, Failure, Outcome},
    reach::{self, Reach, Tally},
};

/// Write files from servers to standard output.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway cat nfs://server/export/notes.txt
  slipway cat 'nfs://server/export/disk.img?proto=rdma' | sha256sum")]
pub struct Args {
    /// The files: nfs://host[:port]/export/path[?proto=tcp|udp|rdma&…]
    #[arg(value_name = "URL", required = true)]
    urls: Vec<NfsUrl>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    reach::run(async {
        let reach = Reach::new();
        let mut tally = Tally::new("cat");
        for url in &args.urls {
            match one(&reach, url).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(failure) => {
                    tally.check::<()>(Err(failure));
                }
            }
        }
        Ok(tally.exit())
    })
}

/// Writes one file. Returns `false` if the reader of standard output has closed it.
async fn one(reach: &Reach, url: &NfsUrl) -> Result<bool, Failure> {
    let (node, meta) = reach.object(url, true).await?;
    if meta.kind != Kind::File {
        return Err(Failure::failed(format!("{url}: is a {}", meta.kind.name())));
    }
    let mut reader = node.file().reader().expecting(meta.size);
    let mut stdout = io::stdout().lock();
    loop {
        let block = reader.next().await.map_err(|error| reach::failure(url, &error))?;
        let written = match &block {
            Some(block) => stdout.write_all(block),
            None => stdout.flush(),
        };
        match written {
            Ok(()) if block.is_some() => {}
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
            Err(error) => return Err(Failure { exit: Exit::Failed, message: format!("standard output: {error}") }),
        }
    }
}
