//! [`Rope`]: a gather list.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use crate::{DeviceRange, PeerBytes};

/// One contiguous part of a [`Rope`].
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes in memory.
    Memory(Bytes),
    /// Bytes of an open file.
    File(FileRange),
    /// Bytes in memory that a peer on this host can change.
    Peer(PeerBytes),
    /// Bytes of device memory.
    Device(DeviceRange),
}

/// `len` bytes of `file` from `offset`.
///
/// The range was inside the file when the piece was made. If the file has shrunk since then, the missing bytes read as
/// zeros, because the length has already been sent to the peer.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The open file.
    pub file: Arc<File>,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len: usize,
}

/// A sequence of bytes as a list of pieces. It is cheap to clone and to slice.
#[derive(Clone, Debug, Default)]
pub struct Rope {
    pieces: SmallVec<[Piece; 1]>,
    len: usize,
}

impl Piece {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Piece::Memory(bytes) => bytes.len(),
            Piece::File(range) => range.len,
            Piece::Peer(bytes) => bytes.len(),
            Piece::Device(range) => range.len(),
        }
    }

    /// Returns `true` if the piece has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes in memory that no peer can change. Copies them unless they are [`Piece::Memory`].
    ///
    /// # Errors
    /// The file or device memory cannot be read.
    pub fn into_memory(self) -> io::Result<Bytes> {
        if let Piece::Memory(bytes) = self {
            return Ok(bytes);
        }
        let mut copy = BytesMut::zeroed(self.len());
        self.copy_to(&mut copy)?;
        Ok(copy.freeze())
    }

    /// Copies the bytes to `into`, which must have the same length.
    ///
    /// # Errors
    /// The file or device memory cannot be read.
    pub fn copy_to(&self, into: &mut [u8]) -> io::Result<()> {
        match self {
            Piece::Memory(bytes) => into.copy_from_slice(bytes),
            Piece::File(range) => range.read(into)?,
            Piece::Peer(bytes) => bytes.copy_to(into),
            Piece::Device(range) => range.copy_out(0, into)?,
        }
        Ok(())
    }

    /// Removes and returns the first `at` bytes.
    ///
    /// # Panics
    /// If `at` exceeds the length.
    pub fn split_to(&mut self, at: usize) -> Piece {
        match self {
            Piece::Memory(bytes) => Piece::Memory(bytes.split_to(at)),
            Piece::Peer(bytes) => Piece::Peer(bytes.split_to(at)),
            Piece::Device(range) => Piece::Device(range.split_to(at)),
            Piece::File(range) => {
                assert!(at <= range.len);
                let head = FileRange { file: range.file.clone(), offset: range.offset, len: at };
                range.offset += at as u64;
                range.len -= at;
                Piece::File(head)
            }
        }
    }
}

impl From<Bytes> for Piece {
    fn from(bytes: Bytes) -> Self {
        Piece::Memory(bytes)
    }
}

impl FileRange {
    /// Reads the range into `into`, which must have the same length. Bytes beyond the end of the file read as zeros.
    ///
    /// # Errors
    /// The errors of `pread`.
    pub fn read(&self, into: &mut [u8]) -> io::Result<()> {
        assert_eq!(into.len(), self.len);
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], self.offset + done as u64) {
                Ok(0) => {
                    into[done..].fill(0);
                    break;
                }
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Rope {
    /// Makes a rope without bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the total number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the rope has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the pieces in order. None is empty.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Appends a piece, unless it is empty.
    pub fn push(&mut self, piece: Piece) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push(piece);
        }
    }

    /// Appends all pieces of `other`.
    pub fn append(&mut self, other: Rope) {
        self.len += other.len;
        self.pieces.extend(other.pieces);
    }

    /// Returns the bytes `start .. start + len` as another rope, without a copy.
    ///
    /// # Panics
    /// If the range is not inside the rope.
    pub fn slice(&self, start: usize, len: usize) -> Rope {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len), "slice beyond the rope");
        let mut out = Rope::new();
        let (mut skip, mut left) = (start, len);
        for piece in &self.pieces {
            if left == 0 {
                break;
            }
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let mut piece = piece.clone();
            piece.split_to(skip);
            skip = 0;
            let take = left.min(piece.len());
            out.push(piece.split_to(take));
            left -= take;
        }
        out
    }

    /// Replaces device memory by copies in host memory.
    ///
    /// # Errors
    /// The device memory cannot be read.
    pub fn bounce(&mut self) -> io::Result<()> {
        for piece in &mut self.pieces {
            if let Piece::Device(range) = piece {
                let mut copy = BytesMut::zeroed(range.len());
                range.copy_out(0, &mut copy)?;
                *piece = Piece::Memory(copy.freeze());
            }
        }
        Ok(())
    }

    /// Copies the bytes to `into`, which must have the same length.
    ///
    /// # Errors
    /// A file or device memory cannot be read.
    pub fn copy_to(&self, into: &mut [u8]) -> io::Result<()> {
        assert_eq!(into.len(), self.len);
        let mut at = 0;
        for piece in &self.pieces {
            piece.copy_to(&mut into[at..at + piece.len()])?;
            at += piece.len();
        }
        Ok(())
    }

    /// Returns the bytes as contiguous memory. Copies them unless they are one piece of memory.
    ///
    /// # Errors
    /// A file or device memory cannot be read.
    pub fn to_bytes(&self) -> io::Result<Bytes> {
        match self.pieces.as_slice() {
            [] => Ok(Bytes::new()),
            [Piece::Memory(bytes)] => Ok(bytes.clone()),
            _ => {
                let mut out = BytesMut::zeroed(self.len);
                self.copy_to(&mut out)?;
                Ok(out.freeze())
            }
        }
    }
}

impl From<Piece> for Rope {
    fn from(piece: Piece) -> Self {
        let mut rope = Rope::new();
        rope.push(piece);
        rope
    }
}

impl From<Bytes> for Rope {
    fn from(bytes: Bytes) -> Self {
        Piece::Memory(bytes).into()
    }
}

impl From<FileRange> for Rope {
    fn from(range: FileRange) -> Self {
        Piece::File(range).into()
    }
}

impl From<DeviceRange> for Rope {
    fn from(range: DeviceRange) -> Self {
        Piece::Device(range).into()
    }
}

impl FromIterator<Bytes> for Rope {
    fn from_iter<I: IntoIterator<Item = Bytes>>(iter: I) -> Self {
        let mut rope = Rope::new();
        iter.into_iter().for_each(|bytes| rope.push(Piece::Memory(bytes)));
        rope
    }
}

impl IntoIterator for Rope {
    type Item = Piece;
    type IntoIter = smallvec::IntoIter<[Piece; 1]>;
    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter()
    }
}

/// Compares the content. Files and device memory are read; a rope that cannot be read equals no other.
impl PartialEq for Rope {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && matches!((self.to_bytes(), other.to_bytes()), (Ok(a), Ok(b)) if a == b)
    }
}

impl Eq for Rope {}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(parts: &[&'static [u8]]) -> Rope {
        parts.iter().map(|part| Bytes::from_static(part)).collect()
    }

    #[test]
    fn slices_of_a_rope_equal_slices_of_its_bytes() {
        let rope = rope(&[b"abc", b"", b"d", b"efgh"]);
        let flat = rope.to_bytes().unwrap();
        assert_eq!(&flat[..], b"abcdefgh");
        for start in 0..=8 {
            for end in start..=8 {
                let slice = rope.slice(start, end - start);
                assert_eq!(slice.to_bytes().unwrap(), flat.slice(start..end));
                assert!(slice.pieces().iter().all(|piece| !piece.is_empty()));
            }
        }
    }

    #[test]
    fn missing_bytes_of_a_shrunken_file_read_as_zeros() {
        let path = std::env::temp_dir().join(format!("slipway-rope-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(6).unwrap();
        std::fs::remove_file(&path).unwrap();
        let rope = Rope::from(FileRange { file, offset: 4, len: 5 });
        assert_eq!(&rope.to_bytes().unwrap()[..], b"45\0\0\0");
        assert_eq!(&rope.slice(1, 2).to_bytes().unwrap()[..], b"5\0");
    }
}
