//! One file's data on its way: a [`Source`] yields blocks in order, holes left out, and a [`Sink`] takes them.
//!
//! A local end is a thread that may wait, at the other side of a short channel: reading ahead and writing behind come
//! of themselves. A remote end is the client library's reader or writer. Blocks are not copied on the way.

use std::{collections::VecDeque, path::Path};

use buf::Pool;
use bytes::Bytes;
use client::{Reader, Writer};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    Error, Result, local,
    meta::Meta,
    node::{Node, join},
    sparse::{self, Run},
    staged::Staged,
};
use crate::output;

/// A file being read.
pub enum Source {
    /// By a thread.
    Local {
        /// What it has read: offset and data.
        blocks: mpsc::Receiver<(u64, Bytes)>,
        /// It ends with the file's size.
        thread: JoinHandle<Result<u64>>,
    },
    /// From a server.
    Remote {
        /// Reads ahead.
        reader: Reader,
        /// Offset of what it yields next.
        at: u64,
        /// Whether the file has holes, so that zeros are worth looking for.
        sparse: bool,
        /// Found in the last block, and not yet taken.
        queue: VecDeque<(u64, Bytes)>,
    },
}

impl Source {
    /// Begins to read a file of these attributes. Buffers for local data come from `pool`.
    pub fn open(node: &Node, meta: &Meta, pool: &Pool) -> Self {
        match node {
            Node::Local(path) => {
                let (sender, blocks) = mpsc::channel(CHANNEL);
                let (path, pool) = (path.clone(), pool.clone());
                let thread = tokio::task::spawn_blocking(move || {
                    let each = |offset, data| sender.blocking_send((offset, data)).is_ok();
                    local::read(&path, BLOCK, &pool, each).map_err(|error| Error::doing("read", &path, &error))
                });
                Source::Local { blocks, thread }
            }
            Node::Remote(remote) => Source::Remote {
                reader: remote.file().reader().expecting(meta.size),
                at: 0,
                sparse: meta.is_sparse(),
                queue: VecDeque::new(),
            },
        }
    }

    /// The next block with its offset; `None` at the end.
    ///
    /// # Errors
    /// Reading from a server failed. A local failure comes from [`finish`](Self::finish).
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

    /// The file's size, when all has been taken.
    ///
    /// # Errors
    /// Reading it failed.
    pub async fn finish(self) -> Result<u64> {
        match self {
            Source::Local { thread, .. } => thread.await.expect("system calls do not panic"),
            Source::Remote { at, .. } => Ok(at),
        }
    }
}

/// A file being written; a regular one has a temporary name until it is finished.
pub enum Sink {
    /// By a thread.
    Local {
        /// What it is to do.
        orders: mpsc::Sender<Order>,
        /// It ends when the file is finished.
        thread: JoinHandle<Result<()>>,
    },
    /// To a server.
    Remote {
        /// The file.
        staged: Box<Staged>,
        /// Writes behind.
        writer: Option<Box<Writer>>,
    },
}

/// What the thread of a local [`Sink`] is to do.
pub enum Order {
    /// Write this block.
    Write(u64, Bytes),
    /// End the file at this size, and preserve these attributes.
    Finish(u64, Option<Meta>),
}

impl Sink {
    /// Begins to make the file of this name, or to replace it.
    ///
    /// # Errors
    /// A server refused. A local failure comes with a later call.
    pub async fn create(dir: &Node, name: &[u8], mode: u32) -> Result<Self> {
        match dir {
            Node::Local(dir) => {
                let (orders, receiver) = mpsc::channel(CHANNEL);
                let path = join(dir, name);
                let thread = tokio::task::spawn_blocking(move || write_local(&path, mode, receiver));
                Ok(Sink::Local { orders, thread })
            }
            Node::Remote(dir) => {
                let staged = Box::new(Staged::create(dir, name, mode).await?);
                let writer = Some(Box::new(staged.file().file().writer()));
                Ok(Sink::Remote { staged, writer })
            }
        }
    }

    /// Writes a block behind the one before; what is between them is a hole. Returns whether more is wanted: not if
    /// a local write has failed, which [`finish`](Self::finish) then says.
    ///
    /// # Errors
    /// Writing to a server failed.
    pub async fn write(&mut self, offset: u64, data: Bytes) -> Result<bool> {
        match self {
            Sink::Local { orders, .. } => Ok(orders.send(Order::Write(offset, data)).await.is_ok()),
            Sink::Remote { writer, .. } => {
                let writer = writer.as_mut().expect("it is not finished");
                writer.skip(offset - writer.position());
                writer.write(data).await?;
                Ok(true)
            }
        }
    }

    /// Ends the file at `size`, gives it its name, and waits until that is done; on a server it is then on stable
    /// storage.
    ///
    /// # Errors
    /// Some of it could not be written. The file is then to be discarded.
    pub async fn finish(&mut self, size: u64, preserve: Option<&Meta>) -> Result<()> {
        match self {
            Sink::Local { orders, thread } => {
                // If nobody takes the order, the thread has failed and says why.
                let _ = orders.send(Order::Finish(size, preserve.cloned())).await;
                thread.await.expect("system calls do not panic")
            }
            Sink::Remote { staged, writer } => {
                let mut writer = writer.take().expect("it is finished once");
                writer.skip(size - writer.position());
                writer.close().await?;
                staged.publish(preserve).await
            }
        }
    }

    /// Removes what has been written, unless it was in place.
    pub async fn discard(self) {
        match self {
            Sink::Local { orders, thread } => {
                drop(orders);
                // The thread removes the file when no more orders come, or has done so because of an error.
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

fn write_local(path: &Path, mode: u32, mut orders: mpsc::Receiver<Order>) -> Result<()> {
    let mut output = local::Output::create(path, mode)?;
    while let Some(order) = orders.blocking_recv() {
        match order {
            Order::Write(offset, data) => output.write(offset, &data)?,
            Order::Finish(size, meta) => return output.finish(size, meta.as_ref()),
        }
    }
    Err(Error(format!("{}: given up before its end", output::name(path.as_os_str().as_encoded_bytes()))))
}

/// Bytes of one local read.
const BLOCK: usize = 1 << 20;
/// Blocks between a local end and the network.
const CHANNEL: usize = 4;
