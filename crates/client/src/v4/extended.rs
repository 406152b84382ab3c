//! What only version 4 has: small files in one request, holes, copies within the server, ACLs, extended attributes (RFC 7862,
//! RFC 8276).

use bytes::Bytes;
use nfs::v4::{
    acl::Nfsace4,
    attr::{Attr4, Attrs, Fattr4},
    *,
};
use xdr::Opaque;

use super::{
    V4, attr, offload,
    opens::{OPEN_MAX, open_once},
};
use crate::{
    model::{Attr, Handle, Operations, ReadData, Result, Written},
    session::compound::{Compound, Results, component, failure, value},
};

/// Whether an extended attribute is made or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Either.
    Either,
    /// It must not be there.
    Create,
    /// It must be there.
    Replace,
}

impl V4 {
    /// OPEN, READ and CLOSE in one compound: up to `count` bytes from the first. Where the file is open already it is only
    /// read.
    ///
    /// # Errors
    /// `Acces`, `IsDir`, …
    pub async fn read_small(&self, file: &Handle, count: u32) -> Result<ReadData> {
        self.on(file, |at| async move { at.v4.read_small_here(&at.handle, at.read_size(count)).await }).await
    }

    async fn read_small_here(&self, file: &Handle, count: u32) -> Result<ReadData> {
        let open_now = self.server.opens.known(file).is_some_and(|file| file.state.lock().open.is_some());
        // Version 4.0 cannot use in a compound what that opens.
        if open_now || self.server.client.minor() == 0 {
            return Operations::read(self, file, 0, count).await;
        }
        let opening = Compound::on("OPEN", file).op(open_once(&self.server.opens, OpenClaim4::Fh), OPEN_MAX);
        let mut results = match self.read_and_close(opening, count).await {
            Err(error) if error.is_unreadable() => {
                return Operations::read(self, file, 0, count).await;
            }
            results => results?,
        };
        results.skip(&[Opnum4::PutFh])?;
        value!(results, Open)?;
        data_read(results, count)
    }

    /// As [`read_small`](Self::read_small), of the file that `names` lead to from a directory, and its handle: all in one
    /// compound. Links are not followed.
    ///
    /// # Errors
    /// `NoEnt`, `NotDir`, NFS4ERR_SYMLINK, `IsDir`, `Acces`, …; `NotSupp` over version 4.0.
    pub async fn read_path(&self, dir: &Handle, names: &[&[u8]], count: u32) -> Result<(Handle, ReadData)> {
        let at = self.place(dir).await?;
        let (handle, data) = at.v4.read_path_here(&at.handle, names, at.read_size(count)).await?;
        Ok((at.name(handle, None), data))
    }

    async fn read_path_here(&self, dir: &Handle, names: &[&[u8]], count: u32) -> Result<(Handle, ReadData)> {
        // It has no current stateid, by which READ and CLOSE could name what the compound opens.
        if self.server.client.minor() == 0 {
            return Err(failure(Nfsstat4::NotSupp, "OPEN"));
        }
        let (file, dirs) = names.split_last().expect("a file has a name");
        let mut compound = Compound::on("OPEN", dir);
        for dir in dirs {
            compound = compound.lookup(component(dir)?);
        }
        let claim = OpenClaim4::Null(component(file)?);
        let opening = compound.op(open_once(&self.server.opens, claim), OPEN_MAX).get_fh();
        let mut results = self.read_and_close(opening, count).await?;
        results.skip(&[Opnum4::PutFh])?;
        results.skip(&vec![Opnum4::Lookup; dirs.len()])?;
        value!(results, Open)?;
        let handle = value!(results, GetFh)?;
        let data = data_read(results, count)?;
        if !data.eof
            && let Ok(attr) = self.getattr(&handle).await
        {
            // It is gone on with by its handle, which means nothing elsewhere.
            self.server.opens.found(dir, &names.join(&b'/'), &handle, Some(&attr));
        }
        Ok((handle, data))
    }

    /// READ and CLOSE by the stateid of the OPEN before them, which is the current one (RFC 8881 §16.2.3.1.2).
    async fn read_and_close(&self, opening: Compound, count: u32) -> Result<Results> {
        let read = ReadArgs { stateid: Stateid4::CURRENT, offset: 0, count };
        let close = |compound: Compound| {
            compound.op(Argop4::Close(CloseArgs { seqid: Seqid4(0), open_stateid: Stateid4::CURRENT }), 16)
        };
        let reading = close(opening.clone().op(Argop4::Read(read), 8)).payload(count as usize, false);
        let result = self.run(&reading).await;
        if let Err(error) = &result
            && (error.is_unreadable() || error.operation() == Opnum4::Read.name())
        {
            // It may have stayed open. Its owner can open it again, which makes it one open, and close that.
            if let Err(error) = self.run(&close(opening)).await {
                tracing::debug!(%error, "what could not be read cannot be closed");
            }
        }
        result
    }

    /// SEEK: where data (or a hole) begins at or behind `offset`; `None` if there is none up to the end.
    ///
    /// # Errors
    /// `NXIO` behind the end, `NotSupp`, …
    pub async fn seek(&self, file: &Handle, offset: u64, what: DataContent4) -> Result<Option<u64>> {
        self.on(file, |at| async move { at.v4.seek_here(&at.handle, offset, what).await }).await
    }

    async fn seek_here(&self, file: &Handle, offset: u64, what: DataContent4) -> Result<Option<u64>> {
        self.with_stateid(file, OPEN4_SHARE_ACCESS_READ, |stateid| async move {
            let compound = Compound::on("SEEK", file).op(Argop4::Seek(SeekArgs { stateid, offset, what }), 12);
            let mut results = self.run(&compound).await?;
            results.skip(&[Opnum4::PutFh])?;
            let ok = value!(results, Seek)?;
            Ok((!ok.eof).then_some(ok.offset))
        })
        .await
    }

    /// ALLOCATE: reserves space.
    ///
    /// # Errors
    /// `NoSpc`, `NotSupp`, …
    pub async fn allocate(&self, file: &Handle, offset: u64, length: u64) -> Result<()> {
        self.on(file, |at| async move { at.v4.reserve(&at.handle, offset, length, Argop4::Allocate).await }).await
    }

    /// DEALLOCATE: makes a hole.
    ///
    /// # Errors
    /// `NotSupp`, …
    pub async fn deallocate(&self, file: &Handle, offset: u64, length: u64) -> Result<()> {
        self.on(file, |at| async move { at.v4.reserve(&at.handle, offset, length, Argop4::Deallocate).await }).await
    }

    async fn reserve(&self, file: &Handle, offset: u64, length: u64, op: fn(AllocateArgs) -> Argop4) -> Result<()> {
        let done = self
            .with_stateid(file, OPEN4_SHARE_ACCESS_WRITE, |stateid| async move {
                let compound =
                    Compound::on("ALLOCATE", file).op(op(AllocateArgs { stateid, offset, length }), 0).once();
                self.run(&compound).await.map(drop)
            })
            .await;
        self.server.opens.changed(file);
        done
    }

    /// COPY within the server: bytes of one file into another. The server may copy less, and may go on behind its reply; this waits for
    /// the end, as long as the copy makes progress.
    ///
    /// # Errors
    /// `NotSupp`, `XDev`, `NoSpc`, …
    pub async fn copy(&self, from: (&Handle, u64), to: (&Handle, u64), count: u64) -> Result<(u64, Written)> {
        let copied = self.on_both("COPY", from.0, to.0, |at, there| async move {
            let (copied, written) = at.v4.copy_here((&at.handle, from.1), (&there, to.1), count).await?;
            Ok((copied, Written { verf: at.verifier(written.verf), ..written }))
        });
        copied.await
    }

    async fn copy_here(&self, from: (&Handle, u64), to: (&Handle, u64), count: u64) -> Result<(u64, Written)> {
        let ok = self
            .with_stateid(from.0, OPEN4_SHARE_ACCESS_READ, |src_stateid| async move {
                self.with_stateid(to.0, OPEN4_SHARE_ACCESS_WRITE, move |dst_stateid| async move {
                    let args = CopyArgs {
                        src_stateid,
                        dst_stateid,
                        src_offset: from.1,
                        dst_offset: to.1,
                        count,
                        consecutive: true,
                        synchronous: false,
                        source_server: Default::default(),
                    };
                    let compound = Compound::on("COPY", from.0)
                        .op(Argop4::SaveFh, 0)
                        .put_fh(to.0)
                        .op(Argop4::Copy(args), 64)
                        .once();
                    let mut results = self.run(&compound).await?;
                    results.skip(&[Opnum4::PutFh, Opnum4::SaveFh, Opnum4::PutFh])?;
                    match results.next()? {
                        Resop4::Copy(CopyRes::Ok(ok)) => Ok(ok.response),
                        _ => Err(results.nonsense("a copy without an end")),
                    }
                })
                .await
            })
            .await;
        self.server.opens.changed(to.0);
        let response = ok?;
        let copied = match response.callback_id {
            None => Ok(offload::written(&response)),
            Some(name) => self.copied(to.0, name, response.writeverf).await,
        };
        self.server.opens.changed(to.0);
        copied
    }

    /// CLONE: the other file shares the data of this one from then on. A `count` of 0 means to the end.
    ///
    /// # Errors
    /// `NotSupp`, `Inval`, `XDev`, …
    pub async fn clone_range(&self, from: (&Handle, u64), to: (&Handle, u64), count: u64) -> Result<()> {
        let cloned = self.on_both("CLONE", from.0, to.0, |at, there| async move {
            at.v4.clone_range_here((&at.handle, from.1), (&there, to.1), count).await
        });
        cloned.await
    }

    async fn clone_range_here(&self, from: (&Handle, u64), to: (&Handle, u64), count: u64) -> Result<()> {
        let done = self
            .with_stateid(from.0, OPEN4_SHARE_ACCESS_READ, |src_stateid| async move {
                self.with_stateid(to.0, OPEN4_SHARE_ACCESS_WRITE, move |dst_stateid| async move {
                    let (src_offset, dst_offset) = (from.1, to.1);
                    let args = CloneArgs { src_stateid, dst_stateid, src_offset, dst_offset, count };
                    let compound = Compound::on("CLONE", from.0)
                        .op(Argop4::SaveFh, 0)
                        .put_fh(to.0)
                        .op(Argop4::Clone(args), 0)
                        .once();
                    self.run(&compound).await.map(drop)
                })
                .await
            })
            .await;
        self.server.opens.changed(to.0);
        done
    }

    /// The access control list of an object (RFC 8881 §6.2.1).
    ///
    /// # Errors
    /// `NotSupp` where the server has none, …
    pub async fn acl(&self, object: &Handle) -> Result<Vec<Nfsace4>> {
        self.on(object, |at| async move { at.v4.acl_here(&at.handle).await }).await
    }

    async fn acl_here(&self, object: &Handle) -> Result<Vec<Nfsace4>> {
        let attr_request = [Attr4::Acl as u32].into_iter().collect();
        let compound = Compound::on("GETATTR", object).op(Argop4::GetAttr(GetAttrArgs { attr_request }), ACL_MAX);
        let mut results = self.run(&compound).await?;
        results.skip(&[Opnum4::PutFh])?;
        // RFC 8881 §18.7.3: what a server does not have is left out.
        attr::values(&value!(results, GetAttr)?)?.acl.ok_or_else(|| failure(Nfsstat4::NotSupp, "GETATTR"))
    }

    /// Gives an object another access control list. Servers make their own of it: what they cannot keep they refuse, or say stricter.
    ///
    /// # Errors
    /// `Perm`, `Inval`, `BADOWNER`, `NotSupp`, …
    pub async fn set_acl(&self, object: &Handle, acl: Vec<Nfsace4>) -> Result<()> {
        let acl = &acl;
        self.on(object, |at| async move { at.v4.set_acl_here(&at.handle, acl.clone()).await }).await
    }

    async fn set_acl_here(&self, object: &Handle, acl: Vec<Nfsace4>) -> Result<()> {
        let obj_attributes = Fattr4::from(&Attrs { acl: Some(acl), ..Attrs::default() });
        let args = SetAttrArgs { stateid: Stateid4::ANONYMOUS, obj_attributes };
        self.changing(object, Compound::on("SETATTR", object).op(Argop4::SetAttr(args), 16).once()).await
    }

    /// GETXATTR: the value of an extended attribute; its name is without `user.`
    ///
    /// # Errors
    /// `NOXATTR`, `NotSupp`, …
    pub async fn xattr(&self, object: &Handle, name: &[u8]) -> Result<Bytes> {
        self.on(object, |at| async move { at.v4.xattr_here(&at.handle, name).await }).await
    }

    async fn xattr_here(&self, object: &Handle, name: &[u8]) -> Result<Bytes> {
        let args = XattrArgs { name: component(name)? };
        let compound = Compound::on("GETXATTR", object).op(Argop4::GetXattr(args), 4 + XATTR_BOUND);
        let mut results = self.run(&compound).await?;
        results.skip(&[Opnum4::PutFh])?;
        Ok(value!(results, GetXattr)?.0.0)
    }

    /// SETXATTR: sets an extended attribute.
    ///
    /// # Errors
    /// `Exist`, `NOXATTR`, `XATTR2BIG`, `NotSupp`, …
    pub async fn set_xattr(&self, object: &Handle, name: &[u8], value: Bytes, how: SetXattr) -> Result<()> {
        let value = &value;
        self.on(object, |at| async move { at.v4.set_xattr_here(&at.handle, name, value.clone(), how).await }).await
    }

    async fn set_xattr_here(&self, object: &Handle, name: &[u8], value: Bytes, how: SetXattr) -> Result<()> {
        if value.len() > XATTR_BOUND {
            return Err(failure(Nfsstat4::Xattr2Big, "SETXATTR"));
        }
        let option = match how {
            SetXattr::Either => SetxattrOption4::Either,
            SetXattr::Create => SetxattrOption4::Create,
            SetXattr::Replace => SetxattrOption4::Replace,
        };
        let args = SetXattrArgs { option, key: component(name)?, value: Opaque(value) };
        self.changing(object, Compound::on("SETXATTR", object).op(Argop4::SetXattr(args), 20).once()).await
    }

    /// REMOVEXATTR: removes an extended attribute.
    ///
    /// # Errors
    /// `NOXATTR`, `NotSupp`, …
    pub async fn remove_xattr(&self, object: &Handle, name: &[u8]) -> Result<()> {
        self.on(object, |at| async move { at.v4.remove_xattr_here(&at.handle, name).await }).await
    }

    async fn remove_xattr_here(&self, object: &Handle, name: &[u8]) -> Result<()> {
        let args = XattrArgs { name: component(name)? };
        self.changing(object, Compound::on("REMOVEXATTR", object).op(Argop4::RemoveXattr(args), 20).once()).await
    }

    async fn changing(&self, object: &Handle, compound: Compound) -> Result<()> {
        let done = self.run(&compound).await.map(drop);
        self.server.opens.changed(object);
        done
    }

    /// LISTXATTRS: the names of all extended attributes.
    ///
    /// # Errors
    /// `NotSupp`, …
    pub async fn xattrs(&self, object: &Handle) -> Result<Vec<Bytes>> {
        self.on(object, |at| async move { at.v4.xattrs_here(&at.handle).await }).await
    }

    async fn xattrs_here(&self, object: &Handle) -> Result<Vec<Bytes>> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let args = ListXattrsArgs { cookie, maxcount: XATTR_PAGE };
            let compound = Compound::on("LISTXATTRS", object).op(Argop4::ListXattrs(args), XATTR_PAGE as usize);
            let mut results = self.run(&compound).await?;
            results.skip(&[Opnum4::PutFh])?;
            let ok = value!(results, ListXattrs)?;
            let circles = ok.names.is_empty() || ok.cookie == cookie;
            names.extend(ok.names.into_iter().map(|name| name.0));
            if ok.eof {
                return Ok(names);
            }
            if circles {
                return Err(results.nonsense("a list of names that goes in circles"));
            }
            cookie = ok.cookie;
        }
    }

    /// LOOKUP of a path's names, as many as the server can follow, in few compounds. Returns how many those were, and the
    /// object there.
    ///
    /// # Errors
    /// Not even the first step is possible.
    pub(crate) async fn lookup_path(&self, names: &[Bytes]) -> Result<(usize, Handle, Attr)> {
        let (mut done, mut at): (usize, Option<(Handle, Attr)>) = (0, None);
        loop {
            let mut some = names.len().min(done + LOOKUPS_MAX) - done;
            loop {
                let mut compound = Compound::new("LOOKUP");
                compound = match &at {
                    None => compound.op(Argop4::PutRootFh, 0),
                    Some((handle, _)) => compound.put_fh(handle),
                };
                for name in &names[done..done + some] {
                    compound = compound.lookup(component(name)?);
                }
                let deadline = &self.deadline();
                match self.server.client.run(&compound.get_fh().get_attr(attr::WANTED), deadline).await {
                    Ok(mut results) => {
                        (0..=some).try_for_each(|_| results.next().map(drop))?;
                        let handle = value!(results, GetFh)?;
                        let attr = attr::of(&value!(results, GetAttr)?)?;
                        at = Some((Opaque(handle.0), attr));
                        break;
                    }
                    // What lies behind may be a link, a file, or yet to be made.
                    Err(error) if some > 0 && error.status().is_some() => {
                        some -= 1;
                        if some == 0
                            && let Some((handle, attr)) = at
                        {
                            return Ok((done, handle, attr));
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            done += some;
            let (handle, attr) = at.clone().expect("it was found");
            if done == names.len() || some < LOOKUPS_MAX {
                return Ok((done, handle, attr));
            }
        }
    }
}

fn data_read(mut results: Results, count: u32) -> Result<ReadData> {
    let ok = value!(results, Read)?;
    if ok.data.0.len() > count as usize {
        return Err(results.nonsense("more data than was asked for"));
    }
    Ok(ReadData { data: ok.data.0, eof: ok.eof, size: None })
}

/// Names in one compound.
const LOOKUPS_MAX: usize = 4;
/// Bytes of an access control list, of which Linux's server has no longer one.
const ACL_MAX: usize = 64 << 10;
/// Bytes of one answer to LISTXATTRS.
const XATTR_PAGE: u32 = 64 << 10;
