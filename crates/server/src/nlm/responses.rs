//! [`Responses`]: bounds the results of `_MSG` procedures that are being sent.

use std::{collections::hash_map::Entry, net::IpAddr, sync::Arc};

use entropy::HashMap;
use parking_lot::Mutex;

/// The number of results that are being sent, in total and for each host.
#[derive(Debug, Default)]
pub(super) struct Responses(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    hosts: HashMap<IpAddr, usize>,
    all: usize,
}

/// The right to send one result. Dropping it returns the permit.
#[derive(Debug)]
pub(crate) struct Permit {
    responses: Arc<Responses>,
    host: IpAddr,
}

impl Responses {
    /// Returns a permit for one result, or `None` if too many results are being sent to the host or to all hosts.
    pub(super) fn begin(self: &Arc<Self>, host: IpAddr) -> Option<Permit> {
        let mut counts = self.0.lock();
        if counts.all >= RESPONSES_MAX || counts.hosts.get(&host).is_some_and(|&count| count >= PER_HOST_MAX) {
            return None;
        }
        counts.all += 1;
        *counts.hosts.entry(host).or_default() += 1;
        Some(Permit { responses: self.clone(), host })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.responses.0.lock();
        counts.all -= 1;
        if let Entry::Occupied(mut count) = counts.hosts.entry(self.host) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

const RESPONSES_MAX: usize = 1024;
const PER_HOST_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_bounded_per_host_and_in_total() {
        let responses = Arc::<Responses>::default();
        let begin = |host: u8| responses.begin([10, 0, 0, host].into());
        let mut first: Vec<_> = (0..PER_HOST_MAX).map(|_| begin(1).unwrap()).collect();
        assert!(begin(1).is_none());
        let others: Vec<_> = (2..=RESPONSES_MAX.div_ceil(PER_HOST_MAX) as u8)
            .flat_map(|host| (0..PER_HOST_MAX).map(move |_| host))
            .map(|host| begin(host).unwrap())
            .collect();
        assert!(begin(200).is_none(), "the total bound must be reached");
        first.pop();
        assert!(begin(200).is_some());
        drop((first, others));
        let counts = responses.0.lock();
        assert_eq!((counts.all, counts.hosts.len()), (0, 0));
    }
}
