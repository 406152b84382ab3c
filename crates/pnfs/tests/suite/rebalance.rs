//! Rebalancing: copies are moved to data servers with fewer bytes, and nothing is lost.

use std::{pin::pin, time::Duration};

use pnfs::{ServerId, Service, record::CopyState};
use tokio::time::Instant;
use vfs::{Handle, VfsError};

use crate::world::{World, Writes, step};

const MIB: usize = 1 << 20;

fn spilled(world: &World, name: &str, contents: &[u8]) -> Handle {
    let file = world.create(name);
    world.write(&file, 0, contents).unwrap();
    file
}

/// Checks that all copies of a file are in sync and have these bytes, on distinct data servers.
fn check(world: &World, file: &Handle, contents: &[u8]) {
    let record = world.record(file);
    assert!(record.is_healthy() && record.copies.len() == 2, "{record:?}");
    assert_ne!(record.copies[0].object.server, record.copies[1].object.server);
    for copy in &record.copies {
        assert!(world.servers.content(copy.object).as_deref() == Some(contents), "{:?} must be equal", copy.object);
    }
}

/// A tree with files of two copies on data servers 1 to 3, and an empty data server 4.
fn grown(files: u8, len: usize) -> (World, Vec<(Handle, Vec<u8>)>) {
    let world = World::new();
    let files = (0..files).map(|number| {
        let contents = vec![number + 1; len];
        (spilled(&world, &format!("file{number}"), &contents), contents)
    });
    let files = files.collect();
    world.servers.add(4);
    (world, files)
}

#[test]
fn copies_are_moved_to_a_new_data_server_until_all_have_the_same_bytes() {
    let (world, files) = grown(20, 5000);
    let plan = world.pnfs.plan_rebalance().unwrap();
    // The new data server gets a quarter of the copies, and another one some if it had less by chance.
    let given: u64 = plan.servers.iter().map(|(_, before, after)| before.saturating_sub(*after)).sum();
    assert!(plan.copies >= 9 && given == plan.bytes, "no copy is moved twice: {plan:?}");
    assert_eq!(plan.servers.iter().map(|(_, before, _)| before).sum::<u64>(), 40 * (5000 + 4096));
    assert_eq!(world.servers.objects_on(4), 0, "a plan changes nothing");
    assert!(step(pin!(world.pnfs.rebalance())), "nothing was ordered");
    assert_eq!(world.servers.objects_on(4), 0);

    world.pnfs.order_rebalance(Some(0)).unwrap();
    assert!(step(pin!(world.pnfs.rebalance())));
    let status = world.pnfs.rebalance_status();
    assert_eq!((status.ordered, status.copies, status.bytes), (None, plan.copies, plan.bytes));
    world.upkeep();
    for (server, _, after) in &plan.servers {
        assert_eq!(world.servers.objects_on(server.0) as u64 * (5000 + 4096), *after);
        assert!((9..=11).contains(&world.servers.objects_on(server.0)), "{plan:?}");
    }
    assert_eq!(world.servers.objects(), 40, "the former objects must be removed");
    files.iter().for_each(|(file, contents)| check(&world, file, contents));
    assert_eq!(world.pnfs.plan_rebalance().unwrap().copies, 0);
}

#[test]
fn data_servers_out_of_service_do_not_take_part() {
    let (world, _) = grown(20, 5000);
    world.pnfs.set_service(ServerId(4), Service::Draining).unwrap();
    assert!(world.pnfs.plan_rebalance().unwrap().servers.iter().all(|(server, ..)| server.0 != 4));
    world.pnfs.order_rebalance(Some(0)).unwrap();
    assert!(step(pin!(world.pnfs.rebalance())));
    assert_eq!(world.servers.objects_on(4), 0);
}

/// The upkeep runs during each move, and writes begin before and after each piece.
#[test]
fn write_during_a_rebalancing_is_never_lost() {
    let (world, mut files) = grown(4, 2 * MIB);
    world.pnfs.order_rebalance(Some(0)).unwrap();
    world.servers.set_permits(4, Some(0));
    let tree = world.pnfs.clone();
    let mut rebalance = Box::pin(tree.rebalance());
    let (mut writes, mut round) = (Writes::default(), 0);
    while !step(rebalance.as_mut()) {
        round += 1;
        assert!(round < 200, "the rebalancing must end");
        let of = round % files.len();
        let (file, contents) = &mut files[of];
        writes.begin(&world, file, contents, round);
        assert!(step(Box::pin(world.pnfs.upkeep()).as_mut()), "the upkeep must not wait for a move");
        world.servers.add_permit(4);
        writes.advance();
    }
    world.servers.set_permits(4, None);
    assert_eq!(writes.advance(), 0, "all writes must be answered");
    assert!(world.pnfs.rebalance_status().copies >= 2, "{:?}", world.pnfs.rebalance_status());
    assert!(round > 2, "writes must run during the moves: {round}");
    world.upkeep();
    assert_eq!((world.servers.objects_on(4), world.servers.objects()), (2, 8));
    files.iter().for_each(|(file, contents)| check(&world, file, contents));
}

#[test]
fn rebalancing_continues_after_a_crash() {
    for permits in [0, 1, 3, 5] {
        let (mut world, files) = grown(4, 2 * MIB);
        world.pnfs.order_rebalance(Some(0)).unwrap();
        world.servers.set_permits(4, Some(permits));
        assert!(!step(pin!(world.pnfs.rebalance())) || permits > 3, "{permits}");
        let copying = |file: &Handle| world.record(file).copies.iter().any(|copy| copy.state == CopyState::Copying);
        assert_eq!(files.iter().any(|(file, _)| copying(file)), permits <= 3, "{permits}");
        world = world.crash();
        world.servers.set_permits(4, None);
        assert_eq!(world.pnfs.rebalance_status().ordered.is_some(), permits <= 3, "the order must be durable");
        world.upkeep();
        assert!(step(pin!(world.pnfs.rebalance())));
        world.upkeep();
        assert_eq!((world.servers.objects_on(4), world.servers.objects()), (2, 8), "{permits}");
        files.iter().for_each(|(file, contents)| check(&world, file, contents));
        assert_eq!(world.crash().pnfs.rebalance_status().ordered, None, "the end must be durable");
    }
}

#[test]
fn order_to_end_undoes_the_move_in_progress() {
    let (world, files) = grown(4, 2 * MIB);
    world.pnfs.order_rebalance(Some(0)).unwrap();
    world.servers.set_permits(4, Some(1));
    let tree = world.pnfs.clone();
    let mut rebalance = Box::pin(tree.rebalance());
    assert!(!step(rebalance.as_mut()));
    world.pnfs.order_rebalance(None).unwrap();
    world.servers.set_permits(4, None);
    assert!(step(rebalance.as_mut()));
    world.upkeep();
    assert_eq!((world.servers.objects_on(4), world.servers.objects()), (0, 8));
    files.iter().for_each(|(file, contents)| check(&world, file, contents));
}

#[test]
fn full_data_server_ends_the_rebalancing_with_the_reason() {
    simnet::simulate(1, || async {
        let (world, files) = grown(4, 5000);
        world.servers.set_full(4, true);
        world.pnfs.order_rebalance(Some(0)).unwrap();
        world.pnfs.rebalance().await;
        assert_eq!(world.pnfs.rebalance_status().ordered, None);
        world.upkeep();
        assert_eq!((world.servers.objects_on(4), world.servers.objects()), (0, 8));
        files.iter().for_each(|(file, contents)| check(&world, file, contents));
    });
}

#[test]
fn rate_bounds_the_bytes_in_a_second() {
    simnet::simulate(1, || async {
        for (rate, least, most) in [(MIB as u64, 4, 6), (4 * MIB as u64, 1, 2)] {
            let (world, files) = grown(4, 2 * MIB);
            world.pnfs.order_rebalance(Some(rate)).unwrap();
            let began = Instant::now();
            world.pnfs.rebalance().await;
            assert!(world.pnfs.rebalance_status().copies >= 2);
            assert!((least..=most).contains(&began.elapsed().as_secs()), "{rate}: {:?}", began.elapsed());
            files.iter().for_each(|(file, contents)| check(&world, file, contents));
        }
    });
}

/// A file that clients leave different copies of is repaired, and moved after that.
#[test]
fn move_makes_way_for_a_comparison_of_the_copies() {
    simnet::simulate(1, || async {
        let (world, files) = grown(4, 2 * MIB);
        world.pnfs.order_rebalance(Some(MIB as u64)).unwrap();
        let tree = world.pnfs.clone();
        let rebalance = tokio::spawn(async move { tree.rebalance().await });
        tokio::time::sleep(Duration::from_millis(500)).await;
        let moving = |(file, _): &&(Handle, Vec<u8>)| world.record(file).copies.len() > 2;
        let (file, contents) = files.iter().find(moving).expect("a copy must be moved now");
        // All copies fail at once: they may differ after that.
        (1..=4).for_each(|server| world.servers.set_down(server, true));
        assert_eq!(world.write(file, 0, &[9; 10]).unwrap_err(), VfsError::Io);
        (1..=4).for_each(|server| world.servers.set_down(server, false));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(world.record(file).copies.len(), 2, "the move must be undone");
        world.pnfs.upkeep().await;
        check(&world, file, contents);
        rebalance.await.unwrap();
        world.pnfs.upkeep().await;
        assert_eq!((world.servers.objects_on(4), world.servers.objects()), (2, 8));
        files.iter().for_each(|(file, contents)| check(&world, file, contents));
    });
}
