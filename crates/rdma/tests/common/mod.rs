//! The providers of this crate as fabrics for the conformance suite.

#![allow(dead_code, reason = "each test program uses only a part of the functions")]

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

/// Creates a simulated fabric, whose registration method is determined by the seed.
pub fn sim(seed: u64) -> Fabric {
    let way = Registration::ALL[seed as usize % Registration::ALL.len()];
    Fabric::new(Sim::new(NetworkOptions { seed, ..NetworkOptions::default() })).registering(way)
}

pub fn iwarp(options: IwarpOptions) -> Fabric {
    Fabric::new(Iwarp::new(options))
}

/// Creates an iWARP fabric with small FPDUs and socket buffers, so that messages are split as often as possible.
pub fn iwarp_in_small_fpdus() -> Fabric {
    let (send_buffer, recv_buffer) = (Some(8192), Some(8192));
    iwarp(IwarpOptions { fpdu_max: 700, send_buffer, recv_buffer, ..IwarpOptions::default() })
}

/// Creates a shared-memory fabric with sockets in a new directory.
pub fn shm() -> Fabric {
    shm_as(ShmOptions::default(), |shm| shm)
}

/// Same as [`shm`], with options, and wrapped by `wrap`.
pub fn shm_as<P: Provider>(options: ShmOptions, wrap: impl FnOnce(Shm) -> P) -> Fabric {
    let directory = tempfile::tempdir().unwrap();
    let options = ShmOptions { directory: Some(directory.path().to_owned()), ..options };
    Fabric::new(wrap(Shm::new(options))).keeping(directory)
}

/// Creates a shared-memory fabric with a registration method that the provider does not use by default.
pub fn shm_registering(way: Registration) -> Fabric {
    let fabric = shm().with_pool(shared_pool()).registering(way);
    assert!(fabric.provider.registrations().contains(&way));
    fabric
}

/// Returns the adapter of this machine, if it has one, at the address given by the environment.
pub fn verbs() -> Option<Fabric> {
    verbs_as(VerbsOptions::default(), |verbs| verbs)
}

/// Same as [`verbs`], with options, and wrapped by `wrap`.
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
        skipped(&format!("{VERBS_ADDRESS} is not set to the IP address of an adapter of this machine"));
        return None;
    };
    let ip: IpAddr =
        address.parse().unwrap_or_else(|_| panic!("{VERBS_ADDRESS} is {address}, which is not an IP address"));
    let mut fabric = Fabric::new(wrap(verbs));
    fabric.listen = (ip, 0).into();
    fabric.adapter = true;
    fabric.siw = survey().is_ok_and(|devices| devices.iter().any(|device| device.iwarp));
    Some(fabric)
}

/// Same as [`verbs`], if the device has usable shared receive queues: those of iWARP devices are not usable.
pub fn verbs_sharing() -> Option<Fabric> {
    let fabric = verbs()?;
    if fabric.siw {
        println!("SKIPPED rdma: shared receives over verbs: a device uses iWARP");
        return None;
    }
    Some(fabric)
}

/// Same as [`verbs`], with memory of a pool that is registered by the given method.
pub fn verbs_registering(way: Registration) -> Option<Fabric> {
    let fabric = verbs()?.with_pool(Pool::default()).registering(way);
    assert!(fabric.provider.registrations().contains(&way));
    Some(fabric)
}

/// The environment variable with the IP address of an adapter.
const VERBS_ADDRESS: &str = "SLIPWAY_VERBS_ADDRESS";
