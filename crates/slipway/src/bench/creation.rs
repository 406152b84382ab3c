//! [`Creation`]: new files with layouts to write, and no data.
//!
//! Each file costs five requests to the metadata server: OPEN, LAYOUTGET, GETATTR, SETATTR of the mode, and CLOSE. So the objects of each file
//! exist, or their handles are computed, and no call of the client goes to a data server. The layouts are returned when the time has ended:
//! a client keeps its layouts, too, and the metadata server then asks the data servers how long each object is.
//!
//! Errors: those of [`layouts`](super::layouts).

use std::{cell::RefCell, time::Duration, time::Instant};

use client::{Handle, NfsUrl};
use nfs::v4::{
    attr::{Attr4, Attrs},
    *,
};

use super::{
    layouts::{Caller, close, create, get_layout, put, return_layout},
    load::{self, Costs},
    meter::Meter,
    point::Point,
    runner::{Measured, Subject},
    sample::Tally,
    workload::NEW_FILES,
};
use crate::{exit::Failure, reach};

/// A cluster in which files are created.
pub struct Creation<'a> {
    /// The URL of the metadata server.
    pub url: NfsUrl,
    /// The number of objects of each file.
    pub objects: u32,
    /// The process IDs of the metadata server and of the data servers.
    pub pids: (u32, Vec<u32>),
    /// The time of each run.
    pub limit: Duration,
    /// The meter of the machine's memory.
    pub meter: &'a Meter,
}

impl Subject for Creation<'_> {
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
        let connect = |thread| {
            let runtime = reach::runtime()?;
            let caller = runtime.block_on(Caller::connect(&self.url))?;
            let most = NEW_FILES / u64::from(point.threads);
            let (objects, made) = (self.objects, RefCell::default());
            Ok((Creator { caller, thread, objects, most, made }, runtime))
        };
        let drive =
            |(creator, runtime): &(Creator, tokio::runtime::Runtime), end| runtime.block_on(creator.repeat(end));
        let finish = |(creator, runtime): (Creator, tokio::runtime::Runtime)| runtime.block_on(creator.remove_files());
        let (metadata, data) = &self.pids;
        let costs = Costs { servers: &[*metadata], data_servers: data, meter: self.meter };
        load::measure(point.threads, self.limit, &costs, connect, drive, finish).map(Measured::Sample)
    }
}

/// A client that creates files.
struct Creator {
    caller: Caller,
    thread: u32,
    objects: u32,
    /// The maximum number of files.
    most: u64,
    /// The files that it has made, with their names and layouts.
    made: RefCell<Vec<(String, Handle, Stateid4)>>,
}

impl Creator {
    async fn repeat(&self, end: Instant) -> Result<Tally, Failure> {
        let mut tally = Tally::until(end);
        while tally.goes_on() && tally.operations < self.most {
            let name = format!("created-{}-{}", self.thread, tally.operations);
            self.create(name).await?;
            tally.count(0, None);
        }
        Ok(tally)
    }

    /// Creates a file with a layout, looks at it, changes its mode, and closes it. Keeps the layout.
    async fn create(&self, name: String) -> Result<(), Failure> {
        let opening = vec![put(&self.caller.root), create(&name, Createhow4::Guarded), Argop4::GetFh];
        let results: Result<[Resop4; 3], _> = self.caller.call(opening).await?.try_into();
        let Ok([_, Resop4::Open(Res4::Ok(opened)), Resop4::GetFh(Res4::Ok(file))]) = results else {
            return Err(self.caller.unexpected("OPEN"));
        };
        let layout = get_layout(Layoutiomode4::Rw, opened.stateid);
        let Some(Resop4::LayoutGet(LayoutGetRes::Ok(granted))) =
            self.caller.call(vec![put(&file), layout]).await?.pop()
        else {
            return Err(self.caller.unexpected("LAYOUTGET"));
        };
        self.caller.objects(&granted, self.objects)?;
        let wanted = [Attr4::Type, Attr4::Change, Attr4::Size, Attr4::Fileid, Attr4::Mode, Attr4::TimeModify];
        let look = Argop4::GetAttr(GetAttrArgs { attr_request: wanted.into_iter().collect() });
        self.caller.call(vec![put(&file), look]).await?;
        let attrs = Attrs { mode: Some(0o644), ..Attrs::default() };
        let change = SetAttrArgs { stateid: Stateid4::ANONYMOUS, obj_attributes: attrs.into() };
        self.caller.call(vec![put(&file), Argop4::SetAttr(change)]).await?;
        self.caller.call(vec![put(&file), close(opened.stateid)]).await?;
        self.made.borrow_mut().push((name, file, granted.stateid));
        Ok(())
    }

    /// Returns the layouts, removes the files, and ends the mount.
    async fn remove_files(self) -> Result<(), Failure> {
        for (name, file, layout) in self.made.into_inner() {
            let remove = Argop4::Remove(RemoveArgs { target: name.as_str().into() });
            let operations = vec![put(&file), return_layout(layout), put(&self.caller.root), remove];
            self.caller.call(operations).await?;
        }
        reach::unmount_all().await;
        Ok(())
    }
}
