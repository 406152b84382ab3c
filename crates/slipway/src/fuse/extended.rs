//! Operations that need version 4.2: extended attributes (RFC 8276), space reservation, holes, and copies within the
//! server (RFC 7862). Also ACLs, which programs access as extended attributes: those of NFSv4, and those of POSIX. Over other
//! versions, the kernel gets ENOSYS and does not ask again.

use bytes::Bytes;
use client::{Mount, Protocol, SetXattr, StableHow, V4};
use nfs::v4::DataContent4;
use rustix::io::Errno;
use xdr::Message;

use super::{
    convert::errno,
    posix_acl::PosixAcl,
    tree::{Answer, Answered, Tree, same_mount},
    view::{Target, View},
};

/// The modes of allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reserves space, so that a write there cannot fail; extends a shorter file.
    Reserve,
    /// Makes a hole within the file.
    PunchHole,
}

/// The meaning of an extended attribute at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Xattr<'a> {
    /// An attribute of users, by its name at the server.
    User(&'a [u8]),
    /// The access control list of NFSv4.
    Acl,
    /// An access control list of POSIX; over NFSv4, the server's list is converted.
    Posix(PosixAcl),
}

impl Allocate {
    /// Returns the mode for the flags of fallocate(2), if the protocol supports it.
    pub fn from_mode(mode: i32) -> Option<Self> {
        match mode {
            0 => Some(Self::Reserve),
            mode if mode == KEEP_SIZE | PUNCH_HOLE => Some(Self::PunchHole),
            _ => None,
        }
    }
}

impl Tree {
    /// Returns the version 4 interface of an object's mount, if it has at least this minor version. ENOSYS disables the
    /// operation for the whole FUSE mount, so it depends on the server of the URL.
    fn v4<'a>(&self, mount: &'a Mount, minor: u32) -> Answer<&'a V4> {
        fn of(mount: &Mount, minor: u32) -> Option<&V4> {
            mount.v4().filter(|v4| v4.minor_version() >= minor)
        }
        of(&self.mount, minor).ok_or(Errno::NOSYS)?;
        of(mount, minor).ok_or(Errno::OPNOTSUPP)
    }

    /// Returns the meaning of an attribute name. The server omits the prefix of users' attributes (RFC 8276).
    /// nfs4_getfacl(1) and nfs4_setfacl(1) access the ACL as an attribute.
    pub fn xattr_name<'a>(&self, ino: u64, name: &'a [u8]) -> Answer<Xattr<'a>> {
        let node = self.node(ino)?;
        if let Protocol::V3(v3) = node.mount().protocol() {
            let which = PosixAcl::of_name(name).filter(|_| v3.has_acls());
            let none = if v3.has_acls() { Errno::OPNOTSUPP } else { Errno::NOSYS };
            return which.map(Xattr::Posix).ok_or(none);
        }
        let minor = self.v4(node.mount(), 0)?.minor_version();
        match name.strip_prefix(USER) {
            Some(name) if !name.is_empty() && minor >= 2 => Ok(Xattr::User(name)),
            None if name == ACL => Ok(Xattr::Acl),
            // If the first file of a file system does not support them, ls(1) does not ask for those of the others.
            _ if !node.mount().options().acl => Err(Errno::OPNOTSUPP),
            _ => PosixAcl::of_name(name).map(Xattr::Posix).ok_or(Errno::OPNOTSUPP),
        }
    }
}

impl View {
    fn v4_2<'a>(&self, node: &'a Target) -> Answer<&'a V4> {
        self.v4(node.mount(), 2)
    }

    /// GETXATTR, or reads the ACL.
    pub async fn xattr(&self, ino: u64, name: &[u8]) -> Answer<Bytes> {
        let node = self.target(ino)?;
        node.staged.settle_attributes().await;
        let name = self.xattr_name(ino, name)?;
        if let Xattr::Posix(_) = name {
            self.acl_demand.record();
            if node.rights.has_only_mode() {
                return Err(Errno::NODATA);
            }
        }
        if let (Xattr::Posix(which), Protocol::V3(v3)) = (name, node.mount().protocol()) {
            return self.posix_acl(v3, &node, which).await;
        }
        let v4 = self.v4(node.mount(), 0)?;
        match name {
            Xattr::Posix(which) => self.mapped_acl(v4, &node, which).await,
            Xattr::User(name) => v4.xattr(node.handle(), name).await.answer(),
            Xattr::Acl => Ok(Message::encode(&v4.acl(node.handle()).await.answer()?).stream),
        }
    }

    /// SETXATTR, or sets the ACL.
    pub async fn set_xattr(&self, ino: u64, name: &[u8], value: Bytes, flags: i32) -> Answer<()> {
        let how = match flags {
            0 => SetXattr::Either,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::INVAL),
        };
        let node = self.target(ino)?;
        node.new.forget();
        node.staged.settle_attributes().await;
        let name = self.xattr_name(ino, name)?;
        if let (Xattr::Posix(which), Protocol::V3(v3)) = (name, node.mount().protocol()) {
            return self.set_posix_acl(v3, &node, which, Some(&value)).await;
        }
        let v4 = self.v4(node.mount(), 0)?;
        match name {
            Xattr::Posix(which) => self.set_mapped_acl(v4, &node, which, Some(&value)).await,
            Xattr::User(name) => v4.set_xattr(node.handle(), name, value, how).await.answer(),
            Xattr::Acl => {
                let acl = Message::from(value).decode().map_err(|_| Errno::INVAL)?;
                let done = v4.set_acl(node.handle(), acl).await.answer();
                self.acl_changed(&node).await;
                done
            }
        }
    }

    /// Drops what is cached of an object whose ACL may have changed, and with it the mode.
    pub(super) async fn acl_changed(&self, node: &Target) {
        node.staged.changed();
        node.rights.invalidate();
        self.kernel.forget(node.ino).await;
    }

    /// REMOVEXATTR.
    pub async fn remove_xattr(&self, ino: u64, name: &[u8]) -> Answer<()> {
        let node = self.target(ino)?;
        node.new.forget();
        node.staged.settle_attributes().await;
        match self.xattr_name(ino, name)? {
            Xattr::User(name) => self.v4(node.mount(), 0)?.remove_xattr(node.handle(), name).await.answer(),
            Xattr::Posix(which) => match node.mount().protocol() {
                Protocol::V3(v3) => self.set_posix_acl(v3, &node, which, None).await,
                _ => self.set_mapped_acl(self.v4(node.mount(), 0)?, &node, which, None).await,
            },
            // Every file has an ACL.
            Xattr::Acl => Err(Errno::OPNOTSUPP),
        }
    }

    /// LISTXATTRS: returns the names of users' attributes, each terminated by a zero byte.
    pub async fn xattrs(&self, ino: u64) -> Answer<Bytes> {
        let node = self.target(ino)?;
        if let Protocol::V3(v3) = node.mount().protocol() {
            return match v3.has_acls() {
                true => self.posix_acl_names(v3, &node).await,
                false => Err(Errno::NOSYS),
            };
        }
        let names = self.v4_2(&node)?.xattrs(node.handle()).await.answer()?;
        Ok(names.iter().flat_map(|name| [USER, name, b"\0"]).flatten().copied().collect())
    }

    /// ALLOCATE or DEALLOCATE.
    pub async fn allocate(&self, ino: u64, offset: u64, length: u64, how: Allocate) -> Answer<()> {
        let node = self.target(ino)?;
        let v4 = self.v4_2(&node)?;
        // Commit first, so that unstable data cannot be written into the hole again.
        node.owned.wrote_directly();
        node.new.forget();
        node.staged.settle(true).await;
        node.staged.changed();
        node.unstable.commit(node.handle()).await?;
        match how {
            Allocate::Reserve => v4.allocate(node.handle(), offset, length).await.answer(),
            Allocate::PunchHole => v4.deallocate(node.handle(), offset, length).await.answer(),
        }
    }

    /// SEEK: returns the offset of the next data or hole.
    pub async fn seek(&self, ino: u64, offset: i64, what: DataContent4) -> Answer<i64> {
        let node = self.target(ino)?;
        let v4 = self.v4_2(&node).map_err(|_| Errno::NOSYS)?;
        self.write_back(&node).await;
        node.staged.settle(false).await;
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let found = v4.seek(node.handle(), offset, what).await.map_err(|error| match errno(&error) {
            // The kernel then treats all of the file as data.
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

    /// COPY: copies up to `count` bytes. Returns the number of bytes, which are on stable storage.
    pub async fn copy(&self, from: (u64, u64), to: (u64, u64), count: u64) -> Answer<u32> {
        let (source, target) = (self.target(from.0)?, self.target(to.0)?);
        let v4 = self.v4_2(&target)?;
        // The kernel copies by itself if this fails.
        same_mount(&source, &target)?;
        // Commit first, so that unstable data cannot overwrite the copy later.
        target.owned.wrote_directly();
        target.new.forget();
        source.staged.settle(false).await;
        target.staged.settle(true).await;
        target.unstable.commit(target.handle()).await?;
        for _ in 0..COPY_TRIES {
            let (from, to) = ((source.handle(), from.1), (target.handle(), to.1));
            let (copied, written) = v4.copy(from, to, count.min(COPY_MAX)).await.answer()?;
            target.staged.changed();
            let durable = written.committed == StableHow::FileSync;
            if durable || target.mount().protocol().commit(target.handle()).await.answer()? == written.verf {
                return Ok(copied.min(COPY_MAX) as u32);
            }
            tracing::warn!("the server has restarted; copying again");
        }
        Err(Errno::IO)
    }
}

const USER: &[u8] = b"user.";
/// Linux's name of the ACL. The value has the format of the protocol: RFC 8881 §6.2.1, `nfsace4<>`.
const ACL: &[u8] = b"system.nfs4_acl";
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
/// Flags of fallocate(2).
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
/// The maximum bytes of one copy, which a program cannot interrupt.
const COPY_MAX: u64 = 1 << 30;
/// The maximum number of restarts of the server during one copy.
const COPY_TRIES: u32 = 3;
