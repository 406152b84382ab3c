//! Wire formats, written from the RFCs and shared with nothing in this project: an attack must not depend on the codecs that it tests.

pub mod iwarp;
pub mod rpc;
pub mod shm;
pub mod v3;
pub mod v4;

/// An XDR stream under construction (RFC 4506).
#[derive(Clone, Debug, Default)]
pub struct Xdr(pub Vec<u8>);

impl Xdr {
    /// An unsigned integer.
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// An unsigned hyper integer.
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Opaque data of fixed length.
    pub fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Opaque data of variable length, or a string.
    pub fn opaque(self, bytes: &[u8]) -> Self {
        self.u32(bytes.len() as u32).fixed(bytes)
    }
}

/// Reads an XDR stream. Every function returns `None` at its end.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// An unsigned integer.
    pub fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*word))
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// Opaque data of fixed length.
    pub fn fixed(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.0.get(..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..)?;
        Some(bytes)
    }

    /// Opaque data of variable length, or a string.
    pub fn opaque(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.fixed(len)
    }
}
