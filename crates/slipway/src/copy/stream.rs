//! The data stream of one file: a [`Source`] returns blocks in order, without holes, and a [`Sink`] writes them.
//!
//! A local end is a thread that may block, connected by a short channel, which results in read-ahead and write-behind.
//! A remote end is the client library's reader or writer. Blocks are not copied between them.

use std::{collections::VecDeque, path::Path};

use buf::Pool;
use bytes::Bytes;
use client::{Reader, Writer};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    Error, Result, local,
    meta::Meta,
    node::{Node, join},
    sparse::{self, Run},
    staged::Staged,
};
use crate::output;

/// A file that is being read.
pub enum Source {
    /// A local file, read by a thread.
    Local {
        /// The blocks that it has read: offset and data.
        blocks: mpsc::Receiver<(u64, Bytes)>,
        /// The thread returns the file's size.
        thread: JoinHandle<Result<u64>>,
    },
    /// A file on a server.
    Remote {
        /// The reader, which reads ahead.
        reader: Reader,
        /// The offset of the next data.
        at: u64,
        /// `true` if the file has holes, so that it makes sense to search for zeros.
        sparse: bool,
        /// Parts of the last block that have not been returned yet.
        queue: VecDeque<(u64, Bytes)>,
    },
}

impl Source {
    /// Starts to read a file with these attributes from an offset on. Buffers for local data come from `pool`.
    pub fn open(node: &Node, meta: &Meta, start: u64, pool: &Pool) -> Self {
        match node {
            Node::Local(path) => {
                let (sender, blocks) = mpsc::channel(CHANNEL);
                let (path, pool) = (path.clone(), pool.clone());
                let thread = tokio::task::spawn_blocking(move || {
                    let each = |offset, data| sender.blocking_send((offset, data)).is_ok();
                    local::read(&path, (start, BLOCK), &pool, each).map_err(|error| Error::doing("read", &path, &error))
                });
                Source::Local { blocks, thread }
            }
            Node::Remote(remote) => Source::Remote {
                reader: remote.file().reader_range(start, u64::MAX).expecting(meta.size),
                at: start,
                sparse: meta.is_sparse(),
                queue: VecDeque::new(),
            },
        }
    }

    /// Returns the next block with its offset; `None` at the end.
    ///
    /// # Errors
    /// Reading from a server failed. [`finish`](Self::finish) returns a local failure.
    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>> {
        match self {
            Source::Local { blocks, .. } => Ok(blocks.recv().await),
            Source::Remote { reader, at, sparse, queue } => loop {
                if let Some(block) = queue.pop_front() {
                    return Ok(Some(block));
                }
                let Some(data) = reader.next().await? else { return Ok(None) };
                let offset = *at;
                *at += data.len() as u64;
                if !*sparse {
                    return Ok(Some((offset, data)));
                }
                queue.extend(sparse::runs(&data, offset).into_iter().filter_map(|run| match run {
                    Run::Data(range) => Some((offset + range.start as u64, data.slice(range))),
                    Run::Hole(_) => None,
                }));
            },
        }
    }

    /// Returns the file's size, after all blocks have been returned.
    ///
    /// # Errors
    /// Reading the file failed.
    pub async fn finish(self) -> Result<u64> {
        match self {
            Source::Local { thread, .. } => thread.await.expect("system calls must not panic"),
            Source::Remote { at, .. } => Ok(at),
        }
    }
}

/// A file that is being written. A regular file has a temporary name until it is finished.
pub enum Sink {
    /// A local file, written by a thread.
    Local {
        /// The requests to the thread.
        orders: mpsc::Sender<Order>,
        /// The thread ends when the file is finished.
        thread: JoinHandle<Result<()>>,
    },
    /// A file on a server.
    Remote {
        /// The file.
        staged: Box<Staged>,
        /// The writer, which writes behind.
        writer: Option<Box<Writer>>,
    },
}

/// A request to the thread of a local [`Sink`].
pub enum Order {
    /// Writes this block.
    Write(u64, Bytes),
    /// Makes all written data durable, and replies with the end of the last block.
    Sync(oneshot::Sender<u64>),
    /// Keeps the incomplete file.
    Keep,
    /// Ends the file at this size, and sets these attributes.
    Finish(u64, Option<Meta>),
}

impl Sink {
    /// Starts to make the file of this name, or to replace it. With `resumed`, the temporary name and an offset,
    /// continues the file of an interrupted copy from there, or makes one of this name if the offset is 0.
    ///
    /// # Errors
    /// A server rejected it. A later call returns a local failure.
    pub async fn create(dir: &Node, name: &[u8], mode: u32, resumed: Option<(&Bytes, u64)>) -> Result<Self> {
        match dir {
            Node::Local(dir) => {
                let (orders, receiver) = mpsc::channel(CHANNEL);
                let path = join(dir, name);
                let resumed = resumed.map(|(temporary, at)| (temporary.clone(), at));
                let thread = tokio::task::spawn_blocking(move || write_local(&path, mode, resumed, receiver));
                Ok(Sink::Local { orders, thread })
            }
            Node::Remote(dir) => {
                let staged = Box::new(Staged::create(dir, name, mode, resumed).await?);
                let writer = Some(Box::new(staged.file().file().writer_at(resumed.map_or(0, |(_, at)| at))));
                Ok(Sink::Remote { staged, writer })
            }
        }
    }

    /// Writes a block after the previous one; a gap between them is a hole. Returns `false` if a local write has failed
    /// and no more data are needed; [`finish`](Self::finish) then returns the error.
    ///
    /// # Errors
    /// Writing to a server failed.
    pub async fn write(&mut self, offset: u64, data: Bytes) -> Result<bool> {
        match self {
            Sink::Local { orders, .. } => Ok(orders.send(Order::Write(offset, data)).await.is_ok()),
            Sink::Remote { writer, .. } => {
                let writer = writer.as_mut().expect("file must not be finished");
                writer.skip(offset - writer.position());
                writer.write(data).await?;
                Ok(true)
            }
        }
    }

    /// Makes all written data durable. Returns the end of the last block.
    ///
    /// # Errors
    /// Some data could not be written.
    pub async fn sync(&mut self) -> Result<u64> {
        match self {
            Sink::Local { orders, thread } => {
                let (reply, synced) = oneshot::channel();
                let _ = orders.send(Order::Sync(reply)).await;
                match synced.await {
                    Ok(end) => Ok(end),
                    // The thread has failed, and returns its error.
                    Err(_) => match thread.await.expect("system calls must not panic") {
                        Err(error) => Err(error),
                        Ok(()) => unreachable!("a file must not be finished before it is complete"),
                    },
                }
            }
            Sink::Remote { writer, .. } => {
                let writer = writer.as_mut().expect("file must not be finished");
                writer.flush().await?;
                Ok(writer.position())
            }
        }
    }

    /// Keeps the incomplete file with its temporary name.
    pub async fn keep(self) {
        if let Sink::Local { orders, thread } = self {
            let _ = orders.send(Order::Keep).await;
            drop(orders);
            if !thread.is_finished() {
                let _ = thread.await;
            }
        }
    }

    /// Ends the file at `size`, renames it to its final name, and waits for that. On a server, the file is then on
    /// stable storage.
    ///
    /// # Errors
    /// Some data could not be written. The caller must discard the file.
    pub async fn finish(&mut self, size: u64, preserve: Option<&Meta>) -> Result<()> {
        match self {
            Sink::Local { orders, thread } => {
                // If the thread does not receive the request, it has failed and returns its error.
                let _ = orders.send(Order::Finish(size, preserve.cloned())).await;
                thread.await.expect("system calls must not panic")
            }
            Sink::Remote { staged, writer } => {
                let mut writer = writer.take().expect("a file must be finished once");
                writer.skip(size - writer.position());
                writer.close().await?;
                staged.publish(preserve).await
            }
        }
    }

    /// Removes the file, unless it was written in place.
    pub async fn discard(self) {
        match self {
            Sink::Local { orders, thread } => {
                drop(orders);
                // The thread removes the file when the channel closes, or has removed it after an error.
                if !thread.is_finished() {
                    let _ = thread.await;
                }
            }
            Sink::Remote { staged, writer } => {
                drop(writer);
                staged.discard().await;
            }
        }
    }
}

fn write_local(path: &Path, mode: u32, resumed: Option<(Bytes, u64)>, mut orders: mpsc::Receiver<Order>) -> Result<()> {
    let mut output = local::Output::create(path, mode, resumed.as_ref().map(|(temporary, at)| (temporary, *at)))?;
    while let Some(order) = orders.blocking_recv() {
        match order {
            Order::Write(offset, data) => output.write(offset, &data)?,
            Order::Sync(reply) => {
                let _ = reply.send(output.sync()?);
            }
            Order::Keep => output.keep(),
            Order::Finish(size, meta) => return output.finish(size, meta.as_ref()),
        }
    }
    Err(Error(format!("{}: the copy was stopped", output::name(path.as_os_str().as_encoded_bytes()))))
}

/// The bytes of one local read.
const BLOCK: usize = 1 << 20;
/// The number of blocks between a local end and the network.
const CHANNEL: usize = 4;
