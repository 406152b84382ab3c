//! Reads and writes of simulated streams, for peers that are written by hand.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
};

use simnet::Stream;

/// Reads the bytes that have arrived, at most `most`. Returns none at the end of the stream.
pub async fn read(stream: &Stream, most: usize) -> io::Result<Vec<u8>> {
    poll_fn(|cx| stream.poll_readable(cx)).await;
    let mut bytes = vec![0; most];
    let len = stream.read_vectored(&mut [IoSliceMut::new(&mut bytes)])?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Reads exactly `len` bytes.
///
/// # Errors
/// Returns `UnexpectedEof` if the stream ends before.
pub async fn read_exact(stream: &Stream, len: usize) -> io::Result<Vec<u8>> {
    let mut all = Vec::with_capacity(len);
    while all.len() < len {
        let bytes = read(stream, len - all.len()).await?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        all.extend(bytes);
    }
    Ok(all)
}

/// Reads until the peer closes or resets the stream.
pub async fn read_until_closed(stream: &Stream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Ok(bytes) = read(stream, 1 << 16).await {
        if bytes.is_empty() {
            break;
        }
        all.extend(bytes);
    }
    all
}

/// Writes all bytes.
pub async fn write_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        poll_fn(|cx| stream.poll_writable(cx)).await;
        bytes = &bytes[stream.write_vectored(&[IoSlice::new(bytes)])?..];
    }
    Ok(())
}
