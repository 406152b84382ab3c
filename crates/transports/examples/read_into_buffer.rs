//! Reads a file into a buffer of this program, without a copy.
//!
//! `cargo run -p slipway-transports --example read_into_buffer nfs://HOST/EXPORT PATH`
//!
//! The buffer moves into the READ and returns with its result. Over RDMA, the server writes the data into it; over TCP,
//! the client receives them into it.

use std::error::Error;

use buf::Buffer;
use client::blocking::Runtime;

/// Reads at most `len` bytes from the start of a file.
pub fn read(url: &str, path: &str, len: usize) -> Result<Buffer, Box<dyn Error>> {
    let mount = Runtime::start()?.connect(&url.parse()?, &transports::for_client())?;
    let file = mount.open(path)?;
    // A buffer of the mount's pool is already registered with the adapter.
    let buffer = mount.as_async().pool().take(len);
    let (read, mut buffer) = file.read_buffer(0, buffer);
    buffer.set_len(read?);
    Ok(buffer)
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: read_into_buffer nfs://HOST/EXPORT PATH".into());
    };
    let buffer = read(&url, &path, 64 << 10)?;
    println!("{} bytes: {}", buffer.len(), String::from_utf8_lossy(&buffer));
    Ok(())
}
