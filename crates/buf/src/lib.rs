//! Memory that moves: buffers, pools of them, and gather lists.
//!
//! Every layer passes file data as these types, so that a byte is written once, where it is
//! wanted, and never copied between layers.
//!
//! - [`Buffer`]: memory with one owner, to be filled. It *moves* into an operation (a receive, an
//!   RDMA Read, a client's read) and comes home with its completion.
//! - [`Region`]: memory as operations take it: a [`Buffer`], or memory of a device ([`DeviceMemory`]), which is copied in and
//!   out but never looked at. [`SharedRegion`] is its form while a message shows it.
//! - [`bytes::Bytes`]: memory that is shared and immutable. [`Buffer::freeze`] makes one without a
//!   copy; its storage returns to its pool when the last clone is dropped.
//! - [`Pool`]: where buffers come from. Its memory is page-aligned and allocated in large slabs. A provider registers
//!   each [`Slab`] once with its adapter or with a peer on the same host, and keeps it mapped by its `Arc`;
//!   [`Pool::trim`] unmaps others that are no longer used.
//! - [`Rope`]: a gather list of [`Piece`]s: memory, a range of an open file that a socket can
//!   send without its bytes passing through user memory, memory of a peer on this host, or device memory.
//! - [`SendQueue`] and [`RecvStage`]: ropes to and from a stream socket, with few system calls.
//! - [`Spin`]: whether a driver that has nothing to do looks again at once or sleeps.
//!
//! On error nothing is lost: an operation that fails gives its buffer back.

mod arena;
mod buffer;
mod crowd;
mod device;
mod heap;
mod peer;
mod pool;
mod region;
mod rope;
mod slab;
mod spin;
mod stream;

pub use arena::Arena;
pub use buffer::{Account, Buffer};
pub use device::{DeviceMemory, DeviceRange};
pub use heap::trim_heap;
pub use peer::PeerBytes;
pub use pool::{Pool, PoolOptions, PoolStats};
pub use region::{Region, SharedRegion};
pub use rope::{FileRange, Piece, Rope};
pub use slab::Slab;
pub use spin::{SOCKET_SPIN_MAX, SPIN_MAX, Spin};
pub use stream::{Received, RecvStage, SendQueue, Spread, read_vectored};
