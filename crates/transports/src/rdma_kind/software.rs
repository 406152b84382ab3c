//! iWARP in software as a provider of "rdma", and its options.

use std::sync::Arc;

use buf::Pool;
use rdma::iwarp::{Iwarp, IwarpOptions, Pcap};
use rpc::{OptionError, OptionReader, RawOptions};
use rpcrdma::RdmaKind;

/// Returns RPC-over-RDMA on iWARP in software with these options.
pub(super) fn kind(raw: &RawOptions, rpc: &rpcrdma::Options, pool: &Pool) -> Result<Option<RdmaKind>, OptionError> {
    let provider = Arc::new(Iwarp::new(options(raw)?));
    Ok(Some(RdmaKind::new(provider, rpc.clone()).with_pool(pool.clone())))
}

fn options(raw: &RawOptions) -> Result<IwarpOptions, OptionError> {
    let mut reader = OptionReader::new(rpcrdma::NAME, raw);
    let mut options = IwarpOptions::default();
    options.crc = reader.switch("crc")?.unwrap_or(options.crc);
    options.congestion = reader.text("congestion").map(str::to_owned);
    options.send_buffer = reader.bytes("sndbuf", BUFFER_MIN..=BUFFER_MAX)?;
    options.recv_buffer = reader.bytes("rcvbuf", BUFFER_MIN..=BUFFER_MAX)?;
    if let Some(revision) = reader.number("mpa", 1..=2)? {
        options.revision = revision as u8;
        options.peer_to_peer &= revision == 2;
    }
    if let Some(path) = reader.text("pcap") {
        let pcap = Pcap::create(path).map_err(|error| reader.error("pcap", format!("{path}: {error}")))?;
        options.pcap = Some(pcap);
    }
    reader.finish()?;
    Ok(options)
}

pub(super) const OPTIONS: &[&str] = &["congestion", "crc", "mpa", "pcap", "rcvbuf", "sndbuf"];
const BUFFER_MIN: usize = 4 << 10;
const BUFFER_MAX: usize = 1 << 30;
