//! Referrals to file systems of other servers (RFC 8881 §11).

use crate::common::v4::*;
use crate::common::*;
use nfs::v4::{
    attr::{Attr4, Attrs, Fattr4, Purpose},
    location::FsLocations4,
    *,
};
use server::{Client, Export, ExportId, ExportOptions, Exports, NfsServer, Referral, Squash};

fn server() -> NfsServer {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let mut exports = Exports::new();
    exports.add(Export::new("/here", ExportId::unique(), memory(), options).unwrap()).unwrap();
    let locations = || vec!["nas:/srv/data".parse().unwrap(), "[2001:db8::7]:/data".parse().unwrap()];
    for name in ["/far/away", "/here/dir/within"] {
        exports.refer(Referral::new(name, locations(), vec![Client::any()]).unwrap()).unwrap();
    }
    let others = vec!["10.0.0.0/8".parse().unwrap()];
    exports.refer(Referral::new("/secret", locations(), others).unwrap()).unwrap();
    assert!(exports.refer(Referral::new("/far/away/below", locations(), vec![Client::any()]).unwrap()).is_err());
    server_of(exports)
}

fn at_path(path: &str, operation: Argop4) -> Vec<Argop4> {
    [at(path), vec![operation]].concat()
}

fn readdir(wanted: &[Attr4]) -> Argop4 {
    let attr_request = wanted.iter().map(|&attr| attr as u32).collect();
    Argop4::ReadDir(ReadDirArgs { cookie: 0, cookieverf: [0; 8], dircount: 0, maxcount: 4096, attr_request })
}

fn listed(client: &mut Client4, path: &str, wanted: &[Attr4]) -> Vec<(String, Attrs)> {
    let Some(Resop4::ReadDir(Res4::Ok(read))) = client.ok(at_path(path, readdir(wanted))).pop() else { panic!() };
    assert!(read.reply.eof);
    let entry = |entry: &Entry4| {
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        (name, entry.attrs.to_attrs(2, Purpose::Get).unwrap())
    };
    read.reply.entries.iter().map(entry).collect()
}

fn places(locations: &FsLocations4) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let path = |names: &[Component4]| names.iter().map(|name| format!("/{}", text(name))).collect();
    locations.locations.iter().map(|location| (text(&location.server[0]), path(&location.rootpath))).collect()
}

#[simnet::test]
async fn referral_returns_its_locations_and_otherwise_moved() {
    let server = server();
    let mut client = Client4::new(&server, "a", 2);
    client.ok(at_path("here", mkdir("dir")));
    for path in ["far/away", "here/dir/within"] {
        client.ok(at(path));
        for refused in [
            Argop4::GetFh,
            Argop4::SaveFh,
            Argop4::LookupP,
            Argop4::Lookup(LookupArgs { objname: "x".into() }),
            Argop4::Access(AccessArgs { access: ACCESS4_READ }),
            getattr(&[Attr4::Size, Attr4::Fsid]),
            getattr(&[Attr4::RdattrError]),
            readdir(&[Attr4::FsLocations]),
            mkdir("x"),
        ] {
            assert_eq!(client.status(at_path(path, refused.clone())), Nfsstat4::Moved, "{path}: {refused:?}");
        }
        let wanted = [Attr4::FsLocations, Attr4::Fsid, Attr4::MountedOnFileid];
        let got = client.attrs(path, &[&wanted[..], &[Attr4::Size, Attr4::Type, Attr4::Filehandle]].concat());
        let locations = got.fs_locations.clone().unwrap();
        assert_eq!(places(&locations), [("nas".into(), "/srv/data".into()), ("2001:db8::7".into(), "/data".into())]);
        assert_eq!(locations.fs_root.len(), path.split('/').count());
        assert!(got.mounted_on_fileid.is_some() && got.size.is_none() && got.filehandle.is_none());
        for other in ["", "far", "here"] {
            assert_ne!(client.attrs(other, &[Attr4::Fsid]).fsid, got.fsid, "a referral must have its own fsid");
        }
        // The compound can continue at another file handle.
        client.ok([at_path(path, Argop4::PutRootFh), vec![Argop4::GetFh]].concat());
        let verify = |attrs: Attrs| Argop4::Verify(VerifyArgs { obj_attributes: Fattr4::from(attrs) });
        let same = Attrs { fs_locations: Some(locations.clone()), fsid: got.fsid, ..Attrs::default() };
        client.ok(at_path(path, verify(same.clone())));
        assert_eq!(client.status(at_path(path, verify(Attrs { size: Some(0), ..same }))), Nfsstat4::Moved);
    }
}

#[simnet::test]
async fn readdir_returns_the_locations_of_referrals() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    client.ok(at_path("here", mkdir("dir")));
    client.ok(at_path("here/dir", mkdir("within")));
    for (path, name) in [("far", "away"), ("here/dir", "within")] {
        let got = listed(&mut client, path, &[Attr4::FsLocations, Attr4::RdattrError, Attr4::Fileid]);
        let [(listed_as, attrs)] = &got[..] else { panic!("{got:?}") };
        assert_eq!((listed_as.as_str(), attrs.rdattr_error, attrs.fileid), (name, Some(Nfsstat4::Ok), None));
        assert_eq!(attrs.fs_locations.as_ref().unwrap().locations.len(), 2);
        let got = listed(&mut client, path, &[Attr4::RdattrError, Attr4::Fileid]);
        assert_eq!((got.len(), got[0].1.rdattr_error), (1, Some(Nfsstat4::Moved)));
        assert_eq!(client.status(at_path(path, readdir(&[Attr4::Fileid]))), Nfsstat4::Moved);
    }
    // A referral that does not admit the caller is hidden.
    let names: Vec<_> = listed(&mut client, "", &[Attr4::RdattrError]).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["here", "far"]);
    assert_eq!(client.status(at("secret")), Nfsstat4::NoEnt);
    client.peer = "10.1.2.3:700".parse().unwrap();
    assert_eq!(client.status(at_path("secret", Argop4::GetFh)), Nfsstat4::Moved);
}

#[simnet::test]
async fn object_below_a_referral_cannot_be_removed_or_renamed() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    client.ok(at_path("here", mkdir("dir")));
    for name in ["within", "x"] {
        client.ok(at_path("here/dir", mkdir(name)));
    }
    assert_eq!(client.status(at_path("here/dir", remove("within"))), Nfsstat4::FileOpen);
    let rename = |from: &str, to: &str| {
        let rename = Argop4::Rename(RenameArgs { oldname: from.into(), newname: to.into() });
        [at("here/dir"), vec![Argop4::SaveFh, rename]].concat()
    };
    for (from, to) in [("within", "y"), ("x", "within")] {
        assert_eq!(client.status(rename(from, to)), Nfsstat4::FileOpen, "{from} {to}");
    }
    client.ok(rename("x", "y"));
    client.ok(at_path("here/dir", remove("y")));
    assert_eq!(listed(&mut client, "here/dir", &[Attr4::RdattrError]).len(), 1);
}

#[simnet::test]
async fn local_export_has_no_other_locations() {
    let server = server();
    let mut client = Client4::new(&server, "a", 1);
    let got = client.attrs("here", &[Attr4::FsLocations]).fs_locations.unwrap();
    assert_eq!(got, FsLocations4 { fs_root: vec!["here".into()], locations: Vec::new() });
    assert_eq!(client.attrs("", &[Attr4::FsLocations]).fs_locations, Some(FsLocations4::default()));
}
