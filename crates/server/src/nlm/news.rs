//! [`News`]: restarts of other hosts, until the programs of this host that monitor these have been told.

use std::collections::VecDeque;

use nfs::{nlm::NLM_PROGRAM, nsm};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A queue of news, one of each monitor: newer news replace what still waits. Any host can send NOTIFY, and any user of this host
/// can monitor, so the queue is bounded.
#[derive(Debug, Default)]
pub(super) struct News {
    waiting: Mutex<VecDeque<(nsm::MonId, nsm::Status)>>,
    added: Notify,
}

impl News {
    /// Adds news for a monitor; false if too many wait. Those for the lock manager of this host come first: locks depend on them.
    pub(super) fn push(&self, monitor: nsm::MonId, status: nsm::Status) -> bool {
        let mut waiting = self.waiting.lock();
        if let Some((_, older)) = waiting.iter_mut().find(|(other, _)| *other == monitor) {
            *older = status;
            return true;
        }
        if waiting.len() >= NEWS_MAX {
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

    /// Takes the next news, when there are any.
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

const NEWS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn monitor(name: u32, my_prog: u32) -> nsm::MonId {
        let mon_name = Bytes::from(name.to_string()).into();
        nsm::MonId { mon_name, my_id: nsm::MyId { my_name: Bytes::new().into(), my_prog, my_vers: 1, my_proc: 1 } }
    }

    fn push(news: &News, monitor: nsm::MonId, state: i32) -> bool {
        let status = nsm::Status { mon_name: monitor.mon_name.clone(), state, private: [0; 16] };
        news.push(monitor, status)
    }

    #[tokio::test]
    async fn newer_news_replace_older_ones_and_the_lock_manager_comes_first() {
        let news = News::default();
        for (name, program, state) in [(1, 7, 1), (2, 7, 1), (3, NLM_PROGRAM, 1), (1, 7, 2)] {
            assert!(push(&news, monitor(name, program), state));
        }
        let mut taken = Vec::new();
        for _ in 0..3 {
            let (my_id, status) = news.next().await;
            taken.push((my_id.my_prog, status.state));
        }
        assert_eq!(taken, [(NLM_PROGRAM, 1), (7, 2), (7, 1)]);
        assert!(news.waiting.lock().is_empty());
    }

    #[test]
    fn the_queue_is_bounded() {
        let news = News::default();
        let pushed = (0..2 * NEWS_MAX as u32).filter(|&name| push(&news, monitor(name, 7), 1)).count();
        assert_eq!(pushed, NEWS_MAX);
        assert!(push(&news, monitor(0, 7), 2), "newer news of one that waits");
    }
}
