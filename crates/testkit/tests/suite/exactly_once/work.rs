//! The work of clients: operations that must be executed exactly once, and exclusive locks.

use std::collections::BTreeSet;

use bytes::Bytes;
use nfs::v4::{attr::Attrs, *};
use rand::Rng;

use super::{
    client::{Client, SessionLost},
    judge::{RANGE_LEN, number},
};

/// Makes, renames and removes directories in its own directory, and knows the expected results.
pub struct Worker {
    slot: usize,
    dir: String,
    names: BTreeSet<&'static str>,
    left: u32,
    /// A change that may or may not have been executed.
    doubtful: Option<Change>,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Make(&'static str),
    /// Opens and closes a file.
    Open(&'static str),
    Remove(&'static str),
    Rename(&'static str, &'static str),
}

impl Worker {
    /// Creates a worker that has done nothing yet.
    pub fn new(client: &Client, number: usize) -> Self {
        let dir = directory(client.number, number);
        Self { slot: number, dir, names: BTreeSet::new(), left: STEPS, doubtful: None }
    }

    /// Continues until all work is done.
    pub async fn run(&mut self, client: &Client) -> Result<(), SessionLost> {
        if let Some(change) = self.doubtful {
            self.settle(client, change).await?;
        }
        while self.left > 0 {
            client.world.wait(client.world.random(|rng| rng.random_range(1..300))).await;
            let change = self.choose(client);
            self.doubtful = Some(change);
            let (status, _) = client.call(self.slot, self.compound(change)).await?;
            self.doubtful = None;
            if matches!(status, Nfsstat4::Grace | Nfsstat4::Delay) {
                continue;
            }
            let (names, expected) = self.after(change);
            if status != expected {
                client.fail(format!("{change:?} in {}: {} for {}", self.dir, status.name(), expected.name()));
            }
            self.names = names;
            self.left -= 1;
        }
        if let Some(found) = self.look(client).await?
            && found != self.names
        {
            client.fail(format!("in {} is {found:?} for {:?}", self.dir, self.names));
        }
        Ok(())
    }

    fn choose(&self, client: &Client) -> Change {
        client.world.random(|rng| {
            let name = |rng: &mut rand::rngs::StdRng| NAMES[rng.random_range(0..NAMES.len())];
            match rng.random_range(0..4) {
                0 => Change::Make(name(rng)),
                1 => Change::Open(name(rng)),
                2 => Change::Remove(name(rng)),
                _ => Change::Rename(name(rng), name(rng)),
            }
        })
    }

    fn compound(&self, change: Change) -> Vec<Argop4> {
        let mut operations = at(&[&self.dir]);
        match change {
            Change::Make(name) => operations.push(Argop4::Create(Box::new(CreateArgs {
                objtype: Createtype4::Other(Ftype4::Fifo),
                objname: name.into(),
                createattrs: Attrs { mode: Some(0o644), ..Attrs::default() }.into(),
            }))),
            Change::Open(name) => {
                let attrs = Attrs { mode: Some(0o644), ..Attrs::default() }.into();
                let how = Openflag4::Create(Createhow4::Guarded(attrs));
                operations.push(open(how, OpenClaim4::Null(name.into())));
                operations.push(Argop4::Close(CloseArgs { seqid: Seqid4(0), open_stateid: Stateid4::CURRENT }));
            }
            Change::Remove(name) => operations.push(Argop4::Remove(RemoveArgs { target: name.into() })),
            Change::Rename(from, to) => {
                operations.push(Argop4::SaveFh);
                operations.push(Argop4::Rename(RenameArgs { oldname: from.into(), newname: to.into() }));
            }
        }
        operations
    }

    /// Returns the content after a change, and the expected status.
    fn after(&self, change: Change) -> (BTreeSet<&'static str>, Nfsstat4) {
        let mut names = self.names.clone();
        let done = match change {
            Change::Make(name) | Change::Open(name) if !names.insert(name) => Nfsstat4::Exist,
            Change::Remove(name) if !names.remove(name) => Nfsstat4::NoEnt,
            Change::Rename(from, _) if !names.contains(from) => Nfsstat4::NoEnt,
            Change::Rename(from, to) => {
                names.remove(from);
                names.insert(to);
                Nfsstat4::Ok
            }
            _ => Nfsstat4::Ok,
        };
        (names, done)
    }

    /// Finds out whether a change was executed.
    async fn settle(&mut self, client: &Client, change: Change) -> Result<(), SessionLost> {
        let Some(found) = self.look(client).await? else { return Ok(()) };
        let (after, _) = self.after(change);
        if found == after {
            // If it makes no difference, the change counts as executed.
            self.left -= 1;
        } else if found != self.names {
            let why = format!("after {change:?} in {} is {found:?}, before {:?}", self.dir, self.names);
            client.fail(why);
        }
        (self.names, self.doubtful) = (found, None);
        Ok(())
    }

    /// Reads the content of the directory.
    async fn look(&self, client: &Client) -> Result<Option<BTreeSet<&'static str>>, SessionLost> {
        let mut found = BTreeSet::new();
        for name in NAMES {
            match client.call(self.slot, at(&[&self.dir, name])).await?.0 {
                Nfsstat4::Ok => drop(found.insert(name)),
                Nfsstat4::NoEnt => {}
                other => {
                    client.fail(format!("LOOKUP of {}/{name}: {}", self.dir, other.name()));
                    return Ok(None);
                }
            }
        }
        Ok(Some(found))
    }
}

/// Locks ranges of a shared file, and counts its locks in each.
#[derive(Default)]
pub struct Locker {
    done: u32,
    open: Option<Stateid4>,
    /// The stateid of the locks, and the range.
    held: Option<(Stateid4, usize)>,
}

impl Locker {
    /// Returns a locker without the state that a restarted client has forgotten.
    pub fn after_reboot(&self) -> Self {
        Self { done: self.done, ..Self::default() }
    }

    /// Continues until all work is done.
    pub async fn run(&mut self, client: &Client) -> Result<(), SessionLost> {
        while self.done < ROUNDS {
            client.world.wait(client.world.random(|rng| rng.random_range(1..600))).await;
            match (self.open, self.held) {
                (None, _) => self.open(client).await?,
                (Some(open), None) => self.lock(client, open).await?,
                (Some(_), Some((stateid, range))) => self.count(client, stateid, range).await?,
            }
        }
        Ok(())
    }

    async fn open(&mut self, client: &Client) -> Result<(), SessionLost> {
        let mut operations = at(&[]);
        operations.push(open(Openflag4::NoCreate, OpenClaim4::Null(FILE.into())));
        let (status, mut results) = client.call(LOCK_SLOT, operations).await?;
        match (status, results.pop()) {
            (Nfsstat4::Ok, Some(Resop4::Open(Res4::Ok(opened)))) => self.open = Some(opened.stateid),
            (Nfsstat4::Grace | Nfsstat4::Delay, _) => {}
            (status, _) => client.fail(format!("OPEN: {}", status.name())),
        }
        Ok(())
    }

    async fn lock(&mut self, client: &Client, open: Stateid4) -> Result<(), SessionLost> {
        let range = client.world.random(|rng| rng.random_range(0..RANGES));
        let asked = client.world.now();
        let (status, mut results) = client.call(LOCK_SLOT, lock(open, range, false)).await?;
        match (status, results.pop()) {
            (Nfsstat4::Ok, Some(Resop4::Lock(LockRes::Ok(stateid)))) => {
                self.held = Some((stateid, range));
                client.world.judge(|judge, at| judge.locked(at, client.number, range, asked, false));
            }
            (Nfsstat4::Denied | Nfsstat4::Grace | Nfsstat4::Delay, _) => {}
            (status, _) => self.lost(client, open, status).await?,
        }
        Ok(())
    }

    /// Reads the counter, writes the next value, and releases the range.
    async fn count(&mut self, client: &Client, stateid: Stateid4, range: usize) -> Result<(), SessionLost> {
        let (offset, count) = (range as u64 * RANGE_LEN, RANGE_LEN as u32);
        let mut operations = at(&[FILE]);
        operations.push(Argop4::Read(ReadArgs { stateid, offset, count }));
        let (status, mut results) = client.call(LOCK_SLOT, operations).await?;
        let Some(Resop4::Read(Res4::Ok(read))) = results.pop() else {
            return self.lost(client, stateid, status).await;
        };
        let next = number(&read.data.0.to_bytes().expect("memory")) + 1;
        client.world.wait(client.world.random(|rng| rng.random_range(1..2000))).await;
        let data = Bytes::copy_from_slice(&next.to_be_bytes()).into();
        let mut operations = at(&[FILE]);
        operations.push(Argop4::Write(WriteArgs { stateid, offset, stable: StableHow4::FileSync, data }));
        let (status, _) = client.call(LOCK_SLOT, operations).await?;
        if status != Nfsstat4::Ok {
            return self.lost(client, stateid, status).await;
        }
        client.world.judge(|judge, at| judge.unlocks(at, client.number, range));
        self.held = None;
        self.done += 1;
        let mut operations = at(&[FILE]);
        operations.push(Argop4::LockU(LockUArgs {
            locktype: NfsLockType4::Write,
            seqid: Seqid4(0),
            lock_stateid: stateid,
            offset,
            length: RANGE_LEN,
        }));
        let (status, _) = client.call(LOCK_SLOT, operations).await?;
        if status != Nfsstat4::Ok {
            return self.lost(client, stateid, status).await;
        }
        Ok(())
    }

    /// The server does not know a stateid any more, or says that its state is revoked: opens and locks again.
    async fn lost(&mut self, client: &Client, stateid: Stateid4, status: Nfsstat4) -> Result<(), SessionLost> {
        if matches!(status, Nfsstat4::Grace | Nfsstat4::Delay) {
            return Ok(());
        }
        if !matches!(status, Nfsstat4::Expired | Nfsstat4::BadStateid | Nfsstat4::AdminRevoked) {
            client.fail(format!("with a stateid: {}", status.name()));
        }
        self.forget(client, false);
        let free = [Some(stateid), self.open.take()].into_iter().flatten();
        for stateid in free.collect::<Vec<_>>() {
            // The stateid may already be free.
            client.call(LOCK_SLOT, vec![Argop4::FreeStateid(FreeStateidArgs { stateid })]).await?;
        }
        Ok(())
    }

    /// Records that the range is no longer held.
    fn forget(&mut self, client: &Client, reclaiming: bool) {
        if let Some((_, range)) = self.held.take() {
            client.world.judge(|judge, at| judge.loses(at, client.number, range, reclaiming));
        }
    }

    /// Reclaims the state from before the server's restart, if possible.
    pub async fn reclaim(&mut self, client: &Client) -> Result<(), SessionLost> {
        if self.open.is_none() {
            return Ok(());
        }
        let mut operations = at(&[FILE]);
        operations.push(open(Openflag4::NoCreate, OpenClaim4::Previous(OpenDelegationType4::None)));
        let (status, mut results) = patiently(client, operations).await?;
        let Some(Resop4::Open(Res4::Ok(opened))) = results.pop() else {
            if !matches!(status, Nfsstat4::NoGrace | Nfsstat4::ReclaimBad) {
                client.fail(format!("an OPEN that reclaims: {}", status.name()));
            }
            self.forget(client, true);
            self.open = None;
            return Ok(());
        };
        self.open = Some(opened.stateid);
        let Some((_, range)) = self.held else { return Ok(()) };
        let asked = client.world.now();
        let (status, mut results) = patiently(client, lock(opened.stateid, range, true)).await?;
        match (status, results.pop()) {
            (Nfsstat4::Ok, Some(Resop4::Lock(LockRes::Ok(stateid)))) => {
                self.held = Some((stateid, range));
                client.world.judge(|judge, at| judge.locked(at, client.number, range, asked, true));
            }
            (Nfsstat4::NoGrace | Nfsstat4::ReclaimBad, _) => self.forget(client, true),
            (status, _) => client.fail(format!("a LOCK that reclaims: {}", status.name())),
        }
        Ok(())
    }
}

/// Retries while the server asks to wait.
async fn patiently(client: &Client, operations: Vec<Argop4>) -> Result<(Nfsstat4, Vec<Resop4>), SessionLost> {
    loop {
        match client.call(LOCK_SLOT, operations.clone()).await? {
            (Nfsstat4::Delay, _) => client.world.wait(500).await,
            answered => return Ok(answered),
        }
    }
}

/// Returns the directory of a client's worker.
pub fn directory(client: usize, worker: usize) -> String {
    format!("{client}-{worker}")
}

/// Returns PUTROOTFH and LOOKUPs below the export.
fn at(path: &[&str]) -> Vec<Argop4> {
    let lookup = |name: &&str| Argop4::Lookup(LookupArgs { objname: (*name).into() });
    std::iter::once(Argop4::PutRootFh).chain(std::iter::once(&"m").chain(path).map(lookup)).collect()
}

fn open(openhow: Openflag4, claim: OpenClaim4) -> Argop4 {
    Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
        share_deny: OPEN4_SHARE_DENY_NONE,
        owner: StateOwner4 { clientid: Clientid4(0), owner: "opener".into() },
        openhow,
        claim,
    }))
}

fn lock(open_stateid: Stateid4, range: usize, reclaim: bool) -> Vec<Argop4> {
    let mut operations = at(&[FILE]);
    operations.push(Argop4::Lock(LockArgs {
        locktype: NfsLockType4::Write,
        reclaim,
        offset: range as u64 * RANGE_LEN,
        length: RANGE_LEN,
        locker: Locker4::New {
            open_seqid: Seqid4(0),
            open_stateid,
            lock_seqid: Seqid4(0),
            lock_owner: StateOwner4 { clientid: Clientid4(0), owner: "locker".into() },
        },
    }));
    operations
}

/// The file with locks and counters.
pub const FILE: &str = "counts";
/// The number of its ranges.
pub const RANGES: usize = 2;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The number of changes of each worker.
const STEPS: u32 = 8;
/// The number of times that each client locks a range.
const ROUNDS: u32 = 3;
/// The slot after those of the workers.
const LOCK_SLOT: usize = 2;
