//! The operations of a [`Protocol`](crate::Protocol) as compounds of NFSv4 (RFC 8881 §18).

use buf::{Region, Rope, SharedRegion};
use bytes::Bytes;
use nfs::v4::{
    attr::{Attr4, Attrs},
    *,
};
use xdr::{Opaque, Payload};

use super::{
    attr,
    delegation::Writing,
    opens::{OpenAttributes, Opens, open},
    protocol::V4,
    request::Target,
};
use crate::{
    call::payload,
    model::{
        Attr, CreateHow, Entry, Error, ErrorKind, FsStat, Handle, Node, Operations, Page, PathConf, ReadData, ReadInfo,
        Result, SetAttr, SetTime, Special, StableHow, Status, Verifier, Written,
    },
    session::compound::{Compound, Results, component, value},
};

impl Operations for V4 {
    async fn null(&self) -> Result<()> {
        self.run(&Compound::new("PUTROOTFH").op(Argop4::PutRootFh, 0)).await.map(drop)
    }

    async fn getattr(&self, object: &Handle) -> Result<Attr> {
        let delegated = match self.server.moves.any() {
            true => {
                let place = self.place(object).await?;
                place.v4.server.opens.delegated_attr(&place.handle)
            }
            // The object has not moved from the server that issued its handle.
            false => self.server.opens.delegated_attr(object),
        };
        if let Some(attr) = delegated {
            return Ok(attr);
        }
        self.publish(object).await;
        let mut requested_at = 0;
        let make = |target: &mut Target| {
            requested_at = target.opens().delegations.now();
            Ok(Compound::on("GETATTR", target.handle()).get_attr(&attr::WANTED))
        };
        let (target, mut results) = self.request("GETATTR", object).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        let attr = attr::of(&value!(results, GetAttr)?)?;
        target.opens().store_attributes(target.handle(), &attr, requested_at);
        Ok(attr)
    }

    async fn setattr(&self, object: &Handle, set: SetAttr) -> Result<Option<Attr>> {
        let mut request = self.request("SETATTR", object);
        let place = self.place_now(object);
        if set.size.is_some() {
            // RFC 8881 §12.5.4.2: a LAYOUTCOMMIT after this could give the file its former size again.
            self.publish(object).await;
        }
        if set.size.is_some() && place.v4.server.opens.known(&place.handle).is_some() {
            // RFC 8881 §18.30.3: the stateid is used only if the size is set.
            request = request.if_open_for(OPEN4_SHARE_ACCESS_WRITE);
        }
        let make = |target: &mut Target| {
            let args = SetAttrArgs { stateid: target.stateids[0], obj_attributes: attr::to_set(&set) };
            Ok(Compound::on("SETATTR", target.handle()).op(Argop4::SetAttr(args), 16).get_attr(&attr::WANTED).once())
        };
        let done = request.run(make).await;
        let place = self.place_now(object);
        //= rfc8881-10.6-1
        place.v4.server.opens.changed(&place.handle);
        let (target, mut results) = done?;
        results.skip(&[Opnum4::PutFh, Opnum4::SetAttr])?;
        let attr = attr::of(&value!(results, GetAttr)?)?;
        target.opens().resized(target.handle(), attr.size);
        Ok(Some(attr))
    }

    async fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<Node> {
        let place = self.place(dir).await?;
        if let Some(node) = place.v4.server.opens.delegated_name(&place.handle, name) {
            return Ok(place.node(name, node));
        }
        let mut requested_at = 0;
        let make = |target: &mut Target| {
            requested_at = target.opens().delegations.now();
            let compound = Compound::on("LOOKUP", target.handle()).lookup(component(name)?);
            Ok(compound.get_fh().get_attr(&attr::WANTED))
        };
        let (target, mut results) = self.request("LOOKUP", dir).may_cross().run(make).await?;
        results.skip(&[Opnum4::PutFh, Opnum4::Lookup])?;
        let node = node(&mut results)?;
        let (opens, dir) = (target.opens(), target.handle());
        opens.found(dir, name, &node.handle, node.attr.as_ref());
        opens.name_found(dir, name, &node.handle, requested_at);
        node.attr.iter().for_each(|attr| opens.store_attributes(&node.handle, attr, requested_at));
        let mut node = target.place.node(name, node);
        if self.is_unpublished(&node.handle) {
            node.attr = Some(self.getattr(&node.handle).await?);
        }
        Ok(node)
    }

    async fn access(&self, object: &Handle, wanted: u32) -> Result<u32> {
        let args = AccessArgs { access: wanted };
        let make =
            |target: &mut Target| Ok(Compound::on("ACCESS", target.handle()).op(Argop4::Access(args.clone()), 8));
        let (_, mut results) = self.request("ACCESS", object).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        Ok(value!(results, Access)?.access)
    }

    async fn readlink(&self, link: &Handle) -> Result<Bytes> {
        // The text is not requested as a payload, although it could be one: Linux's server (6.1) then places its length
        // with it and omits the length from the reply. Linux's client never requests that.
        let make =
            |target: &mut Target| Ok(Compound::on("READLINK", target.handle()).op(Argop4::ReadLink, 4 + NAME_BOUND));
        let (_, mut results) = self.request("READLINK", link).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        let text = value!(results, ReadLink)?.link.0;
        text.to_bytes().map_err(|_| payload::unreadable("READLINK"))
    }

    async fn read(&self, file: &Handle, offset: u64, count: u32) -> Result<ReadData> {
        let layouts = &self.server.opens.layouts;
        // Boxed, so that it does not enlarge the future of every READ.
        if layouts.is_active()
            && let Some(read) = Box::pin(self.read_directly(file, offset, count)).await
        {
            return read;
        }
        let ok = self.send_read(file, offset, count, None).await.0?;
        layouts.count_read(false, ok.data.0.len());
        Ok(ReadData { data: ok.data.0, eof: ok.eof, size: None })
    }

    async fn read_into(&self, file: &Handle, offset: u64, mut region: Region) -> (Result<ReadInfo>, Region) {
        let (wanted, layouts) = (region.len(), &self.server.opens.layouts);
        if layouts.is_active() {
            region = match Box::pin(self.read_directly_into(file, offset, region)).await {
                Ok(read) => return read,
                Err(region) => region,
            };
        }
        let Ok(count) = u32::try_from(wanted) else {
            return (Err(Error::new(ErrorKind::Invalid("a READ of 4 GiB or more"), "READ")), region);
        };
        let (result, sink) = self.send_read(file, offset, count, Some(region)).await;
        // At the deadline, the transport may still hold the region. It then releases it later.
        let sink = sink.unwrap_or_else(|| Region::from(self.program().pool().take(wanted)).into());
        match result {
            Err(error) => (Err(error), payload::into_region(sink, wanted)),
            Ok(ok) => {
                let info = ReadInfo { len: ok.data.0.len(), eof: ok.eof };
                layouts.count_read(false, info.len);
                let (settled, region) = payload::place_in_sink(ok.data.0, sink, wanted);
                (settled.map(|()| info), region)
            }
        }
    }

    async fn write(&self, handle: &Handle, offset: u64, data: Rope, stable: StableHow) -> Result<Written> {
        if data.len() > DATA_BOUND {
            return Err(Error::new(ErrorKind::Invalid("a WRITE of more than 4 MiB"), "WRITE"));
        }
        let layouts = &self.server.opens.layouts;
        if layouts.is_active()
            && let Some(written) = Box::pin(self.write_directly(handle, offset, &data, stable)).await
        {
            return Ok(written);
        }
        let stable = match stable {
            StableHow::Unstable => StableHow4::Unstable,
            StableHow::DataSync => StableHow4::DataSync,
            StableHow::FileSync => StableHow4::FileSync,
        };
        let mut writing = None;
        let mut end = 0;
        let make = |target: &mut Target| {
            let len = target.place.write_size(data.len());
            let data = if len < data.len() { data.slice(0, len) } else { data.clone() };
            end = offset.saturating_add(len as u64);
            // The file is now open for writing, and may be delegated. At a data server it is not.
            writing = target.opened().map(|file| file.0.writing(target.opens(), end));
            let args = WriteArgs { stateid: target.stateids[0], offset, stable, data: Payload(data) };
            Ok(Compound::on("WRITE", target.handle()).op(Argop4::Write(args), 16))
        };
        let request = self.request("WRITE", handle).open_for(OPEN4_SHARE_ACCESS_WRITE);
        let (target, mut results) = request.run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        let ok = value!(results, Write)?;
        if offset.saturating_add(ok.count.into()) == end {
            writing.into_iter().for_each(Writing::done);
        }
        layouts.count_write(false, ok.count as usize);
        let committed = match ok.committed {
            StableHow4::Unstable => StableHow::Unstable,
            StableHow4::DataSync => StableHow::DataSync,
            StableHow4::FileSync => StableHow::FileSync,
        };
        let written = Written { count: ok.count, committed, verf: target.place.verifier(ok.writeverf) };
        Ok(self.wrote_through_server(handle, written))
    }

    async fn commit(&self, file: &Handle) -> Result<Verifier> {
        // Boxed, so that it does not enlarge the future of every COMMIT.
        match self.server.opens.layouts.is_active() && !self.server.moves.any() {
            true => Box::pin(self.commit_both_ways(file)).await,
            false => self.commit_at_server(file).await,
        }
    }

    async fn create(&self, dir: &Handle, name: &[u8], how_wanted: CreateHow) -> Result<Node> {
        let (mut requested_at, caller) = (0, self.caller.as_ref());
        let make = |target: &mut Target| {
            let how = creation(&how_wanted, target.server().client.minor());
            let access = OPEN4_SHARE_ACCESS_WRITE | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
            let claim = OpenClaim4::Null(component(name)?);
            requested_at = target.opens().delegations.now();
            Ok(Compound::on("OPEN", target.handle())
                .open(open(target.opens(), (caller, access), Openflag4::Create(how), claim))
                .get_attr(&attr::WANTED)
                .once())
        };
        let (target, mut results) = self.request("OPEN", dir).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        let ok = value!(results, Open)?;
        let node = node(&mut results)?;
        let set_after = set_after_creation(&how_wanted, target.server().client.minor(), &ok.attrset);
        let seen = OpenAttributes { attr: node.attr.clone(), change: None, threshold: None, requested_at };
        let opens = target.opens();
        opens.opened(&node.handle, *ok, (caller, OPEN4_SHARE_ACCESS_WRITE), seen);
        opens.changed(&node.handle);
        opens.found(target.handle(), name, &node.handle, node.attr.as_ref());
        let node = target.place.node(name, node);
        match set_after {
            //= rfc8881-18.16.4-3 rfc8881-18.16.4-4
            Some(set) => Ok(Node { attr: self.setattr(&node.handle, set).await?, ..node }),
            None => Ok(node),
        }
    }

    async fn mkdir(&self, dir: &Handle, name: &[u8], set: SetAttr) -> Result<Node> {
        self.create_object(dir, name, Createtype4::Other(Ftype4::Dir), &set).await
    }

    async fn symlink(&self, dir: &Handle, name: &[u8], text: Bytes, set: SetAttr) -> Result<Node> {
        if text.len() > NAME_BOUND {
            return Err(Error::refused(Status::NameTooLong, "CREATE"));
        }
        self.create_object(dir, name, Createtype4::Lnk(text.into()), &set).await
    }

    async fn mknod(&self, dir: &Handle, name: &[u8], what: Special, set: SetAttr) -> Result<Node> {
        let what = match what {
            Special::Blk(device) => Createtype4::Blk(attr::specdata(device)),
            Special::Chr(device) => Createtype4::Chr(attr::specdata(device)),
            Special::Sock => Createtype4::Other(Ftype4::Sock),
            Special::Fifo => Createtype4::Other(Ftype4::Fifo),
        };
        self.create_object(dir, name, what, &set).await
    }

    async fn remove(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        self.remove_object(dir, name, false).await
    }

    async fn rmdir(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        self.remove_object(dir, name, true).await
    }

    async fn rename(&self, from_dir: &Handle, from: &[u8], to_dir: &Handle, to: &[u8]) -> Result<()> {
        let args = RenameArgs { oldname: component(from)?, newname: component(to)? };
        let make = |target: &mut Target| {
            invalidate_names(target.opens(), [(target.handle(), from), (target.other(), to)]);
            let compound = Compound::on("RENAME", target.handle()).op(Argop4::SaveFh, 0).put_fh(target.other());
            Ok(compound.op(Argop4::Rename(args.clone()), 40).once())
        };
        let renamed = self.request("RENAME", from_dir).and(to_dir).run(make).await;
        let (from_place, to_place) = (self.place_now(from_dir), self.place_now(to_dir));
        invalidate_names(&from_place.v4.server.opens, [(&from_place.handle, from), (&to_place.handle, to)]);
        let (target, _) = renamed?;
        target.opens().names.lock().renamed((target.handle(), from), (target.other(), to));
        self.rename_at_former_servers((from_dir, from), (to_dir, to));
        Ok(())
    }

    async fn link(&self, object: &Handle, dir: &Handle, name: &[u8]) -> Result<Option<Attr>> {
        let args = LinkArgs { newname: component(name)? };
        let make = |target: &mut Target| {
            Ok(Compound::on("LINK", target.handle())
                .op(Argop4::SaveFh, 0)
                .put_fh(target.other())
                .op(Argop4::Link(args.clone()), 20)
                .op(Argop4::RestoreFh, 0)
                .get_attr(&attr::WANTED)
                .once())
        };
        let (target, mut results) = self.request("LINK", object).and(dir).run(make).await?;
        target.opens().changed(target.handle());
        results.skip(&[Opnum4::PutFh, Opnum4::SaveFh, Opnum4::PutFh, Opnum4::Link, Opnum4::RestoreFh])?;
        attr::of(&value!(results, GetAttr)?).map(Some)
    }

    async fn readdir(&self, dir: &Handle, cookie: u64, verifier: Verifier, count: u32, plus: bool) -> Result<Page> {
        let wanted = plus.then(|| attr::WANTED.clone());
        self.list(dir, (cookie, verifier), count, wanted, |_| ()).await
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
        let wanted = wanted.into_iter().collect();
        let make = |target: &mut Target| Ok(Compound::on("GETATTR", target.handle()).get_attr(&wanted));
        let (_, mut results) = self.request("GETATTR", object).run(make).await?;
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
        let wanted = wanted.into_iter().collect();
        let make = |target: &mut Target| Ok(Compound::on("GETATTR", target.handle()).get_attr(&wanted));
        let (_, mut results) = self.request("GETATTR", object).run(make).await?;
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
    /// Sends READ, with the caller's region if there is one. Returns the region, unless a transport still held it at
    /// the deadline.
    async fn send_read(
        &self,
        handle: &Handle,
        offset: u64,
        count: u32,
        region: Option<Region>,
    ) -> (Result<ReadOk>, Option<SharedRegion>) {
        let mut wanted = 0;
        let make = |target: &mut Target| {
            wanted = target.place.read_size(count);
            let args = ReadArgs { stateid: target.stateids[0], offset, count: wanted };
            Ok(Compound::on("READ", target.handle()).op(Argop4::Read(args), 8).payload(wanted as usize, true))
        };
        let request = self.request("READ", handle).open_for(OPEN4_SHARE_ACCESS_READ);
        let (result, sink) = request.run_with_buffer(make, region).await;
        let ok = result.and_then(|mut results| {
            results.skip(&[Opnum4::PutFh])?;
            let ok = value!(results, Read)?;
            match ok.data.0.len() <= wanted as usize {
                true => Ok(ok),
                false => Err(results.protocol_error("more data than requested")),
            }
        });
        (ok, sink)
    }

    /// READDIR. With `wanted`, requests these attributes and the handles. Passes the attributes of each entry to `each`.
    pub(super) async fn list(
        &self,
        dir: &Handle,
        (cookie, verifier): (u64, Verifier),
        count: u32,
        wanted: Option<Bitmap4>,
        mut each: impl FnMut(Attrs) + Send,
    ) -> Result<Page> {
        let always = [Attr4::Fileid, Attr4::RdattrError, Attr4::MountedOnFileid].into_iter().collect::<Bitmap4>();
        let attr_request = match &wanted {
            Some(wanted) => always.union(wanted).union(&[Attr4::Filehandle].into_iter().collect()),
            None => always,
        };
        let make = |target: &mut Target| {
            let attr_request = attr_request.clone();
            let args = ReadDirArgs { cookie, cookieverf: verifier, dircount: count, maxcount: count, attr_request };
            Ok(Compound::on("READDIR", target.handle()).op(Argop4::ReadDir(args), count as usize))
        };
        let (target, mut results) = self.request("READDIR", dir).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        let ok = value!(results, ReadDir)?;
        let mut entries = Vec::with_capacity(ok.reply.entries.len());
        for entry in ok.reply.entries {
            let mut attrs = attr::values(&entry.attrs)?;
            let readable = wanted.is_some() && attrs.rdattr_error.is_none_or(|status| status == Nfsstat4::Ok);
            let attr = readable.then(|| attr::from_values(&attrs)).flatten();
            let handle = attrs.filehandle.take().filter(|_| readable);
            let handle = handle.map(|handle| {
                target.opens().found(target.handle(), &entry.name.0, &handle, attr.as_ref());
                target.place.name(handle, Some((&entry.name.0, attr.as_ref())))
            });
            let fileid = attrs.fileid.or(attrs.mounted_on_fileid).unwrap_or(0);
            entries.push(Entry { fileid, name: entry.name.0, cookie: entry.cookie, attr, handle });
            each(attrs);
        }
        Ok(Page { verifier: ok.cookieverf, entries, eof: ok.reply.eof })
    }

    async fn create_object(&self, dir: &Handle, name: &[u8], what: Createtype4, set: &SetAttr) -> Result<Node> {
        let createattrs = attr::to_set(set);
        let args = Box::new(CreateArgs { objtype: what, objname: component(name)?, createattrs });
        let make = |target: &mut Target| {
            let compound = Compound::on("CREATE", target.handle()).op(Argop4::Create(args.clone()), 40);
            //= rfc8881-2.10.6.4-4
            Ok(compound.get_fh().get_attr(&attr::WANTED).once())
        };
        let (target, mut results) = self.request("CREATE", dir).run(make).await?;
        results.skip(&[Opnum4::PutFh, Opnum4::Create])?;
        let made = node(&mut results)?;
        target.opens().found(target.handle(), name, &made.handle, made.attr.as_ref());
        Ok(target.place.node(name, made))
    }

    /// Sends COMMIT to the server that has the names.
    pub(super) async fn commit_at_server(&self, file: &Handle) -> Result<Verifier> {
        let make = |target: &mut Target| {
            let args = CommitArgs { offset: 0, count: 0 };
            Ok(Compound::on("COMMIT", target.handle()).op(Argop4::Commit(args), 8))
        };
        let (target, mut results) = self.request("COMMIT", file).run(make).await?;
        results.skip(&[Opnum4::PutFh])?;
        Ok(target.place.verifier(value!(results, Commit)?))
    }

    /// Sends REMOVE, which removes directories and other objects (RFC 8881 §18.25), after it has compared the type in
    /// the same compound.
    async fn remove_object(&self, dir: &Handle, name: &[u8], directory: bool) -> Result<()> {
        let of_type = nfs::v4::attr::Attrs { object_type: Some(Ftype4::Dir), ..Default::default() };
        let args = VerifyArgs { obj_attributes: of_type.into() };
        let compare = if directory { Argop4::Verify(args) } else { Argop4::NVerify(args) };
        let name_of = component(name)?;
        let make = |target: &mut Target| {
            target.opens().renamed(target.handle(), name);
            Ok(Compound::on("REMOVE", target.handle())
                .op(Argop4::SaveFh, 0)
                .lookup(name_of.clone())
                .op(compare.clone(), 0)
                .op(Argop4::RestoreFh, 0)
                .op(Argop4::Remove(RemoveArgs { target: name_of.clone() }), 20)
                .once())
        };
        let removed = self.request("REMOVE", dir).run(make).await.map(drop);
        let place = self.place_now(dir);
        place.v4.server.opens.renamed(&place.handle, name);
        if removed.is_ok() {
            place.v4.server.opens.removed(&place.handle, name);
        }
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

/// Returns the arguments for creating a file.
fn creation(how: &CreateHow, minor: u32) -> Createhow4 {
    match how.clone() {
        CreateHow::Unchecked(set) => Createhow4::Unchecked(attr::to_set(&set)),
        CreateHow::Guarded(set) => Createhow4::Guarded(attr::to_set(&set)),
        // RFC 7530 §16.16.5: the server sets no attributes, and may store the verifier in some of them.
        CreateHow::Exclusive(verf, _) if minor == 0 => Createhow4::Exclusive(verf),
        // RFC 8881 §18.16.3: the server may store the verifier in the times, which must then not be set here.
        CreateHow::Exclusive(verf, set) => {
            let (atime, mtime) = (SetTime::DontChange, SetTime::DontChange);
            Createhow4::Exclusive41 { verf, attrs: attr::to_set(&SetAttr { atime, mtime, ..set }) }
        }
    }
}

/// Returns the attributes to set after a file was created: those that the OPEN did not set, and those in which the server
/// stores the verifier. `attrset` are the attributes that the OPEN has set.
fn set_after_creation(how: &CreateHow, minor: u32, attrset: &Bitmap4) -> Option<SetAttr> {
    let CreateHow::Exclusive(_, set) = how else { return None };
    if minor == 0 {
        return Some(set.clone().with_times());
    }
    // RFC 8881 §18.16.4: attributes in `attrset` that the OPEN did not contain hold the verifier. A server should use only
    // the times for it. Linux's server reports them as the attributes that are read, others as those that are set.
    let time = |wanted, attributes: [Attr4; 2]| {
        let holds_verifier = attributes.into_iter().any(|attribute| attrset.contains(attribute as u32));
        if wanted == SetTime::DontChange && holds_verifier { SetTime::ToServerTime } else { wanted }
    };
    let atime = time(set.atime, [Attr4::TimeAccess, Attr4::TimeAccessSet]);
    let mtime = time(set.mtime, [Attr4::TimeModify, Attr4::TimeModifySet]);
    let times = SetAttr { atime, mtime, ..SetAttr::default() };
    (times != SetAttr::default()).then_some(times)
}

/// Drops the cached names and attributes of objects whose names change.
fn invalidate_names(opens: &Opens, names: [(&Handle, &[u8]); 2]) {
    names.into_iter().for_each(|(dir, name)| opens.renamed(dir, name));
}

/// Decodes the results of GETFH and GETATTR.
fn node(results: &mut Results) -> Result<Node> {
    let handle = value!(*results, GetFh)?;
    let attr = attr::of(&value!(*results, GetAttr)?)?;
    Ok(Node { handle: Opaque(handle.0), attr: Some(attr) })
}
