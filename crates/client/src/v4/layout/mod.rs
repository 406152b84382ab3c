//! Layouts of pNFS, of the types flexible files and files: data move directly between this client and data servers.
//!
//! Read RFC 8881 §12 and §13, and RFC 8435 first. [`segment`] is a layout, [`held`] the layouts of a file and the decision about each I/O;
//! both do no I/O. [`device`] is a data server, [`data_server`] the connection to it, which is a [`session`] by NFSv4, [`table`] what a
//! mount knows besides the layouts of its files. [`grant`] has the requests to the metadata server, [`report`] what it is told about
//! data servers ([`usage`]), [`recall`] its callbacks. [`read`] and [`write`] do the I/O, with what they
//! share in [`io`].
//!
//! A files layout is a layout of one mirror. It differs in what a data server is shown (the caller and the stateid of the open, instead
//! of the user of the layout), in the packing, and in its reports, which have no errors and statistics.
//!
//! **Buffers.** The data of a READ are received into the caller's region, by each data server into its part.
//! The data of a WRITE are sent to all mirrors from the caller's memory.
//!
//! **Errors.** Everything can also be done through the metadata server. So a failure of a data server or the loss of a layout is not an
//! error for the caller, except that unstable data are written again.

pub(crate) mod data_server;
pub(crate) mod device;
mod grant;
pub(crate) mod held;
mod io;
mod read;
mod recall;
mod report;
mod segment;
pub(crate) mod session;
pub(crate) mod table;
mod usage;
mod write;
