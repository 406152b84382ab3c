//! The files on which nothing is delegated for a time, because a delegation of them was recalled.

use super::*;
use crate::{sharing::conflict::Access, v4::state::transitions::recall::CONTENDED_MAX};

/// The time after a recall.
const CONTENDED: Duration = Duration::from_secs(30);

impl World {
    /// Recalls the delegation of a file, which the client returns at once.
    fn contend(&mut self, client: Clientid4, file: char) {
        assert_eq!(self.hold(client, &file.to_string()), 1);
        let recalled = self.state.recall(&mut self.locks, &file, (None, Access::Write), self.now);
        assert_eq!(recalled, Err(Nfsstat4::Delay));
        let held = self.state.poll_recall().unwrap();
        self.state.delegreturn(client, &file, &held.stateid).unwrap();
    }

    /// Fills the table of contended files. Returns the first of them.
    fn fill(&mut self, until: impl Fn(usize) -> Instant) -> char {
        let files = ('\u{10000}'..).take(CONTENDED_MAX).enumerate();
        self.state.recalls.contended = files.map(|(at, file)| (file, until(at))).collect();
        '\u{10000}'
    }
}

#[test]
fn file_is_not_delegated_for_a_time_after_a_recall() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.contend(a, 'f');
    world.now += CONTENDED - Duration::from_nanos(1);
    assert_eq!(world.hold(a, "f"), 0);
    world.now += Duration::from_nanos(1);
    assert_eq!(world.hold(a, "f"), 1);
}

#[test]
fn contended_files_are_forgotten_after_that_time_if_there_are_many() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let (now, later) = (world.now, world.now + Duration::from_secs(1));
    let first = world.fill(|at| if at == 0 { later } else { now });
    world.contend(a, 'f');
    assert_eq!(world.state.recalls.contended.len(), 2, "the first file and the new one");
    assert_eq!(world.hold(a, &first.to_string()), 0);
}

#[test]
fn number_of_contended_files_is_bounded() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let later = world.now + Duration::from_secs(1);
    world.fill(|_| later);
    world.contend(a, 'f');
    assert_eq!(world.state.recalls.contended.len(), 1);
    world.now += CONTENDED - Duration::from_secs(1);
    assert_eq!(world.hold(a, "f"), 0);
}
