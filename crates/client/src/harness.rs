//! Parts of this library that tests can call without a server, as a hostile server would.

use std::sync::{Arc, Weak};

use nfs::v4::Sessionid4;

use crate::{
    session::backchannel::{Backchannel, CallbackService},
    v4::callbacks::Callbacks,
};

/// Returns the callback program of a mount without state, for a session with this ID and this number of callback slots.
pub fn callback_service(session: Sessionid4, slots: u32) -> Arc<dyn rpc::Service> {
    let backchannel = Arc::new(Backchannel::new(Arc::new(Callbacks::default())));
    backchannel.session(session, slots, Weak::new());
    Arc::new(CallbackService(backchannel))
}
