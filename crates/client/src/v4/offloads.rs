//! [`Offloads`]: passes the results of copies that a server completes after its reply (RFC 7862 §16.1) to the tasks
//! that wait for them.

use std::collections::VecDeque;

use entropy::HashMap;
use nfs::v4::{Stateid4, callback::OffloadInfo4};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The copies for which tasks wait, and the results that complete_arrival before the reply to COPY.
#[derive(Debug, Default)]
pub(crate) struct Offloads(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    awaited: HashMap<Stateid4, oneshot::Sender<OffloadInfo4>>,
    early: VecDeque<(Stateid4, OffloadInfo4)>,
}

impl Offloads {
    /// Stores or passes on the result of a copy, from CB_OFFLOAD.
    pub fn ended(&self, name: Stateid4, info: OffloadInfo4) {
        let mut inner = self.0.lock();
        match inner.awaited.remove(&name) {
            // Sending fails if the task does not wait any more.
            Some(waiting) => drop(waiting.send(info)),
            None => {
                if inner.early.len() >= EARLY_MAX {
                    inner.early.pop_front();
                }
                inner.early.push_back((name, info));
            }
        }
    }

    pub fn wait(&self, name: Stateid4) -> oneshot::Receiver<OffloadInfo4> {
        let (ended, waiting) = oneshot::channel();
        let mut inner = self.0.lock();
        match inner.early.iter().position(|(early, _)| *early == name) {
            Some(at) => {
                let (_, info) = inner.early.remove(at).expect("the position must be valid");
                ended.send(info).expect("the receiver must exist");
            }
            None => drop(inner.awaited.insert(name, ended)),
        }
        waiting
    }

    pub fn forget(&self, name: &Stateid4) {
        self.0.lock().awaited.remove(name);
    }
}

/// Maximum number of results that are kept until the reply to COPY arrives.
const EARLY_MAX: usize = 64;
