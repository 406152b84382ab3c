//! [`Notices`]: a queue of notices that other hosts have restarted, for the programs of this host that monitor them.

use std::collections::VecDeque;

use nfs::{nlm::NLM_PROGRAM, nsm};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A queue of notices, at most one for each monitor: a newer notice replaces an older one in the queue. Any host can
/// send NOTIFY and any user of this host can monitor, so the queue is bounded.
#[derive(Debug, Default)]
pub(super) struct Notices {
    waiting: Mutex<VecDeque<(nsm::MonId, nsm::Status)>>,
    added: Notify,
}

impl Notices {
    /// Adds a notice for a monitor. Returns `false` if the queue is full. Notices for the lock manager of this host go
    /// to the front, because locks depend on them.
    pub(super) fn push(&self, monitor: nsm::MonId, status: nsm::Status) -> bool {
        let mut waiting = self.waiting.lock();
        if let Some((_, older)) = waiting.iter_mut().find(|(other, _)| *other == monitor) {
            *older = status;
            return true;
        }
        if waiting.len() >= NOTICES_MAX {
            return false;
        }
        if monitor.my_id.my_prog == NLM_PROGRAM {
            waiting.push_front((monitor, status));
        } else {
            waiting.push_back((monitor, status));
        }
        drop(waiting);
        self.added.notify_one();
        true
    }

    /// Waits for the next notice and takes it.
    pub(super) async fn next(&self) -> (nsm::MyId, nsm::Status) {
        loop {
            let next = self.waiting.lock().pop_front();
            if let Some((monitor, status)) = next {
                return (monitor.my_id, status);
            }
            self.added.notified().await;
        }
    }
}

const NOTICES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn monitor(name: u32, my_prog: u32) -> nsm::MonId {
        let mon_name = Bytes::from(name.to_string()).into();
        nsm::MonId { mon_name, my_id: nsm::MyId { my_name: Bytes::new().into(), my_prog, my_vers: 1, my_proc: 1 } }
    }

    fn push(notices: &Notices, monitor: nsm::MonId, state: i32) -> bool {
        let status = nsm::Status { mon_name: monitor.mon_name.clone(), state, private: [0; 16] };
        notices.push(monitor, status)
    }

    #[tokio::test]
    async fn newer_notice_replaces_older_and_lock_manager_comes_first() {
        let notices = Notices::default();
        for (name, program, state) in [(1, 7, 1), (2, 7, 1), (3, NLM_PROGRAM, 1), (1, 7, 2)] {
            assert!(push(&notices, monitor(name, program), state));
        }
        let mut taken = Vec::new();
        for _ in 0..3 {
            let (my_id, status) = notices.next().await;
            taken.push((my_id.my_prog, status.state));
        }
        assert_eq!(taken, [(NLM_PROGRAM, 1), (7, 2), (7, 1)]);
        assert!(notices.waiting.lock().is_empty());
    }

    #[test]
    fn queue_is_bounded() {
        let notices = Notices::default();
        let pushed = (0..2 * NOTICES_MAX as u32).filter(|&name| push(&notices, monitor(name, 7), 1)).count();
        assert_eq!(pushed, NOTICES_MAX);
        assert!(push(&notices, monitor(0, 7), 2), "a newer notice must replace the waiting one");
    }
}
