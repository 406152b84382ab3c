//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS and REMOVEXATTR: RFC 8276 §8.4. They are in the user's
//! namespace. Their names come without the prefix `user.` that operating systems add.

use nfs::v4::{
    ChangeInfo4, Component4, GetXattrOk, ListXattrsArgs, ListXattrsOk, Nfsstat4, SetXattrArgs, SetxattrOption4,
    XattrArgs,
};
use vfs::{Name, VfsError, XattrMode};

use crate::v4::{
    attr::change_info,
    cursor::Cursor,
    place::Place,
    service::Context,
    status::{Fault4, nfsstat4},
};

pub(super) fn getxattr(cx: &Context<'_>, at: &Cursor, args: &XattrArgs) -> Result<GetXattrOk, Fault4> {
    let Place::Object(..) = at.current()? else { return Err(Nfsstat4::NoXattr.into()) };
    let object = cx.object4(at.current()?)?;
    let value = object.vfs().xattr(&object.caller(), &object.handle, name(&args.name)?).map_err(xattr_fault)?;
    if value.len().next_multiple_of(4) + VALUE_HEAD > at.room {
        return Err(at.too_big.into());
    }
    Ok(GetXattrOk(value.into()))
}

pub(super) fn setxattr(cx: &Context<'_>, at: &Cursor, args: &SetXattrArgs) -> Result<ChangeInfo4, Fault4> {
    let object = cx.object4(at.current()?)?;
    let how = match args.option {
        SetxattrOption4::Either => XattrMode::Either,
        SetxattrOption4::Create => XattrMode::Create,
        SetxattrOption4::Replace => XattrMode::Replace,
    };
    let vfs = object.writable()?.vfs();
    let _changing = cx.before_change(&object, Some(at.lock_client()))?;
    let set = vfs.set_xattr(&object.caller(), &object.handle, name(&args.key)?, &args.value, how);
    Ok(change_info(&set.map_err(xattr_fault)?))
}

pub(super) fn removexattr(cx: &Context<'_>, at: &Cursor, args: &XattrArgs) -> Result<ChangeInfo4, Fault4> {
    let object = cx.object4(at.current()?)?;
    let vfs = object.writable()?.vfs();
    let _changing = cx.before_change(&object, Some(at.lock_client()))?;
    let removed = vfs.remove_xattr(&object.caller(), &object.handle, name(&args.name)?);
    Ok(change_info(&removed.map_err(xattr_fault)?))
}

/// Executes LISTXATTRS (§8.4.3). Names are in a fixed order, and a cookie is a number of names.
pub(super) fn listxattrs(cx: &Context<'_>, at: &Cursor, args: &ListXattrsArgs) -> Result<ListXattrsOk, Fault4> {
    let names = match at.current()? {
        Place::Pseudo(_) => Vec::new(),
        place => {
            let object = cx.object4(place)?;
            object.vfs().xattrs(&object.caller(), &object.handle).map_err(xattr_fault)?
        }
    };
    let first = usize::try_from(args.cookie).ok().filter(|&first| first <= names.len()).ok_or(Nfsstat4::BadCookie)?;
    let mut room = (args.maxcount as usize).min(at.room.saturating_sub(RESULT_HEAD)).saturating_sub(LIST_FRAME);
    let mut listed: Vec<Component4> = Vec::new();
    for name in &names[first..] {
        let Some(left) = room.checked_sub(4 + name.len().next_multiple_of(4)) else { break };
        room = left;
        listed.push(name.clone().into());
    }
    let next = first + listed.len();
    if listed.is_empty() && next < names.len() {
        return Err(Nfsstat4::TooSmall.into());
    }
    Ok(ListXattrsOk { cookie: next as u64, names: listed, eof: next == names.len() })
}

fn name(name: &[u8]) -> Result<&Name, Fault4> {
    Ok(Name::new(name).map_err(nfsstat4)?)
}

/// Converts an error. EPERM means that the object is neither a file nor a directory and has no extended attributes.
fn xattr_fault(error: VfsError) -> Fault4 {
    match error {
        VfsError::Perm => Nfsstat4::WrongType.into(),
        error => error.into(),
    }
}

/// The operation number, the status and the length.
const VALUE_HEAD: usize = 12;
const RESULT_HEAD: usize = 8;
/// The cookie, the number of names and `eof`.
const LIST_FRAME: usize = 8 + 4 + 4;
