//! [`Callers`]: the users that share a mount, with their groups.
//!
//! A request has the user and group of its caller, but not the supplementary groups. These are in the status of the
//! calling thread, proc_pid_status(5). It is read for the first request of a thread, and again after [`RECHECK`], so
//! that a change of the groups, and another thread with the same number, are noticed. A thread in another PID namespace
//! has no number here, and counts as without supplementary groups.

use std::{collections::HashMap, fs, time::Duration};

use client::Caller;
use parking_lot::Mutex;
use rpc::AuthSys;
use tokio::time::Instant;

use super::wire::Header;

/// The users of a mount.
#[derive(Debug)]
pub struct Callers {
    /// The host name in credentials.
    own: AuthSys,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The callers by thread, user and group, and the time at which the groups were read.
    threads: HashMap<(u32, u32, u32), (Caller, Instant)>,
    /// The callers by user, group and supplementary groups.
    users: HashMap<(u32, u32, Vec<u32>), Caller>,
}

impl Callers {
    /// Creates a table without callers.
    pub fn new() -> Self {
        Self { own: AuthSys::of_process(), known: Mutex::default() }
    }

    /// Returns the caller of a request.
    pub fn of(&self, header: &Header) -> Caller {
        let (key, now) = ((header.pid, header.uid, header.gid), Instant::now());
        let mut known = self.known.lock();
        if let Some((caller, read)) = known.threads.get(&key)
            && now.duration_since(*read) < RECHECK
        {
            return caller.clone();
        }
        let groups = groups(header.pid);
        let caller = known.user(&self.own, (header.uid, header.gid, groups));
        if known.threads.len() >= THREADS_MAX {
            known.threads.retain(|_, (_, read)| now.duration_since(*read) < RECHECK);
            if known.threads.len() >= THREADS_MAX {
                known.threads.clear();
            }
        }
        known.threads.insert(key, (caller.clone(), now));
        caller
    }
}

impl Known {
    /// Returns the caller with this user, group and supplementary groups.
    fn user(&mut self, own: &AuthSys, key: (u32, u32, Vec<u32>)) -> Caller {
        if let Some(caller) = self.users.get(&key) {
            return caller.clone();
        }
        // Callers that are in use are kept by their users.
        if self.users.len() >= USERS_MAX {
            self.users.clear();
        }
        let (uid, gid, gids) = (key.0, key.1, key.2.iter().copied().collect());
        let caller = Caller::new(AuthSys { uid, gid, gids, ..own.clone() });
        self.users.insert(key, caller.clone());
        caller
    }
}

/// Returns the supplementary groups of a thread, as many as AUTH_SYS can have. A thread that cannot be seen has none.
fn groups(thread: u32) -> Vec<u32> {
    let status = (thread != 0).then(|| fs::read_to_string(format!("/proc/{thread}/status")).ok()).flatten();
    status.map_or(Vec::new(), |status| groups_of(&status))
}

fn groups_of(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|group| group.parse().ok()).take(GROUPS_MAX).collect()
}

/// The time for which the groups of a thread are not read again.
const RECHECK: Duration = Duration::from_secs(1);
/// The maximum number of threads and of users in the table.
const THREADS_MAX: usize = 4096;
const USERS_MAX: usize = 1024;
/// The maximum number of supplementary groups in AUTH_SYS (RFC 5531 appendix A).
const GROUPS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn header(pid: u32, uid: u32) -> Header {
        Header { opcode: 0, unique: 0, ino: 0, uid, gid: 7, pid }
    }

    #[test]
    fn groups_are_those_of_the_thread() {
        let text = "Name:\ta\nGid:\t5\t5\t5\t5\nGroups:\t4 24 1000 \nNStgid:\t1\n";
        assert_eq!(groups_of(text), [4, 24, 1000]);
        assert_eq!(groups_of("Groups:\t\n"), [] as [u32; 0]);
        assert_eq!(groups_of(&format!("Groups:\t{}\n", "9 ".repeat(40))).len(), GROUPS_MAX);
        let own: Vec<u32> = rustix::process::getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        assert_eq!(groups(std::process::id()), own[..own.len().min(GROUPS_MAX)]);
        assert_eq!(groups(0), [] as [u32; 0], "a thread of another PID namespace");
    }

    #[tokio::test]
    async fn one_user_is_one_caller_and_the_table_is_bounded() {
        let callers = Callers::new();
        let caller = callers.of(&header(0, 1000));
        assert_eq!((caller.user().uid, caller.user().gid), (1000, 7));
        assert_eq!(callers.of(&header(u32::MAX, 1000)), caller, "another thread of the same user");
        assert_ne!(callers.of(&header(0, 1001)), caller);
        for number in 0..2 * THREADS_MAX as u32 {
            callers.of(&header(0, number));
            let known = callers.known.lock();
            assert!(known.threads.len() <= THREADS_MAX && known.users.len() <= USERS_MAX);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn groups_are_read_again_after_a_while() {
        let callers = Callers::new();
        let first = header(std::process::id(), 1000);
        callers.of(&first);
        // As if the thread had other groups when they were read.
        let stale = Caller::new(AuthSys { gids: [4711].into_iter().collect(), ..AuthSys::of_process() });
        callers.known.lock().threads.get_mut(&(first.pid, 1000, 7)).unwrap().0 = stale.clone();
        tokio::time::advance(RECHECK / 2).await;
        assert_eq!(callers.of(&first), stale);
        tokio::time::advance(RECHECK).await;
        assert_ne!(callers.of(&first), stale);
    }
}
