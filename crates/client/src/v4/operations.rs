//! The operations of a [`Protocol`](crate::Protocol) in compounds of version 4 (RFC 8881 §18).

use buf::{Buffer, Rope, SharedBuffer};
use bytes::Bytes;
use nfs::v4::{attr::Attr4, *};
use xdr::{Opaque, Payload};

use super::{
    V4, attr,
    opens::{OPEN_MAX, Seen, open},
};
use crate::{
    call::payload,
    model::{
        Attr, CreateHow, Entry, Error, ErrorKind, FsStat, Handle, Node, Operations, Page, PathConf, ReadData, ReadInfo,
        Result, SetAttr, SetTime, Special, StableHow, Status, Verifier, Written,
    },
    session::compound::{Compound, Results, component, failure, value},
};

impl Operations for V4 {
    async fn null(&self) -> Result<()> {
        self.run(&Compound::new("PUTROOTFH").op(Argop4::PutRootFh, 0)).await.map(drop)
    }

    async fn getattr(&self, object: &Handle) -> Result<Attr> {
        if let Some(attr) = self.server.opens.delegated_attr(object) {
            return Ok(attr);
        }
        let asked = self.server.opens.delegations.now();
        let mut results = self.run(&Compound::on("GETATTR", object).get_attr(attr::WANTED)).await?;
        results.skip(&[Opnum4::PutFh])?;
        let attr = attr::of(&value!(results, GetAttr)?)?;
        self.server.opens.seen(object, &attr, asked);
        Ok(attr)
    }

    async fn setattr(&self, object: &Handle, set: SetAttr) -> Result<Option<Attr>> {
        let known = self.server.opens.known(object);
        let open = known.as_ref().and_then(|file| file.state.lock().open);
        // RFC 8881 §18.30.3: the stateid matters to the size alone.
        let stateid = match open {
            Some((stateid, access)) if set.size.is_some() && access & OPEN4_SHARE_ACCESS_WRITE != 0 => {
                self.server.client.latest(stateid)
            }
            _ => Stateid4::ANONYMOUS,
        };
        let compound = |stateid| {
            let args = SetAttrArgs { stateid, obj_attributes: attr::to_set(&set) };
            Compound::on("SETATTR", object).op(Argop4::SetAttr(args), 16).get_attr(attr::WANTED).once()
        };
        let mut result = self.run(&compound(stateid)).await;
        if let (Err(error), Some(file)) = (&result, &known)
            && file.state_failed(&stateid, error)
        {
            result = self.run(&compound(Stateid4::ANONYMOUS)).await;
        }
        self.server.opens.changed(object);
        let mut results = result?;
        results.skip(&[Opnum4::PutFh, Opnum4::SetAttr])?;
        let attr = attr::of(&value!(results, GetAttr)?)?;
        self.server.opens.resized(object, attr.size);
        Ok(Some(attr))
    }

    async fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<Node> {
        if let Some(node) = self.server.opens.delegated_name(dir, name) {
            return Ok(node);
        }
        let asked = self.server.opens.delegations.now();
        let compound = Compound::on("LOOKUP", dir).lookup(component(name)?).get_fh().get_attr(attr::WANTED);
        let mut results = self.run(&compound).await?;
        results.skip(&[Opnum4::PutFh, Opnum4::Lookup])?;
        let node = node(&mut results)?;
        self.server.opens.found(dir, name, &node.handle, node.attr.as_ref());
        self.server.opens.name_found(dir, name, &node.handle, asked);
        node.attr.iter().for_each(|attr| self.server.opens.seen(&node.handle, attr, asked));
        Ok(node)
    }

    async fn access(&self, object: &Handle, wanted: u32) -> Result<u32> {
        let args = AccessArgs { access: wanted };
        let mut results = self.run(&Compound::on("ACCESS", object).op(Argop4::Access(args), 8)).await?;
        results.skip(&[Opnum4::PutFh])?;
        Ok(value!(results, Access)?.access)
    }

    async fn readlink(&self, link: &Handle) -> Result<Bytes> {
        // No payload to be placed, although it could be one: Linux's server (6.1) then places its length with it, and leaves
        // that out of the reply. Its own client never asks for that.
        let compound = Compound::on("READLINK", link).op(Argop4::ReadLink, 4 + NAME_BOUND);
        let mut results = self.run(&compound).await?;
        results.skip(&[Opnum4::PutFh])?;
        let text = value!(results, ReadLink)?.link.0;
        text.to_bytes().map_err(|_| payload::unreadable("READLINK"))
    }

    async fn read(&self, file: &Handle, offset: u64, count: u32) -> Result<ReadData> {
        let ok = self.reading(file, offset, count, None).await.0?;
        Ok(ReadData { data: ok.data.0, eof: ok.eof, size: None })
    }

    async fn read_into(&self, file: &Handle, offset: u64, buffer: Buffer) -> (Result<ReadInfo>, Buffer) {
        let wanted = buffer.len();
        let Ok(count) = u32::try_from(wanted) else {
            return (Err(Error::new(ErrorKind::Invalid("a READ of 4 GiB or more"), "READ")), buffer);
        };
        let (result, sink) = self.reading(file, offset, count, Some(buffer)).await;
        // At a deadline the transport may still have it; it goes home from there.
        let sink = sink.unwrap_or_else(|| self.server.client.link.trunk.pool().take(wanted).into());
        match result {
            Err(error) => (Err(error), payload::reclaim(sink, wanted)),
            Ok(ok) => {
                let info = ReadInfo { len: ok.data.0.len(), eof: ok.eof };
                match payload::settle(ok.data.0, sink, wanted) {
                    Ok(buffer) => (Ok(info), buffer),
                    Err(buffer) => (Err(payload::unreadable("READ")), buffer),
                }
            }
        }
    }

    async fn write(&self, handle: &Handle, offset: u64, data: Rope, stable: StableHow) -> Result<Written> {
        if data.len() > DATA_BOUND {
            return Err(Error::new(ErrorKind::Invalid("a WRITE of more than 4 MiB"), "WRITE"));
        }
        let stable = match stable {
            StableHow::Unstable => StableHow4::Unstable,
            StableHow::DataSync => StableHow4::DataSync,
            StableHow::FileSync => StableHow4::FileSync,
        };
        let end = offset.saturating_add(data.len() as u64);
        let ok = self
            .with_stateid(handle, OPEN4_SHARE_ACCESS_WRITE, |stateid| {
                let args = WriteArgs { stateid, offset, stable, data: Payload(data.clone()) };
                async move {
                    // Opened for it by now, and delegated perhaps.
                    let writing = self.server.opens.file(handle).0.writing(&self.server.opens, end);
                    let compound = Compound::on("WRITE", handle).op(Argop4::Write(args), 16);
                    let mut results = self.run(&compound).await?;
                    results.skip(&[Opnum4::PutFh])?;
                    let ok = value!(results, Write)?;
                    if offset.saturating_add(ok.count.into()) == end {
                        writing.done();
                    }
                    Ok(ok)
                }
            })
            .await?;
        let committed = match ok.committed {
            StableHow4::Unstable => StableHow::Unstable,
            StableHow4::DataSync => StableHow::DataSync,
            StableHow4::FileSync => StableHow::FileSync,
        };
        Ok(Written { count: ok.count, committed, verf: ok.writeverf })
    }

    async fn commit(&self, file: &Handle) -> Result<Verifier> {
        let args = CommitArgs { offset: 0, count: 0 };
        let mut results = self.run(&Compound::on("COMMIT", file).op(Argop4::Commit(args), 8)).await?;
        results.skip(&[Opnum4::PutFh])?;
        value!(results, Commit)
    }

    async fn create(&self, dir: &Handle, name: &[u8], how: CreateHow) -> Result<Node> {
        let (how, set_after) = match how {
            CreateHow::Unchecked(set) => (Createhow4::Unchecked(attr::to_set(&set)), None),
            CreateHow::Guarded(set) => (Createhow4::Guarded(attr::to_set(&set)), None),
            // RFC 7530 §16.16.5: no attributes are set, and the verifier may be in the place of some.
            CreateHow::Exclusive(verf, set) if self.server.client.minor() == 0 => {
                (Createhow4::Exclusive(verf), Some(set.with_times()))
            }
            // RFC 8881 §18.16.3: the server may keep the verifier in the times, which are then not to be set here.
            CreateHow::Exclusive(verf, set) => {
                let dont = SetTime::DontChange;
                let attrs = attr::to_set(&SetAttr { atime: dont, mtime: dont, ..set });
                (Createhow4::Exclusive41 { verf, attrs }, None)
            }
        };
        let access = OPEN4_SHARE_ACCESS_WRITE | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
        let compound = Compound::on("OPEN", dir)
            .op(open(&self.server.opens, access, Openflag4::Create(how), OpenClaim4::Null(component(name)?)), OPEN_MAX)
            .get_fh()
            .get_attr(attr::WANTED)
            .once();
        let asked = self.server.opens.delegations.now();
        let mut results = self.run(&compound).await?;
        results.skip(&[Opnum4::PutFh])?;
        let ok = value!(results, Open)?;
        let node = node(&mut results)?;
        let seen = Seen { attr: node.attr.clone(), change: None, asked };
        self.server.opens.opened(&node.handle, ok, OPEN4_SHARE_ACCESS_WRITE, seen);
        self.server.opens.changed(&node.handle);
        self.server.opens.found(dir, name, &node.handle, node.attr.as_ref());
        match set_after {
            Some(set) => Ok(Node { attr: self.setattr(&node.handle, set).await?, ..node }),
            None => Ok(node),
        }
    }

    async fn mkdir(&self, dir: &Handle, name: &[u8], set: SetAttr) -> Result<Node> {
        self.make(dir, name, Createtype4::Other(Ftype4::Dir), &set).await
    }

    async fn symlink(&self, dir: &Handle, name: &[u8], text: Bytes, set: SetAttr) -> Result<Node> {
        if text.len() > NAME_BOUND {
            return Err(Error::refused(Status::NameTooLong, "CREATE"));
        }
        self.make(dir, name, Createtype4::Lnk(text.into()), &set).await
    }

    async fn mknod(&self, dir: &Handle, name: &[u8], what: Special, set: SetAttr) -> Result<Node> {
        let what = match what {
            Special::Blk(device) => Createtype4::Blk(attr::specdata(device)),
            Special::Chr(device) => Createtype4::Chr(attr::specdata(device)),
            Special::Sock => Createtype4::Other(Ftype4::Sock),
            Special::Fifo => Createtype4::Other(Ftype4::Fifo),
        };
        self.make(dir, name, what, &set).await
    }

    async fn remove(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        self.removing(dir, name, false).await
    }

    async fn rmdir(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        self.removing(dir, name, true).await
    }

    async fn rename(&self, from_dir: &Handle, from: &[u8], to_dir: &Handle, to: &[u8]) -> Result<()> {
        let args = RenameArgs { oldname: component(from)?, newname: component(to)? };
        let compound =
            Compound::on("RENAME", from_dir).op(Argop4::SaveFh, 0).put_fh(to_dir).op(Argop4::Rename(args), 40).once();
        let names_change = || [(from_dir, from), (to_dir, to)].map(|(dir, name)| self.server.opens.renamed(dir, name));
        names_change();
        let renamed = self.run(&compound).await.map(drop);
        names_change();
        if renamed.is_ok() {
            self.server.opens.names.lock().renamed((from_dir, from), (to_dir, to));
        }
        renamed
    }

    async fn link(&self, object: &Handle, dir: &Handle, name: &[u8]) -> Result<Option<Attr>> {
        let args = LinkArgs { newname: component(name)? };
        let compound = Compound::on("LINK", object)
            .op(Argop4::SaveFh, 0)
            .put_fh(dir)
            .op(Argop4::Link(args), 20)
            .op(Argop4::RestoreFh, 0)
            .get_attr(attr::WANTED)
            .once();
        let mut results = self.run(&compound).await?;
        self.server.opens.changed(object);
        results.skip(&[Opnum4::PutFh, Opnum4::SaveFh, Opnum4::PutFh, Opnum4::Link, Opnum4::RestoreFh])?;
        attr::of(&value!(results, GetAttr)?).map(Some)
    }

    async fn readdir(&self, dir: &Handle, cookie: u64, verifier: Verifier, count: u32, plus: bool) -> Result<Page> {
        let wanted: &[Attr4] = if plus { attr::WANTED } else { &[Attr4::Fileid] };
        let extra = [Attr4::RdattrError, Attr4::MountedOnFileid, Attr4::Filehandle];
        let extra = &extra[..if plus { 3 } else { 2 }];
        let attr_request = wanted.iter().chain(extra).map(|&attribute| attribute as u32).collect();
        let args = ReadDirArgs { cookie, cookieverf: verifier, dircount: count, maxcount: count, attr_request };
        let compound = Compound::on("READDIR", dir).op(Argop4::ReadDir(args), count as usize);
        let mut results = self.run(&compound).await?;
        results.skip(&[Opnum4::PutFh])?;
        let ok = value!(results, ReadDir)?;
        let mut entries = Vec::with_capacity(ok.reply.entries.len());
        for entry in ok.reply.entries {
            let attrs = attr::values(&entry.attrs)?;
            let readable = plus && attrs.rdattr_error.is_none_or(|status| status == Nfsstat4::Ok);
            let attr = readable.then(|| attr::from_values(&attrs)).flatten();
            let handle = attrs.filehandle.filter(|_| readable);
            if let Some(handle) = &handle {
                self.server.opens.found(dir, &entry.name.0, handle, attr.as_ref());
            }
            entries.push(Entry {
                fileid: attrs.fileid.or(attrs.mounted_on_fileid).unwrap_or(0),
                name: entry.name.0,
                cookie: entry.cookie,
                attr,
                handle,
            });
        }
        Ok(Page { verifier: ok.cookieverf, entries, eof: ok.reply.eof })
    }

    async fn fsstat(&self, object: &Handle) -> Result<FsStat> {
        let wanted = [
            Attr4::FilesAvail,
            Attr4::FilesFree,
            Attr4::FilesTotal,
            Attr4::SpaceAvail,
            Attr4::SpaceFree,
            Attr4::SpaceTotal,
        ];
        let mut results = self.run(&Compound::on("GETATTR", object).get_attr(&wanted)).await?;
        results.skip(&[Opnum4::PutFh])?;
        let attrs = attr::values(&value!(results, GetAttr)?)?;
        Ok(FsStat {
            tbytes: attrs.space_total.unwrap_or(0),
            fbytes: attrs.space_free.unwrap_or(0),
            abytes: attrs.space_avail.unwrap_or(0),
            tfiles: attrs.files_total.unwrap_or(0),
            ffiles: attrs.files_free.unwrap_or(0),
            afiles: attrs.files_avail.unwrap_or(0),
        })
    }

    async fn pathconf(&self, object: &Handle) -> Result<PathConf> {
        let wanted = [
            Attr4::CaseInsensitive,
            Attr4::CasePreserving,
            Attr4::ChownRestricted,
            Attr4::Maxlink,
            Attr4::Maxname,
            Attr4::NoTrunc,
        ];
        let mut results = self.run(&Compound::on("GETATTR", object).get_attr(&wanted)).await?;
        results.skip(&[Opnum4::PutFh])?;
        let attrs = attr::values(&value!(results, GetAttr)?)?;
        Ok(PathConf {
            linkmax: attrs.maxlink.unwrap_or(1),
            name_max: attrs.maxname.unwrap_or(255),
            no_trunc: attrs.no_trunc.unwrap_or(true),
            chown_restricted: attrs.chown_restricted.unwrap_or(true),
            case_insensitive: attrs.case_insensitive.unwrap_or(false),
            case_preserving: attrs.case_preserving.unwrap_or(true),
        })
    }
}

impl V4 {
    /// READ, with the caller's buffer if there is one; it comes back unless a transport still had it at the deadline.
    async fn reading(
        &self,
        handle: &Handle,
        offset: u64,
        count: u32,
        mut buffer: Option<Buffer>,
    ) -> (Result<ReadOk>, Option<SharedBuffer>) {
        let file = self.server.opens.file(handle);
        let deadline = &self.deadline();
        let wanted = buffer.as_ref().map(|buffer| buffer.len());
        let mut backoff = crate::call::Backoff::new();
        for _ in 0..super::STATE_TRIES {
            let stateid = match file.0.stateid(&self.server.opens, OPEN4_SHARE_ACCESS_READ, deadline).await {
                Ok(stateid) => stateid,
                Err(error) => return (Err(error), buffer.map(SharedBuffer::from)),
            };
            let args = ReadArgs { stateid, offset, count };
            let compound = Compound::on("READ", handle).op(Argop4::Read(args), 8).payload(count as usize, true);
            loop {
                let (result, sink) = self.server.client.run_once(&compound, buffer.take(), deadline).await;
                let error = match result {
                    Ok(mut results) => {
                        let sink = results.sink.take();
                        let ok = results.skip(&[Opnum4::PutFh]).and_then(|()| value!(results, Read));
                        let ok = ok.and_then(|ok| match ok.data.0.len() <= count as usize {
                            true => Ok(ok),
                            false => Err(results.nonsense("more data than was asked for")),
                        });
                        return (ok, sink);
                    }
                    Err(error) => error,
                };
                let later = error.is_later();
                if !later && !file.0.state_failed(&stateid, &error) {
                    return (Err(error), sink);
                }
                buffer = wanted.map(|len| match sink {
                    Some(sink) => payload::reclaim(sink, len),
                    None => self.server.client.link.trunk.pool().take(len),
                });
                if !later {
                    file.0.settled().await;
                    break;
                }
                if !backoff.later(self.program(), &error, deadline).await {
                    return (Err(error), buffer.map(SharedBuffer::from));
                }
            }
        }
        (Err(failure(Nfsstat4::BadStateid, "READ")), buffer.map(SharedBuffer::from))
    }

    async fn make(&self, dir: &Handle, name: &[u8], what: Createtype4, set: &SetAttr) -> Result<Node> {
        let args = CreateArgs { objtype: what, objname: component(name)?, createattrs: attr::to_set(set) };
        let compound = Compound::on("CREATE", dir).op(Argop4::Create(args), 40).get_fh().get_attr(attr::WANTED).once();
        let mut results = self.run(&compound).await?;
        results.skip(&[Opnum4::PutFh, Opnum4::Create])?;
        let made = node(&mut results)?;
        self.server.opens.found(dir, name, &made.handle, made.attr.as_ref());
        Ok(made)
    }

    /// REMOVE takes directories and everything else (RFC 8881 §18.25): what it is to be is compared first.
    async fn removing(&self, dir: &Handle, name: &[u8], directory: bool) -> Result<()> {
        let of_type = nfs::v4::attr::Attrs { object_type: Some(Ftype4::Dir), ..Default::default() };
        let args = VerifyArgs { obj_attributes: of_type.into() };
        let compare = if directory { Argop4::Verify(args) } else { Argop4::NVerify(args) };
        let target = component(name)?;
        let compound = Compound::on("REMOVE", dir)
            .op(Argop4::SaveFh, 0)
            .lookup(target.clone())
            .op(compare, 0)
            .op(Argop4::RestoreFh, 0)
            .op(Argop4::Remove(RemoveArgs { target }), 20)
            .once();
        self.server.opens.renamed(dir, name);
        let removed = self.run(&compound).await.map(drop);
        self.server.opens.renamed(dir, name);
        match removed {
            Err(error) if error.status4() == Some(Nfsstat4::NotSame) => {
                Err(Error::refused(Status::NotADirectory, "REMOVE"))
            }
            Err(error) if error.status4() == Some(Nfsstat4::Same) => {
                Err(Error::refused(Status::IsADirectory, "REMOVE"))
            }
            result => result,
        }
    }
}

/// The results of GETFH and GETATTR.
fn node(results: &mut Results) -> Result<Node> {
    let handle = value!(*results, GetFh)?;
    let attr = attr::of(&value!(*results, GetAttr)?)?;
    Ok(Node { handle: Opaque(handle.0), attr: Some(attr) })
}
