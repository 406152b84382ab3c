//! CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK: RFC 1813 §3.3.8–3.3.15.

use nfs::v3::{
    CreateArgs, CreateHow3, LinkArgs, LinkWcc, MkDirArgs, MkNodArgs, MkNodData3, NewObjectOk, Nfsstat3, RemoveArgs,
    RenameArgs, RenameWcc, Specdata3, SymLinkArgs,
};
use vfs::{CreateMode, Created, Device, Name, NodeKind};
use xdr::Encoder;

use super::{
    answers, attr,
    object::{post_op, post_wcc, with},
};
use crate::{
    call::{context::Context, error::WouldBlock, object::Object},
    v3::{
        object::component,
        status::{Fault3, encode_result},
    },
};

answers! {
    Create => create, Change of |args| ((&args.what.dir, Some(&args.what.name[..])), None);
    MkDir => mkdir, Change of |args| ((&args.what.dir, Some(&args.what.name[..])), None);
    SymLink => symlink, Change of |args| ((&args.what.dir, Some(&args.what.name[..])), None);
    MkNod => mknod, Change of |args| ((&args.what.dir, Some(&args.what.name[..])), None);
    Remove => remove, Change of |args| ((&args.object.dir, Some(&args.object.name[..])), None);
    RmDir => rmdir, Change of |args| ((&args.object.dir, Some(&args.object.name[..])), None);
    Rename => rename, Change of |args| {
        ((&args.from.dir, Some(&args.from.name[..])), Some((&args.to.dir, Some(&args.to.name[..]))))
    };
    Link => link, Change of |args| ((&args.file, None), Some((&args.link.dir, Some(&args.link.name[..]))));
}

fn create(cx: &Context<'_>, args: &CreateArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let dir = cx.object(&args.what.dir);
    let result = with(&dir, |dir| {
        let mode = match &args.how {
            CreateHow3::Unchecked(set) => CreateMode::Unchecked(attr::set_attr(set)?),
            CreateHow3::Guarded(set) => CreateMode::Guarded(attr::set_attr(set)?),
            CreateHow3::Exclusive(verifier) => CreateMode::Exclusive(*verifier),
        };
        let name = new_name(&args.what.name)?;
        if matches!(&mode, CreateMode::Unchecked(set) if set.size.is_some()) {
            cx.before_truncation_of(dir.writable()?, name, None)?;
        }
        let created = dir.writable()?.vfs().create(&dir.caller(), &dir.handle, name, &mode)?;
        Ok(new_object(dir, &created))
    });
    encode_result(out, result, || post_wcc(&dir))
}

fn mkdir(cx: &Context<'_>, args: &MkDirArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let dir = cx.object(&args.what.dir);
    let result = with(&dir, |dir| {
        let set = attr::set_attr(&args.attributes)?;
        let name = new_name(&args.what.name)?;
        let created = dir.writable()?.vfs().mkdir(&dir.caller(), &dir.handle, name, &set)?;
        Ok(new_object(dir, &created))
    });
    encode_result(out, result, || post_wcc(&dir))
}

fn symlink(cx: &Context<'_>, args: &SymLinkArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let dir = cx.object(&args.what.dir);
    let result = with(&dir, |dir| {
        let set = attr::set_attr(&args.symlink_attributes)?;
        let name = new_name(&args.what.name)?;
        let target = args.symlink_data.0.to_bytes().map_err(|_| Nfsstat3::Io)?;
        if target.is_empty() || target.contains(&0) {
            return Err(Nfsstat3::Inval.into());
        }
        let created = dir.writable()?.vfs().symlink(&dir.caller(), &dir.handle, name, &target, &set)?;
        Ok(new_object(dir, &created))
    });
    encode_result(out, result, || post_wcc(&dir))
}

fn mknod(cx: &Context<'_>, args: &MkNodArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let dir = cx.object(&args.what.dir);
    let result = with(&dir, |dir| {
        let device = |spec: &Specdata3| Device { major: spec.specdata1, minor: spec.specdata2 };
        let (node, set) = match &args.data {
            MkNodData3::Chr(set, spec) => (NodeKind::Char(device(spec)), set),
            MkNodData3::Blk(set, spec) => (NodeKind::Block(device(spec)), set),
            MkNodData3::Sock(set) => (NodeKind::Socket, set),
            MkNodData3::Fifo(set) => (NodeKind::Fifo, set),
            MkNodData3::Other(_) => return Err(Nfsstat3::BadType.into()),
        };
        let set = attr::set_attr(set)?;
        let name = new_name(&args.what.name)?;
        let created = dir.writable()?.vfs().mknod(&dir.caller(), &dir.handle, name, node, &set)?;
        Ok(new_object(dir, &created))
    });
    encode_result(out, result, || post_wcc(&dir))
}

fn remove(cx: &Context<'_>, args: &RemoveArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let dir = cx.object(&args.object.dir);
    let result = with(&dir, |dir| {
        let name = plain_name(&args.object.name)?;
        cx.before_change_of(dir.writable()?, name, None)?;
        let change = dir.vfs().remove(&dir.caller(), &dir.handle, name)?;
        Ok(dir.wcc(&change))
    });
    encode_result(out, result, || post_wcc(&dir))
}

fn rmdir(cx: &Context<'_>, args: &RemoveArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let dir = cx.object(&args.object.dir);
    let result = with(&dir, |dir| {
        // RFC 1813 §3.3.13: `.` is INVAL, `..` is EXIST.
        let name = match component(&args.object.name)? {
            name if name.as_bytes() == b".." => return Err(Nfsstat3::Exist.into()),
            name if name.is_dots() => return Err(Nfsstat3::Inval.into()),
            name => name,
        };
        let change = dir.writable()?.vfs().rmdir(&dir.caller(), &dir.handle, name)?;
        Ok(dir.wcc(&change))
    });
    encode_result(out, result, || post_wcc(&dir))
}

fn rename(cx: &Context<'_>, args: &RenameArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let from = cx.object(&args.from.dir);
    let to = cx.object(&args.to.dir);
    let result = with(&from, |from| {
        with(&to, |to| {
            same_export(from, to)?;
            // RFC 1813 §3.3.14: `.` and `..` are INVAL.
            let (old, new) = (plain_name(&args.from.name)?, plain_name(&args.to.name)?);
            let vfs = from.writable()?.vfs();
            cx.before_change_of(from, old, None)?;
            cx.before_change_of(to, new, None)?;
            let (left, joined) = vfs.rename(&from.caller(), &from.handle, old, &to.handle, new)?;
            Ok(RenameWcc { fromdir_wcc: from.wcc(&left), todir_wcc: to.wcc(&joined) })
        })
    });
    encode_result(out, result, || Ok(RenameWcc { fromdir_wcc: post_wcc(&from)?, todir_wcc: post_wcc(&to)? }))
}

fn link(cx: &Context<'_>, args: &LinkArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let object = cx.object(&args.file);
    let dir = cx.object(&args.link.dir);
    let result = with(&object, |object| {
        with(&dir, |dir| {
            same_export(object, dir)?;
            let name = new_name(&args.link.name)?;
            dir.writable()?;
            let _changing = cx.before_change(object, None)?;
            let (change, attr) = dir.vfs().link(&dir.caller(), &object.handle, &dir.handle, name)?;
            Ok(LinkWcc { file_attributes: Some(object.fattr(&attr)), linkdir_wcc: dir.wcc(&change) })
        })
    });
    encode_result(out, result, || Ok(LinkWcc { file_attributes: post_op(&object)?, linkdir_wcc: post_wcc(&dir)? }))
}

fn new_object(dir: &Object<'_>, created: &Created) -> NewObjectOk {
    NewObjectOk {
        obj: Some(dir.fh3(&created.handle)),
        obj_attributes: Some(dir.fattr(&created.attr)),
        dir_wcc: dir.wcc(&created.dir),
    }
}

/// Checks a name to create: `.` and `..` already exist (RFC 1813 §3.3.9).
fn new_name(name: &[u8]) -> Result<&Name, Fault3> {
    component(name).and_then(|name| if name.is_dots() { Err(Nfsstat3::Exist.into()) } else { Ok(name) })
}

/// Checks a name to remove or rename: `.` and `..` cannot be.
fn plain_name(name: &[u8]) -> Result<&Name, Fault3> {
    component(name).and_then(|name| if name.is_dots() { Err(Nfsstat3::Inval.into()) } else { Ok(name) })
}

fn same_export(a: &Object<'_>, b: &Object<'_>) -> Result<(), Nfsstat3> {
    if a.export.id() == b.export.id() { Ok(()) } else { Err(Nfsstat3::XDev) }
}
