//! Wire formats, written from the RFCs without code of this project, because an attack must not depend on the codecs
//! that it tests.

pub mod iwarp;
pub mod rpc;
pub mod shm;
pub mod v3;
pub mod v4;

/// An XDR stream under construction (RFC 4506).
#[derive(Clone, Debug, Default)]
pub struct Xdr(pub Vec<u8>);

impl Xdr {
    /// Appends an unsigned integer.
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Appends an unsigned hyper integer.
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Appends opaque data of fixed length.
    pub fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends opaque data of variable length, or a string.
    pub fn opaque(self, bytes: &[u8]) -> Self {
        self.u32(bytes.len() as u32).fixed(bytes)
    }
}

/// A reader of an XDR stream. Every function returns `None` at its end.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Reads an unsigned integer.
    pub fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*word))
    }

    /// Reads an unsigned hyper integer.
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// Reads opaque data of fixed length.
    pub fn fixed(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.0.get(..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..)?;
        Some(bytes)
    }

    /// Reads opaque data of variable length, or a string.
    pub fn opaque(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.fixed(len)
    }
}
