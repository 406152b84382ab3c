//! Servers that send invalid replies, in simulations. The client must return an error: it must not panic, loop forever or accept an
//! invalid name.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use crate::common::{Server, sim};
use bytes::Bytes;
use client::{ErrorKind, File, Mount};
use nfs::{MOUNT_PROGRAM, NFS_PROGRAM, mount::*, v3::*};
use rpc::{Answering, Call, Procedure, Service};
use simnet::Network;
use tokio::task::JoinSet;
use xdr::{Encode, Encoder, List};

/// Answers every procedure of a program with the output of a function.
struct Script {
    program: u32,
    answer: fn(u32, &mut Encoder),
}

impl Service for Script {
    fn program(&self) -> u32 {
        self.program
    }
    fn versions(&self) -> RangeInclusive<u32> {
        3..=3
    }
    fn procedure(&self, _: u32, _: u32) -> Option<Procedure> {
        Some(Procedure { name: "any", idempotent: true })
    }
    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            let mut encoder = call.encoder();
            (self.answer)(call.procedure, &mut encoder);
            Ok(encoder.finish())
        }))
    }
}

/// The network of one test, and its servers.
struct World {
    network: Network,
    servers: JoinSet<()>,
}

/// Runs a test in virtual time.
fn simulated(test: impl AsyncFnOnce(&mut World)) {
    sim::simulate(|network| async move { test(&mut World { network, servers: JoinSet::new() }).await });
}

/// Mounts a server that answers NFS calls with the output of `answer`.
async fn mount(world: &mut World, answer: fn(u32, &mut Encoder)) -> Mount {
    let mount = |procedure, encoder: &mut Encoder| {
        assert_eq!(procedure, MountProc3::Mnt as u32);
        mounted(&[1], encoder);
    };
    start(world, mount, answer).mount("timeo=20s").await
}

/// Encodes the reply to MNT of an export that accepts these security flavors.
fn mounted(flavors: &[u32], encoder: &mut Encoder) {
    MountRes::Ok(MountOk { fhandle: "root".into(), auth_flavors: flavors.to_vec() }).encode(encoder);
}

/// Starts a server that answers calls of MOUNT and NFS with the outputs of functions.
fn start(world: &mut World, mount: fn(u32, &mut Encoder), answer: fn(u32, &mut Encoder)) -> Server {
    let services: Vec<Arc<dyn Service>> = vec![
        Arc::new(Script { program: MOUNT_PROGRAM, answer: mount }),
        Arc::new(Script { program: NFS_PROGRAM, answer }),
    ];
    let address = world.network.take_address();
    let mut server = sim::start_at(&world.network, address, services);
    world.servers.spawn(async move { while server.join_next().await.is_some() {} });
    Server { address, switch: sim::switch(&world.network, 1) }
}

fn fsinfo(encoder: &mut Encoder) {
    let info = FsInfoOk {
        obj_attributes: None,
        rtmax: u32::MAX,
        rtpref: 0,
        rtmult: 0,
        wtmax: 0,
        wtpref: 0,
        wtmult: 0,
        dtpref: u32::MAX,
        maxfilesize: 0,
        time_delta: Nfstime3::default(),
        properties: 0,
    };
    FsInfoRes::Ok(info).encode(encoder);
}

fn page(names: &[&str], cookie: u64, eof: bool, encoder: &mut Encoder) {
    let entries = names.iter().map(|name| EntryPlus3 {
        fileid: 1,
        name: (*name).into(),
        cookie,
        name_attributes: None,
        name_handle: None,
    });
    let reply = Dirlist3 { entries: List(entries.collect()), eof };
    ReadDirPlusRes::Ok(ReadDirOk { dir_attributes: None, cookieverf: [0; 8], reply }).encode(encoder);
}

fn protocol<T: std::fmt::Debug>(result: client::Result<T>) {
    let error = result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Protocol(_)), "{error}");
}

/// Makes a server with a valid reply to FSINFO and the given reply to all other procedures.
macro_rules! server {
    ($world:expr, $answer:expr) => {
        mount($world, |procedure, encoder| {
            if procedure == Proc3::FsInfo as u32 {
                return fsinfo(encoder);
            }
            let answer: fn(&mut Encoder) = $answer;
            answer(encoder)
        })
        .await
    };
}

#[test]
fn invalid_limits_become_usable_sizes() {
    simulated(async |world| {
        let mount = server!(world, |_| {});
        assert_eq!((mount.read_size(), mount.write_size()), (1 << 20, 8 << 10));
    });
}

#[test]
fn export_without_the_flavor_of_the_mount_is_refused_with_those_that_it_accepts() {
    simulated(async |world| {
        // Kerberos 5 with authentication only, and with privacy (RFC 7530 §3.2.1.1).
        let server = start(world, |_, encoder| mounted(&[390_003, 390_005], encoder), |_, _| panic!("no call of NFS"));
        let error = server.mount_path("/dir", "vers=3").await.map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Flavor(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("the export accepts sec=krb5, krb5p, and this mount has sec=sys"), "{text}");
        assert!(text.contains("MNT") && text.contains("/m/dir"), "{text}");
    });
}

#[test]
fn invalid_file_names_are_rejected() {
    simulated(async |world| {
        for mount in [
            server!(world, |encoder| page(&["good", "../../etc/passwd"], 1, true, encoder)),
            server!(world, |encoder| page(&["a\0b"], 1, true, encoder)),
            server!(world, |encoder| page(&[""], 1, true, encoder)),
        ] {
            let dir = client::Dir::new(mount.clone(), mount.root().clone(), "d");
            protocol(dir.collect().await);
        }
    });
}

#[test]
fn endless_directories_are_rejected() {
    simulated(async |world| {
        for mount in [
            server!(world, |encoder| page(&["again"], 0, false, encoder)),
            server!(world, |encoder| page(&["again"], 7, false, encoder)),
            server!(world, |encoder| page(&[], 7, false, encoder)),
        ] {
            let dir = client::Dir::new(mount.clone(), mount.root().clone(), "d");
            let result = tokio::time::timeout(Duration::from_secs(60), dir.collect()).await;
            protocol(result.expect("listing the directory must end"));
        }
    });
}

#[test]
fn invalid_read_replies_are_rejected() {
    simulated(async |world| {
        let read = |mount: &Mount| File::new(mount.clone(), mount.root().clone(), "f");
        for mount in [
            server!(world, |encoder| read_ok(20, 20, false, encoder)),
            server!(world, |encoder| read_ok(5, 6, false, encoder)),
            server!(world, |encoder| read_ok(0, 0, false, encoder)),
            server!(world, |encoder| encoder.u32(77)),
        ] {
            let file = read(&mount);
            protocol(file.read_bytes(0, 10).await);
            let (result, buffer) = file.read_at(0, buf::Buffer::zeroed(10)).await;
            protocol(result);
            assert_eq!(buffer.len(), 10);
            protocol(file.reader_range(0, 10).next().await);
        }
    });
}

#[test]
fn invalid_write_replies_are_rejected() {
    simulated(async |world| {
        for mount in [
            server!(world, |encoder| write_ok(0, StableHow::FileSync, encoder)),
            server!(world, |encoder| write_ok(100, StableHow::FileSync, encoder)),
            server!(world, |encoder| write_ok(10, StableHow::Unstable, encoder)),
        ] {
            let file = File::new(mount.clone(), mount.root().clone(), "f");
            protocol(file.write_at(0, Bytes::from_static(b"ten bytes.")).await);
        }
    });
}

fn read_ok(len: usize, count: u32, eof: bool, encoder: &mut Encoder) {
    let data = Bytes::from(vec![1; len]).into();
    ReadRes::Ok(ReadOk { file_attributes: None, count, eof, data }).encode(encoder);
}

fn write_ok(count: u32, committed: StableHow, encoder: &mut Encoder) {
    let ok = WriteOk { file_wcc: WccData::default(), count, committed, verf: [0; 8] };
    WriteRes::Ok(ok).encode(encoder);
}
