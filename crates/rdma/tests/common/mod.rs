//! The providers of this crate as fabrics of the conformance suite.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::IpAddr;

use buf::Pool;
use conformance::provider::{Fabric, shared_pool};
use rdma::{
    Provider,
    iwarp::{Iwarp, IwarpOptions},
    registration::Registration,
    shm::{Shm, ShmOptions},
    sim::{NetworkOptions, Sim},
    verbs::{Verbs, VerbsOptions, survey},
};

/// The simulated fabric. The way of registration follows from the seed.
pub fn sim(seed: u64) -> Fabric {
    let way = Registration::ALL[seed as usize % Registration::ALL.len()];
    Fabric::new(Sim::new(NetworkOptions { seed, ..NetworkOptions::default() })).registering(way)
}

pub fn iwarp(options: IwarpOptions) -> Fabric {
    Fabric::new(Iwarp::new(options))
}

/// Small FPDUs and socket buffers: everything that can be cut is cut.
pub fn iwarp_in_small_fpdus() -> Fabric {
    let (send_buffer, recv_buffer) = (Some(8192), Some(8192));
    iwarp(IwarpOptions { fpdu_max: 700, send_buffer, recv_buffer, ..IwarpOptions::default() })
}

/// Shared memory, with sockets in a new directory.
pub fn shm() -> Fabric {
    shm_as(ShmOptions::default(), |shm| shm)
}

/// The same with options, wrapped by `wrap`.
pub fn shm_as<P: Provider>(options: ShmOptions, wrap: impl FnOnce(Shm) -> P) -> Fabric {
    let directory = tempfile::tempdir().unwrap();
    let options = ShmOptions { directory: Some(directory.path().to_owned()), ..options };
    Fabric::new(wrap(Shm::new(options))).keeping(directory)
}

/// Shared memory that is registered in a way that the provider does not choose itself.
pub fn shm_registering(way: Registration) -> Fabric {
    let fabric = shm().with_pool(shared_pool()).registering(way);
    assert!(fabric.provider.registrations().contains(&way));
    fabric
}

/// The adapter of this machine, if it has one, at the address that the environment names.
pub fn verbs() -> Option<Fabric> {
    verbs_as(VerbsOptions::default(), |verbs| verbs)
}

/// The same with options, wrapped by `wrap`.
pub fn verbs_as<P: Provider>(options: VerbsOptions, wrap: impl FnOnce(Verbs) -> P) -> Option<Fabric> {
    let skipped = |why: &str| println!("SKIPPED rdma: conformance over verbs: {why}");
    let verbs = match Verbs::open(options) {
        Ok(verbs) => verbs,
        Err(why) => {
            skipped(&why.to_string());
            return None;
        }
    };
    let Ok(address) = std::env::var(VERBS_ADDRESS) else {
        skipped(&format!("{VERBS_ADDRESS} does not say which IP address an adapter of this machine has"));
        return None;
    };
    let ip: IpAddr = address.parse().unwrap_or_else(|_| panic!("{VERBS_ADDRESS} is {address}, no IP address"));
    let mut fabric = Fabric::new(wrap(verbs));
    fabric.listen = (ip, 0).into();
    fabric.adapter = true;
    fabric.siw = survey().is_ok_and(|devices| devices.iter().any(|device| device.iwarp));
    Some(fabric)
}

/// The same, if its device has reliable shared receive queues: those of iWARP devices are not.
pub fn verbs_sharing() -> Option<Fabric> {
    let fabric = verbs()?;
    if fabric.siw {
        println!("SKIPPED rdma: shared receives over verbs: a device speaks iWARP");
        return None;
    }
    Some(fabric)
}

/// The same with memory of a pool, registered in this way.
pub fn verbs_registering(way: Registration) -> Option<Fabric> {
    let fabric = verbs()?.with_pool(Pool::default()).registering(way);
    assert!(fabric.provider.registrations().contains(&way));
    Some(fabric)
}

/// The environment variable that names the IP address of an adapter.
const VERBS_ADDRESS: &str = "SLIPWAY_VERBS_ADDRESS";
