//! [`Dir`]: the entries of a directory.

use std::{collections::VecDeque, hash::BuildHasher};

use bytes::Bytes;
use entropy::{HashSet, RandomState};

use super::Mount;
use crate::model::{Attr, Error, ErrorKind, Handle, Result, Status, Verifier};

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name. It is not empty, `.` or `..` and has no slashes and zero bytes; the client rejects other names.
    pub name: Bytes,
    /// The number of the object in its file system.
    pub fileid: u64,
    /// The attributes of the object, if the server has sent them.
    pub attr: Option<Attr>,
    /// The handle of the object, if the server has sent it.
    pub handle: Option<Handle>,
}

/// Reads a directory page by page, with attributes and handles if the server sends them.
///
/// ```no_run
/// # async fn example(mount: client::Mount) -> client::Result<()> {
/// let mut dir = mount.read_dir("src").await?;
/// while let Some(entry) = dir.next().await? {
///     println!("{}", entry.name.escape_ascii());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Dir {
    mount: Mount,
    handle: Handle,
    path: Bytes,
    /// Set if attributes and handles are requested.
    plus: bool,
    cookie: u64,
    verifier: Verifier,
    /// Maximum bytes of one reply.
    page: u32,
    entries: VecDeque<DirEntry>,
    eof: bool,
    /// The server that issued the cookie. If the directory moves to another server, it is read again from the
    /// beginning.
    server: u64,
    /// The hashes of the names that were listed from this server. When the directory moves, they are added to `again`,
    /// whose names are skipped.
    listed: Vec<u64>,
    again: HashSet<u64>,
    hasher: RandomState,
}

impl Dir {
    /// Makes the reader of the directory with this handle. `path` is only for messages.
    pub fn new(mount: Mount, handle: Handle, path: impl Into<Bytes>) -> Self {
        let page = mount.page_size();
        Self {
            mount,
            handle,
            path: path.into(),
            plus: true,
            cookie: 0,
            verifier: [0; 8],
            page,
            entries: VecDeque::new(),
            eof: false,
            server: 0,
            listed: Vec::new(),
            again: HashSet::default(),
            hasher: RandomState::new(),
        }
    }

    /// Requests names without attributes and handles, which costs the server less.
    pub fn names_only(mut self) -> Self {
        self.plus = false;
        self
    }

    /// Returns the handle of the directory.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the next entry; `None` at the end.
    ///
    /// # Errors
    /// The directory cannot be read, or the server sent an invalid name.
    pub async fn next(&mut self) -> Result<Option<DirEntry>> {
        while self.entries.is_empty() && !self.eof {
            self.fetch().await.map_err(|error| error.at(&self.path))?;
        }
        Ok(self.entries.pop_front())
    }

    /// Returns all remaining entries.
    ///
    /// # Errors
    /// The errors of [`next`](Self::next).
    pub async fn collect(mut self) -> Result<Vec<DirEntry>> {
        let mut all = Vec::new();
        while let Some(entry) = self.next().await? {
            all.push(entry);
        }
        Ok(all)
    }

    async fn fetch(&mut self) -> Result<()> {
        let protocol = self.mount.protocol();
        let server = protocol.server_of(&self.handle);
        if server != self.server {
            (self.server, self.cookie, self.verifier) = (server, 0, [0; 8]);
            self.again.extend(self.listed.drain(..));
        }
        let page = protocol.readdir(&self.handle, self.cookie, self.verifier, self.page, self.plus).await;
        if protocol.server_of(&self.handle) != server {
            // The directory has moved during the call.
            return Ok(());
        }
        let page = match page {
            // One entry with its name, attributes and handle can be larger than a page.
            Err(error) if error.status() == Some(Status::TooSmall) && self.page < PAGE_LARGE => {
                self.page = PAGE_LARGE;
                return Ok(());
            }
            result => result?,
        };
        self.verifier = page.verifier;
        self.eof = page.eof;
        if page.entries.is_empty() && !page.eof {
            return Err(protocol_error("a page of a directory has no entries".to_owned()));
        }
        if page.entries.last().is_some_and(|last| last.cookie == self.cookie) {
            return Err(protocol_error("a cookie of a directory repeats".to_owned()));
        }
        for entry in page.entries {
            self.cookie = entry.cookie;
            let name = entry.name;
            if name == "." || name == ".." {
                continue;
            }
            if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
                return Err(protocol_error(format!("invalid file name '{}'", name.escape_ascii())));
            }
            if self.mount.v4().is_some() {
                let hash = self.hasher.hash_one(&name);
                self.listed.push(hash);
                if self.again.contains(&hash) {
                    continue;
                }
            }
            let (attr, handle) = (entry.attr, entry.handle);
            self.entries.push_back(DirEntry { name, fileid: entry.fileid, attr, handle });
        }
        Ok(())
    }
}

fn protocol_error(problem: String) -> Error {
    Error::new(ErrorKind::Protocol(problem), "READDIR")
}

const PAGE_LARGE: u32 = 64 << 10;
