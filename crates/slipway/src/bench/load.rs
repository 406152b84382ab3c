//! [`measure`]: runs the same work on several threads for the same time, and measures its cost.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use super::{
    meter::Meter,
    sample::{Sample, Tally, histogram},
};
use crate::{exit::Failure, process};

/// The sources of the costs of a run.
pub struct Costs<'a> {
    /// The process IDs of the servers that this command started and whose CPU time counts.
    pub servers: &'a [u32],
    /// The process IDs of the data servers of a cluster, whose CPU time counts by itself.
    pub data_servers: &'a [u32],
    /// The meter of the machine's memory.
    pub meter: &'a Meter,
}

/// Runs `threads` threads. Each prepares by `connect`, runs `drive` until the given instant, and then `finish`.
///
/// All threads are connected before the clock starts, and the clock is read before any thread runs `finish`.
///
/// # Errors
/// The error of one of the threads.
pub fn measure<W>(
    threads: u32,
    limit: Duration,
    costs: &Costs,
    connect: impl Fn(u32) -> Result<W, Failure> + Sync,
    drive: impl Fn(&W, Instant) -> Result<Tally, Failure> + Sync,
    finish: impl Fn(W) -> Result<(), Failure> + Sync,
) -> Result<Sample, Failure> {
    let [start, stop, read] = [(); 3].map(|()| Barrier::new(threads as usize + 1));
    let cpu_of = |pids: &[u32]| {
        let times: Option<Vec<Duration>> = pids.iter().map(|pid| process::cpu_time_of(*pid)).collect();
        times.filter(|times| !times.is_empty()).map(|times| times.iter().sum::<Duration>())
    };
    thread::scope(|scope| {
        let (start, stop, read) = (&start, &stop, &read);
        let (connect, drive, finish) = (&connect, &drive, &finish);
        // A thread passes all barriers, also after an error.
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let ready = connect(thread);
                    start.wait();
                    let end = Instant::now() + limit;
                    let driven = ready.and_then(|work| drive(&work, end).map(|tally| (work, tally)));
                    stop.wait();
                    read.wait();
                    driven.and_then(|(work, tally)| finish(work).map(|()| tally))
                })
            })
            .collect();
        start.wait();
        let (began, client, memory) = (Instant::now(), process::cpu_time(), costs.meter.bytes());
        let [served, stored] = [costs.servers, costs.data_servers].map(cpu_of);
        stop.wait();
        let elapsed = began.elapsed();
        let spent = |before: Option<Duration>, pids| {
            before.zip(cpu_of(pids)).map(|(before, after)| after.saturating_sub(before))
        };
        let since = |before: Option<u64>, after: Option<u64>| before.zip(after).map(|(b, a)| a.saturating_sub(b));
        let mut sample = Sample {
            operations: 0,
            bytes: 0,
            elapsed,
            client_cpu: process::cpu_time().saturating_sub(client),
            server_cpu: spent(served, costs.servers),
            data_server_cpu: spent(stored, costs.data_servers),
            data_server_calls: None,
            memory_bytes: since(memory, costs.meter.bytes()),
            latency: histogram(),
        };
        read.wait();
        for thread in threads {
            let tally = thread.join().expect("a load thread must not panic")?;
            sample.operations += tally.operations;
            sample.bytes += tally.bytes;
            sample.latency.add(&tally.latency).expect("histograms must have the same bounds");
        }
        Ok(sample)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Duration = Duration::from_millis(1);

    fn costs<'a>(servers: &'a [u32], meter: &'a Meter) -> Costs<'a> {
        Costs { servers, data_servers: &[], meter }
    }

    #[test]
    fn results_of_threads_are_summed() {
        let meter = Meter::find("/nowhere".as_ref());
        let connect = |thread| Ok(u64::from(thread));
        let drive = |work: &u64, end| {
            let mut tally = Tally::until(end);
            (0..=*work).for_each(|_| tally.count(100, None));
            Ok(tally)
        };
        let servers = [std::process::id()];
        let sample = measure(4, NOTHING, &costs(&servers, &meter), connect, drive, |_| Ok(())).unwrap();
        assert_eq!((sample.operations, sample.bytes, sample.latency.len()), (10, 1000, 10));
        assert!(sample.server_cpu.is_some() && sample.data_server_cpu.is_none() && sample.memory_bytes.is_none());
        let costs = Costs { servers: &[], data_servers: &servers, meter: &meter };
        let sample = measure(1, NOTHING, &costs, connect, drive, |_| Ok(())).unwrap();
        assert!(sample.server_cpu.is_none() && sample.data_server_cpu.is_some());
    }

    #[test]
    fn a_failed_thread_does_not_block_the_others() {
        let meter = Meter::find("/nowhere".as_ref());
        let connect = |thread| if thread == 1 { Err(Failure::failed("refused")) } else { Ok(()) };
        let drive = |(): &(), end| Ok(Tally::until(end));
        let failure = measure(3, NOTHING, &costs(&[], &meter), connect, drive, |()| Ok(())).err().unwrap();
        assert_eq!(failure.message, "refused");
        let drive = |(): &(), _| Err(Failure::failed("broken"));
        let failure = measure(2, NOTHING, &costs(&[], &meter), |_| Ok(()), drive, |()| Ok(())).err().unwrap();
        assert_eq!(failure.message, "broken");
        let drive = |(): &(), end| Ok(Tally::until(end));
        let finish = |()| Err(Failure::failed("not finished"));
        assert_eq!(
            measure(2, NOTHING, &costs(&[], &meter), |_| Ok(()), drive, finish).err().unwrap().message,
            "not finished"
        );
    }
}
