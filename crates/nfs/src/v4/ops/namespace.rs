//! Names and file handles: ACCESS, CREATE, LINK, LOOKUP, READDIR, READLINK, REMOVE, RENAME, SECINFO and the rest
//! that move about in the namespace (RFC 8881 §18).

use xdr::{Decode, DecodeError, Decoder, Encode, List, Opaque, Payload};

use crate::v4::{attr::Fattr4, bitmap::Bitmap4, status::*, types::*};

/// ACCESS arguments (§18.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AccessArgs {
    /// Wanted rights: the `ACCESS4_` bits.
    pub access: u32,
}

/// Read data or a directory.
pub const ACCESS4_READ: u32 = 0x0001;
/// Look up a name.
pub const ACCESS4_LOOKUP: u32 = 0x0002;
/// Rewrite data or change entries.
pub const ACCESS4_MODIFY: u32 = 0x0004;
/// Write new data or add entries.
pub const ACCESS4_EXTEND: u32 = 0x0008;
/// Delete an entry.
pub const ACCESS4_DELETE: u32 = 0x0010;
/// Execute a file.
pub const ACCESS4_EXECUTE: u32 = 0x0020;
/// Read an extended attribute (RFC 8276 §8.6).
pub const ACCESS4_XAREAD: u32 = 0x0040;
/// Change or remove an extended attribute.
pub const ACCESS4_XAWRITE: u32 = 0x0080;
/// List extended attributes.
pub const ACCESS4_XALIST: u32 = 0x0100;

/// A successful ACCESS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AccessOk {
    /// Rights about which the server can tell.
    pub supported: u32,
    /// Granted rights.
    pub access: u32,
}

/// ACCESS results.
pub type AccessRes = Res4<AccessOk>;

/// What CREATE makes (§18.4, `createtype4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Ftype4)]
pub enum Createtype4 {
    /// A symbolic link with this text, which may be placed directly (RFC 8267 §5.1).
    #[xdr(Ftype4::Lnk)]
    Lnk(Payload<NAME_BOUND>),
    /// A block device.
    #[xdr(Ftype4::Blk)]
    Blk(Specdata4),
    /// A character device.
    #[xdr(Ftype4::Chr)]
    Chr(Specdata4),
    /// A directory, socket or named pipe; or what CREATE does not make, which is answered with BADTYPE.
    #[xdr(default)]
    Other(Ftype4),
}

/// CREATE arguments (§18.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CreateArgs {
    /// What.
    pub objtype: Createtype4,
    /// Its name.
    pub objname: Component4,
    /// Its attributes.
    pub createattrs: Fattr4,
}

/// A successful CREATE.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CreateOk {
    /// The directory before and after.
    pub cinfo: ChangeInfo4,
    /// Attributes that were set.
    pub attrset: Bitmap4,
}

/// CREATE results.
pub type CreateRes = Res4<CreateOk>;

/// GETATTR arguments (§18.7).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetAttrArgs {
    /// Which.
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

/// LINK results: the directory before and after.
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
    /// What to compare with.
    pub obj_attributes: Fattr4,
}

/// OPENATTR arguments (§18.17).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenAttrArgs {
    /// Whether to make the directory of named attributes.
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
    /// Continue behind this; 0 from the start.
    pub cookie: u64,
    /// Of the reply that gave the cookie.
    pub cookieverf: Verifier4,
    /// Most bytes of names and cookies, as a hint.
    pub dircount: u32,
    /// Most bytes of the result (`READDIR4resok`).
    pub maxcount: u32,
    /// Attributes of each entry.
    pub attr_request: Bitmap4,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Entry4 {
    /// Continues behind this entry.
    pub cookie: u64,
    /// Name.
    pub name: Component4,
    /// Attributes.
    pub attrs: Fattr4,
}

/// A list of entries and whether it is the last.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Dirlist4 {
    /// The entries.
    pub entries: List<Entry4>,
    /// Whether no entries follow.
    pub eof: bool,
}

/// A successful READDIR.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadDirOk {
    /// Goes with the cookies.
    pub cookieverf: Verifier4,
    /// The entries.
    pub reply: Dirlist4,
}

/// READDIR results.
pub type ReadDirRes = Res4<ReadDirOk>;

/// A successful READLINK (§18.24).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadLinkOk {
    /// The link's text; may be placed directly (RFC 8267 §5.1).
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

/// REMOVE results: the directory before and after.
pub type RemoveRes = Res4<ChangeInfo4>;

/// RENAME arguments (§18.26).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RenameArgs {
    /// The name in the directory of the saved file handle.
    pub oldname: Component4,
    /// The name in that of the current one.
    pub newname: Component4,
}

/// A successful RENAME.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RenameOk {
    /// The directory it left, before and after.
    pub source_cinfo: ChangeInfo4,
    /// The one it came to.
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

/// SECINFO_NO_NAME arguments (§18.45): the security of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum SecinfoStyle4 {
    /// The current file handle.
    CurrentFh = 0,
    /// Its parent.
    Parent = 1,
}

/// What RPCSEC_GSS protects (RFC 2203 §5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum RpcGssSvc {
    /// The header.
    None = 1,
    /// All, against changes.
    Integrity = 2,
    /// All, and nobody else can read it.
    Privacy = 3,
}

/// A security mechanism below RPCSEC_GSS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RpcsecGssInfo {
    /// The mechanism.
    pub oid: SecOid4,
    /// The quality of protection.
    pub qop: u32,
    /// What it protects.
    pub service: RpcGssSvc,
}

/// A way to authenticate that the server takes.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Secinfo4 {
    /// RPCSEC_GSS.
    #[xdr(6)]
    RpcsecGss(RpcsecGssInfo),
    /// Another flavor, of this number.
    #[xdr(default)]
    Flavor(u32),
}

/// SECINFO and SECINFO_NO_NAME results: what the server takes, the best first.
pub type SecinfoRes = Res4<Vec<Secinfo4>>;

/// SETATTR arguments (§18.30).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetAttrArgs {
    /// For setting the size.
    pub stateid: Stateid4,
    /// What to set.
    pub obj_attributes: Fattr4,
}

/// SETATTR results, the only ones that have the same body for every status.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetAttrRes {
    /// How it went.
    pub status: Nfsstat4,
    /// What was set.
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

/// The value that GETXATTR has found. Linux's server (6.1) pads it with whatever there was in its memory, where RFC 4506 §4.10 has zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode)]
pub struct GetXattrOk(pub Xattrvalue4);

impl Decode for GetXattrOk {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.opaque_any_padding(XATTR_BOUND).map(|value| Self(Opaque(value)))
    }
}

/// GETXATTR results: the value.
pub type GetXattrRes = Res4<GetXattrOk>;

/// Whether SETXATTR makes or replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum SetxattrOption4 {
    /// Either.
    Either = 0,
    /// It must not be there.
    Create = 1,
    /// It must be there.
    Replace = 2,
}

/// SETXATTR arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetXattrArgs {
    /// Whether it makes or replaces.
    pub option: SetxattrOption4,
    /// The attribute's name.
    pub key: Component4,
    /// Its value.
    pub value: Xattrvalue4,
}

/// SETXATTR and REMOVEXATTR results: the file before and after.
pub type ChangeXattrRes = Res4<ChangeInfo4>;

/// LISTXATTRS arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ListXattrsArgs {
    /// Continue behind this; 0 from the start.
    pub cookie: u64,
    /// Most bytes of the result (`LISTXATTRS4resok`).
    pub maxcount: u32,
}

/// A successful LISTXATTRS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ListXattrsOk {
    /// Continues behind these.
    pub cookie: u64,
    /// Names.
    pub names: Vec<Component4>,
    /// Whether no names follow.
    pub eof: bool,
}

/// LISTXATTRS results.
pub type ListXattrsRes = Res4<ListXattrsOk>;

/// The bound we put on the value of an extended attribute, in bytes: what Linux allows.
pub const XATTR_BOUND: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use xdr::Message;

    use super::*;

    /// As Linux's server answers: the padding is what was in its memory.
    #[test]
    fn the_padding_of_an_extended_attribute_is_not_looked_at() {
        let words = [&0u32.to_be_bytes()[..], &5u32.to_be_bytes(), b"valueXYZ", &7u32.to_be_bytes()].concat();
        let message = Message::from(bytes::Bytes::from(words));
        let mut decoder = Decoder::new(&message);
        assert_eq!(GetXattrRes::decode(&mut decoder), Ok(Res4::Ok(GetXattrOk("value".into()))));
        assert_eq!(decoder.u32(), Ok(7), "what comes behind it is where it should be");
        let cut = Message::from(message.stream.slice(..14));
        assert!(GetXattrRes::decode(&mut Decoder::new(&cut)).is_err());
        let sloppy = Message::from(message.stream.slice(4..16));
        assert!(sloppy.decode::<Xattrvalue4>().is_err(), "of clients' values, zeros are expected");
    }
}
