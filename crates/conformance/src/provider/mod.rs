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
//! This expands to the tests `mine::connection_without_a_listener_is_refused`, `mine::read_fetches_remote_data` and so
//! on. Each case runs on its own [`Fabric`], in a single-threaded tokio runtime. The expression can be an
//! `Option<Fabric>`. With `None`, the cases pass without running, and the expression prints the reason on standard
//! output (`SKIPPED WHAT: WHY`).
//!
//! [`over_fabrics!`](crate::over_fabrics) runs the cases of another test program in the same way.

#[doc(hidden)]
pub mod cases;
mod ends;

use tokio::runtime::{Builder, Runtime};

pub use ends::{End, Fabric, Pair, Side, pattern, shared_pool};

/// Expands to the tests of the suite: for each `NAME = FABRIC;` a module `NAME` with one test for each case.
///
/// `FABRIC` is an expression of type [`Fabric`](crate::provider::Fabric) or `Option<Fabric>`. It is evaluated once for
/// each case, inside a tokio runtime. `NAME(SEED) = FABRIC;` evaluates it for some seeds (`u64`) on tokio's virtual
/// time.
#[macro_export]
macro_rules! provider_suite {
    ($($fabrics:tt)+) => {
        $crate::__over_fabrics! {
            ($crate::provider::cases::) [
                private_data_goes_both_ways
                a_dropped_request_rejects_the_peer
                connection_without_a_listener_is_refused
                a_send_fills_the_receives_in_order
                writes_are_visible_before_a_later_send
                read_fetches_remote_data
                ropes_of_many_pieces_arrive_whole
                file_pieces_arrive_whole
                transfers_of_megabytes
                zero_length_transfers_succeed
                traffic_both_ways_of_all_kinds
                requests_complete_once_and_in_order
                invalidation_returns_the_memory
                send_with_invalidate_returns_the_memory
                device_memory_is_used_or_returned
                a_send_that_invalidates_nothing_is_refused
                writes_outside_a_region_are_refused
                reads_outside_a_region_are_refused
                a_send_needs_a_receive
                a_send_must_fit_the_receive
                reads_beyond_the_limit_are_queued
                reads_that_were_not_negotiated_fail_alone
                send_queue_is_bounded
                a_disconnect_returns_every_buffer
                dropping_one_end_ends_the_other
                data_posted_before_a_disconnect_arrives
                abort_resets_the_connection
                after_the_end_everything_is_flushed
            ]
            $($fabrics)+
        }
    };
}

/// Expands to tests like [`provider_suite!`](crate::provider_suite), for the functions `async fn CASE(Fabric)` in
/// brackets, which must be in scope.
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

/// Runs one case on a new fabric, in its own tokio runtime. With `None`, the case passes.
///
/// # Panics
/// Panics if the provider does not conform.
pub fn run<F: Into<Option<Fabric>>>(make: impl FnOnce() -> F, case: impl AsyncFnOnce(Fabric)) {
    run_in(runtime(false), make, case);
}

/// Runs one case in simulations with some seeds: on virtual time, and with random values that follow from the seed.
///
/// # Panics
/// Panics if the provider does not conform.
pub fn run_seeds<F: Into<Option<Fabric>>>(make: impl Fn(u64) -> F, case: impl AsyncFn(Fabric)) {
    for seed in 0..SEEDS {
        entropy::simulate(seed, || run_in(runtime(true), || make(seed), &case));
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
    Builder::new_current_thread().enable_all().start_paused(paused).build().expect("cannot create a runtime")
}

const SEEDS: u64 = 5;
