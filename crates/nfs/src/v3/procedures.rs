//! The procedures of RFC 1813 §3.3, each with its arguments and results.
//!
//! `XArgs` are arguments, `XOk` the body of a successful result, and `XRes` the result itself.

use xdr::{Decode, Encode, List, Payload};

use super::types::*;

/// A procedure: its number, arguments and results, for callers that know it at compile time.
pub trait Procedure3 {
    /// Its number.
    const NUMBER: Proc3;
    /// What it takes.
    type Args: Encode + Decode;
    /// What it returns.
    type Res: Encode + Decode;
}

macro_rules! procedures {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $idempotent:literal, $args:ty => $res:ty;)*) => {
        /// The procedures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Proc3 { $($(#[$doc])* $name = $number),* }

        impl Proc3 {
            /// All of them, in order.
            pub const ALL: &[Proc3] = &[$(Proc3::$name),*];

            /// The procedure of this number.
            pub fn from_number(number: u32) -> Option<Self> {
                Self::ALL.get(number as usize).copied()
            }

            /// Its name in RFC 1813.
            pub const fn name(self) -> &'static str {
                match self { $(Proc3::$name => $text),* }
            }

            /// Whether executing it twice is the same as once, even when other calls come between. WRITE is not: a
            /// duplicate that was delayed would undo a later WRITE.
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
    /// What to set.
    pub new_attributes: Sattr3,
    /// Only if this is the object's ctime.
    pub guard: Option<Nfstime3>,
}

/// SETATTR results.
pub type SetAttrRes = Res3<WccData, WccData>;

/// LOOKUP arguments (§3.3.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LookupArgs {
    /// Directory and name.
    pub what: Diropargs3,
}

/// A successful LOOKUP.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LookupOk {
    /// The object found.
    pub object: NfsFh3,
    /// Its attributes.
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
    /// Wanted rights: the `ACCESS3_` bits.
    pub access: u32,
}

/// Read data or a directory.
pub const ACCESS3_READ: u32 = 0x0001;
/// Look up a name.
pub const ACCESS3_LOOKUP: u32 = 0x0002;
/// Rewrite data or change entries.
pub const ACCESS3_MODIFY: u32 = 0x0004;
/// Write new data or add entries.
pub const ACCESS3_EXTEND: u32 = 0x0008;
/// Delete an entry.
pub const ACCESS3_DELETE: u32 = 0x0010;
/// Execute a file.
pub const ACCESS3_EXECUTE: u32 = 0x0020;

/// A successful ACCESS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AccessOk {
    /// The object's attributes.
    pub obj_attributes: PostOpAttr,
    /// Granted rights.
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
    /// Its text; may be placed directly (RFC 8267 §3.1).
    pub data: Payload<NAME_BOUND>,
}

/// READLINK results.
pub type ReadLinkRes = Res3<ReadLinkOk, PostOpAttr>;

/// READ arguments (§3.3.6).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadArgs {
    /// The file.
    pub file: NfsFh3,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub count: u32,
}

/// A successful READ.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadOk {
    /// The file's attributes.
    pub file_attributes: PostOpAttr,
    /// Bytes read.
    pub count: u32,
    /// Whether they reach the end.
    pub eof: bool,
    /// The bytes; may be placed directly.
    pub data: Payload<DATA_BOUND>,
}

/// READ results.
pub type ReadRes = Res3<ReadOk, PostOpAttr>;

/// How durable a write is (§3.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[repr(u32)]
pub enum StableHow {
    /// It may be lost until committed.
    Unstable = 0,
    /// Data is on stable storage.
    DataSync = 1,
    /// Data and attributes are.
    FileSync = 2,
}

/// WRITE arguments (§3.3.7).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteArgs {
    /// The file.
    pub file: NfsFh3,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub count: u32,
    /// How durable before the reply.
    pub stable: StableHow,
    /// The bytes; may be placed directly.
    pub data: Payload<DATA_BOUND>,
}

/// A successful WRITE.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WriteOk {
    /// The file before and after.
    pub file_wcc: WccData,
    /// Bytes written.
    pub count: u32,
    /// How durable they are.
    pub committed: StableHow,
    /// Changes when uncommitted writes may have been lost.
    pub verf: Writeverf3,
}

/// WRITE results.
pub type WriteRes = Res3<WriteOk, WccData>;

/// How to create a file (§3.3.8).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum CreateHow3 {
    /// An existing file is opened.
    #[xdr(0)]
    Unchecked(Sattr3),
    /// An existing file is an error.
    #[xdr(1)]
    Guarded(Sattr3),
    /// An existing file is an error unless made with the same verifier.
    #[xdr(2)]
    Exclusive(Createverf3),
}

/// CREATE arguments (§3.3.8).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CreateArgs {
    /// Directory and name.
    pub what: Diropargs3,
    /// How.
    pub how: CreateHow3,
}

/// A successful CREATE, MKDIR, SYMLINK or MKNOD.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NewObjectOk {
    /// The new object.
    pub obj: PostOpFh3,
    /// Its attributes.
    pub obj_attributes: PostOpAttr,
    /// The directory before and after.
    pub dir_wcc: WccData,
}

/// CREATE, MKDIR, SYMLINK and MKNOD results.
pub type NewObjectRes = Res3<NewObjectOk, WccData>;

/// MKDIR arguments (§3.3.9).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MkDirArgs {
    /// Directory and name.
    pub what: Diropargs3,
    /// Its attributes.
    pub attributes: Sattr3,
}

/// SYMLINK arguments (§3.3.10).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SymLinkArgs {
    /// Directory and name.
    pub what: Diropargs3,
    /// Its attributes.
    pub symlink_attributes: Sattr3,
    /// Its text; may be placed directly (RFC 8267 §3.1).
    pub symlink_data: Payload<NAME_BOUND>,
}

/// What MKNOD makes (§3.3.11).
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
    /// A type that MKNOD does not make: answered with BADTYPE.
    #[xdr(default)]
    Other(Ftype3),
}

/// MKNOD arguments (§3.3.11).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MkNodArgs {
    /// Directory and name.
    pub what: Diropargs3,
    /// What to make.
    pub data: MkNodData3,
}

/// REMOVE and RMDIR arguments (§3.3.12, §3.3.13).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RemoveArgs {
    /// Directory and name.
    pub object: Diropargs3,
}

/// REMOVE and RMDIR results: the directory before and after.
pub type RemoveRes = Res3<WccData, WccData>;

/// RENAME arguments (§3.3.14).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RenameArgs {
    /// What.
    pub from: Diropargs3,
    /// To what.
    pub to: Diropargs3,
}

/// Both directories before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct RenameWcc {
    /// The one it left.
    pub fromdir_wcc: WccData,
    /// The one it came to.
    pub todir_wcc: WccData,
}

/// RENAME results.
pub type RenameRes = Res3<RenameWcc, RenameWcc>;

/// LINK arguments (§3.3.15).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LinkArgs {
    /// The object.
    pub file: NfsFh3,
    /// Its new name.
    pub link: Diropargs3,
}

/// The object's attributes, and its directory before and after.
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
    /// Continue behind this; 0 from the start.
    pub cookie: u64,
    /// Of the reply that gave the cookie.
    pub cookieverf: Cookieverf3,
    /// Most bytes of the result (`READDIR3resok`).
    pub count: u32,
}

/// READDIRPLUS arguments (§3.3.17).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadDirPlusArgs {
    /// The directory.
    pub dir: NfsFh3,
    /// Continue behind this; 0 from the start.
    pub cookie: u64,
    /// Of the reply that gave the cookie.
    pub cookieverf: Cookieverf3,
    /// Most bytes of names, numbers and cookies.
    pub dircount: u32,
    /// Most bytes of the result (`READDIRPLUS3resok`).
    pub maxcount: u32,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Entry3 {
    /// Number of the object.
    pub fileid: u64,
    /// Name.
    pub name: Filename3,
    /// Continues behind this entry.
    pub cookie: u64,
}

/// An entry of a directory, with its object.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct EntryPlus3 {
    /// Number of the object.
    pub fileid: u64,
    /// Name.
    pub name: Filename3,
    /// Continues behind this entry.
    pub cookie: u64,
    /// Attributes.
    pub name_attributes: PostOpAttr,
    /// Handle.
    pub name_handle: PostOpFh3,
}

/// A list of entries and whether it is the last: `dirlist3`, `dirlistplus3`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Dirlist3<T> {
    /// The entries.
    pub entries: List<T>,
    /// Whether no entries follow.
    pub eof: bool,
}

/// A successful READDIR or READDIRPLUS.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReadDirOk<T> {
    /// The directory's attributes.
    pub dir_attributes: PostOpAttr,
    /// Goes with the cookies.
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
    /// Bytes in all.
    pub tbytes: u64,
    /// Bytes free.
    pub fbytes: u64,
    /// Bytes free for the caller.
    pub abytes: u64,
    /// Objects in all.
    pub tfiles: u64,
    /// Objects free.
    pub ffiles: u64,
    /// Objects free for the caller.
    pub afiles: u64,
    /// Seconds for which this does not change.
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
    /// Largest READ.
    pub rtmax: u32,
    /// Best READ.
    pub rtpref: u32,
    /// READ sizes should be multiples of this.
    pub rtmult: u32,
    /// Largest WRITE.
    pub wtmax: u32,
    /// Best WRITE.
    pub wtpref: u32,
    /// WRITE sizes should be multiples of this.
    pub wtmult: u32,
    /// Best READDIR.
    pub dtpref: u32,
    /// Largest file.
    pub maxfilesize: u64,
    /// Resolution of times.
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
    /// Most links.
    pub linkmax: u32,
    /// Longest name.
    pub name_max: u32,
    /// Whether a longer name is refused rather than cut.
    pub no_trunc: bool,
    /// Whether only a privileged user may give files away.
    pub chown_restricted: bool,
    /// Whether names are the same in any case.
    pub case_insensitive: bool,
    /// Whether the case of names is kept.
    pub case_preserving: bool,
}

/// PATHCONF results.
pub type PathConfRes = Res3<PathConfOk, PostOpAttr>;

/// COMMIT arguments (§3.3.21).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CommitArgs {
    /// The file.
    pub file: NfsFh3,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 means to the end.
    pub count: u32,
}

/// A successful COMMIT.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CommitOk {
    /// The file before and after.
    pub file_wcc: WccData,
    /// As in WRITE.
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
    fn numbers_are_those_of_the_rfc() {
        assert_eq!(Proc3::ALL.len(), 22);
        for (number, procedure) in Proc3::ALL.iter().enumerate() {
            assert_eq!(*procedure as usize, number);
        }
        assert_eq!(Proc3::from_number(21), Some(Proc3::Commit));
        assert_eq!(Proc3::from_number(22), None);
    }

    #[test]
    fn read_data_is_a_payload_that_is_located_before_it_arrives() {
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
    fn a_directory_list_is_a_linked_list() {
        let entry = |n: u64| Entry3 { fileid: n, name: "a".into(), cookie: n };
        let list = Dirlist3 { entries: List(vec![entry(1), entry(2)]), eof: true };
        let message = Message::encode(&list);
        assert_eq!(message.stream.len(), 2 * (4 + 8 + 8 + 8) + 8);
        assert_eq!(message.decode::<Dirlist3<Entry3>>().unwrap(), list);
    }
}
