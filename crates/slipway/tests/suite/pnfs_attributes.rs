//! What clients see of the layouts of files: the attributes that describe layouts, and no extended attribute.

use std::fs;

use bytes::Bytes;
use client::{Mount, SetXattr, Status};
use nfs::v4::{
    attr::{Attr4, Attrs, Purpose},
    *,
};

use crate::{
    common::{Server, lines, ok},
    pnfs::{Cluster, check, contents, cp},
};

/// Returns the attributes of the first export of a server by NFSv4.2.
async fn attributes(server: &Server, wanted: &[Attr4]) -> Attrs {
    let url = format!("{}&vers=4.2", server.url("tcp", ""));
    let mount = Mount::connect(&url.parse().unwrap(), &transports::for_client()).await.unwrap();
    let put = Argop4::PutFh(PutFhArgs { object: mount.root().clone() });
    let get = Argop4::GetAttr(GetAttrArgs { attr_request: wanted.iter().copied().collect() });
    let mut results = mount.v4().unwrap().compound(vec![put, get], 4096).await.unwrap();
    mount.unmount().await.unwrap();
    let Some(Resop4::GetAttr(Res4::Ok(fattr))) = results.pop() else { panic!("{results:?}") };
    fattr.to_attrs(2, Purpose::Get).unwrap()
}

/// RFC 8881 §5.12.2, §5.12.3 and §5.12.4.
#[tokio::test]
async fn attributes_follow_from_the_stripe_unit_and_the_threshold() {
    let flexible = Layouttype4::FLEX_FILES;
    for (options, layout_type, block, threshold) in [
        ("layouts = 'flexible'\nstripe_unit = '128 KiB'", flexible, 1 << 20, 64 << 10),
        ("layouts = 'flexible'\nstripe_unit = '128 KiB'\nstripes = 3", flexible, 128 << 10, 64 << 10),
        (
            "layouts = 'files'\nmirrors = 1\nstripes = 2\nthreshold = '100 KiB'",
            Layouttype4::NFSV4_1_FILES,
            1 << 20,
            100 << 10,
        ),
    ] {
        let cluster = Cluster::new();
        let config = cluster.config(options);
        let text = fs::read_to_string(&config).unwrap().replace("layouts = 'none'\n", "");
        let text = text.replace("url = 'nfs", "version = '4.1'\nurl = 'nfs");
        fs::write(&config, text).unwrap();
        let server = Server::start(&["--config", &config]);
        let wanted = [Attr4::FsLayoutTypes, Attr4::LayoutBlksize, Attr4::LayoutAlignment, Attr4::Mdsthreshold];
        let attrs = attributes(&server, &wanted).await;
        assert_eq!(attrs.fs_layout_types, Some(vec![layout_type]), "{options}");
        // The unit of stripes, if there are any.
        assert_eq!((attrs.layout_blksize, attrs.layout_alignment), (Some(block), Some(block)), "{options}");
        let hints = attrs.mdsthreshold.unwrap().hints;
        let [hint] = &hints[..] else { panic!("{options}: {hints:?}") };
        assert_eq!(hint.layout_type, layout_type, "{options}");
        // The sizes for reads and for writes.
        assert_eq!(hint.hintset.iter().collect::<Vec<_>>(), [0, 1], "{options}");
        let size = u64::to_be_bytes(threshold);
        assert_eq!(hint.hintlist.0, [size, size].concat(), "{options}");
        server.stop();
    }
    let cluster = Cluster::new();
    let server = cluster.start();
    assert_eq!(attributes(&server, &[Attr4::FsLayoutTypes, Attr4::Mdsthreshold]).await, Attrs::default());
    server.stop();
}

/// The record of the layout is an extended attribute of the file on the metadata server.
#[tokio::test]
async fn layout_record_is_hidden_from_clients_and_is_not_copied() {
    let cluster = Cluster::new();
    let server = cluster.start();
    let (source, bytes) = (cluster.at("source"), contents(1, 300_001));
    fs::write(&source, &bytes).unwrap();
    cp(source.to_str().unwrap(), &server.url("tcp", "/file"));
    let record = |name: &str| {
        let mut value = vec![0; 4096];
        let read = rustix::fs::getxattr(cluster.at("export").join(name), "user.slipway.layout", &mut value[..]);
        read.map(|len| value[..len].to_vec())
    };
    let before = record("file").unwrap();

    let url = format!("{}&vers=4.2", server.url("tcp", ""));
    let mount = Mount::connect(&url.parse().unwrap(), &transports::for_client()).await.unwrap();
    let (v4, file) = (mount.v4().unwrap(), mount.resolve("file").await.unwrap().handle);
    let red = || Bytes::from_static(b"red");
    v4.set_xattr(&file, b"colour", red(), SetXattr::Create).await.unwrap();
    assert_eq!(v4.xattrs(&file).await.unwrap(), ["colour"]);
    let layout = b"slipway.layout";
    assert_eq!(v4.xattr(&file, layout).await.unwrap_err().status(), Some(Status::NoAttribute));
    assert_eq!(v4.remove_xattr(&file, layout).await.unwrap_err().status(), Some(Status::NoAttribute));
    for how in [SetXattr::Either, SetXattr::Create, SetXattr::Replace] {
        let refused = v4.set_xattr(&file, layout, red(), how).await.unwrap_err();
        assert_eq!(refused.status(), Some(Status::AccessDenied), "{how:?}");
    }
    // Also if the file has none.
    mount.write("small", &b"small"[..]).await.unwrap();
    let small = mount.resolve("small").await.unwrap().handle;
    assert_eq!(v4.xattrs(&small).await.unwrap(), [""; 0]);
    assert!(v4.set_xattr(&small, layout, Bytes::from(before.clone()), SetXattr::Create).await.is_err());
    assert!(record("small").is_err());
    assert_eq!(record("file").unwrap(), before);
    mount.unmount().await.unwrap();

    // The server makes the copy by COPY, and it has objects of its own.
    let url = |name: &str| format!("{}&vers=4.2", server.url("tcp", name));
    cp(&url("/file"), &url("/copy"));
    let objects = |name: &str| {
        let (path, state) = (cluster.at("export").join(name), cluster.at("state"));
        let show = ["layout", "show", "--json", path.to_str().unwrap(), "--state-dir", state.to_str().unwrap()];
        let layout = lines(&ok(&show)).remove(0);
        let copies = layout["data"]["copies"].as_array().unwrap().iter();
        copies.map(|copy| copy["object"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (first, second) = (objects("file"), objects("copy"));
    assert!(first.len() == 2 && second.len() == 2 && first.iter().all(|object| !second.contains(object)));
    ok(&["rm", &server.url("tcp", "/file")]);
    check(&server, "/copy", &bytes, &cluster.at("back"));
    server.stop();
}
