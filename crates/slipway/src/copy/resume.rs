//! [`Resume`]: continues an interrupted copy of one file, for `--resume`.
//!
//! The temporary file then has a name that depends only on the name of the target. Beside it is a *record*: the source
//! with its size and times, the temporary file, and the number of bytes that are on stable storage. The record is
//! written after each [`CHECKPOINT`], when the data before that are durable, so it never promises too much, also after a
//! restart of the server.
//!
//! A later copy continues only if all of this holds: the source has the size, times and number of the record; the
//! temporary file is the one of the record, is not shorter than recorded, and belongs to the user; and the last bytes
//! before the recorded offset are the same in both. Otherwise the copy starts again with a new file. If the source
//! changes during a copy, the copy fails, and the next one starts again.

use bytes::Bytes;

use super::{
    Error, Result, local,
    meta::{Kind, Meta, Time},
    node::Node,
    staged::stable_name,
    stream::Sink,
};
use crate::output;

/// The copy of one file that can be continued.
#[derive(Debug)]
pub struct Resume {
    /// The directory of the temporary file and of the record.
    dir: Node,
    temporary: Bytes,
    record_name: Bytes,
    record: Record,
    /// The number of bytes that have been written since the last record.
    written: u64,
}

/// The record of an interrupted copy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    size: u64,
    mtime: Time,
    ctime: Time,
    /// The number of the source, and that of the temporary file. `None` if a server reports none.
    source: Option<(u64, u64)>,
    temporary: Option<(u64, u64)>,
    /// The number of bytes from the start of the file that are on stable storage.
    committed: u64,
}

impl Resume {
    /// Prepares to continue a copy of `source` to `name` in `dir`, or to start it again. Returns `None` if the target is
    /// written in place.
    ///
    /// # Errors
    /// The directory cannot be accessed.
    pub async fn find(dir: &Node, name: &Bytes, source: &Node, meta: &Meta) -> Result<Option<Self>> {
        let Some((dir, name)) = final_name(dir, name).await? else { return Ok(None) };
        let temporary = stable_name(&name, b"");
        let record_name = stable_name(&name, b".record");
        let record = Record {
            size: meta.size,
            mtime: meta.mtime,
            ctime: meta.ctime,
            source: meta.id,
            temporary: None,
            committed: 0,
        };
        let mut resume = Self { dir, temporary, record_name, record, written: 0 };
        match resume.interrupted(source).await? {
            Some(found) => resume.record = found,
            None => resume.remove().await?,
        }
        Ok(Some(resume))
    }

    /// Returns the record of an interrupted copy that can be continued.
    async fn interrupted(&self, source: &Node) -> Result<Option<Record>> {
        let Some((file, meta)) = self.dir.child(&self.record_name).await? else { return Ok(None) };
        if meta.kind != Kind::File || meta.size != RECORD_LEN as u64 {
            return Ok(None);
        }
        let Some(record) = Record::decode(&file.read_range(0, RECORD_LEN).await?) else { return Ok(None) };
        let same_source =
            Record { temporary: record.temporary, committed: record.committed, ..self.record.clone() } == record;
        let Some((file, meta)) = self.dir.child(&self.temporary).await? else { return Ok(None) };
        let is_ours = match &file {
            Node::Local(_) => meta.uid == rustix::process::geteuid().as_raw() && meta.nlink == 1,
            Node::Remote(_) => true,
        };
        let same_file = meta.kind == Kind::File && meta.id == record.temporary && meta.size >= record.committed;
        if !same_source || !same_file || !is_ours || record.committed > record.size {
            return Ok(None);
        }
        let len = record.committed.min(COMPARED);
        let at = record.committed - len;
        let (there, here) = (file.read_range(at, len as usize).await?, source.read_range(at, len as usize).await?);
        Ok((there == here).then_some(record))
    }

    /// Returns the name of the temporary file, and the offset from which the copy continues, 0 for a new file.
    pub fn start(&self) -> (&Bytes, u64) {
        (&self.temporary, self.record.committed)
    }

    /// Counts written bytes. After each [`CHECKPOINT`], makes them durable and records that.
    ///
    /// # Errors
    /// The data or the record could not be written.
    pub async fn wrote(&mut self, len: u64, to: &mut Sink) -> Result<()> {
        self.written += len;
        if self.written < CHECKPOINT { Ok(()) } else { self.checkpoint(to).await }
    }

    /// Makes all written data durable and records that.
    async fn checkpoint(&mut self, to: &mut Sink) -> Result<()> {
        let committed = to.sync().await?;
        self.written = 0;
        if committed == self.record.committed {
            return Ok(());
        }
        if self.record.temporary.is_none() {
            self.record.temporary = self.dir.child(&self.temporary).await?.and_then(|(_, meta)| meta.id);
        }
        self.record.committed = committed;
        self.dir.put(&self.record_name, self.record.encode()).await
    }

    /// Checks before the file gets its final name that the source has not changed during the copy, and that the
    /// temporary name has not been taken by another copy.
    ///
    /// # Errors
    /// It has.
    pub async fn check(&self, source: &Node) -> Result<()> {
        let now = source.meta(true).await?;
        let same = (now.size, now.mtime, now.ctime, now.id)
            == (self.record.size, self.record.mtime, self.record.ctime, self.record.source);
        if !same {
            let path = output::name(&source.path());
            return Err(Error(format!("{path}: has changed during the copy; the next copy starts again")));
        }
        let there = self.dir.child(&self.temporary).await?;
        match (there, self.record.temporary) {
            (None, _) => Err(self.taken()),
            (Some((_, meta)), Some(id)) if meta.id != Some(id) => Err(self.taken()),
            _ => Ok(()),
        }
    }

    fn taken(&self) -> Error {
        Error(format!("{}: another copy to the same target has replaced it", output::name(&self.temporary)))
    }

    /// Keeps what has been copied so far, after an error or a signal.
    pub async fn suspend(&mut self, mut to: Sink) {
        if let Err(error) = self.checkpoint(&mut to).await {
            tracing::debug!(%error, "the last data of an interrupted copy are not kept");
        }
        match self.record.committed {
            0 => to.discard().await,
            _ => to.keep().await,
        }
    }

    /// Removes the record of a complete copy.
    ///
    /// # Errors
    /// The record cannot be removed.
    pub async fn finish(&self) -> Result<()> {
        if self.record.temporary.is_some() { self.dir.remove(&self.record_name).await } else { Ok(()) }
    }

    /// Removes the remains of a copy that cannot be continued.
    async fn remove(&self) -> Result<()> {
        for name in [&self.record_name, &self.temporary] {
            if self.dir.child(name).await?.is_some() {
                self.dir.remove(name).await?;
            }
        }
        Ok(())
    }
}

impl Record {
    /// Encodes the record as text of a fixed length, so that a record replaces the previous one in place.
    fn encode(&self) -> Bytes {
        let id = |id: Option<(u64, u64)>| id.map_or(("-", 0, 0), |(system, number)| ("+", system, number));
        let time = |time: Time| format!("{:+020}.{:09}", time.seconds, time.nanoseconds);
        let ((source, source_system, source_number), (file, system, number)) = (id(self.source), id(self.temporary));
        let mut text = format!(
            "slipway cp 1\nsource {source} {source_system:020} {source_number:020}\nsize {:020}\nmtime {}\nctime {}\n\
             temporary {file} {system:020} {number:020}\ncommitted {:020}\n",
            self.size,
            time(self.mtime),
            time(self.ctime),
            self.committed,
        );
        text += &format!("check {:016x}\n", super::staged::stable_hash(text.as_bytes()));
        text.into()
    }

    /// Decodes a record. Returns `None` if it is incomplete, or of another version.
    fn decode(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let id = |at: usize| -> Option<Option<(u64, u64)>> {
            let id = (words.get(at + 1)?.parse().ok()?, words.get(at + 2)?.parse().ok()?);
            Some((*words.get(at)? == "+").then_some(id))
        };
        let time = |at: usize| -> Option<Time> {
            let (seconds, nanoseconds) = words.get(at)?.split_once('.')?;
            Some(Time { seconds: seconds.parse().ok()?, nanoseconds: nanoseconds.parse().ok()? })
        };
        let record = Self {
            source: id(4)?,
            size: words.get(8)?.parse().ok()?,
            mtime: time(10)?,
            ctime: time(12)?,
            temporary: id(14)?,
            committed: words.get(18)?.parse().ok()?,
        };
        // The check covers the version and all words.
        (record.encode() == text.as_bytes()).then_some(record)
    }
}

/// Returns the directory and the name of the file that will be replaced, with local links followed; `None` if it is
/// written in place.
async fn final_name(dir: &Node, name: &Bytes) -> Result<Option<(Node, Bytes)>> {
    match dir {
        Node::Remote(_) => Ok(Some((dir.clone(), name.clone()))),
        Node::Local(path) => local::final_name(path, name).await,
    }
}

/// The bytes after which the data are made durable and recorded.
const CHECKPOINT: u64 = 16 << 20;
/// The bytes before the recorded offset that are compared with the source.
const COMPARED: u64 = 64 << 10;
/// The length of a record.
const RECORD_LEN: usize = 272;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_damaged_ones_are_rejected() {
        let record = Record {
            size: u64::MAX,
            mtime: Time { seconds: -5, nanoseconds: 999_999_999 },
            ctime: Time { seconds: i64::MAX, nanoseconds: 0 },
            source: Some((7, u64::MAX)),
            temporary: None,
            committed: 12,
        };
        for record in [record.clone(), Record { source: None, temporary: Some((0, 1)), committed: 0, ..record }] {
            let text = record.encode();
            assert_eq!((text.len(), Record::decode(&text)), (RECORD_LEN, Some(record)));
            for at in 0..text.len() {
                let mut damaged = text.to_vec();
                damaged[at] ^= 1;
                assert_eq!(Record::decode(&damaged), None, "byte {at}");
                assert_eq!(Record::decode(&text[..at]), None, "{at} bytes");
            }
        }
    }
}
