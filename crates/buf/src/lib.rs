//! Buffers, pools of buffers, and gather lists.
//!
//! All layers pass file data in these types. A byte is written once, to its final place, and is not copied between
//! layers.
//!
//! - [`Buffer`]: memory with one owner, which an operation fills. It *moves* into the operation (a receive, an RDMA
//!   Read, a client's read) and returns with its completion.
//! - [`Region`]: the memory that an operation fills: a [`Buffer`], or memory of a device ([`DeviceMemory`]), whose
//!   bytes are copied in and out but cannot be referenced. [`SharedRegion`] is a region while a message refers to its
//!   bytes, and [`Division`] one whose parts several operations fill at the same time.
//! - [`bytes::Bytes`]: memory that is shared and immutable. [`Buffer::freeze`] makes one without a copy. Its storage
//!   returns to its pool when the last clone is dropped.
//! - [`Pool`]: the source of buffers. Its memory is page-aligned and allocated in large slabs. A provider registers
//!   each [`Slab`] once with its adapter or with a peer on the same host, and keeps it mapped by its `Arc`.
//!   [`Pool::trim`] unmaps slabs that are not in use any more.
//! - [`Rope`]: a gather list of [`Piece`]s: memory, a range of an open file that a socket can send without copying it
//!   through user memory, memory of a peer on this host, or device memory.
//! - [`SendQueue`] and [`RecvStage`]: send and receive ropes over a stream socket, with few system calls.
//! - [`ktls`]: makes the kernel encrypt what a stream socket sends.
//! - [`Spin`]: decides whether an idle driver polls again or sleeps.
//!
//! An operation that fails returns its buffer with the error.

mod arena;
mod buffer;
mod device;
mod division;
mod heap;
pub mod ktls;
mod overload;
mod peer;
mod pool;
mod region;
mod rope;
mod slab;
mod spin;
mod stream;
mod yielding;

pub use arena::Arena;
pub use buffer::{Account, Buffer};
pub use device::{DeviceMemory, DeviceRange};
pub use division::Division;
pub use heap::{keep_heap, trim_heap};
pub use peer::PeerBytes;
pub use pool::{Pool, PoolOptions, PoolStats};
pub use region::{Region, SharedRegion};
pub use rope::{FileRange, Piece, Rope};
pub use slab::Slab;
pub use spin::{SPIN_MAX, Spin};
pub use stream::{Received, RecvStage, SendQueue, Spread, read_vectored};
