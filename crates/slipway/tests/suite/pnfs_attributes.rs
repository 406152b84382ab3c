//! What clients see of the layouts of files: the attributes that describe layouts, and no extended attribute.

use std::{fs, sync::Arc};

use bytes::Bytes;
use client::{Mount, SetXattr, Status};
use nfs::v4::{
    attr::{Attr4, Attrs, Purpose},
    compound::{CompoundArgs, CompoundRes},
    *,
};
use rpc::{AuthSys, Client, ClientOptions, Credential, ReplyPlan, TcpKind};

use crate::{
    common::{Server, lines, ok},
    pnfs::{Cluster, check, contents, cp},
};

/// Returns the attributes of the first export of a server by NFSv4.2.
async fn attributes(server: &Server, wanted: &[Attr4]) -> Attrs {
    let credential = Credential::Sys(AuthSys::of_process());
    let options = ClientOptions { credential, ..ClientOptions::new(nfs::NFS_PROGRAM, 4) };
    let address = ([127, 0, 0, 1], server.port("tcp")).into();
    let rpc = Client::connect(Arc::new(TcpKind::default()), address, options).await.unwrap();
    let call = async |argarray: Vec<Argop4>| {
        let args = CompoundArgs { tag: "".into(), minorversion: 2, argarray };
        let plan = ReplyPlan { inline_max: 64 << 10, ..ReplyPlan::default() };
        let answer = rpc.call::<CompoundRes>(PROC_COMPOUND, &args, plan, Default::default()).await.unwrap();
        assert_eq!(answer.results.status, Nfsstat4::Ok, "{:?}", answer.results);
        answer.results.resarray.into_iter().next_back().expect("there must be a result")
    };
    let introduce = ExchangeIdArgs {
        clientowner: ClientOwner4 { verifier: [1; 8], ownerid: "reader".into() },
        flags: 0,
        state_protect: StateProtect4A::None,
        client_impl_id: None,
    };
    let known = call(vec![Argop4::ExchangeId(Box::new(introduce))]).await;
    let Resop4::ExchangeId(Res4::Ok(known)) = known else { panic!("{known:?}") };
    let channel = ChannelAttrs4 {
        headerpadsize: 0,
        maxrequestsize: 64 << 10,
        maxresponsesize: 64 << 10,
        maxresponsesize_cached: 4 << 10,
        maxoperations: 16,
        maxrequests: 1,
        rdma_ird: None,
    };
    let create = CreateSessionArgs {
        clientid: known.clientid,
        sequence: known.sequenceid,
        flags: 0,
        fore_chan_attrs: channel,
        back_chan_attrs: channel,
        cb_program: 0x4000_0000,
        sec_parms: Default::default(),
    };
    let created = call(vec![Argop4::CreateSession(Box::new(create))]).await;
    let Resop4::CreateSession(Res4::Ok(created)) = created else { panic!("{created:?}") };
    let sequence = SequenceArgs {
        sessionid: created.sessionid,
        sequenceid: Sequenceid4(1),
        slotid: Slotid4(0),
        highest_slotid: Slotid4(0),
        cachethis: false,
    };
    let names = server.ready["exports"][0].as_str().unwrap().split('/').filter(|name| !name.is_empty());
    let walk = names.map(|name| Argop4::Lookup(LookupArgs { objname: name.into() }));
    let get = Argop4::GetAttr(GetAttrArgs { attr_request: wanted.iter().copied().collect() });
    let operations = [Argop4::Sequence(sequence), Argop4::PutRootFh].into_iter().chain(walk).chain([get]);
    let got = call(operations.collect()).await;
    let Resop4::GetAttr(Res4::Ok(fattr)) = got else { panic!("{got:?}") };
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
