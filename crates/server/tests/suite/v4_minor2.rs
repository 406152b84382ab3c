//! The additions of version 4.2: ranges of files, copies, extended attributes; and ACLs.

use crate::common::v4::*;
use crate::common::*;
use nfs::v4::{
    acl::*,
    attr::{Attr4, Attrs},
    *,
};
use server::{Export, ExportId, ExportOptions, NfsServer, Squash};

fn server() -> NfsServer {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    server_of(Export::new("/m", ExportId::unique(), memory(), options).unwrap())
}

fn client(server: &NfsServer) -> Client4 {
    Client4::new(server, "a", 2)
}

/// The page size of the memory back end: the unit of holes and clones.
const PAGE: u64 = 128 << 10;

fn seek(what: DataContent4, offset: u64) -> Argop4 {
    Argop4::Seek(SeekArgs { stateid: Stateid4::ANONYMOUS, offset, what })
}

fn range(offset: u64, length: u64) -> AllocateArgs {
    AllocateArgs { stateid: Stateid4::ANONYMOUS, offset, length }
}

#[simnet::test]
async fn operations_of_4_2_are_illegal_in_4_1() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    client.file("m", "f", b"x");
    let (status, results) = client.call([at("m/f"), vec![seek(DataContent4::Data, 0)]].concat());
    assert_eq!(status, Nfsstat4::OpIllegal);
    //= rfc8881-18.52.3-1
    assert_eq!(results.last().unwrap().opnum(), Opnum4::Illegal);
}

#[simnet::test]
async fn deallocate_seek_and_read_plus_handle_holes() {
    let server = server();
    let mut client = client(&server);
    client.file("m", "f", &[7; 3 * PAGE as usize]);
    client.ok([at("m/f"), vec![Argop4::Deallocate(range(PAGE, PAGE))]].concat());
    let mut find = |what, offset| match client.call([at("m/f"), vec![seek(what, offset)]].concat()).1.pop() {
        Some(Resop4::Seek(found)) => found.into_result().map(|found| (found.eof, found.offset)),
        other => panic!("{other:?}"),
    };
    assert_eq!(find(DataContent4::Hole, 0), Ok((false, PAGE)));
    assert_eq!(find(DataContent4::Data, PAGE), Ok((false, 2 * PAGE)));
    assert_eq!(find(DataContent4::Hole, 2 * PAGE), Ok((true, 3 * PAGE)));
    assert_eq!(find(DataContent4::Data, 3 * PAGE), Err(Nfsstat4::NxIo));
    let args = ReadArgs { stateid: Stateid4::ANONYMOUS, offset: PAGE - 10, count: PAGE as u32 };
    let Some(Resop4::ReadPlus(Res4::Ok(read))) = client.ok([at("m/f"), vec![Argop4::ReadPlus(args)]].concat()).pop()
    else {
        panic!()
    };
    assert!(!read.eof);
    let [ReadPlusContent::Data { offset, data }, ReadPlusContent::Hole { offset: hole, length }, ..] =
        &read.contents[..]
    else {
        panic!("{:?}", read.contents.len())
    };
    assert_eq!((*offset, &data[..]), (PAGE - 10, &[7; 10][..]));
    assert_eq!((*hole, *length), (PAGE, PAGE - 10), "the segment must end with the range");
    client.ok([at("m/f"), vec![Argop4::Allocate(range(5 * PAGE, 10))]].concat());
    assert_eq!(client.attrs("m/f", &[Attr4::Size]).size, Some(5 * PAGE + 10));
    assert_eq!(client.status([at("m/f"), vec![Argop4::Allocate(range(0, 0))]].concat()), Nfsstat4::Inval);
    assert_eq!(client.status([at("m"), vec![Argop4::Allocate(range(0, 1))]].concat()), Nfsstat4::IsDir);
}

#[simnet::test]
async fn copy_and_clone_transfer_ranges() {
    let server = server();
    let mut client = client(&server);
    let data: Vec<u8> = (0..2 * PAGE).map(|at| (at % 251) as u8).collect();
    client.file("m", "from", &data);
    client.file("m", "to", b"");
    let copy = |src_offset, count| {
        Argop4::Copy(CopyArgs {
            src_stateid: Stateid4::ANONYMOUS,
            dst_stateid: Stateid4::ANONYMOUS,
            src_offset,
            dst_offset: 1,
            count,
            consecutive: true,
            synchronous: true,
            source_server: Default::default(),
        })
    };
    let between = |op: Argop4| [at("m/from"), vec![Argop4::SaveFh], at("m/to"), vec![op]].concat();
    let Some(Resop4::Copy(CopyRes::Ok(copied))) = client.ok(between(copy(5, 0))).pop() else { panic!() };
    assert_eq!(copied.response.count, 2 * PAGE - 5);
    let Some(Resop4::Read(Res4::Ok(back))) =
        client.ok([at("m/to"), vec![read(Stateid4::ANONYMOUS, 0, 1 << 20)]].concat()).pop()
    else {
        panic!()
    };
    assert!(back.data.0.to_bytes().unwrap() == [&[0], &data[5..]].concat());
    assert_eq!(client.status(between(copy(0, 3 * PAGE))), Nfsstat4::Inval);
    assert_eq!(client.status([at("m/to"), vec![copy(0, 0)]].concat()), Nfsstat4::NoFileHandle);
    let clone = |src_offset| {
        Argop4::Clone(CloneArgs {
            src_stateid: Stateid4::ANONYMOUS,
            dst_stateid: Stateid4::ANONYMOUS,
            src_offset,
            dst_offset: 0,
            count: PAGE,
        })
    };
    client.ok(between(clone(PAGE)));
    assert_eq!(client.status(between(clone(1))), Nfsstat4::Inval);
    let block = client.attrs("m/to", &[Attr4::CloneBlksize]).clone_blksize;
    assert_eq!(block, Some(PAGE as u32));
}

#[simnet::test]
async fn extended_attributes_are_stored() {
    let server = server();
    let mut client = client(&server);
    client.file("m", "f", b"");
    let set = |key: &str, value: &'static [u8], option| {
        let value = bytes::Bytes::from_static(value).into();
        Argop4::SetXattr(SetXattrArgs { option, key: key.into(), value })
    };
    let named = |name: &str| XattrArgs { name: name.into() };
    let on_f = |op: Argop4| [at("m/f"), vec![op]].concat();
    for name in ["one", "two", "three"] {
        client.ok(on_f(set(name, b"value", SetxattrOption4::Create)));
    }
    assert_eq!(client.status(on_f(set("one", b"", SetxattrOption4::Create))), Nfsstat4::Exist);
    assert_eq!(client.status(on_f(set("four", b"", SetxattrOption4::Replace))), Nfsstat4::NoXattr);
    let Some(Resop4::GetXattr(Res4::Ok(value))) = client.ok(on_f(Argop4::GetXattr(named("two")))).pop() else {
        panic!()
    };
    assert_eq!(&value.0[..], b"value");
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let list = Argop4::ListXattrs(ListXattrsArgs { cookie, maxcount: 28 });
        let Some(Resop4::ListXattrs(Res4::Ok(listed))) = client.ok(on_f(list)).pop() else { panic!() };
        names.extend(listed.names.iter().map(|name| name.to_vec()));
        cookie = listed.cookie;
        if listed.eof {
            break;
        }
    }
    assert_eq!(names, [&b"one"[..], b"three", b"two"]);
    let list = Argop4::ListXattrs(ListXattrsArgs { cookie: 0, maxcount: 17 });
    assert_eq!(client.status(on_f(list)), Nfsstat4::TooSmall);
    client.ok(on_f(Argop4::RemoveXattr(named("one"))));
    assert_eq!(client.status(on_f(Argop4::GetXattr(named("one")))), Nfsstat4::NoXattr);
    assert_eq!(client.attrs("m", &[Attr4::XattrSupport]).xattr_support, Some(true));
}

#[simnet::test]
async fn open_arguments_lists_the_supported_values() {
    let server = server();
    let mut client = client(&server);
    let supported = client.attrs("m", &[Attr4::OpenArguments]).open_arguments.unwrap();
    let values = |set: &Bitmap4| set.iter().collect::<Vec<_>>();
    assert_eq!((values(&supported.share_access), values(&supported.share_deny)), (vec![1, 2, 3], vec![0, 1, 2, 3]));
    assert_eq!(
        values(&supported.share_access_want),
        [3, 4, 5],
        "neither timestamps nor OPEN with XOR delegation is supported"
    );
    assert_eq!(
        (values(&supported.open_claim), values(&supported.create_mode)),
        (vec![0, 1, 2, 4, 5], vec![0, 1, 2, 3])
    );
    let mut client = Client4::new(&server, "b", 1);
    assert_eq!(client.attrs("m", &[Attr4::OpenArguments]).open_arguments, None, "4.1 does not have this attribute");
}

#[simnet::test]
async fn acl_is_set_read_and_reflected_in_the_mode() {
    let server = server();
    let mut client = client(&server);
    client.file("m", "f", b"");
    let ace = |acetype, flag, access_mask, who: &str| Nfsace4 { acetype, flag, access_mask, who: who.into() };
    let write = ACE4_WRITE_DATA | ACE4_APPEND_DATA;
    let acl = vec![
        ace(Acetype4::ACCESS_ALLOWED, 0, ACE4_READ_DATA | write, "OWNER@"),
        ace(Acetype4::ACCESS_ALLOWED, 0, ACE4_READ_DATA, "1234"),
        ace(Acetype4::ACCESS_ALLOWED, ACE4_IDENTIFIER_GROUP, ACE4_READ_DATA, "77"),
    ];
    client.ok([at("m/f"), vec![set(Attrs { acl: Some(acl), ..Attrs::default() })]].concat());
    let attrs = client.attrs("m/f", &[Attr4::Acl, Attr4::Mode, Attr4::Aclsupport]);
    assert_eq!(attrs.mode, Some(0o640));
    let kept = attrs.acl.unwrap();
    let allowed = |who: &str| {
        let of = kept.iter().find(|ace| ace.acetype == Acetype4::ACCESS_ALLOWED && ace.who == who.into());
        of.map(|ace| ace.access_mask & (ACE4_READ_DATA | write | ACE4_EXECUTE))
    };
    assert_eq!(allowed("1234"), Some(ACE4_READ_DATA));
    assert_eq!(allowed("77"), Some(ACE4_READ_DATA));
    assert_eq!(allowed("OWNER@"), Some(ACE4_READ_DATA | write));
    assert_eq!(allowed("EVERYONE@"), Some(0));
    // The ACL decides about access.
    client.caller = user(1234, 1234);
    client.ok([at("m/f"), vec![read(Stateid4::ANONYMOUS, 0, 1)]].concat());
    client.caller = user(1235, 1235);
    assert_eq!(client.status([at("m/f"), vec![read(Stateid4::ANONYMOUS, 0, 1)]].concat()), Nfsstat4::Access);
}

/// Root may execute a file if anybody may.
#[simnet::test]
async fn execute_permission_of_root_needs_an_entry_that_allows_it() {
    let server = server();
    let mut client = client(&server);
    let handle = client.file("m", "f", b"");
    let ace = |acetype, access_mask, who: &str| Nfsace4 { acetype, flag: 0, access_mask, who: who.into() };
    let mut execute = |of_user| {
        let acl = vec![
            ace(Acetype4::ACCESS_ALLOWED, ACE4_READ_DATA, "OWNER@"),
            ace(of_user, ACE4_EXECUTE, "1234"),
            ace(Acetype4::ACCESS_ALLOWED, ACE4_READ_DATA, "1234"),
        ];
        client.caller = user(0, 0);
        client.ok([putfh(&handle), set(Attrs { acl: Some(acl), ..Attrs::default() })]);
        [0, 1234, 1235].map(|uid| {
            client.caller = user(uid, uid);
            let results = client.ok([putfh(&handle), Argop4::Access(AccessArgs { access: ACCESS4_EXECUTE })]);
            let Some(Resop4::Access(Res4::Ok(ok))) = results.last() else { panic!("{results:?}") };
            ok.access == ACCESS4_EXECUTE
        })
    };
    //= rfc8881-18.1.3-7
    assert_eq!(execute(Acetype4::ACCESS_ALLOWED), [true, true, false]);
    assert_eq!(execute(Acetype4::ACCESS_DENIED), [false, false, false]);
}
