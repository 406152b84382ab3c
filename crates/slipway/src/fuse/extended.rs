//! What only version 4.2 can do of what programs ask for: extended attributes (RFC 8276), reserved space, holes, and copies
//! within the server (RFC 7862); and ACLs, which all of version 4 have and programs know as extended attributes. Over other versions
//! the kernel is told that there is no such thing (ENOSYS), and does not ask again.

use bytes::Bytes;
use client::{Mount, SetXattr, StableHow, V4};
use nfs::v4::DataContent4;
use rustix::io::Errno;
use xdr::Message;

use super::{
    convert::errno,
    nodes::Node,
    tree::{Answer, Answered, Tree, same_mount},
};

/// How space is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// So that writing there cannot fail; a file that ends before is made longer.
    Reserve,
    /// A hole, within what the file has.
    PunchHole,
}

/// What an extended attribute is to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Xattr<'a> {
    /// One of those that users make, by its name there.
    User(&'a [u8]),
    /// The access control list.
    Acl,
}

impl Allocate {
    /// By the flags of fallocate(2), as far as the protocol can do it.
    pub fn from_mode(mode: i32) -> Option<Self> {
        match mode {
            0 => Some(Self::Reserve),
            mode if mode == KEEP_SIZE | PUNCH_HOLE => Some(Self::PunchHole),
            _ => None,
        }
    }
}

impl Tree {
    fn v4_2<'a>(&self, node: &'a Node) -> Answer<&'a V4> {
        self.v4(node, 2)
    }

    /// Version 4, of this minor version at least. ENOSYS ends it for all that the kernel has of this mount, and so is for the server
    /// of the URL to say.
    fn v4<'a>(&self, node: &'a Node, minor: u32) -> Answer<&'a V4> {
        fn of(mount: &Mount, minor: u32) -> Option<&V4> {
            mount.v4().filter(|v4| v4.minor_version() >= minor)
        }
        of(&self.mount, minor).ok_or(Errno::NOSYS)?;
        of(node.mount(), minor).ok_or(Errno::OPNOTSUPP)
    }

    /// What the server has of such a name: of users' attributes it leaves out that they are those (RFC 8276); nfs4_getfacl(1) and
    /// nfs4_setfacl(1) know the ACL as an attribute.
    pub fn xattr_name<'a>(&self, ino: u64, name: &'a [u8]) -> Answer<Xattr<'a>> {
        let minor = self.v4(&*self.node(ino)?, 0)?.minor_version();
        match name.strip_prefix(USER) {
            Some(name) if !name.is_empty() && minor >= 2 => Ok(Xattr::User(name)),
            None if name == ACL => Ok(Xattr::Acl),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// GETXATTR, or the ACL.
    pub async fn xattr(&self, ino: u64, name: &[u8]) -> Answer<Bytes> {
        let node = self.node(ino)?;
        let v4 = self.v4(&node, 0)?;
        match self.xattr_name(ino, name)? {
            Xattr::User(name) => v4.xattr(node.handle(), name).await.answer(),
            Xattr::Acl => Ok(Message::encode(&v4.acl(node.handle()).await.answer()?).stream),
        }
    }

    /// SETXATTR, or another ACL.
    pub async fn set_xattr(&self, ino: u64, name: &[u8], value: Bytes, flags: i32) -> Answer<()> {
        let how = match flags {
            0 => SetXattr::Either,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::INVAL),
        };
        let node = self.node(ino)?;
        let v4 = self.v4(&node, 0)?;
        match self.xattr_name(ino, name)? {
            Xattr::User(name) => v4.set_xattr(node.handle(), name, value, how).await.answer(),
            Xattr::Acl => {
                let acl = Message::from(value).decode().map_err(|_| Errno::INVAL)?;
                v4.set_acl(node.handle(), acl).await.answer()
            }
        }
    }

    /// REMOVEXATTR.
    pub async fn remove_xattr(&self, ino: u64, name: &[u8]) -> Answer<()> {
        let node = self.node(ino)?;
        match self.xattr_name(ino, name)? {
            Xattr::User(name) => self.v4(&node, 0)?.remove_xattr(node.handle(), name).await.answer(),
            // Every file has one.
            Xattr::Acl => Err(Errno::OPNOTSUPP),
        }
    }

    /// LISTXATTRS: the names of users' attributes, each with a zero behind it.
    pub async fn xattrs(&self, ino: u64) -> Answer<Bytes> {
        let node = self.node(ino)?;
        let names = self.v4_2(&node)?.xattrs(node.handle()).await.answer()?;
        Ok(names.iter().flat_map(|name| [USER, name, b"\0"]).flatten().copied().collect())
    }

    /// ALLOCATE or DEALLOCATE.
    pub async fn allocate(&self, ino: u64, offset: u64, length: u64, how: Allocate) -> Answer<()> {
        let node = self.node(ino)?;
        let v4 = self.v4_2(&node)?;
        // What would have to be written again must not fill the hole.
        node.unstable.commit(node.mount(), node.handle()).await?;
        match how {
            Allocate::Reserve => v4.allocate(node.handle(), offset, length).await.answer(),
            Allocate::PunchHole => v4.deallocate(node.handle(), offset, length).await.answer(),
        }
    }

    /// SEEK: where data, or a hole, begins.
    pub async fn seek(&self, ino: u64, offset: i64, what: DataContent4) -> Answer<i64> {
        let node = self.node(ino)?;
        let v4 = self.v4_2(&node).map_err(|_| Errno::NOSYS)?;
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let found = v4.seek(node.handle(), offset, what).await.map_err(|error| match errno(&error) {
            // The kernel takes all of the file for data then.
            Errno::OPNOTSUPP => Errno::NOSYS,
            error => error,
        })?;
        let at = match (found, what) {
            (Some(at), _) => at,
            (None, DataContent4::Data) => return Err(Errno::NXIO),
            // The end of a file is a hole.
            (None, DataContent4::Hole) => node.mount().protocol().getattr(node.handle()).await.answer()?.size,
        };
        i64::try_from(at).map_err(|_| Errno::OVERFLOW)
    }

    /// COPY: up to `count` bytes; returns how many, which are on stable storage.
    pub async fn copy(&self, from: (u64, u64), to: (u64, u64), count: u64) -> Answer<u32> {
        let (source, target) = (self.node(from.0)?, self.node(to.0)?);
        let v4 = self.v4_2(&target)?;
        // The kernel copies by itself then.
        same_mount(&source, &target)?;
        // What would have to be written again must not bring back what is copied over.
        target.unstable.commit(target.mount(), target.handle()).await?;
        for _ in 0..COPY_TRIES {
            let (from, to) = ((source.handle(), from.1), (target.handle(), to.1));
            let (copied, written) = v4.copy(from, to, count.min(COPY_MAX)).await.answer()?;
            let durable = written.committed == StableHow::FileSync;
            if durable || target.mount().protocol().commit(target.handle()).await.answer()? == written.verf {
                return Ok(copied.min(COPY_MAX) as u32);
            }
            tracing::warn!("the server restarted: copied again");
        }
        Err(Errno::IO)
    }
}

const USER: &[u8] = b"user.";
/// Linux's name for the ACL, whose value is as it travels: RFC 8881 §6.2.1, `nfsace4<>`.
const ACL: &[u8] = b"system.nfs4_acl";
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
/// Flags of fallocate(2).
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
/// Bytes of one copy, which a program that waits for it cannot interrupt.
const COPY_MAX: u64 = 1 << 30;
/// How often the server may restart during one copy.
const COPY_TRIES: u32 = 3;
