//! [`Node`]: a source or target of a copy, local or on a server. Local system calls run on threads that may block.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{Error, Result, local, meta::Meta, remote::Remote};

/// An object of a tree.
#[derive(Clone, Debug)]
pub enum Node {
    /// An object of this machine.
    Local(PathBuf),
    /// An object of a server.
    Remote(Box<Remote>),
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: Bytes,
    /// The object.
    pub node: Node,
    /// Its attributes, or the error if they cannot be read.
    pub meta: Result<Meta>,
}

impl Node {
    /// Returns the path, for messages.
    pub fn path(&self) -> Bytes {
        match self {
            Node::Local(path) => Bytes::copy_from_slice(path.as_os_str().as_bytes()),
            Node::Remote(remote) => remote.path().clone(),
        }
    }

    /// Returns `true` if two nodes are the same object.
    pub fn is_same((one, one_meta): (&Node, &Meta), (other, other_meta): (&Node, &Meta)) -> bool {
        let one_object = match (one_meta.id, other_meta.id, one, other) {
            (None, None, Node::Remote(one), Node::Remote(other)) => one.handle() == other.handle(),
            (one, other, ..) => one.is_some() && one == other,
        };
        one_object && one.place() == other.place()
    }

    /// Returns the file system or server of the node. [`Meta::id`] identifies an object within it.
    fn place(&self) -> String {
        match self {
            Node::Local(_) => String::new(),
            Node::Remote(remote) => remote.mount().url().authority(),
        }
    }

    /// Returns the attributes. If `follow`, follows a local symbolic link.
    ///
    /// # Errors
    /// The object does not exist, or cannot be accessed.
    pub async fn meta(&self, follow: bool) -> Result<Meta> {
        match self {
            Node::Local(path) => blocking(path, move |path| local::meta(path, follow)).await,
            Node::Remote(remote) => remote.meta().await,
        }
    }

    /// Returns the object with this name, without following a link; `None` if there is none.
    ///
    /// # Errors
    /// The lookup failed.
    pub async fn child(&self, name: &[u8]) -> Result<Option<(Node, Meta)>> {
        match self {
            Node::Local(dir) => {
                let path = join(dir, name);
                let meta = blocking(&path, |path| match local::meta(path, false) {
                    Ok(meta) => Ok(Some(meta)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(error),
                });
                Ok(meta.await?.map(|meta| (Node::Local(path), meta)))
            }
            Node::Remote(dir) => Ok(dir.child(name).await?.map(|(node, meta)| (Node::Remote(node.into()), meta))),
        }
    }

    /// Returns the entries of a directory, in the order of their names.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub async fn list(&self) -> Result<Vec<Entry>> {
        match self {
            Node::Local(dir) => {
                let entries = blocking(dir, local::list).await?;
                let entry = |(name, meta): (OsString, io::Result<Meta>)| {
                    let path = dir.join(&name);
                    let meta = meta.map_err(|error| Error::local(&path, &error));
                    Entry { name: name.into_vec().into(), node: Node::Local(path), meta }
                };
                Ok(entries.into_iter().map(entry).collect())
            }
            Node::Remote(dir) => {
                let entry = |(name, node, meta)| Entry { name, node: Node::Remote(Box::new(node)), meta: Ok(meta) };
                Ok(dir.list().await?.into_iter().map(entry).collect())
            }
        }
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// The object is not a symbolic link, or cannot be read.
    pub async fn read_link(&self) -> Result<Bytes> {
        match self {
            Node::Local(path) => Ok(blocking(path, local::read_link).await?.into()),
            Node::Remote(remote) => remote.read_link().await,
        }
    }

    /// Reads up to `len` bytes of a regular file; fewer only at its end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn read_range(&self, offset: u64, len: usize) -> Result<Bytes> {
        match self {
            Node::Local(path) => Ok(blocking(path, move |path| local::read_range(path, offset, len)).await?.into()),
            Node::Remote(remote) => Ok(remote.file().read_bytes(offset, len).await?),
        }
    }

    /// Writes a small file of this name, or replaces its first bytes, and waits until they are on stable storage.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn put(&self, name: &[u8], data: Bytes) -> Result<()> {
        match self {
            Node::Local(dir) => blocking(&join(dir, name), move |path| local::put(path, &data)).await,
            Node::Remote(dir) => {
                let file = match dir.child(name).await? {
                    Some((file, _)) => file,
                    None => dir.create(name, 0o600).await?,
                };
                Ok(file.file().write_at(0, data).await?)
            }
        }
    }

    /// Removes an object that is not a directory.
    ///
    /// # Errors
    /// The object cannot be removed.
    pub async fn remove(&self, name: &[u8]) -> Result<()> {
        match self {
            Node::Local(dir) => blocking(&join(dir, name), |path| std::fs::remove_file(path)).await,
            Node::Remote(dir) => dir.remove(name).await,
        }
    }

    /// Makes a directory of this name, unless it exists.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub async fn make_dir(&self, name: &[u8], mode: u32) -> Result<Node> {
        match self {
            Node::Local(dir) => {
                let path = join(dir, name);
                blocking(&path, move |path| local::make_dir(path, mode)).await?;
                Ok(Node::Local(path))
            }
            Node::Remote(dir) => Ok(Node::Remote(dir.make_dir(name, mode).await?.into())),
        }
    }

    /// Makes a symbolic link of this name.
    ///
    /// # Errors
    /// The link cannot be made.
    pub async fn symlink(&self, name: &[u8], text: Bytes) -> Result<Node> {
        match self {
            Node::Local(dir) => {
                let path = join(dir, name);
                blocking(&path, move |path| local::symlink(path, &text)).await?;
                Ok(Node::Local(path))
            }
            Node::Remote(dir) => Ok(Node::Remote(dir.symlink(name, text).await?.into())),
        }
    }

    /// Makes a device, socket or pipe of this name.
    ///
    /// # Errors
    /// The object cannot be made; devices need root.
    pub async fn make_node(&self, name: &[u8], meta: &Meta) -> Result<Node> {
        match self {
            Node::Local(dir) => {
                let (path, meta) = (join(dir, name), meta.clone());
                blocking(&path, move |path| local::make_node(path, &meta)).await?;
                Ok(Node::Local(path))
            }
            Node::Remote(dir) => Ok(Node::Remote(dir.make_node(name, meta).await?.into())),
        }
    }

    /// Makes `name` a hard link to `existing`, which is in the same file system or on the same server.
    ///
    /// # Errors
    /// The link cannot be made.
    pub async fn link(&self, name: &[u8], existing: &Node) -> Result<()> {
        match (self, existing) {
            (Node::Local(dir), Node::Local(existing)) => {
                let existing = existing.clone();
                blocking(&join(dir, name), move |path| local::hard_link(&existing, path)).await
            }
            (Node::Remote(dir), Node::Remote(existing)) => dir.link(name, existing).await,
            _ => unreachable!("both must belong to the target tree"),
        }
    }

    /// Sets the owner, mode and times of `meta`.
    ///
    /// # Errors
    /// Mode or times cannot be set.
    pub async fn preserve(&self, meta: &Meta) -> Result<()> {
        match self {
            Node::Local(path) => {
                let meta = meta.clone();
                blocking(path, move |path| local::preserve(path, &meta)).await
            }
            Node::Remote(remote) => remote.preserve(meta).await,
        }
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// The mode cannot be set.
    pub async fn set_mode(&self, mode: u32) -> Result<()> {
        match self {
            Node::Local(path) => {
                let mode = rustix::fs::Mode::from_raw_mode(mode);
                blocking(path, move |path| Ok(rustix::fs::chmod(path, mode)?)).await
            }
            Node::Remote(remote) => remote.set_mode(mode).await,
        }
    }
}

/// Returns the path of a name in a directory.
pub(super) fn join(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(name))
}

/// Runs `call` on a thread that may block. Errors contain the path.
pub(super) async fn blocking<T: Send + 'static>(
    path: &Path,
    call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let owned = path.to_owned();
    let done = tokio::task::spawn_blocking(move || call(&owned)).await;
    done.expect("system calls must not panic").map_err(|error| Error::local(path, &error))
}
