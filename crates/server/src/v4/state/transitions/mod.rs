//! The changes of [`State`](super::State), one file for each family of operations.
//!
//! - [`introduce`]: how a client comes to be; [`v40`]: the same and more for 4.0, which has no sessions.
//! - [`open`]: opens and locks. [`State::plan_open`](super::State::plan_open) decides about an OPEN before the file is known,
//!   [`State::commit_open`](super::State::commit_open) after.
//! - [`delegation`]: what is granted with an open; [`recall`]: how it is taken back.
//! - [`back`], [`back40`]: whether and how a client can be called.
//! - [`recover`]: what is remembered over a restart, and grace.
//! - [`reduce`]: what clients are asked for when there is too much of it; [`evict`]: what an administrator does.

pub mod back;
pub mod back40;
pub mod delegation;
pub mod evict;
pub mod introduce;
pub mod open;
pub mod recall;
pub mod recover;
pub mod reduce;
pub mod v40;
