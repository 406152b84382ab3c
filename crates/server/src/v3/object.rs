//! GETATTR, SETATTR, LOOKUP, ACCESS and READLINK: RFC 1813 §3.3.1–3.3.5.

use buf::Rope;
use bytes::Bytes;
use nfs::v3::{
    AccessArgs, AccessOk, Fattr3, GetAttrArgs, LookupArgs, LookupOk, NfsFh3, Nfsstat3, PostOpAttr, ReadLinkArgs,
    SetAttrArgs, WccData,
};
use vfs::{Attr, Change, Handle, Name, VfsError};
use xdr::{Encode, Encoder};

use super::{answers, attr};
use crate::{
    call::{context::Context, error::WouldBlock, object::Object},
    v3::status::{Fault3, encode_result},
};

answers! {
    GetAttr => getattr;
    SetAttr => setattr, Change of |args| ((&args.object, None), None);
    Lookup => lookup;
    Access => access;
    ReadLink => readlink;
}

fn getattr(cx: &Context<'_>, args: &GetAttrArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let result = (|| {
        let object = cx.object(&args.object)?;
        Ok::<Fattr3, Fault3>(object.fattr(&object.getattr()?))
    })();
    encode_result(out, result, || Ok(()))
}

fn setattr(cx: &Context<'_>, args: &SetAttrArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let object = cx.object(&args.object);
    let result = with(&object, |object| {
        let set = attr::set_attr(&args.new_attributes)?;
        let guard = args.guard.map(attr::time).transpose()?;
        let object = object.writable()?;
        let _changing = match set.size {
            Some(_) => cx.before_truncation(object, None)?,
            None => cx.before_change(object, None)?,
        };
        let change = object.vfs().setattr(&object.caller(), &object.handle, &set, guard)?;
        Ok(object.wcc(&change))
    });
    encode_result(out, result, || post_wcc(&object))
}

fn lookup(cx: &Context<'_>, args: &LookupArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let dir = cx.object(&args.what.dir);
    let result = with(&dir, |dir| {
        let (handle, attr) = dir.vfs().lookup(&dir.caller(), &dir.handle, component(&args.what.name)?)?;
        let dir_attributes = dir.post_op().map_err(|WouldBlock| Fault3::WouldBlock)?;
        Ok(LookupOk { object: dir.fh3(&handle), obj_attributes: Some(dir.fattr(&attr)), dir_attributes })
    });
    encode_result(out, result, || post_op(&dir))
}

fn access(cx: &Context<'_>, args: &AccessArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let object = cx.object(&args.object);
    let result = with(&object, |object| {
        let mut wanted = attr::rights(args.access);
        if object.writable().is_err() {
            (wanted.modify, wanted.extend, wanted.delete) = (false, false, false);
        }
        let (granted, attr) = object.vfs().access(&object.caller(), &object.handle, wanted)?;
        let access = attr::access_bits(granted, attr.kind) & attr::access_bits(wanted, attr.kind);
        Ok(AccessOk { obj_attributes: Some(object.fattr(&attr)), access })
    });
    encode_result(out, result, || post_op(&object))
}

fn readlink(cx: &Context<'_>, args: &ReadLinkArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let link = cx.object(&args.symlink);
    let result = with(&link, |link| {
        let (text, attr) = link.vfs().readlink(&link.caller(), &link.handle)?;
        Ok((Some(link.fattr(&attr)), text))
    });
    match result {
        Ok((symlink_attributes, text)) => {
            Nfsstat3::Ok.encode(out);
            symlink_attributes.encode(out);
            out.payload(Rope::from(text));
            Ok(Nfsstat3::Ok)
        }
        Err(fault) => encode_result(out, Err::<(), _>(fault), || post_op(&link)),
    }
}

/// Calls a function with the object, or returns the error.
pub(crate) fn with<'o, 'a, T>(
    object: &'o Result<Object<'a>, VfsError>,
    go_on: impl FnOnce(&'o Object<'a>) -> Result<T, Fault3>,
) -> Result<T, Fault3> {
    match object {
        Ok(object) => go_on(object),
        Err(error) => Err((*error).into()),
    }
}

/// Returns the attributes for the reply of a failed procedure.
pub(crate) fn post_op(object: &Result<Object<'_>, VfsError>) -> Result<PostOpAttr, WouldBlock> {
    object.as_ref().map_or(Ok(None), Object::post_op)
}

/// Returns the weak cache consistency data for the reply of a failed procedure.
pub(super) fn post_wcc(object: &Result<Object<'_>, VfsError>) -> Result<WccData, WouldBlock> {
    object.as_ref().map_or(Ok(WccData::default()), Object::post_wcc)
}

impl Object<'_> {
    /// Returns an object's attributes as NFSv3 sends them.
    pub(crate) fn fattr(&self, attr: &Attr) -> Fattr3 {
        attr::fattr3(attr, self.export)
    }

    /// Returns a change as NFSv3 sends it.
    pub(crate) fn wcc(&self, change: &Change) -> WccData {
        WccData { before: Some(attr::wcc_attr(&change.before)), after: Some(self.fattr(&change.after)) }
    }

    /// Returns the file handle of another object of the same export, as NFSv3 sends it.
    pub(crate) fn fh3(&self, handle: &Handle) -> NfsFh3 {
        Bytes::copy_from_slice(&self.seal(handle)).into()
    }

    /// Returns the current attributes for the reply of a failed procedure. A thread of another export does not wait for
    /// them, because a procedure that uses two exports would otherwise occupy threads of both at once.
    pub(crate) fn post_op(&self) -> Result<PostOpAttr, WouldBlock> {
        match self.getattr() {
            Ok(attr) => Ok(Some(self.fattr(&attr))),
            Err(VfsError::WouldBlock) if self.is_foreign() && !self.is_pending() => Ok(None),
            Err(VfsError::WouldBlock) => Err(WouldBlock),
            Err(_) => Ok(None),
        }
    }

    /// Returns attributes like [`post_op`](Self::post_op), for a procedure that would have changed the object. It does
    /// not report the attributes before the change, because they are not known atomically (RFC 1813 §2.6, `wcc_data`).
    fn post_wcc(&self) -> Result<WccData, WouldBlock> {
        Ok(WccData { before: None, after: self.post_op()? })
    }
}

/// Checks a component from a client.
pub(super) fn component(name: &[u8]) -> Result<&Name, Fault3> {
    Ok(Name::new(name)?)
}
