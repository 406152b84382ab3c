//! The suite of RDMA providers.
//!
//! ```ignore
//! use conformance::provider::Fabric;
//!
//! conformance::provider_suite! {
//!     mine = Fabric::new(MyProvider::new());
//!     // On tokio's virtual time, once for each of some seeds.
//!     simulated(seed) = Fabric::new(MySimulation::new(seed));
//! }
//! ```
//!
//! expands to the tests `mine::nobody_listens`, `mine::a_read_brings_the_bytes` and so on. Each case runs on a [`Fabric`] of its own,
//! in a single-threaded tokio runtime. The expression may be an `Option<Fabric>`: with `None` the cases pass without a run, and
//! the expression says why on standard output (`SKIPPED WHAT: WHY`).
//!
//! [`over_fabrics!`](crate::over_fabrics) runs the cases of another test program in the same way.

#[doc(hidden)]
pub mod cases;
mod ends;

use tokio::runtime::{Builder, Runtime};

pub use ends::{End, Fabric, Pair, Side, pattern, shared_pool};

/// The suite as tests: for each `NAME = FABRIC;` a module `NAME` with one test for each case.
///
/// `FABRIC` is an expression of type [`Fabric`](crate::provider::Fabric) or `Option<Fabric>`, evaluated once for each case, inside of
/// a tokio runtime. `NAME(SEED) = FABRIC;` evaluates it for some seeds (`u64`) on tokio's virtual time.
#[macro_export]
macro_rules! provider_suite {
    ($($fabrics:tt)+) => {
        $crate::__over_fabrics! {
            ($crate::provider::cases::) [
                private_data_goes_both_ways
                a_dropped_request_rejects_the_peer
                nobody_listens
                a_send_fills_the_receives_in_order
                writes_are_there_when_the_send_after_them_arrives
                a_read_brings_the_bytes
                ropes_of_many_pieces_arrive_whole
                file_pieces_arrive_whole
                transfers_of_megabytes
                nothing_is_a_valid_length
                traffic_both_ways_of_all_kinds
                what_was_started_completes_once_and_in_order
                invalidation_gives_the_memory_back
                a_send_invalidates_on_its_way
                device_memory_is_reached_or_comes_back
                a_send_that_invalidates_nothing_is_refused
                writes_outside_a_region_are_refused
                reads_outside_a_region_are_refused
                a_send_needs_a_receive
                a_send_must_fit_the_receive
                more_reads_than_may_be_outstanding
                reads_that_were_not_agreed_on_fail_alone
                the_send_queue_has_an_end
                a_disconnect_returns_every_buffer
                a_dropped_end_is_noticed
                what_was_posted_before_a_disconnect_arrives
                an_abort_is_seen_as_a_cut
                after_the_end_everything_is_flushed
            ]
            $($fabrics)+
        }
    };
}

/// As [`provider_suite!`](crate::provider_suite), for the functions `async fn CASE(Fabric)` in brackets, which are in scope.
#[macro_export]
macro_rules! over_fabrics {
    ([$($case:ident)+] $($fabrics:tt)+) => { $crate::__over_fabrics! { (super::) [$($case)+] $($fabrics)+ } };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __over_fabrics {
    ($prefix:tt $cases:tt) => {};
    ($prefix:tt [$($case:ident)+] $fabric:ident($seed:ident) = $make:expr; $($rest:tt)*) => {
        mod $fabric {
            #[allow(unused_imports, reason = "the fabric may be given by a whole path")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    $crate::provider::run_seeds(|$seed| $make, $crate::__case!($prefix $case));
                }
            )+
        }
        $crate::__over_fabrics! { $prefix [$($case)+] $($rest)* }
    };
    ($prefix:tt [$($case:ident)+] $fabric:ident = $make:expr; $($rest:tt)*) => {
        mod $fabric {
            #[allow(unused_imports, reason = "the fabric may be given by a whole path")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    $crate::provider::run(|| $make, $crate::__case!($prefix $case));
                }
            )+
        }
        $crate::__over_fabrics! { $prefix [$($case)+] $($rest)* }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __case {
    (($($prefix:tt)+) $case:ident) => { $($prefix)+ $case };
}

/// Runs one case on a new fabric, in a tokio runtime of its own. With `None` the case passes.
///
/// # Panics
/// The provider does not conform.
pub fn run<F: Into<Option<Fabric>>>(make: impl FnOnce() -> F, case: impl AsyncFnOnce(Fabric)) {
    run_in(runtime(false), make, case);
}

/// Runs one case on virtual time, for some seeds.
///
/// # Panics
/// The provider does not conform.
pub fn run_seeds<F: Into<Option<Fabric>>>(make: impl Fn(u64) -> F, case: impl AsyncFn(Fabric)) {
    for seed in 0..SEEDS {
        run_in(runtime(true), || make(seed), &case);
    }
}

fn run_in<F: Into<Option<Fabric>>>(runtime: Runtime, make: impl FnOnce() -> F, case: impl AsyncFnOnce(Fabric)) {
    runtime.block_on(async {
        if let Some(fabric) = make().into() {
            case(fabric).await;
        }
    });
}

fn runtime(paused: bool) -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(paused).build().expect("a runtime")
}

const SEEDS: u64 = 5;
