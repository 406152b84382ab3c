//! [`Balance`]: how many bytes each data server has, and which copies to move so that all have about the same. No I/O.

use std::collections::BTreeMap;

use crate::record::{Object, Record, ServerId};

/// The loads of the data servers that take part. A load is the bytes of all objects, and [`OBJECT`] for each of them.
#[derive(Clone, Debug, Default)]
pub struct Balance(BTreeMap<ServerId, u64>);

impl Balance {
    /// Creates the balance of data servers without objects.
    pub fn new(servers: impl IntoIterator<Item = ServerId>) -> Self {
        Self(servers.into_iter().map(|server| (server, 0)).collect())
    }

    /// Returns the load that an object of a file of `size` bytes is.
    pub fn cost(record: &Record, size: u64) -> u64 {
        OBJECT + size.div_ceil(record.stripes.count() as u64)
    }

    /// Adds an object, if its data server takes part.
    pub fn add(&mut self, server: ServerId, cost: u64) {
        self.0.entry(server).and_modify(|load| *load += cost);
    }

    /// Leaves a data server out from now on.
    pub fn remove(&mut self, server: ServerId) {
        self.0.remove(&server);
    }

    /// Returns the load of a data server, or 0 if it does not take part.
    pub fn load(&self, server: ServerId) -> u64 {
        self.0.get(&server).copied().unwrap_or(0)
    }

    fn mean(&self) -> u64 {
        self.0.values().sum::<u64>() / self.0.len().max(1) as u64
    }

    /// Returns the data servers, in the order of their numbers.
    pub fn servers(&self) -> Vec<ServerId> {
        self.0.keys().copied().collect()
    }

    /// Reports whether copies are to be moved away from a data server.
    pub fn is_source(&self, server: ServerId) -> bool {
        let mean = self.mean();
        self.load(server) > mean + mean / TOLERANCE
    }

    /// Returns the data servers that copies are to be moved away from, the fullest first.
    pub fn sources(&self) -> Vec<ServerId> {
        let mut sources: Vec<_> = self.0.keys().copied().filter(|server| self.is_source(*server)).collect();
        sources.sort_by_key(|server| std::cmp::Reverse(self.load(*server)));
        sources
    }

    /// Returns the bytes that are above the mean.
    pub fn excess(&self) -> u64 {
        let mean = self.mean();
        self.0.values().map(|load| load.saturating_sub(mean)).sum()
    }

    /// Returns the data server to which a copy is to be moved, if that makes the loads more equal: one without a copy of the same
    /// stripe. Those with fewest objects of the file come first, and then the emptiest. `server_of` returns where an object is.
    pub fn target(
        &self,
        record: &Record,
        copy: usize,
        cost: u64,
        server_of: impl Fn(Object) -> ServerId,
    ) -> Option<ServerId> {
        let (mean, from) = (self.mean(), self.load(server_of(record.copies[copy].object)));
        let at = |copy: usize| server_of(record.copies[copy].object);
        let is_free = |server: ServerId| record.copies_of(record.stripe_of(copy)).all(|other| at(other) != server);
        let improves = |load: u64| load < mean && load + cost < from;
        let targets = self.0.iter().filter(|(server, load)| improves(**load) && is_free(**server));
        let objects = |server: ServerId| (0..record.copies.len()).filter(|copy| at(*copy) == server).count();
        targets.min_by_key(|(server, load)| (objects(**server), **load)).map(|(server, _)| *server)
    }

    /// Takes note of a move.
    pub fn moved(&mut self, from: ServerId, to: ServerId, cost: u64) {
        self.0.entry(from).and_modify(|load| *load = load.saturating_sub(cost));
        self.add(to, cost);
    }
}

/// The load of an object without bytes: a block of a file system.
pub const OBJECT: u64 = 4096;
/// Loads that differ from the mean by no more than this part are equal.
const TOLERANCE: u64 = 50;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        record::{Copy, CopyState, Epochs},
        stripes::Stripes,
    };

    fn record(servers: &[u32], stripes: usize) -> Record {
        let object = |(id, server): (usize, &u32)| Object { server: ServerId(*server), id: id as u128 };
        let copy = |object| Copy { object, state: CopyState::InSync };
        let copies = servers.iter().enumerate().map(object).map(copy).collect();
        let stripes = Stripes::new(1 << 16, stripes).unwrap();
        Record { generation: 1, epochs: Epochs::default(), stripes, copies }
    }

    #[test]
    fn target_has_no_copy_of_the_same_stripe() {
        let mut balance = Balance::new((1..=4).map(ServerId));
        balance.add(ServerId(1), 1000);
        let here = |object: Object| object.server;
        assert_eq!(balance.target(&record(&[1, 2], 1), 0, 10, here), Some(ServerId(3)));
        assert_eq!(balance.target(&record(&[1, 2, 3, 4], 1), 0, 10, here), None);
        // Another stripe is no obstacle, but data servers without an object of the file come first.
        assert_eq!(balance.target(&record(&[1, 2, 3, 4], 4), 0, 10, here), Some(ServerId(2)));
        assert_eq!(balance.target(&record(&[1, 2, 3, 3], 4), 0, 10, here), Some(ServerId(4)));
        assert_eq!(balance.target(&record(&[1, 2], 1), 0, 1000, here), None, "it would be as full as the former one");
    }

    proptest! {
        /// Moves end, and no data server has more than the mean by the largest object and the tolerance.
        #[test]
        fn moves_end_with_equal_loads(sizes in prop::collection::vec((1_u32..=5, 0_u64..1 << 30), 0..60)) {
            let mut balance = Balance::new((1..=5).map(ServerId));
            let mut objects: Vec<_> = sizes.iter().map(|(server, size)| (ServerId(*server), OBJECT + size)).collect();
            objects.iter().for_each(|(server, cost)| balance.add(*server, *cost));
            let mut moves = 0;
            while let Some((from, to, cost)) = objects.iter_mut().find_map(|(server, cost)| {
                let from = *server;
                let target = balance.target(&record(&[from.0], 1), 0, *cost, |object| object.server);
                let to = target.filter(|_| balance.is_source(from))?;
                *server = to;
                Some((from, to, *cost))
            }) {
                balance.moved(from, to, cost);
                moves += 1;
                prop_assert!(moves < 10_000);
            }
            let largest = objects.iter().map(|(_, cost)| *cost).max().unwrap_or(0);
            let mean = balance.mean();
            for server in balance.servers() {
                prop_assert!(balance.load(server) <= mean + mean / TOLERANCE + largest);
            }
        }
    }
}
