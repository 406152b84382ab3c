//! Layouts that are returned after direct writes that were not committed, and data servers that have lost such writes.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::time::advance;
use vfs::{
    Handle, Time, Vfs, VfsError,
    layout::{LayoutKind, LayoutMode::Write, LayoutModes},
};

use crate::world::{Striped, World};

/// A file of 5,000 bytes with two copies, a client with a layout to write, and the data server of one copy.
struct Written {
    world: World,
    file: Handle,
    layout: Striped,
    server: u32,
}

impl Written {
    async fn new(world: World, mirror: usize) -> Self {
        let file = world.create("file");
        world.write(&file, 0, &[1; 5000]).unwrap();
        pause().await;
        let layout = world.grant_striped(&file, 1, Write).unwrap();
        let server = layout.mirrors[mirror][0].0.server.0;
        Self { world, file, layout, server }
    }

    /// The client writes into each stripe, and does not make that durable.
    fn write(&self) {
        self.world.client_write_unstable(&self.layout, 100, &[2; 3000]);
    }

    /// Changes the times of the last writes to all objects on data servers for which `of` is `true`.
    fn set_times(&self, of: impl Fn(u32) -> bool, time: Time) {
        let objects = self.world.record(&self.file).copies.into_iter().map(|copy| copy.object);
        objects.filter(|object| of(object.server.0)).for_each(|object| self.world.servers.set_mtime(object, time));
    }

    /// The data server loses what is not durable, and the times of these writes.
    fn lose(&self) {
        self.world.servers.restart(self.server);
        self.set_times(|server| server == self.server, Time::default());
    }

    /// Begins an operation that recalls layouts to write, and then drops it.
    fn recall(&self) {
        let mut allocate = self.world.start(|caller| self.world.pnfs.allocate(caller, &self.file, 0, 10));
        assert!(allocate().is_pending());
        assert_eq!(self.world.events.recalls(), [LayoutModes::WRITE]);
    }

    /// The client returns its layout. Returns `true` if the copies will be compared.
    fn returned(&self) -> bool {
        self.world.release(&self.file, 1, LayoutModes::WRITE);
        self.world.pnfs.file_status(b"file").unwrap().unequal
    }

    /// Checks that the copies of each stripe are equal and durable after the upkeep.
    fn check_copies(&self, case: &str) {
        self.world.upkeep();
        self.world.servers.ids().for_each(|server| self.world.servers.restart(server));
        let record = self.world.record(&self.file);
        assert!(record.is_healthy(), "{case}");
        // An object can end anywhere between the last byte of its stripe and the end of the file.
        let content = |copy: usize| {
            let mut content = self.world.servers.content(record.copies[copy].object).unwrap();
            content.resize(5000, 0);
            content
        };
        for stripe in 0..record.stripes.count() {
            let contents: Vec<_> = record.copies_of(stripe).map(content).collect();
            assert!(contents.len() == 2 && contents[0] == contents[1], "{case}: stripe {stripe}");
        }
        assert!(!self.world.pnfs.file_status(b"file").unwrap().unequal, "{case}");
        assert!(self.world.grant_striped(&self.file, 2, Write).is_ok(), "{case}");
    }
}

async fn pause() {
    advance(Duration::from_secs(1)).await;
}

/// Runs a test for each tree and each of the two copies. The clock stands still unless the test moves it.
fn each(test: impl AsyncFn(Written)) {
    for mirror in 0..2 {
        for world in 0..World::each().count() {
            let world = || World::each().nth(world).expect("the tree must exist");
            simnet::simulate(1, async || test(Written::new(world(), mirror).await).await);
        }
    }
}

#[test]
fn copies_are_compared_if_a_data_server_has_lost_uncommitted_writes() {
    each(async |written| {
        written.write();
        written.lose();
        assert!(written.returned());
        written.check_copies("no commit");
    });
    each(async |written| {
        written.write();
        written.world.commit(&written.file, 1, 5000);
        pause().await;
        written.write();
        pause().await;
        written.lose();
        assert!(written.returned());
        written.check_copies("a commit before the write");
    });
    each(async |written| {
        written.recall();
        written.write();
        written.lose();
        assert!(written.returned());
        written.check_copies("recalled");
    });
}

/// The objects are as new as the layout, and the write verifiers of the data servers are not known yet.
#[test]
fn copies_of_a_new_file_are_not_compared_if_nothing_was_written() {
    for world in World::each() {
        let file = world.create("file");
        world.grant_striped(&file, 1, Write).unwrap();
        for copy in &world.record(&file).copies {
            world.servers.set_mtime(copy.object, Time::now());
        }
        world.release(&file, 1, LayoutModes::WRITE);
        assert!(!world.pnfs.file_status(b"file").unwrap().unequal);
        assert!(world.grant_striped(&file, 2, Write).is_ok());
    }
}

/// The LAYOUTCOMMIT fails after it has set the size, which is not durable then. The return of the layout finds that the file has the size of
/// its objects.
#[test]
fn size_of_a_layout_commit_that_has_failed_survives_a_power_failure() {
    for has_upkeep in [false, true] {
        for world in World::each() {
            let file = world.create("file");
            world.write(&file, 0, &[1; 2000]).unwrap();
            world.upkeep();
            let layout = world.grant_striped(&file, 1, Write).unwrap();
            assert_eq!(world.client_write(&layout, 2000, &[2; 3000]), 0);
            world.disk.failing.store(1, Relaxed);
            assert_eq!(world.try_commit(&file, 1, 5000), Err(VfsError::Io));
            assert_eq!(world.size(&file), 5000);
            world.release(&file, 1, LayoutModes::WRITE);
            if has_upkeep {
                world.upkeep();
            }
            // A durable change of the index makes the earlier ones durable, too.
            let is_durable = !world.disk.unsynced.load(Relaxed);
            world.write(&world.create("other"), 0, &[1; 2000]).unwrap();
            if !is_durable {
                world.set_inner_size(&file, 2000);
            }
            let world = world.crash();
            world.upkeep();
            assert!(world.read(&file).unwrap() == [vec![1; 2000], vec![2; 3000]].concat(), "upkeep: {has_upkeep}");
            assert_eq!(is_durable, has_upkeep);
        }
    }
}

/// The LAYOUTCOMMIT of an earlier write arrives after the write.
#[test]
fn copies_are_compared_if_a_client_with_an_error_has_committed_only_a_part() {
    each(async |written| {
        let Written { world, file, layout, .. } = &written;
        pause().await;
        written.write();
        pause().await;
        world.commit(file, 1, 5000);
        written.lose();
        world.report(file, 1, layout.mirrors[0][0].0, vfs::layout::DataError::Denied);
        assert!(written.returned());
        world.upkeep();
        assert!(!world.pnfs.file_status(b"file").unwrap().unequal);
    });
}

#[test]
fn writes_of_a_data_server_with_a_slow_clock_are_seen() {
    each(async |written| {
        written.write();
        written.lose();
        let granted = Time::now().as_nanoseconds() - 50_000_000;
        let slow = Time { seconds: (granted / 1_000_000_000) as i64, nanoseconds: (granted % 1_000_000_000) as u32 };
        written.set_times(|server| server != written.server, slow);
        assert!(written.returned());
        written.check_copies("a slow clock");
    });
}

#[test]
fn copies_are_compared_if_a_data_server_does_not_answer_after_uncommitted_writes() {
    for is_known in [false, true] {
        each(async |written| {
            written.write();
            written.lose();
            written.world.servers.set_down(written.server, true);
            if is_known {
                written.world.upkeep_once();
            }
            assert!(written.returned());
            written.world.servers.set_down(written.server, false);
            written.check_copies("down");
        });
    }
}

#[test]
fn uncommitted_writes_are_durable_after_the_return_and_start_no_comparison() {
    each(async |written| {
        written.write();
        assert!(!written.returned());
        written.lose();
        let contents = |copy: &pnfs::record::Copy| written.world.servers.content(copy.object).unwrap();
        let record = written.world.record(&written.file);
        let lost = record.copies.iter().filter(|copy| copy.object.server.0 == written.server);
        assert!(lost.clone().all(|copy| contents(copy).contains(&2)));
    });
}

/// The other copy is made again from this one.
#[test]
fn uncommitted_writes_to_the_only_copy_in_sync_are_durable_after_the_return() {
    each(async |written| {
        let Written { world, file, server, .. } = &written;
        world.release(file, 1, LayoutModes::WRITE);
        world.servers.set_down(*server, true);
        world.write(file, 0, &[1; 10]).unwrap();
        let layout = world.grant_striped(file, 1, Write).unwrap();
        world.servers.ids().for_each(|server| world.servers.restart(server));
        world.client_write_unstable(&layout, 100, &[2; 3000]);
        world.servers.set_down(*server, false);
        let is_striped = world.record(file).stripes.count() > 1;
        // Other stripes can have two copies that may differ.
        assert!(!written.returned() || is_striped, "no copy can differ from the only one");
        written.check_copies("one copy");
        assert!(world.read(file).unwrap()[100..3100].iter().all(|byte| *byte == 2));
    });
}

/// A data server has restarted meanwhile, but has lost nothing.
#[test]
fn client_that_has_not_written_since_its_commit_starts_no_comparison() {
    for is_recalled in [false, true] {
        each(async |written| {
            pause().await;
            assert_eq!(written.world.client_write(&written.layout, 100, &[2; 3000]), 0);
            written.world.commit(&written.file, 1, 5000);
            pause().await;
            written.world.servers.restart(written.server);
            if is_recalled {
                written.recall();
            }
            assert!(!written.returned(), "recalled: {is_recalled}");
        });
    }
    each(async |written| {
        pause().await;
        written.world.servers.restart(written.server);
        assert!(!written.returned(), "it has never written");
    });
}

#[test]
fn writes_of_another_client_start_no_comparison() {
    each(async |written| {
        let other = written.world.grant_striped(&written.file, 2, Write).unwrap();
        pause().await;
        written.world.client_write_unstable(&other, 0, &[3; 5000]);
        assert!(!written.returned());
        assert_eq!(written.world.events.recalls(), []);
    });
}

#[test]
fn layout_to_write_that_is_granted_again_has_no_commits() {
    each(async |written| {
        written.world.grant_striped(&written.file, 1, vfs::layout::LayoutMode::Read).unwrap();
        written.world.commit(&written.file, 1, 5000);
        assert!(!written.returned());
        pause().await;
        let layout = written.world.grant_striped(&written.file, 1, Write).unwrap();
        pause().await;
        assert_eq!(written.world.client_write(&layout, 100, &[4; 1000]), 0);
        let time = Time::now();
        pause().await;
        written.world.release(&written.file, 1, LayoutModes::WRITE);
        assert_eq!(written.world.attr(&written.file).mtime, time);
    });
}

/// Nothing can differ from one copy, and this asks for one object only.
#[test]
fn file_with_one_copy_is_not_compared() {
    let stripes = pnfs::Stripes::new(700, 3).unwrap();
    let world = World::of(LayoutKind::Files, stripes, 3);
    let file = world.create("file");
    world.write(&file, 0, &[1; 5000]).unwrap();
    let layout = world.grant_files(&file, 1, Write).unwrap();
    assert_eq!(world.client_write_files(&layout, 0, &[2; 3000]), 0);
    world.servers.ids().for_each(|server| world.servers.restart(server));
    world.release(&file, 1, LayoutModes::WRITE);
    assert!(!world.pnfs.file_status(b"file").unwrap().unequal);
    world.grant_files(&file, 2, Write).unwrap();
    world.commit(&file, 2, 5000);
    let contacts = || world.servers.ids().map(|server| world.servers.contacts(server)).sum::<u64>();
    let before = contacts();
    world.release(&file, 2, LayoutModes::WRITE);
    assert_eq!(contacts() - before, 1);
}
