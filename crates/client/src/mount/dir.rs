//! [`Dir`]: the entries of a directory.

use std::{collections::VecDeque, hash::BuildHasher};

use bytes::Bytes;
use entropy::{HashSet, RandomState};

use super::Mount;
use crate::model::{Attr, Error, ErrorKind, Handle, Result, Status, Verifier};

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name: neither empty, `.` nor `..`, and without slashes and zero bytes, whatever the server says.
    pub name: Bytes,
    /// The number of the object in its file system.
    pub fileid: u64,
    /// The object's attributes, if the server gave them.
    pub attr: Option<Attr>,
    /// The object's handle, if the server gave it.
    pub handle: Option<Handle>,
}

/// Reads a directory, page by page, with attributes and handles where the server gives them.
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
    /// With attributes and handles.
    plus: bool,
    cookie: u64,
    verifier: Verifier,
    /// Bytes of one reply.
    page: u32,
    entries: VecDeque<DirEntry>,
    eof: bool,
    /// The server whose the cookie is: another's means nothing to it, and the directory is read from its beginning again.
    server: u64,
    /// What has been listed, by their hashes, in case of that; and what is not to be listed again because of that.
    listed: Vec<u64>,
    again: HashSet<u64>,
    hasher: RandomState,
}

impl Dir {
    /// The directory of this handle; `path` is for messages only.
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

    /// Asks for names only, which is cheaper for the server.
    pub fn names_only(mut self) -> Self {
        self.plus = false;
        self
    }

    /// The directory's handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// The directory cannot be read, or the server gave a name that cannot be one.
    pub async fn next(&mut self) -> Result<Option<DirEntry>> {
        while self.entries.is_empty() && !self.eof {
            self.fetch().await.map_err(|error| error.at(&self.path))?;
        }
        Ok(self.entries.pop_front())
    }

    /// All entries that are left.
    ///
    /// # Errors
    /// As [`next`](Self::next).
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
            // It has moved meanwhile.
            return Ok(());
        }
        let page = match page {
            // One entry can be larger than a page: its name, attributes and handle.
            Err(error) if error.status() == Some(Status::TooSmall) && self.page < PAGE_ENOUGH => {
                self.page = PAGE_ENOUGH;
                return Ok(());
            }
            result => result?,
        };
        self.verifier = page.verifier;
        self.eof = page.eof;
        if page.entries.is_empty() && !page.eof {
            return Err(nonsense("a page of a directory without entries".to_owned()));
        }
        if page.entries.last().is_some_and(|last| last.cookie == self.cookie) {
            return Err(nonsense("a directory that goes in circles".to_owned()));
        }
        for entry in page.entries {
            self.cookie = entry.cookie;
            let name = entry.name;
            if name == "." || name == ".." {
                continue;
            }
            if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
                return Err(nonsense(format!("a file name '{}'", name.escape_ascii())));
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

fn nonsense(problem: String) -> Error {
    Error::new(ErrorKind::Protocol(problem), "READDIR")
}

const PAGE_ENOUGH: u32 = 64 << 10;
