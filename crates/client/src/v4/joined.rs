//! WRITE and SETATTR in one request, for small files whose attributes are set after they were written.
//!
//! Read RFC 8881 §16.2 first: a COMPOUND ends with its first failure. So SETATTR is executed only if WRITE has succeeded. If
//! the request fails, or if the server has written less, the caller sends WRITE and SETATTR again, one after the other: both can be
//! repeated, and each then reports its own error.

use buf::Rope;
use nfs::v4::*;
use xdr::Payload;

use super::{attr, delegation::Writing, protocol::V4, request::Target};
use crate::{
    model::{Attr, Handle, Result, SetAttr},
    session::compound::{Compound, value},
};

impl V4 {
    /// Writes `data` at `offset` to stable storage, and then sets attributes other than the size. Returns the attributes after
    /// both, or `None` if one request cannot do that, or has not written all of the data.
    ///
    /// # Errors
    /// Those of WRITE and of SETATTR.
    pub async fn write_and_set(&self, file: &Handle, offset: u64, data: Rope, set: &SetAttr) -> Result<Option<Attr>> {
        // Data of a layout are written to data servers.
        if set.size.is_some() || self.server.opens.layouts.is_active() {
            return Ok(None);
        }
        let (len, mut fits) = (data.len(), true);
        let mut writing = None;
        let make = |target: &mut Target| {
            let part = target.place.write_size(len);
            fits = part == len;
            let end = offset.saturating_add(part as u64);
            writing = target.opened().map(|file| file.0.writing(target.opens(), end));
            let (stateid, stable) = (target.stateids[0], StableHow4::FileSync);
            let write = WriteArgs { stateid, offset, stable, data: Payload(data.slice(0, part)) };
            let compound = Compound::on("WRITE and SETATTR", target.handle()).op(Argop4::Write(write), 16);
            if !fits {
                return Ok(compound);
            }
            // RFC 8881 §18.30.3: the stateid is used only if the size is set.
            let set = SetAttrArgs { stateid: Stateid4::ANONYMOUS, obj_attributes: attr::to_set(set) };
            Ok(compound.op(Argop4::SetAttr(set), 16).get_attr(&attr::WANTED).once())
        };
        let done = self.request("WRITE and SETATTR", file).open_for(OPEN4_SHARE_ACCESS_WRITE).run(make).await;
        let place = self.place_now(file);
        //= rfc8881-10.6-1
        place.v4.server.opens.changed(&place.handle);
        let (target, mut results) = done?;
        results.skip(&[Opnum4::PutFh])?;
        let ok = value!(results, Write)?;
        if !fits || ok.count as usize != len || ok.committed != StableHow4::FileSync {
            return Ok(None);
        }
        results.skip(&[Opnum4::SetAttr])?;
        let attr = attr::of(&value!(results, GetAttr)?)?;
        writing.into_iter().for_each(Writing::done);
        self.server.opens.layouts.count_write(false, len);
        target.opens().resized(target.handle(), attr.size);
        Ok(Some(attr))
    }
}
