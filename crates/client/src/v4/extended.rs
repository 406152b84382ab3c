//! The operations that only NFSv4 has: reading small files in one request, holes, copies within the server, ACLs,
//! extended attributes (RFC 7862, RFC 8276).

use bytes::Bytes;
use nfs::v4::{
    acl::Nfsace4,
    attr::{Attr4, Attrs, Fattr4},
    *,
};
use xdr::Opaque;

use super::{
    attr, offload,
    opens::{open_temporary, opened},
    protocol::V4,
    request::{Request, Target},
};
use crate::{
    model::{Attr, Error, Handle, Operations, Page, ReadData, Result, Status, Verifier, Written},
    session::compound::{Compound, Results, component, value},
};

/// The condition under which an extended attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// The attribute may or may not exist.
    Either,
    /// The attribute must not exist.
    Create,
    /// The attribute must exist.
    Replace,
}

impl V4 {
    /// Reads up to `count` bytes from the start of the file, by OPEN, READ and CLOSE in one compound. If the file is
    /// already open, only READ is sent.
    ///
    /// # Errors
    /// `AccessDenied`, `IsADirectory`, …
    pub async fn read_small(&self, file: &Handle, count: u32) -> Result<ReadData> {
        let place = self.place(file).await?;
        let server = &place.v4.server;
        let is_open = server
            .opens
            .known(&place.handle)
            .is_some_and(|file| file.state.lock().open_of(self.caller.as_ref()).is_some());
        // In NFSv4.0, a compound cannot use the stateid of its own OPEN.
        if is_open || server.client.minor() == 0 {
            return self.read(file, 0, count).await;
        }
        let opening = |target: &Target| {
            Ok(Compound::on("OPEN", target.handle()).open(open_temporary(target.opens(), OpenClaim4::Fh)))
        };
        let (_, mut results) = match self.read_and_close(self.request("OPEN", file), opening, count).await {
            Err(error) if error.is_unreadable() => return self.read(file, 0, count).await,
            results => results?,
        };
        results.skip(&[Opnum4::PutFh])?;
        opened(&mut results)?;
        data_read(results, count)
    }

    /// Opens, reads and closes like [`read_small`](Self::read_small) the file to which `names` lead from a directory,
    /// in one compound. Returns the handle of the file and the data. Does not follow symbolic links.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `SymbolicLink`, `IsADirectory`, `AccessDenied`, …; `NotSupported` in NFSv4.0.
    pub async fn read_path(&self, dir: &Handle, names: &[&[u8]], count: u32) -> Result<(Handle, ReadData)> {
        // NFSv4.0 has no current stateid, with which READ and CLOSE could use the open of their compound.
        if self.minor_version() == 0 {
            return Err(Error::refused(Status::NotSupported, "OPEN"));
        }
        let (file, dirs) = names.split_last().expect("the path of a file must have a name");
        let opening = |target: &Target| {
            let mut compound = Compound::on("OPEN", target.handle());
            for dir in dirs {
                compound = compound.lookup(component(dir)?);
            }
            let claim = OpenClaim4::Null(component(file)?);
            Ok(compound.open(open_temporary(target.opens(), claim)))
        };
        let (target, mut results) = self.read_and_close(self.request("OPEN", dir).may_cross(), opening, count).await?;
        results.skip(&[Opnum4::PutFh])?;
        results.skip(&vec![Opnum4::Lookup; dirs.len()])?;
        let (_, handle) = opened(&mut results)?;
        let data = data_read(results, count)?;
        if !data.eof
            && let Ok(attr) = target.place.v4.getattr(&handle).await
        {
            // The caller continues with this handle, which is valid only at this server.
            target.opens().found(target.handle(), &names.join(&b'/'), &handle, Some(&attr));
        }
        Ok((target.place.name(handle, None), data))
    }

    /// Adds READ and CLOSE with the stateid of the OPEN before them, the current stateid (RFC 8881 §16.2.3.1.2).
    async fn read_and_close(
        &self,
        request: Request<'_>,
        opening: impl Fn(&Target) -> Result<Compound> + Send + Sync,
        count: u32,
    ) -> Result<(Target, Results)> {
        let close = |compound: Compound| {
            compound.op(Argop4::Close(CloseArgs { seqid: Seqid4(0), open_stateid: Stateid4::CURRENT }), 16)
        };
        let (mut opened, after_open) = (None, [Opnum4::GetFh, Opnum4::Read]);
        let make = |target: &mut Target| {
            let opening = opening(target)?;
            let count = target.place.read_size(count);
            let read = ReadArgs { stateid: Stateid4::CURRENT, offset: 0, count };
            opened = Some((target.server().client.clone(), opening.clone()));
            Ok(close(opening.op(Argop4::Read(read), 8)).payload(count as usize, false))
        };
        let result = request.run(make).await;
        if let Err(error) = &result
            && (error.is_unreadable() || after_open.iter().any(|after| error.operation() == after.name()))
            && let Some((client, opening)) = opened
        {
            // The file may still be open. Its owner opens it again, which does not add another open, and closes it.
            if let Err(error) = client.run(&close(opening), &self.deadline()).await {
                tracing::debug!(%error, "closing a file that could not be read failed");
            }
        }
        result
    }

    /// SEEK: returns the offset of the next data, or of the next hole, at or after `offset`; `None` if there is none
    /// before the end.
    ///
    /// # Errors
    /// `NoDeviceOrAddress` if `offset` is beyond the end, `NotSupported`, …
    pub async fn seek(&self, file: &Handle, offset: u64, what: DataContent4) -> Result<Option<u64>> {
        self.publish(file).await;
        let make = |target: &mut Target| {
            let args = SeekArgs { stateid: target.stateids[0], offset, what };
            Ok(Compound::on("SEEK", target.handle()).op(Argop4::Seek(args), 12))
        };
        let (_, mut results) = self.request("SEEK", file).open_for(OPEN4_SHARE_ACCESS_READ).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        let ok = value!(results, Seek)?;
        Ok((!ok.eof).then_some(ok.offset))
    }

    /// ALLOCATE: reserves space for a range of bytes.
    ///
    /// # Errors
    /// `NoSpace`, `NotSupported`, …
    pub async fn allocate(&self, file: &Handle, offset: u64, length: u64) -> Result<()> {
        self.reserve(file, offset, length, Argop4::Allocate).await
    }

    /// DEALLOCATE: makes a hole.
    ///
    /// # Errors
    /// `NotSupported`, …
    pub async fn deallocate(&self, file: &Handle, offset: u64, length: u64) -> Result<()> {
        self.reserve(file, offset, length, Argop4::Deallocate).await
    }

    async fn reserve(&self, file: &Handle, offset: u64, length: u64, op: fn(AllocateArgs) -> Argop4) -> Result<()> {
        self.publish(file).await;
        let make = |target: &mut Target| {
            let args = AllocateArgs { stateid: target.stateids[0], offset, length };
            Ok(Compound::on("ALLOCATE", target.handle()).op(op(args), 0).once())
        };
        let done = self.request("ALLOCATE", file).open_for(OPEN4_SHARE_ACCESS_WRITE).run(make).await;
        self.forget_attributes(file);
        done.map(drop)
    }

    /// Drops the cached attributes of an object that this client has changed.
    pub fn forget_attributes(&self, object: &Handle) {
        let place = self.place_now(object);
        place.v4.server.opens.changed(&place.handle);
    }

    /// COPY within the server: copies bytes of one file into another. The server may copy fewer bytes, and may continue
    /// after its reply. This waits for the end, as long as the copy makes progress.
    ///
    /// # Errors
    /// `NotSupported`, `CrossDevice`, `NoSpace`, …
    pub async fn copy(&self, from: (&Handle, u64), to: (&Handle, u64), count: u64) -> Result<(u64, Written)> {
        self.publish(from.0).await;
        self.publish(to.0).await;
        let make = |target: &mut Target| {
            let args = CopyArgs {
                src_stateid: target.stateids[0],
                dst_stateid: target.stateids[1],
                src_offset: from.1,
                dst_offset: to.1,
                count,
                consecutive: true,
                synchronous: false,
                source_server: Default::default(),
            };
            let compound = Compound::on("COPY", target.handle()).op(Argop4::SaveFh, 0).put_fh(target.other());
            Ok(compound.op(Argop4::Copy(args), 64).once())
        };
        let request = self.request("COPY", from.0).and(to.0).open_for(OPEN4_SHARE_ACCESS_READ);
        let copied = request.other_open_for(OPEN4_SHARE_ACCESS_WRITE).run(make).await;
        self.forget_attributes(to.0);
        let (target, mut results) = copied?;
        results.skip(&[Opnum4::PutFh, Opnum4::SaveFh, Opnum4::PutFh])?;
        let Resop4::Copy(CopyRes::Ok(ok)) = results.next()? else {
            return Err(results.protocol_error("COPY succeeded without a result"));
        };
        let response = ok.response;
        let copied = match response.callback_id {
            None => Ok(offload::written(&response)),
            Some(name) => target.place.v4.wait_for_copy(target.other(), name, response.writeverf).await,
        };
        self.forget_attributes(to.0);
        let (copied, written) = copied?;
        let written = Written { verf: target.place.verifier(written.verf), ..written };
        Ok((copied, self.wrote_through_server(to.0, written)))
    }

    /// CLONE: lets a range of one file share the data of another. A `count` of 0 means up to the end.
    ///
    /// # Errors
    /// `NotSupported`, `InvalidArgument`, `CrossDevice`, …
    pub async fn clone_range(&self, from: (&Handle, u64), to: (&Handle, u64), count: u64) -> Result<()> {
        self.publish(from.0).await;
        self.publish(to.0).await;
        let make = |target: &mut Target| {
            let [src_stateid, dst_stateid] = target.stateids;
            let args = CloneArgs { src_stateid, dst_stateid, src_offset: from.1, dst_offset: to.1, count };
            let compound = Compound::on("CLONE", target.handle()).op(Argop4::SaveFh, 0).put_fh(target.other());
            Ok(compound.op(Argop4::Clone(args), 0).once())
        };
        let request = self.request("CLONE", from.0).and(to.0).open_for(OPEN4_SHARE_ACCESS_READ);
        let done = request.other_open_for(OPEN4_SHARE_ACCESS_WRITE).run(make).await;
        self.forget_attributes(to.0);
        done.map(drop)
    }

    /// Returns the access control list of an object (RFC 8881 §6.2.1).
    ///
    /// # Errors
    /// `NotSupported` if the server has no access control lists, …
    pub async fn acl(&self, object: &Handle) -> Result<Vec<Nfsace4>> {
        Ok(self.acl_and_mode(object).await?.0)
    }

    /// Returns the access control list of an object, and its mode.
    ///
    /// # Errors
    /// Those of [`acl`](Self::acl).
    pub async fn acl_and_mode(&self, object: &Handle) -> Result<(Vec<Nfsace4>, u32)> {
        let attr_request: Bitmap4 = [Attr4::Acl as u32, Attr4::Mode as u32].into_iter().collect();
        let make = |target: &mut Target| {
            let args = GetAttrArgs { attr_request: attr_request.clone() };
            Ok(Compound::on("GETATTR", target.handle()).op(Argop4::GetAttr(args), ACL_MAX))
        };
        let (_, mut results) = self.request("GETATTR", object).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        // RFC 8881 §18.7.3: the server omits attributes that it does not support.
        let values = attr::values(&value!(results, GetAttr)?)?;
        values.acl.zip(values.mode).ok_or_else(|| Error::refused(Status::NotSupported, "GETATTR"))
    }

    /// READDIR: returns a part of the entries of a directory with attributes and handles, and the access control list of each entry: `None`
    /// if the server has not sent it. `count` is the number of bytes of the reply.
    ///
    /// # Errors
    /// `NotADirectory`, `AccessDenied`, `Stale`, …
    pub async fn readdir_acls(
        &self,
        dir: &Handle,
        cookie: u64,
        verifier: Verifier,
        count: u32,
    ) -> Result<(Page, Vec<Option<Vec<Nfsace4>>>)> {
        let mut acls = Vec::new();
        let wanted = attr::WANTED.union(&[Attr4::Acl].into_iter().collect());
        let page = self.list(dir, (cookie, verifier), count, Some(wanted), |attrs| acls.push(attrs.acl)).await?;
        Ok((page, acls))
    }

    /// Sets the access control list of an object. Servers may store another list: they refuse, or make stricter, what
    /// they cannot store.
    ///
    /// # Errors
    /// `NotPermitted`, `InvalidArgument`, `Other` (`BADOWNER`), `NotSupported`, …
    pub async fn set_acl(&self, object: &Handle, acl: Vec<Nfsace4>) -> Result<()> {
        let obj_attributes = Fattr4::from(&Attrs { acl: Some(acl), ..Attrs::default() });
        let args = SetAttrArgs { stateid: Stateid4::ANONYMOUS, obj_attributes };
        self.change_attributes("SETATTR", object, Argop4::SetAttr(args), 16).await
    }

    /// GETXATTR: returns the value of an extended attribute. `name` has no prefix `user.`.
    ///
    /// # Errors
    /// `NoAttribute`, `NotSupported`, …
    pub async fn xattr(&self, object: &Handle, name: &[u8]) -> Result<Bytes> {
        let args = XattrArgs { name: component(name)? };
        let make = |target: &mut Target| {
            let get = Argop4::GetXattr(args.clone());
            Ok(Compound::on("GETXATTR", target.handle()).op(get, 4 + XATTR_BOUND))
        };
        let (_, mut results) = self.request("GETXATTR", object).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        Ok(value!(results, GetXattr)?.0.0)
    }

    /// SETXATTR: sets an extended attribute.
    ///
    /// # Errors
    /// `AlreadyExists`, `NoAttribute`, `AttributeTooLarge`, `NotSupported`, …
    pub async fn set_xattr(&self, object: &Handle, name: &[u8], value: Bytes, how: SetXattr) -> Result<()> {
        if value.len() > XATTR_BOUND {
            return Err(Error::refused(Status::AttributeTooLarge, "SETXATTR"));
        }
        let option = match how {
            SetXattr::Either => SetxattrOption4::Either,
            SetXattr::Create => SetxattrOption4::Create,
            SetXattr::Replace => SetxattrOption4::Replace,
        };
        let args = SetXattrArgs { option, key: component(name)?, value: Opaque(value) };
        self.change_attributes("SETXATTR", object, Argop4::SetXattr(args), 20).await
    }

    /// REMOVEXATTR: removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `NotSupported`, …
    pub async fn remove_xattr(&self, object: &Handle, name: &[u8]) -> Result<()> {
        let args = XattrArgs { name: component(name)? };
        self.change_attributes("REMOVEXATTR", object, Argop4::RemoveXattr(args), 20).await
    }

    async fn change_attributes(
        &self,
        name: &'static str,
        object: &Handle,
        change: Argop4,
        result_max: usize,
    ) -> Result<()> {
        let make = |target: &mut Target| Ok(Compound::on(name, target.handle()).op(change.clone(), result_max).once());
        let done = self.request(name, object).run(make).await;
        self.forget_attributes(object);
        done.map(drop)
    }

    /// LISTXATTRS: returns the names of all extended attributes.
    ///
    /// # Errors
    /// `NotSupported`, …
    pub async fn xattrs(&self, object: &Handle) -> Result<Vec<Bytes>> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let make = |target: &mut Target| {
                let args = ListXattrsArgs { cookie, maxcount: XATTR_PAGE };
                let list = Argop4::ListXattrs(args);
                Ok(Compound::on("LISTXATTRS", target.handle()).op(list, XATTR_PAGE as usize))
            };
            let (_, mut results) = self.request("LISTXATTRS", object).run(make).await?;
            results.skip(&[Opnum4::PutFh])?;
            let ok = value!(results, ListXattrs)?;
            let repeats = ok.names.is_empty() || ok.cookie == cookie;
            names.extend(ok.names.into_iter().map(|name| name.0));
            if ok.eof {
                return Ok(names);
            }
            if repeats {
                return Err(results.protocol_error("the list of extended attributes repeats"));
            }
            cookie = ok.cookie;
        }
    }

    /// Looks up the names of a path in few compounds. Returns how many of the names the server could look up, and the
    /// last object.
    ///
    /// # Errors
    /// The root of the server cannot be looked up, or the server does not answer.
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
                match self.server.client.run(&compound.get_fh().get_attr(&attr::WANTED), deadline).await {
                    Ok(mut results) => {
                        (0..=some).try_for_each(|_| results.next().map(drop))?;
                        let handle = value!(results, GetFh)?;
                        let attr = attr::of(&value!(results, GetAttr)?)?;
                        at = Some((Opaque(handle.0), attr));
                        break;
                    }
                    // The next name may be a symbolic link or a file, or may not exist.
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
            let (handle, attr) = at.clone().expect("an object must have been found");
            if done == names.len() || some < LOOKUPS_MAX {
                return Ok((done, handle, attr));
            }
        }
    }
}

fn data_read(mut results: Results, count: u32) -> Result<ReadData> {
    let ok = value!(results, Read)?;
    if ok.data.0.len() > count as usize {
        return Err(results.protocol_error("more data than requested"));
    }
    Ok(ReadData { data: ok.data.0, eof: ok.eof, size: None })
}

/// Maximum number of names that one compound looks up.
const LOOKUPS_MAX: usize = 4;
/// Maximum bytes of an access control list, as in Linux's server.
const ACL_MAX: usize = 64 << 10;
/// Maximum bytes of one reply to LISTXATTRS.
const XATTR_PAGE: u32 = 64 << 10;
