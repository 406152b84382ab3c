//! For tests of this library: parts of it that a server can reach, without a server.

use std::sync::Arc;

use nfs::v4::Sessionid4;

use crate::{
    session::backchannel::{Backchannel, CallbackService},
    v4::callbacks::Callbacks,
};

/// The callback program of a mount that holds nothing, whose session has this ID and so many slots for callbacks.
pub fn callback_service(session: Sessionid4, slots: u32) -> Arc<dyn rpc::Service> {
    let backchannel = Arc::new(Backchannel::new(Arc::new(Callbacks::default())));
    backchannel.session(session, slots);
    Arc::new(CallbackService(backchannel))
}
