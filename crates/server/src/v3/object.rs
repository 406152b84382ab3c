//! GETATTR, SETATTR, LOOKUP, ACCESS and READLINK: RFC 1813 §3.3.1–3.3.5.

use buf::Rope;
use nfs::v3::{
    AccessArgs, AccessOk, Fattr3, GetAttrArgs, LookupArgs, LookupOk, Nfsstat3, ReadLinkArgs, SetAttrArgs, WccData,
};
use xdr::{Encode, Encoder};

use super::{answers, attr};
use crate::call::{
    context::{Context, Object, component},
    error::{Fault, WouldBlock},
    exec::conclude,
};

answers! {
    GetAttr => getattr,
    SetAttr => setattr,
    Lookup => lookup,
    Access => access,
    ReadLink => readlink,
}

fn getattr(cx: &Context<'_>, args: &GetAttrArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let result = (|| {
        let object = cx.object(&args.object)?;
        Ok::<Fattr3, Fault>(object.fattr(&object.getattr()?))
    })();
    conclude(out, result, || Ok(()))
}

fn setattr(cx: &Context<'_>, args: &SetAttrArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let object = cx.object(&args.object);
    let result = with(&object, |object| {
        let set = attr::set_attr(&args.new_attributes)?;
        let guard = args.guard.map(attr::time).transpose()?;
        let _changing = cx.before_change(object.writable()?, None)?;
        let change = object.vfs().setattr(&object.caller(), &object.handle, &set, guard)?;
        Ok(object.wcc(&change))
    });
    conclude(out, result, || post_wcc(&object))
}

fn lookup(cx: &Context<'_>, args: &LookupArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let dir = cx.object(&args.what.dir);
    let result = with(&dir, |dir| {
        let (handle, attr) = dir.vfs().lookup(&dir.caller(), &dir.handle, component(&args.what.name)?)?;
        let dir_attributes = dir.post_op().map_err(|WouldBlock| Fault::WouldBlock)?;
        Ok(LookupOk { object: dir.seal(&handle), obj_attributes: Some(dir.fattr(&attr)), dir_attributes })
    });
    conclude(out, result, || post_op(&dir))
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
    conclude(out, result, || post_op(&object))
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
        Err(fault) => conclude(out, Err::<(), _>(fault), || post_op(&link)),
    }
}

/// Goes on with an object if there is one.
pub(crate) fn with<'o, 'a, T>(
    object: &'o Result<Object<'a>, Nfsstat3>,
    go_on: impl FnOnce(&'o Object<'a>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    match object {
        Ok(object) => go_on(object),
        Err(status) => Err(Fault::Status(*status)),
    }
}

/// The attributes that a failure reports.
pub(crate) fn post_op(object: &Result<Object<'_>, Nfsstat3>) -> Result<nfs::v3::PostOpAttr, WouldBlock> {
    object.as_ref().map_or(Ok(None), Object::post_op)
}

/// The weak cache consistency data that a failure reports.
pub(super) fn post_wcc(object: &Result<Object<'_>, Nfsstat3>) -> Result<WccData, WouldBlock> {
    object.as_ref().map_or(Ok(WccData::default()), Object::post_wcc)
}
