//! User and group names over the protocol. Every host has a user and a group `root`.

use crate::common::v4::*;
use crate::common::*;
use nfs::v4::{
    attr::{Attr4, Attrs, Purpose},
    *,
};
use server::{Export, ExportId, ExportOptions, Squash, config::Settings};

fn client(idmap_domain: Option<&str>) -> Client4 {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), memory(), options).unwrap();
    let settings = Settings { idmap_domain: idmap_domain.map(str::to_owned), ..Settings::default() };
    let server = server_with(export, settings);
    let mut client = Client4::new(&server, "a", 2);
    client.file("m", "f", b"");
    client
}

fn owners(attrs: &Attrs) -> [String; 2] {
    [&attrs.owner, &attrs.owner_group].map(|text| String::from_utf8(text.as_ref().unwrap().to_vec()).unwrap())
}

fn chown(client: &mut Client4, owner: &str, group: &str) -> Nfsstat4 {
    let attrs = Attrs { owner: Some(owner.into()), owner_group: Some(group.into()), ..Attrs::default() };
    client.status([at("m/f"), vec![set(attrs)]].concat())
}

const WHO: [Attr4; 2] = [Attr4::Owner, Attr4::OwnerGroup];

#[simnet::test]
async fn without_a_domain_numbers_are_sent_and_names_are_accepted() {
    let mut client = client(None);
    assert_eq!(chown(&mut client, "4000000000", "4000000001"), Nfsstat4::Ok);
    assert_eq!(owners(&client.attrs("m/f", &WHO)), ["4000000000", "4000000001"]);
    assert_eq!(chown(&mut client, "root", "root"), Nfsstat4::Ok);
    assert_eq!(owners(&client.attrs("m/f", &WHO)), ["0", "0"]);
    assert_eq!(chown(&mut client, "root@example.com", "0"), Nfsstat4::BadOwner);
}

#[simnet::test]
async fn with_a_domain_names_are_sent() {
    let mut client = client(Some("example.com"));
    assert_eq!(owners(&client.attrs("m/f", &WHO)), ["root@example.com", "root@example.com"]);
    let attr_request = WHO.iter().map(|&attr| attr as u32).collect();
    let readdir = ReadDirArgs { cookie: 0, cookieverf: [0; 8], dircount: 0, maxcount: 4096, attr_request };
    let read = client.ok([at("m"), vec![Argop4::ReadDir(readdir)]].concat()).pop();
    let Some(Resop4::ReadDir(Res4::Ok(read))) = read else { panic!("{read:?}") };
    let attrs = read.reply.entries[0].attrs.to_attrs(2, Purpose::Get).unwrap();
    assert_eq!(owners(&attrs), ["root@example.com", "root@example.com"]);
    assert_eq!(chown(&mut client, "4000000000", "root@Example.Com"), Nfsstat4::Ok);
    assert_eq!(
        owners(&client.attrs("m/f", &WHO)),
        ["4000000000", "root@example.com"],
        "a user without a name is sent as a number"
    );
    for bad in ["root@elsewhere", "there is nobody@example.com", "4294967295", "@example.com"] {
        assert_eq!(chown(&mut client, bad, "0"), Nfsstat4::BadOwner, "{bad}");
    }
    assert_eq!(owners(&client.attrs("m/f", &WHO))[0], "4000000000");
}
