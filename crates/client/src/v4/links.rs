//! [`Links`]: maps objects of a server to objects of other servers to which their file systems have moved. Keeps those
//! used last.

use entropy::HashMap;

use crate::model::Handle;

/// The handles of a server's objects, and their handles at other servers.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// The links by the handles of this server.
    remote: HashMap<Handle, Link>,
    /// The reverse: the handles of this server by the number of the other server and the handle at that server.
    local: HashMap<(u64, Handle), Handle>,
    /// The number of uses so far.
    uses: u64,
    /// The number of links that could not be evicted at the last attempt.
    kept: usize,
}

/// The server and handle of an object after a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The number of the server.
    pub server: u64,
    pub handle: Handle,
    used: u64,
}

impl Links {
    /// Maps the handle of an object of this server to that of another server. If there are now at least `most` links
    /// plus twice the number of those that were in use at the last eviction, returns the least recently used half. The
    /// caller [evicts](Self::forget) those of them that are not in use.
    pub fn insert(&mut self, local: &Handle, (server, remote): (u64, &Handle), most: usize) -> Vec<(Handle, Link)> {
        let (local, remote) = (local.detached(), remote.detached());
        self.remove(&local);
        self.uses += 1;
        self.local.insert((server, remote.clone()), local.clone());
        self.remote.insert(local, Link { server, handle: remote, used: self.uses });
        // Half of the links are returned, so that this is rarely done.
        if self.remote.len() >= most + 2 * self.kept { self.least_used(self.remote.len() / 2) } else { Vec::new() }
    }

    fn least_used(&self, count: usize) -> Vec<(Handle, Link)> {
        let mut uses: Vec<u64> = self.remote.values().map(|link| link.used).collect();
        let (_, &mut bound, _) = uses.select_nth_unstable(count);
        let least = self.remote.iter().filter(|(_, link)| link.used < bound);
        least.map(|(local, link)| (local.clone(), link.clone())).collect()
    }

    /// Evicts these links, unless they have been used since. `kept` is the number of links that the caller has not
    /// included because they are in use.
    pub fn forget(&mut self, links: &[(Handle, Link)], kept: usize) {
        for (local, link) in links {
            if self.remote.get(local) == Some(link) {
                self.remove(local);
            }
        }
        self.kept = kept;
    }

    fn remove(&mut self, local: &Handle) {
        if let Some(Link { server, handle, .. }) = self.remote.remove(local) {
            let back = (server, handle);
            // Another handle of this server may lead to the same object.
            if self.local.get(&back) == Some(local) {
                self.local.remove(&back);
            }
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.remote.len()
    }

    /// Returns the server and handle to which an object of this server has moved.
    pub fn remote(&mut self, local: &Handle) -> Option<(u64, Handle)> {
        let link = self.remote.get_mut(local)?;
        self.uses += 1;
        link.used = self.uses;
        Some((link.server, link.handle.clone()))
    }

    /// Returns the handle at this server of an object of another server.
    pub fn local(&self, server: u64, remote: &Handle) -> Option<Handle> {
        self.local.get(&(server, remote.clone())).cloned()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn handle(number: usize) -> Handle {
        Bytes::from(number.to_string()).into()
    }

    #[test]
    fn recently_used_links_are_kept_and_their_number_is_bounded() {
        let mut links = Links::default();
        for number in 0..10 * MOST {
            let mut idle = links.insert(&handle(number), (7, &handle(number + 1)), MOST);
            let before = idle.len();
            idle.retain(|(local, _)| *local != handle(0));
            links.forget(&idle, before - idle.len());
            assert!(links.remote.len() <= MOST + 2 && links.local.len() == links.remote.len());
            assert_eq!(links.local(7, &handle(1)), Some(handle(0)), "a kept link must not be evicted");
            assert!(number == 0 || links.remote(&handle(1)) == Some((7, handle(2))), "a used link must not be evicted");
        }
        assert_eq!((links.remote(&handle(2)), links.local(7, &handle(3))), (None, None));
        assert!((10 * MOST - MOST / 4..10 * MOST).all(|number| links.remote(&handle(number)).is_some()));
    }

    #[test]
    fn links_used_meanwhile_are_not_evicted() {
        let mut links = Links::default();
        let idle = (0..4).map(|number| links.insert(&handle(number), (7, &handle(number + 4)), 4)).last().unwrap();
        assert_eq!(idle.len(), 2);
        links.remote(&handle(0));
        links.insert(&handle(5), (8, &handle(5)), 100);
        links.forget(&idle, 0);
        let known: Vec<_> = (0..6).filter(|&number| links.remote(&handle(number)).is_some()).collect();
        assert_eq!(known, [0, 2, 3, 5]);
    }

    #[test]
    fn eviction_is_rarely_attempted_if_all_links_are_kept() {
        let mut links = Links::default();
        let tries = (0..10 * MOST).filter(|&number| {
            let idle = links.insert(&handle(number), (7, &handle(number)), MOST);
            let tried = !idle.is_empty();
            if tried {
                links.forget(&[], idle.len());
            }
            tried
        });
        assert!(tries.count() < 20);
    }

    #[test]
    fn two_handles_can_lead_to_one_object() {
        let mut links = Links::default();
        links.insert(&handle(1), (7, &handle(9)), 100);
        let idle = links.remote.clone().into_iter().collect::<Vec<_>>();
        links.insert(&handle(2), (7, &handle(9)), 100);
        links.forget(&idle, 0);
        assert_eq!((links.remote(&handle(1)), links.local(7, &handle(9))), (None, Some(handle(2))));
        links.insert(&handle(2), (8, &handle(9)), 100);
        assert_eq!((links.local(7, &handle(9)), links.local(8, &handle(9))), (None, Some(handle(2))));
    }

    const MOST: usize = 100;
}
