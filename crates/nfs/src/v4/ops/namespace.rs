//! Names and file handles: ACCESS, CREATE, LINK, LOOKUP, READDIR, READLINK, REMOVE, RENAME, SECINFO and other
//! operations on the namespace (RFC 8881 §18).

use xdr::{Decode, DecodeError, Decoder, Encode, List, Opaque, Payload};

use crate::v4::{attr::Fattr4, bitmap::Bitmap4, status::*, types::*};

/// ACCESS arguments (§18.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AccessArgs {
    /// The requested rights: `ACCESS4_` bits.
    pub access: u32,
}

/// The right to read data or a directory.
pub const ACCESS4_READ: u32 = 0x0001;
/// The right to look up a name.
pub const ACCESS4_LOOKUP: u32 = 0x0002;
/// The right to rewrite data or change entries.
pub const ACCESS4_MODIFY: u32 = 0x0004;
/// The right to write new data or add entries.
pub const ACCESS4_EXTEND: u32 = 0x0008;
/// The right to delete an entry.
pub const ACCESS4_DELETE: u32 = 0x0010;
/// The right to execute a file.
pub const ACCESS4_EXECUTE: u32 = 0x0020;
/// The right to read an extended attribute (RFC 8276 §8.6).
pub const ACCESS4_XAREAD: u32 = 0x0040;
/// The right to change or remove an extended attribute.
pub const ACCESS4_XAWRITE: u32 = 0x0080;
/// The right to list extended attributes.
pub const ACCESS4_XALIST: u32 = 0x0100;

/// A successful ACCESS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AccessOk {
    /// The rights that the server can check.
    pub supported: u32,
    /// The granted rights.
    pub access: u32,
}

/// ACCESS results.
pub type AccessRes = Res4<AccessOk>;

/// The object that CREATE creates (§18.4, `createtype4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Ftype4)]
pub enum Createtype4 {
    /// A symbolic link with this target, which may be placed directly (RFC 8267 §5.1).
    #[xdr(Ftype4::Lnk)]
    Lnk(Payload<NAME_BOUND>),
    /// A block device.
    #[xdr(Ftype4::Blk)]
    Blk(Specdata4),
    /// A character device.
    #[xdr(Ftype4::Chr)]
    Chr(Specdata4),
    /// A directory, socket or named pipe; or a type that CREATE cannot create, for which the status is BADTYPE.
    #[xdr(default)]
    Other(Ftype4),
}

/// CREATE arguments (§18.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CreateArgs {
    /// The object to create.
    pub objtype: Createtype4,
    /// The name.
    pub objname: Component4,
    /// The attributes of the object.
    pub createattrs: Fattr4,
}

/// A successful CREATE.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CreateOk {
    /// The change attribute of the directory before and after the operation.
    pub cinfo: ChangeInfo4,
    /// The attributes that were set.
    pub attrset: Bitmap4,
}

/// CREATE results.
pub type CreateRes = Res4<CreateOk>;

/// GETATTR arguments (§18.7).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetAttrArgs {
    /// The requested attributes.
    pub attr_request: Bitmap4,
}

/// GETATTR results.
pub type GetAttrRes = Res4<Fattr4>;

/// GETFH results (§18.8): the current file handle.
pub type GetFhRes = Res4<NfsFh4>;

/// LINK arguments (§18.9).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LinkArgs {
    /// The new name.
    pub newname: Component4,
}

/// LINK results: change attributes of the directory before and after the operation.
pub type LinkRes = Res4<ChangeInfo4>;

/// LOOKUP arguments (§18.13).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LookupArgs {
    /// The name.
    pub objname: Component4,
}

/// VERIFY and NVERIFY arguments (§18.31, §18.15).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct VerifyArgs {
    /// The attributes to compare.
    pub obj_attributes: Fattr4,
}

/// OPENATTR arguments (§18.17).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenAttrArgs {
    /// `true` to create the directory of named attributes.
    pub createdir: bool,
}

/// PUTFH arguments (§18.19).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PutFhArgs {
    /// The new current file handle.
    pub object: NfsFh4,
}

/// READDIR arguments (§18.23).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadDirArgs {
    /// The cookie after which to continue; 0 means from the start.
    pub cookie: u64,
    /// The verifier of the reply that returned the cookie.
    pub cookieverf: Verifier4,
    /// Maximum bytes of names and cookies, as a hint.
    pub dircount: u32,
    /// Maximum bytes of the result (`READDIR4resok`).
    pub maxcount: u32,
    /// The requested attributes of each entry.
    pub attr_request: Bitmap4,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Entry4 {
    /// The cookie to continue after this entry.
    pub cookie: u64,
    /// The name.
    pub name: Component4,
    /// The attributes of the object.
    pub attrs: Fattr4,
}

/// A list of entries, and a mark for the end of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Dirlist4 {
    /// The entries.
    pub entries: List<Entry4>,
    /// `true` if no entries follow.
    pub eof: bool,
}

/// A successful READDIR.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadDirOk {
    /// The verifier of the cookies.
    pub cookieverf: Verifier4,
    /// The entries.
    pub reply: Dirlist4,
}

/// READDIR results.
pub type ReadDirRes = Res4<ReadDirOk>;

/// A successful READLINK (§18.24).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadLinkOk {
    /// The target; it may be placed directly (RFC 8267 §5.1).
    pub link: Payload<NAME_BOUND>,
}

/// READLINK results.
pub type ReadLinkRes = Res4<ReadLinkOk>;

/// REMOVE arguments (§18.25).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RemoveArgs {
    /// The name.
    pub target: Component4,
}

/// REMOVE results: change attributes of the directory before and after the operation.
pub type RemoveRes = Res4<ChangeInfo4>;

/// RENAME arguments (§18.26).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RenameArgs {
    /// The name in the directory of the saved file handle.
    pub oldname: Component4,
    /// The name in the directory of the current file handle.
    pub newname: Component4,
}

/// A successful RENAME.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RenameOk {
    /// The change attribute of the source directory before and after the operation.
    pub source_cinfo: ChangeInfo4,
    /// The change attribute of the target directory before and after the operation.
    pub target_cinfo: ChangeInfo4,
}

/// RENAME results.
pub type RenameRes = Res4<RenameOk>;

/// SECINFO arguments (§18.29).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SecinfoArgs {
    /// The name.
    pub name: Component4,
}

/// SECINFO_NO_NAME arguments (§18.45): the object whose security flavours are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum SecinfoStyle4 {
    /// The current file handle.
    CurrentFh = 0,
    /// The parent of the current file handle.
    Parent = 1,
}

/// The protection of RPCSEC_GSS (RFC 2203 §5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum RpcGssSvc {
    /// Only the header is authenticated.
    None = 1,
    /// The whole message is protected against changes.
    Integrity = 2,
    /// The whole message is encrypted and protected against changes.
    Privacy = 3,
}

/// A security mechanism below RPCSEC_GSS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RpcsecGssInfo {
    /// The mechanism.
    pub oid: SecOid4,
    /// The quality of protection.
    pub qop: u32,
    /// The protection.
    pub service: RpcGssSvc,
}

/// A security flavour that the server accepts.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Secinfo4 {
    /// RPCSEC_GSS.
    #[xdr(6)]
    RpcsecGss(RpcsecGssInfo),
    /// Another flavour with this number.
    #[xdr(default)]
    Flavor(u32),
}

/// SECINFO and SECINFO_NO_NAME results: the accepted flavours, in order of preference.
pub type SecinfoRes = Res4<Vec<Secinfo4>>;

/// SETATTR arguments (§18.30).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetAttrArgs {
    /// The stateid with which the size is set.
    pub stateid: Stateid4,
    /// The attributes to set.
    pub obj_attributes: Fattr4,
}

/// SETATTR results, the only ones that have the same body for every status.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetAttrRes {
    /// The status.
    pub status: Nfsstat4,
    /// The attributes that were set.
    pub attrsset: Bitmap4,
}

impl OpResult for SetAttrRes {
    fn status(&self) -> Nfsstat4 {
        self.status
    }

    fn failure(status: Nfsstat4) -> Self {
        Self { status, attrsset: Bitmap4::new() }
    }
}

/// GETXATTR and REMOVEXATTR arguments (RFC 8276 §8.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct XattrArgs {
    /// The attribute's name, without a prefix such as `user.`
    pub name: Component4,
}

/// The value of an extended attribute.
pub type Xattrvalue4 = Opaque<XATTR_BOUND>;

/// The value from GETXATTR. Its decoder ignores the padding, because Linux's server (6.1) pads the value with
/// uninitialized memory where RFC 4506 §4.10 requires zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode)]
pub struct GetXattrOk(pub Xattrvalue4);

impl Decode for GetXattrOk {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.opaque_any_padding(XATTR_BOUND).map(|value| Self(Opaque(value)))
    }
}

/// GETXATTR results: the value.
pub type GetXattrRes = Res4<GetXattrOk>;

/// The condition for SETXATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum SetxattrOption4 {
    /// The attribute may exist.
    Either = 0,
    /// The attribute must not exist.
    Create = 1,
    /// The attribute must exist.
    Replace = 2,
}

/// SETXATTR arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetXattrArgs {
    /// The condition.
    pub option: SetxattrOption4,
    /// The attribute's name.
    pub key: Component4,
    /// The value.
    pub value: Xattrvalue4,
}

/// SETXATTR and REMOVEXATTR results: change attributes of the file before and after the operation.
pub type ChangeXattrRes = Res4<ChangeInfo4>;

/// LISTXATTRS arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ListXattrsArgs {
    /// The cookie after which to continue; 0 means from the start.
    pub cookie: u64,
    /// Maximum bytes of the result (`LISTXATTRS4resok`).
    pub maxcount: u32,
}

/// A successful LISTXATTRS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ListXattrsOk {
    /// The cookie to continue after these entries.
    pub cookie: u64,
    /// The names.
    pub names: Vec<Component4>,
    /// `true` if no names follow.
    pub eof: bool,
}

/// LISTXATTRS results.
pub type ListXattrsRes = Res4<ListXattrsOk>;

/// Maximum bytes of the value of an extended attribute, as in Linux.
pub const XATTR_BOUND: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use xdr::Message;

    use super::*;

    /// The answer of Linux's server, whose padding is uninitialized memory.
    #[test]
    fn padding_of_an_extended_attribute_is_ignored() {
        let words = [&0u32.to_be_bytes()[..], &5u32.to_be_bytes(), b"valueXYZ", &7u32.to_be_bytes()].concat();
        let message = Message::from(bytes::Bytes::from(words));
        let mut decoder = Decoder::new(&message);
        assert_eq!(GetXattrRes::decode(&mut decoder), Ok(Res4::Ok(GetXattrOk("value".into()))));
        assert_eq!(decoder.u32(), Ok(7), "decoding must continue after the padding");
        let cut = Message::from(message.stream.slice(..14));
        assert!(GetXattrRes::decode(&mut Decoder::new(&cut)).is_err());
        let sloppy = Message::from(message.stream.slice(4..16));
        assert!(sloppy.decode::<Xattrvalue4>().is_err(), "in values from clients, padding must be zeros");
    }
}
