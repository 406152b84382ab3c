//! The changes of [`State`](super::State), one file for each family of operations.
//!
//! - [`introduce`]: EXCHANGE_ID and CREATE_SESSION; [`v40`]: their equivalents and the sequenced operations of 4.0.
//! - [`open`]: opens. [`State::plan_open`](super::State::plan_open) decides about an OPEN before the file is known,
//!   [`State::commit_open`](super::State::commit_open) afterwards.
//! - [`lock`]: byte-range locks; [`stateids`]: the use and the end of stateids.
//! - [`delegation`]: delegations that are granted with an open; [`layout`]: layouts; [`recall`]: recall and revocation of
//!   recallable state.
//! - [`back`], [`back40`]: the callback paths to clients.
//! - [`recover`]: the recovery records of clients, and the grace period.
//! - [`reduce`]: requests to return slots and delegations; [`evict`]: the administrator's view and eviction.

pub mod back;
pub mod back40;
pub mod delegation;
pub mod evict;
pub mod introduce;
pub mod layout;
pub mod lock;
pub mod open;
pub mod recall;
pub mod recover;
pub mod reduce;
pub mod stateids;
pub mod v40;
