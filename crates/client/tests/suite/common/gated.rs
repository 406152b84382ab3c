//! A server of NFSv4 that delays its replies on command.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use nfs::v4::{compound::*, *};
use rpc::{Answering, Call, Service};
use tokio::sync::watch;
use xdr::Decode;

use super::wrapped::Wrap;

/// Holds registrations of clients back until the gate is open, and counts them.
pub struct Gated {
    pub introduced: Arc<AtomicUsize>,
    pub open: watch::Receiver<bool>,
}

impl Wrap for Gated {
    fn call<'a>(&'a self, inner: &'a dyn Service, call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            let args = CompoundArgs::decode(&mut call.arguments.clone());
            let introduces = |op: &Argop4| matches!(op, Argop4::ExchangeId(_) | Argop4::SetClientId(_));
            if args.is_ok_and(|args| args.argarray.iter().any(introduces)) {
                self.introduced.fetch_add(1, SeqCst);
                let _ = self.open.clone().wait_for(|open| *open).await;
            }
            inner.call(call).await
        }))
    }
}
