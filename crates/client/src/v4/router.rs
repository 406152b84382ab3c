//! [`MigrationRouter`]: directs each operation of a [`Protocol`](crate::Protocol) to the server that has the object now.

use buf::{Buffer, Rope};
use bytes::Bytes;
use parking_lot::Mutex;

use super::{Place, V4};
use crate::model::{
    Attr, CreateHow, FsStat, Handle, Node, Operations, Page, PathConf, ReadData, ReadInfo, Result, SetAttr, Special,
    StableHow, Verifier, Written,
};

/// A server, with the servers to which file systems have moved from there.
pub(crate) struct MigrationRouter<'a>(pub &'a V4);

impl Operations for MigrationRouter<'_> {
    async fn null(&self) -> Result<()> {
        self.0.null().await
    }

    async fn getattr(&self, object: &Handle) -> Result<Attr> {
        self.0.on(object, |at| async move { at.v4.getattr(&at.handle).await }).await
    }

    async fn setattr(&self, object: &Handle, set: SetAttr) -> Result<Option<Attr>> {
        let set = &set;
        self.0.on(object, |at| async move { at.v4.setattr(&at.handle, set.clone()).await }).await
    }

    async fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<Node> {
        let found = self.0.on(dir, |at| async move {
            match at.v4.lookup(&at.handle, name).await {
                // What is found is not here, not where it is looked for: it is a referral.
                Err(error) if !matches!(error.operation(), "PUTFH" | "LOOKUP") => Ok(Err(error)),
                result => Ok(Ok(at.node(name, result?))),
            }
        });
        found.await?
    }

    async fn access(&self, object: &Handle, wanted: u32) -> Result<u32> {
        self.0.on(object, |at| async move { at.v4.access(&at.handle, wanted).await }).await
    }

    async fn readlink(&self, link: &Handle) -> Result<Bytes> {
        self.0.on(link, |at| async move { at.v4.readlink(&at.handle).await }).await
    }

    async fn read(&self, file: &Handle, offset: u64, count: u32) -> Result<ReadData> {
        self.0.on(file, |at| async move { at.v4.read(&at.handle, offset, at.read_size(count)).await }).await
    }

    async fn read_into(&self, file: &Handle, offset: u64, buffer: Buffer) -> (Result<ReadInfo>, Buffer) {
        // Between one try and another it is here.
        let held = &Mutex::new(Some(buffer));
        let done = self.0.on(file, |at| async move {
            let mut buffer = held.lock().take().expect("it has come back");
            let wanted = buffer.len();
            buffer.set_len(at.read_size(wanted.min(u32::MAX as usize) as u32) as usize);
            let (result, mut buffer) = at.v4.read_into(&at.handle, offset, buffer).await;
            match wanted <= buffer.capacity() {
                true => buffer.set_len(wanted),
                // The transport had it still at the deadline.
                false => buffer = at.v4.program().pool().take(wanted),
            }
            *held.lock() = Some(buffer);
            result
        });
        let done = done.await;
        (done, held.lock().take().expect("it has come back"))
    }

    async fn write(&self, file: &Handle, offset: u64, data: Rope, stable: StableHow) -> Result<Written> {
        let data = &data;
        let written = self.0.on(file, |at| async move {
            let data = match at.write_size(data.len()) {
                len if len < data.len() => data.slice(0, len),
                _ => data.clone(),
            };
            let written = at.v4.write(&at.handle, offset, data, stable).await?;
            Ok(Written { verf: at.verifier(written.verf), ..written })
        });
        written.await
    }

    async fn commit(&self, file: &Handle) -> Result<Verifier> {
        self.0.on(file, |at| async move { at.v4.commit(&at.handle).await.map(|verf| at.verifier(verf)) }).await
    }

    async fn create(&self, dir: &Handle, name: &[u8], how: CreateHow) -> Result<Node> {
        let how = &how;
        self.made(dir, name, |at| async move { at.v4.create(&at.handle, name, how.clone()).await }).await
    }

    async fn mkdir(&self, dir: &Handle, name: &[u8], set: SetAttr) -> Result<Node> {
        let set = &set;
        self.made(dir, name, |at| async move { at.v4.mkdir(&at.handle, name, set.clone()).await }).await
    }

    async fn symlink(&self, dir: &Handle, name: &[u8], text: Bytes, set: SetAttr) -> Result<Node> {
        let (text, set) = (&text, &set);
        self.made(dir, name, |at| async move { at.v4.symlink(&at.handle, name, text.clone(), set.clone()).await }).await
    }

    async fn mknod(&self, dir: &Handle, name: &[u8], what: Special, set: SetAttr) -> Result<Node> {
        let set = &set;
        self.made(dir, name, |at| async move { at.v4.mknod(&at.handle, name, what, set.clone()).await }).await
    }

    async fn remove(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        self.0.on(dir, |at| async move { at.v4.remove(&at.handle, name).await }).await
    }

    async fn rmdir(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        self.0.on(dir, |at| async move { at.v4.rmdir(&at.handle, name).await }).await
    }

    async fn rename(&self, from_dir: &Handle, from: &[u8], to_dir: &Handle, to: &[u8]) -> Result<()> {
        let renamed = self.0.on_both("RENAME", from_dir, to_dir, |at, to_dir| async move {
            at.v4.rename(&at.handle, from, &to_dir, to).await
        });
        renamed.await?;
        self.0.renamed_anywhere((from_dir, from), (to_dir, to));
        Ok(())
    }

    async fn link(&self, object: &Handle, dir: &Handle, name: &[u8]) -> Result<Option<Attr>> {
        let linked =
            self.0.on_both("LINK", object, dir, |at, dir| async move { at.v4.link(&at.handle, &dir, name).await });
        linked.await
    }

    async fn readdir(&self, dir: &Handle, cookie: u64, verifier: Verifier, count: u32, plus: bool) -> Result<Page> {
        let page = self.0.on(dir, |at| async move {
            let mut page = at.v4.readdir(&at.handle, cookie, verifier, count, plus).await?;
            for entry in &mut page.entries {
                let known = entry.handle.take();
                entry.handle = known.map(|handle| at.name(handle, Some((&entry.name, entry.attr.as_ref()))));
            }
            Ok(page)
        });
        page.await
    }

    async fn fsstat(&self, object: &Handle) -> Result<FsStat> {
        self.0.on(object, |at| async move { at.v4.fsstat(&at.handle).await }).await
    }

    async fn pathconf(&self, object: &Handle) -> Result<PathConf> {
        self.0.on(object, |at| async move { at.v4.pathconf(&at.handle).await }).await
    }
}

impl MigrationRouter<'_> {
    /// Makes an object under a name.
    async fn made<F: Future<Output = Result<Node>> + Send>(
        &self,
        dir: &Handle,
        name: &[u8],
        make: impl Fn(Place) -> F + Sync,
    ) -> Result<Node> {
        let make = &make;
        self.0.on(dir, |at| async move { make(at.clone()).await.map(|node| at.node(name, node)) }).await
    }
}
