//! The modification time and the change attribute of files that clients write directly.

use std::time::Duration;

use pnfs::record::Object;
use tokio::time::advance;
use vfs::{
    Handle, Name, SetAttr, SetTime, Time, Vfs,
    layout::{DataError, LayoutMode::Write, LayoutModes},
};

use crate::world::{Striped, World};

/// The way in which a layout ends without LAYOUTCOMMIT.
#[derive(Clone, Copy, Debug)]
enum End {
    Return,
    Revocation,
    Restart,
}

impl End {
    const ALL: [Self; 3] = [Self::Return, Self::Revocation, Self::Restart];

    fn run(self, world: World, file: &Handle) -> World {
        match self {
            Self::Return => world.release(file, 1, LayoutModes::WRITE),
            Self::Revocation => world.fence(file, 1, LayoutModes::WRITE).unwrap(),
            Self::Restart => {
                let world = world.crash();
                world.upkeep();
                return world;
            }
        }
        world
    }
}

/// A file of 3,000 bytes with an mtime that a program has set, and with a layout to write.
struct Copied {
    file: Handle,
    objects: Vec<Object>,
    layout: Striped,
}

impl Copied {
    const MTIME: Time = Time { seconds: 1_000_000, nanoseconds: 5 };

    async fn new(world: &World) -> Self {
        let file = world.create("file");
        world.write(&file, 0, &[1; 3000]).unwrap();
        let objects = world.record(&file).copies.iter().map(|copy| copy.object).collect();
        advance(Duration::from_secs(1)).await;
        let set = SetAttr { mtime: Some(SetTime::To(Self::MTIME)), ..SetAttr::default() };
        world.run(|caller| world.pnfs.setattr(caller, &file, &set, None)).unwrap();
        let layout = world.grant_striped(&file, 1, Write).unwrap();
        Self { file, objects, layout }
    }

    /// The client overwrites bytes. Returns the time.
    async fn overwrite(&self, world: &World) -> Time {
        self.write_at(world, 100).await
    }

    /// The client writes 10 bytes. Returns the time.
    async fn write_at(&self, world: &World, offset: u64) -> Time {
        advance(Duration::from_secs(20)).await;
        assert_eq!(world.client_write(&self.layout, offset, &[2; 10]), 0);
        let written = Time::now();
        advance(Duration::from_secs(30)).await;
        written
    }
}

/// Runs a test for each tree and each end of a layout. The clock stands still unless the test moves it.
fn each(test: impl AsyncFn(World, End)) {
    for end in End::ALL {
        for world in 0..World::each().count() {
            simnet::simulate(1, async || test(World::each().nth(world).expect("the tree must exist"), end).await);
        }
    }
}

#[test]
fn uncommitted_writes_set_the_time() {
    each(async |world, end| {
        let copied = Copied::new(&world).await;
        let written = copied.overwrite(&world).await;
        let world = end.run(world, &copied.file);
        assert_eq!(world.attr(&copied.file).mtime, written, "{end:?}");
    });
}

/// Other clients may have read the data before the writes, and keep them until the change attribute differs.
#[test]
fn writes_behind_and_before_the_end_advance_the_change_attribute() {
    for offset in [100, 2995] {
        each(async |world, end| {
            let copied = Copied::new(&world).await;
            copied.write_at(&world, offset).await;
            let before = world.attr(&copied.file).change;
            let world = end.run(world, &copied.file);
            let after = world.attr(&copied.file);
            assert!(after.change > before, "{end:?} after a write at {offset}");
            assert_eq!(after.size, 3000.max(offset + 10), "{end:?} after a write at {offset}");
        });
    }
}

#[test]
fn each_layout_commit_advances_the_change_attribute() {
    each(async |world, end| {
        // The end of the layout has no effect here.
        let End::Return = end else { return };
        let copied = Copied::new(&world).await;
        for offset in [100, 2995, 100] {
            copied.write_at(&world, offset).await;
            let before = world.attr(&copied.file).change;
            world.commit(&copied.file, 1, offset + 10);
            assert!(world.attr(&copied.file).change > before, "the write at {offset}");
        }
    });
}

#[test]
fn uncommitted_write_at_the_time_of_the_layout_advances_the_change_attribute() {
    each(async |world, end| {
        let copied = Copied::new(&world).await;
        let change = world.attr(&copied.file).change;
        assert_eq!(world.client_write(&copied.layout, 100, &[2; 10]), 0);
        let world = end.run(world, &copied.file);
        let attr = world.attr(&copied.file);
        assert_eq!(attr.mtime, Copied::MTIME, "{end:?}: the write may be earlier than the layout");
        assert_ne!(attr.change, change, "{end:?}");
    });
}

#[test]
fn return_of_a_layout_without_a_write_changes_nothing() {
    simnet::simulate(1, async || {
        for world in World::each() {
            let copied = Copied::new(&world).await;
            let before = world.attr(&copied.file);
            world.release(&copied.file, 1, LayoutModes::WRITE);
            assert_eq!(world.attr(&copied.file), before);
        }
    });
}

#[test]
fn time_that_a_program_has_set_stays_if_no_client_has_written_since() {
    each(async |world, end| {
        let copied = Copied::new(&world).await;
        advance(Duration::from_secs(30)).await;
        let world = end.run(world, &copied.file);
        assert_eq!(world.attr(&copied.file).mtime, Copied::MTIME, "{end:?}");
    });
}

#[test]
fn time_that_a_program_sets_after_a_write_stays() {
    each(async |world, end| {
        let copied = Copied::new(&world).await;
        let written = copied.overwrite(&world).await;
        for size in [None, Some(3000)] {
            let mtime = Time { seconds: written.seconds - 3, nanoseconds: 0 };
            let set = SetAttr { mtime: Some(SetTime::To(mtime)), size, ..SetAttr::default() };
            world.run(|caller| world.pnfs.setattr(caller, &copied.file, &set, None)).unwrap();
        }
        let world = end.run(world, &copied.file);
        assert_eq!(world.attr(&copied.file).mtime.seconds, written.seconds - 3, "{end:?}");
    });
}

#[test]
fn copy_that_was_made_again_does_not_set_the_time() {
    each(async |world, end| {
        let copied = Copied::new(&world).await;
        advance(Duration::from_secs(20)).await;
        // The first copy of each stripe.
        let record = world.record(&copied.file);
        for stripe in 0..record.stripes.count() {
            let copy = record.in_sync_of(stripe).next().unwrap();
            world.servers.set_mtime(record.copies[copy].object, Time::now());
        }
        let world = end.run(world, &copied.file);
        assert_eq!(world.attr(&copied.file).mtime, Copied::MTIME, "{end:?}");
    });
}

#[test]
fn time_of_a_data_server_in_the_future_is_now() {
    each(async |world, end| {
        let copied = Copied::new(&world).await;
        advance(Duration::from_secs(20)).await;
        let future = Time { seconds: Time::now().seconds + 3600, nanoseconds: 0 };
        copied.objects.iter().for_each(|object| world.servers.set_mtime(*object, future));
        let world = end.run(world, &copied.file);
        assert_eq!(world.attr(&copied.file).mtime, Time::now(), "{end:?}");
    });
}

/// Both change the ctime of the inner file. After a restart, it is not known that the data have not changed then.
#[test]
fn stale_mark_and_new_name_after_a_write_do_not_hide_its_time() {
    each(async |world, end| {
        if let End::Restart = end {
            return;
        }
        let copied = Copied::new(&world).await;
        let written = copied.overwrite(&world).await;
        let record = world.record(&copied.file);
        for stripe in 0..record.stripes.count() {
            let copy = record.in_sync_of(stripe).next().unwrap();
            world.report(&copied.file, 1, record.copies[copy].object, DataError::Unreachable);
            advance(Duration::from_secs(1)).await;
        }
        assert!(!world.record(&copied.file).is_healthy());
        let (root, [from, to]) = (world.pnfs.root(), ["file", "other"].map(|name| Name::new(name.as_bytes()).unwrap()));
        world.run(|caller| world.pnfs.rename(caller, &root, from, &root, to)).unwrap();
        let world = end.run(world, &copied.file);
        assert_eq!(world.attr(&copied.file).mtime, written, "{end:?}");
    });
}

/// Objects are new when the data of a file, or a copy of it, move to data servers. No client has written them.
#[test]
fn new_objects_do_not_set_the_time() {
    each(async |world, end| {
        let (file, set) =
            (world.create("file"), SetAttr { mtime: Some(SetTime::To(Copied::MTIME)), ..SetAttr::default() });
        world.write(&file, 0, &[1; 900]).unwrap();
        world.run(|caller| world.pnfs.setattr(caller, &file, &set, None)).unwrap();
        advance(Duration::from_secs(10)).await;
        world.grant_striped(&file, 1, Write).unwrap();
        let world = end.run(world, &file);
        assert_eq!(world.attr(&file).mtime, Copied::MTIME, "{end:?}");

        for copy in 0..world.record(&file).copies.len() {
            world.upkeep();
            advance(Duration::from_secs(60)).await;
            world.grant_striped(&file, 1, Write).unwrap();
            let object = world.record(&file).copies[copy].object;
            world.report(&file, 1, object, DataError::Unreachable);
            world.release(&file, 1, LayoutModes::WRITE);
            advance(Duration::from_secs(60)).await;
            world.upkeep();
            assert!(
                world.record(&file).is_healthy() && world.record(&file).copies.iter().all(|copy| copy.object != object)
            );
        }
        world.grant_striped(&file, 1, Write).unwrap();
        let world = end.run(world, &file);
        assert_eq!(world.attr(&file).mtime, Copied::MTIME, "{end:?}");
    });
}
