//! The procedures of RFC 1813 §3.3, each with its arguments and results.
//!
//! `XArgs` are arguments, `XOk` the body of a successful result, and `XRes` the result itself.

use xdr::{Decode, Encode, List, Payload};

use super::types::*;

/// A procedure: its number, arguments and results, for callers that know it at compile time.
pub trait Procedure3 {
    /// The number.
    const NUMBER: Proc3;
    /// The type of the arguments.
    type Args: Encode + Decode;
    /// The type of the results.
    type Res: Encode + Decode;
}

macro_rules! procedures {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $idempotent:literal, $args:ty => $res:ty;)*) => {
        /// The procedures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Proc3 { $($(#[$doc])* $name = $number),* }

        impl Proc3 {
            /// All variants, in order.
            pub const ALL: &[Proc3] = &[$(Proc3::$name),*];

            /// Returns the procedure with this number.
            pub fn from_number(number: u32) -> Option<Self> {
                Self::ALL.get(number as usize).copied()
            }

            /// Returns the name in RFC 1813.
            pub const fn name(self) -> &'static str {
                match self { $(Proc3::$name => $text),* }
            }

            /// Returns `true` if executing the procedure twice has the same effect as once, even if other calls are
            /// executed in between. WRITE is not idempotent: a delayed duplicate would undo a later WRITE.
            pub fn is_idempotent(self) -> bool {
                match self { $(Proc3::$name => $idempotent),* }
            }
        }

        $($(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Procedure3 for $name {
            const NUMBER: Proc3 = Proc3::$name;
            type Args = $args;
            type Res = $res;
        })*
    };
}

procedures! {
    /// Do nothing.
    Null = 0, "NULL", true, () => ();
    /// Get attributes.
    GetAttr = 1, "GETATTR", true, GetAttrArgs => GetAttrRes;
    /// Set attributes.
    SetAttr = 2, "SETATTR", false, SetAttrArgs => SetAttrRes;
    /// Look up a name.
    Lookup = 3, "LOOKUP", true, LookupArgs => LookupRes;
    /// Check access permission.
    Access = 4, "ACCESS", true, AccessArgs => AccessRes;
    /// Read from a symbolic link.
    ReadLink = 5, "READLINK", true, ReadLinkArgs => ReadLinkRes;
    /// Read from a file.
    Read = 6, "READ", true, ReadArgs => ReadRes;
    /// Write to a file.
    Write = 7, "WRITE", false, WriteArgs => WriteRes;
    /// Create a file.
    Create = 8, "CREATE", false, CreateArgs => NewObjectRes;
    /// Create a directory.
    MkDir = 9, "MKDIR", false, MkDirArgs => NewObjectRes;
    /// Create a symbolic link.
    SymLink = 10, "SYMLINK", false, SymLinkArgs => NewObjectRes;
    /// Create a special device.
    MkNod = 11, "MKNOD", false, MkNodArgs => NewObjectRes;
    /// Remove a file.
    Remove = 12, "REMOVE", false, RemoveArgs => RemoveRes;
    /// Remove a directory.
    RmDir = 13, "RMDIR", false, RemoveArgs => RemoveRes;
    /// Rename a file or directory.
    Rename = 14, "RENAME", false, RenameArgs => RenameRes;
    /// Create a link to an object.
    Link = 15, "LINK", false, LinkArgs => LinkRes;
    /// Read from a directory.
    ReadDir = 16, "READDIR", true, ReadDirArgs => ReadDirRes;
    /// Extended read from a directory.
    ReadDirPlus = 17, "READDIRPLUS", true, ReadDirPlusArgs => ReadDirPlusRes;
    /// Get dynamic file system information.
    FsStat = 18, "FSSTAT", true, FsStatArgs => FsStatRes;
    /// Get static file system information.
    FsInfo = 19, "FSINFO", true, FsInfoArgs => FsInfoRes;
    /// Retrieve POSIX information.
    PathConf = 20, "PATHCONF", true, PathConfArgs => PathConfRes;
    /// Commit cached data on a server to stable storage.
    Commit = 21, "COMMIT", true, CommitArgs => CommitRes;
}

/// GETATTR arguments (§3.3.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetAttrArgs {
    /// The object.
    pub object: NfsFh3,
}

/// GETATTR results.
pub type GetAttrRes = Res3<Fattr3, ()>;

/// SETATTR arguments (§3.3.2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetAttrArgs {
    /// The object.
    pub object: NfsFh3,
    /// The attributes to set.
    pub new_attributes: Sattr3,
    /// The expected ctime. The attributes are set only if the object has it.
    pub guard: Option<Nfstime3>,
}

/// SETATTR results.
pub type SetAttrRes = Res3<WccData, WccData>;

/// LOOKUP arguments (§3.3.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LookupArgs {
    /// The directory and the name.
    pub what: Diropargs3,
}

/// A successful LOOKUP.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LookupOk {
    /// The object found.
    pub object: NfsFh3,
    /// The attributes of the object.
    pub obj_attributes: PostOpAttr,
    /// The directory's attributes.
    pub dir_attributes: PostOpAttr,
}

/// LOOKUP results.
pub type LookupRes = Res3<LookupOk, PostOpAttr>;

/// ACCESS arguments (§3.3.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AccessArgs {
    /// The object.
    pub object: NfsFh3,
    /// The requested rights: `ACCESS3_` bits.
    pub access: u32,
}

/// The right to read data or a directory.
pub const ACCESS3_READ: u32 = 0x0001;
/// The right to look up a name.
pub const ACCESS3_LOOKUP: u32 = 0x0002;
/// The right to rewrite data or change entries.
pub const ACCESS3_MODIFY: u32 = 0x0004;
/// The right to write new data or add entries.
pub const ACCESS3_EXTEND: u32 = 0x0008;
/// The right to delete an entry.
pub const ACCESS3_DELETE: u32 = 0x0010;
/// The right to execute a file.
pub const ACCESS3_EXECUTE: u32 = 0x0020;

/// A successful ACCESS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AccessOk {
    /// The object's attributes.
    pub obj_attributes: PostOpAttr,
    /// The granted rights.
    pub access: u32,
}

/// ACCESS results.
pub type AccessRes = Res3<AccessOk, PostOpAttr>;

/// READLINK arguments (§3.3.5).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadLinkArgs {
    /// The link.
    pub symlink: NfsFh3,
}

/// A successful READLINK.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadLinkOk {
    /// The link's attributes.
    pub symlink_attributes: PostOpAttr,
    /// The target; it may be placed directly (RFC 8267 §3.1).
    pub data: Payload<NAME_BOUND>,
}

/// READLINK results.
pub type ReadLinkRes = Res3<ReadLinkOk, PostOpAttr>;

/// READ arguments (§3.3.6).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadArgs {
    /// The file.
    pub file: NfsFh3,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub count: u32,
}

/// A successful READ.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadOk {
    /// The file's attributes.
    pub file_attributes: PostOpAttr,
    /// The number of bytes read.
    pub count: u32,
    /// `true` if the data reaches the end of the file.
    pub eof: bool,
    /// The data; it may be placed directly.
    pub data: Payload<DATA_BOUND>,
}

/// READ results.
pub type ReadRes = Res3<ReadOk, PostOpAttr>;

/// The durability of a write (§3.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[repr(u32)]
pub enum StableHow {
    /// The data may be lost until it is committed.
    Unstable = 0,
    /// The data is on stable storage.
    DataSync = 1,
    /// The data and all attributes are on stable storage.
    FileSync = 2,
}

/// WRITE arguments (§3.3.7).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteArgs {
    /// The file.
    pub file: NfsFh3,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub count: u32,
    /// The durability that is required before the reply.
    pub stable: StableHow,
    /// The data; it may be placed directly.
    pub data: Payload<DATA_BOUND>,
}

/// A successful WRITE.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteOk {
    /// Attributes of the file before and after the operation.
    pub file_wcc: WccData,
    /// The number of bytes written.
    pub count: u32,
    /// The durability of the written data.
    pub committed: StableHow,
    /// The write verifier, which changes when uncommitted writes may have been lost.
    pub verf: Writeverf3,
}

/// WRITE results.
pub type WriteRes = Res3<WriteOk, WccData>;

/// The way to create a file (§3.3.8).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum CreateHow3 {
    /// Open an existing file.
    #[xdr(0)]
    Unchecked(Sattr3),
    /// Fail if the file exists.
    #[xdr(1)]
    Guarded(Sattr3),
    /// Fail if the file exists, unless it was created with the same verifier.
    #[xdr(2)]
    Exclusive(Createverf3),
}

/// CREATE arguments (§3.3.8).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CreateArgs {
    /// The directory and the name.
    pub what: Diropargs3,
    /// The way to create the file.
    pub how: CreateHow3,
}

/// A successful CREATE, MKDIR, SYMLINK or MKNOD.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NewObjectOk {
    /// The new object.
    pub obj: PostOpFh3,
    /// The attributes of the object.
    pub obj_attributes: PostOpAttr,
    /// Attributes of the directory before and after the operation.
    pub dir_wcc: WccData,
}

/// CREATE, MKDIR, SYMLINK and MKNOD results.
pub type NewObjectRes = Res3<NewObjectOk, WccData>;

/// MKDIR arguments (§3.3.9).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MkDirArgs {
    /// The directory and the name.
    pub what: Diropargs3,
    /// The attributes of the object.
    pub attributes: Sattr3,
}

/// SYMLINK arguments (§3.3.10).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SymLinkArgs {
    /// The directory and the name.
    pub what: Diropargs3,
    /// The attributes of the object.
    pub symlink_attributes: Sattr3,
    /// The target; it may be placed directly (RFC 8267 §3.1).
    pub symlink_data: Payload<NAME_BOUND>,
}

/// The object that MKNOD creates (§3.3.11).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Ftype3)]
pub enum MkNodData3 {
    /// A character device.
    #[xdr(Ftype3::Chr)]
    Chr(Sattr3, Specdata3),
    /// A block device.
    #[xdr(Ftype3::Blk)]
    Blk(Sattr3, Specdata3),
    /// A socket.
    #[xdr(Ftype3::Sock)]
    Sock(Sattr3),
    /// A named pipe.
    #[xdr(Ftype3::Fifo)]
    Fifo(Sattr3),
    /// A type that MKNOD cannot create. The status is BADTYPE.
    #[xdr(default)]
    Other(Ftype3),
}

/// MKNOD arguments (§3.3.11).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MkNodArgs {
    /// The directory and the name.
    pub what: Diropargs3,
    /// The object to create.
    pub data: MkNodData3,
}

/// REMOVE and RMDIR arguments (§3.3.12, §3.3.13).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RemoveArgs {
    /// The directory and the name.
    pub object: Diropargs3,
}

/// REMOVE and RMDIR results: attributes of the directory before and after the operation.
pub type RemoveRes = Res3<WccData, WccData>;

/// RENAME arguments (§3.3.14).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RenameArgs {
    /// The old name.
    pub from: Diropargs3,
    /// The new name.
    pub to: Diropargs3,
}

/// Attributes of both directories before and after the operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct RenameWcc {
    /// The source directory.
    pub fromdir_wcc: WccData,
    /// The target directory.
    pub todir_wcc: WccData,
}

/// RENAME results.
pub type RenameRes = Res3<RenameWcc, RenameWcc>;

/// LINK arguments (§3.3.15).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LinkArgs {
    /// The object.
    pub file: NfsFh3,
    /// The new name.
    pub link: Diropargs3,
}

/// Attributes of the object, and of the directory before and after the operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct LinkWcc {
    /// The object.
    pub file_attributes: PostOpAttr,
    /// The directory.
    pub linkdir_wcc: WccData,
}

/// LINK results.
pub type LinkRes = Res3<LinkWcc, LinkWcc>;

/// READDIR arguments (§3.3.16).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadDirArgs {
    /// The directory.
    pub dir: NfsFh3,
    /// The cookie after which to continue; 0 means from the start.
    pub cookie: u64,
    /// The verifier of the reply that returned the cookie.
    pub cookieverf: Cookieverf3,
    /// Maximum bytes of the result (`READDIR3resok`).
    pub count: u32,
}

/// READDIRPLUS arguments (§3.3.17).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadDirPlusArgs {
    /// The directory.
    pub dir: NfsFh3,
    /// The cookie after which to continue; 0 means from the start.
    pub cookie: u64,
    /// The verifier of the reply that returned the cookie.
    pub cookieverf: Cookieverf3,
    /// Maximum bytes of names, file numbers and cookies.
    pub dircount: u32,
    /// Maximum bytes of the result (`READDIRPLUS3resok`).
    pub maxcount: u32,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Entry3 {
    /// The file number of the object.
    pub fileid: u64,
    /// The name.
    pub name: Filename3,
    /// The cookie to continue after this entry.
    pub cookie: u64,
}

/// An entry of a directory, with its object.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct EntryPlus3 {
    /// The file number of the object.
    pub fileid: u64,
    /// The name.
    pub name: Filename3,
    /// The cookie to continue after this entry.
    pub cookie: u64,
    /// The attributes of the object.
    pub name_attributes: PostOpAttr,
    /// The file handle of the object.
    pub name_handle: PostOpFh3,
}

/// A list of entries, and a mark for the end of the directory: `dirlist3`, `dirlistplus3`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Dirlist3<T> {
    /// The entries.
    pub entries: List<T>,
    /// `true` if no entries follow.
    pub eof: bool,
}

/// A successful READDIR or READDIRPLUS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadDirOk<T> {
    /// The directory's attributes.
    pub dir_attributes: PostOpAttr,
    /// The verifier of the cookies.
    pub cookieverf: Cookieverf3,
    /// The entries.
    pub reply: Dirlist3<T>,
}

/// READDIR results.
pub type ReadDirRes = Res3<ReadDirOk<Entry3>, PostOpAttr>;
/// READDIRPLUS results.
pub type ReadDirPlusRes = Res3<ReadDirOk<EntryPlus3>, PostOpAttr>;

/// FSSTAT arguments (§3.3.18).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FsStatArgs {
    /// Any object of the file system.
    pub fsroot: NfsFh3,
}

/// A successful FSSTAT.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FsStatOk {
    /// The object's attributes.
    pub obj_attributes: PostOpAttr,
    /// The total number of bytes.
    pub tbytes: u64,
    /// The number of free bytes.
    pub fbytes: u64,
    /// The number of bytes that the caller can use.
    pub abytes: u64,
    /// The total number of objects.
    pub tfiles: u64,
    /// The number of free objects.
    pub ffiles: u64,
    /// The number of objects that the caller can create.
    pub afiles: u64,
    /// Seconds for which these values are not expected to change.
    pub invarsec: u32,
}

/// FSSTAT results.
pub type FsStatRes = Res3<FsStatOk, PostOpAttr>;

/// FSINFO arguments (§3.3.19).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FsInfoArgs {
    /// The root of the file system.
    pub fsroot: NfsFh3,
}

/// A successful FSINFO. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FsInfoOk {
    /// The object's attributes.
    pub obj_attributes: PostOpAttr,
    /// Maximum size of a READ.
    pub rtmax: u32,
    /// Preferred size of a READ.
    pub rtpref: u32,
    /// READ sizes should be multiples of this.
    pub rtmult: u32,
    /// Maximum size of a WRITE.
    pub wtmax: u32,
    /// Preferred size of a WRITE.
    pub wtpref: u32,
    /// WRITE sizes should be multiples of this.
    pub wtmult: u32,
    /// Preferred size of a READDIR.
    pub dtpref: u32,
    /// Maximum size of a file.
    pub maxfilesize: u64,
    /// The resolution of times.
    pub time_delta: Nfstime3,
    /// The `FSF3_` bits.
    pub properties: u32,
}

/// Hard links are supported.
pub const FSF3_LINK: u32 = 0x0001;
/// Symbolic links are supported.
pub const FSF3_SYMLINK: u32 = 0x0002;
/// PATHCONF is the same for all objects.
pub const FSF3_HOMOGENEOUS: u32 = 0x0008;
/// Times can be set.
pub const FSF3_CANSETTIME: u32 = 0x0010;

/// FSINFO results.
pub type FsInfoRes = Res3<FsInfoOk, PostOpAttr>;

/// PATHCONF arguments (§3.3.20).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PathConfArgs {
    /// The object.
    pub object: NfsFh3,
}

/// A successful PATHCONF.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PathConfOk {
    /// The object's attributes.
    pub obj_attributes: PostOpAttr,
    /// Maximum number of links to an object.
    pub linkmax: u32,
    /// Maximum bytes of a name.
    pub name_max: u32,
    /// `true` if a longer name is rejected and not truncated.
    pub no_trunc: bool,
    /// `true` if only a privileged user can change the owner of a file.
    pub chown_restricted: bool,
    /// `true` if names are case-insensitive.
    pub case_insensitive: bool,
    /// `true` if the case of names is preserved.
    pub case_preserving: bool,
}

/// PATHCONF results.
pub type PathConfRes = Res3<PathConfOk, PostOpAttr>;

/// COMMIT arguments (§3.3.21).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CommitArgs {
    /// The file.
    pub file: NfsFh3,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; 0 means to the end of the file.
    pub count: u32,
}

/// A successful COMMIT.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CommitOk {
    /// Attributes of the file before and after the operation.
    pub file_wcc: WccData,
    /// The write verifier, as in WRITE.
    pub verf: Writeverf3,
}

/// COMMIT results.
pub type CommitRes = Res3<CommitOk, WccData>;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use xdr::Message;

    use super::*;

    #[test]
    fn numbers_match_the_rfc() {
        assert_eq!(Proc3::ALL.len(), 22);
        for (number, procedure) in Proc3::ALL.iter().enumerate() {
            assert_eq!(*procedure as usize, number);
        }
        assert_eq!(Proc3::from_number(21), Some(Proc3::Commit));
        assert_eq!(Proc3::from_number(22), None);
    }

    #[test]
    fn read_data_is_a_payload_whose_position_is_known_in_advance() {
        let res = ReadRes::Ok(ReadOk {
            file_attributes: None,
            count: 5,
            eof: true,
            data: Bytes::from_static(b"hello").into(),
        });
        let message = Message::encode(&res);
        assert_eq!(message.payloads.len(), 1);
        let flat = message.to_rope().to_bytes().unwrap();
        assert_eq!(flat.len(), 28);
        let located = Message::locate::<ReadRes>(&flat.slice(..21), |_| Ok(())).unwrap();
        assert_eq!((located.position, located.len), (20, 5));
        assert_eq!(Message::locate::<ReadRes>(&flat.slice(..19), |_| Ok(())), None);
        assert_eq!(Message::from(flat).decode::<ReadRes>().unwrap(), res);
    }

    #[test]
    fn directory_list_is_a_linked_list() {
        let entry = |n: u64| Entry3 { fileid: n, name: "a".into(), cookie: n };
        let list = Dirlist3 { entries: List(vec![entry(1), entry(2)]), eof: true };
        let message = Message::encode(&list);
        assert_eq!(message.stream.len(), 2 * (4 + 8 + 8 + 8) + 8);
        assert_eq!(message.decode::<Dirlist3<Entry3>>().unwrap(), list);
    }
}
