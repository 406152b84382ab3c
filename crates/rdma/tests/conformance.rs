//! The conformance suite for the providers of this crate.

mod common;

use std::sync::Arc;

use conformance::provider::{Fabric, shared_pool};
use rdma::{
    hook::{Hooked, Tracer},
    iwarp::{Iwarp, IwarpOptions},
    registration::Registration,
    shm::ShmOptions,
};

conformance::provider_suite! {
    sim(seed) = common::sim(seed);
    iwarp = common::iwarp(IwarpOptions::default());
    iwarp_hooked = Fabric::new(Hooked::new(Iwarp::new(IwarpOptions::default()), Arc::new(Tracer)));
    iwarp_with_crc = common::iwarp(IwarpOptions { crc: true, ..Default::default() });
    iwarp_in_small_fpdus = common::iwarp_in_small_fpdus();
    iwarp_per_io = common::iwarp(IwarpOptions::default()).registering(Registration::PerIo);
    iwarp_fast = common::iwarp(IwarpOptions::default()).registering(Registration::Fast);
    iwarp_cache = common::iwarp(IwarpOptions::default()).registering(Registration::Cache);
    iwarp_pool = common::iwarp(IwarpOptions::default()).registering(Registration::Pool);
    verbs = common::verbs();
    verbs_per_io = common::verbs_registering(Registration::PerIo);
    verbs_fast = common::verbs_registering(Registration::Fast);
    verbs_cache = common::verbs_registering(Registration::Cache);
    verbs_pool = common::verbs_registering(Registration::Pool);
    shm = common::shm().with_pool(shared_pool());
    shm_of_private_memory = common::shm();
    shm_hooked = common::shm_as(ShmOptions::default(), |shm| Hooked::new(shm, Arc::new(Tracer)));
    shm_per_io = common::shm_registering(Registration::PerIo);
    shm_fast = common::shm_registering(Registration::Fast);
    shm_cache = common::shm_registering(Registration::Cache);
    shm_pool = common::shm_registering(Registration::Pool);
}
