//! [`Request`]: one request of NFSv4 on objects. It goes to the server that has the objects, with the stateids of their
//! files. The loop of [`drive`] attempts it.

use std::sync::Arc;

use buf::{Region, SharedRegion};
use nfs::v4::{Nfsstat4, Stateid4, compound::CompoundRes};
use tokio::sync::OwnedMutexGuard;

use super::{
    opens::{InUse, Opens, STATE_TRIES},
    place::Place,
    protocol::V4,
    router::{MigrationRouter, is_about_object},
    server::Server,
};
use crate::{
    call::Deadline,
    model::{Handle, Result},
    session::{
        client::Client4,
        compound::{Compound, Results, failure},
        drive::{Next, Operation, Retry, drive},
    },
};

/// A request before it is sent.
pub(crate) struct Request<'a> {
    v4: &'a V4,
    name: &'static str,
    one: &'a Handle,
    other: Option<&'a Handle>,
    stateids: [StateidUse; 2],
    exclusive: bool,
    may_cross: bool,
    only_opens: bool,
    delays_are_final: bool,
}

/// The stateid of a file that a request contains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StateidUse {
    /// The request has no stateid.
    No,
    /// The stateid of the open for this access. The file is opened first if it is not open for it.
    Open(u32),
    /// This stateid, which belongs to another server, or is the anonymous one.
    This(Stateid4),
    /// The stateid of the open if it includes this access, otherwise the anonymous stateid.
    IfOpen(u32),
}

/// The objects of an attempt, at the server that has them.
pub(crate) struct Target {
    pub place: Place,
    other: Option<Handle>,
    files: [Option<InUse>; 2],
    /// The stateids of the files. A stateid that the server refuses is removed, and the request is made again.
    pub stateids: [Stateid4; 2],
    /// Locks the first file against other opens, closes and changes of locks.
    changes: Option<OwnedMutexGuard<()>>,
}

impl Target {
    /// Returns the handle of the first object.
    pub fn handle(&self) -> &Handle {
        &self.place.handle
    }

    /// Returns the handle of the other object.
    pub fn other(&self) -> &Handle {
        self.other.as_ref().expect("the request must have two objects")
    }

    /// Returns the server of the objects.
    pub fn server(&self) -> &Arc<Server> {
        &self.place.v4.server
    }

    /// Returns the open files at the server.
    pub fn opens(&self) -> &Arc<Opens> {
        &self.server().opens
    }

    /// Returns the first file.
    pub fn file(&self) -> &InUse {
        self.opened().expect("the request must have a file")
    }

    /// Returns the first file, if the request opens it.
    pub fn opened(&self) -> Option<&InUse> {
        self.files[0].as_ref()
    }
}

impl V4 {
    /// Makes a request on an object.
    pub(super) fn request<'a>(&'a self, name: &'static str, object: &'a Handle) -> Request<'a> {
        let stateids = [StateidUse::No; 2];
        Request {
            v4: self,
            name,
            one: object,
            other: None,
            stateids,
            exclusive: false,
            may_cross: false,
            only_opens: false,
            delays_are_final: false,
        }
    }
}

impl<'a> Request<'a> {
    /// Adds another object of the same server.
    pub fn and(mut self, other: &'a Handle) -> Self {
        self.other = Some(other);
        self
    }

    /// Uses the stateid of the file's open for this access, or that of the protocol if files are not opened.
    pub fn open_for(mut self, access: u32) -> Self {
        self.stateids[0] = self.v4.stateid.map_or(StateidUse::Open(access), StateidUse::This);
        self
    }

    /// Uses the stateid of the file's open if the file is open for this access.
    pub fn if_open_for(mut self, access: u32) -> Self {
        self.stateids[0] = StateidUse::IfOpen(access);
        self
    }

    /// Uses the stateid of the other file's open for this access.
    pub fn other_open_for(mut self, access: u32) -> Self {
        self.stateids[1] = StateidUse::Open(access);
        self
    }

    /// Excludes other opens, closes and changes of locks of the file during the request.
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Marks a request that looks up a name. The object with that name can be on another server, even if the directory
    /// has not moved.
    pub fn may_cross(mut self) -> Self {
        self.may_cross = true;
        self
    }

    /// Opens the files at the server that has them, and sends no other request.
    ///
    /// # Errors
    /// OPEN failed.
    pub async fn open(mut self, deadline: &Deadline) -> Result<Target> {
        self.only_opens = true;
        let mut routed = self.routed(|_: &mut Target| Ok(Compound::new("OPEN")));
        drive(&mut routed, None, deadline).await.0?;
        Ok(routed.into_attempt().0)
    }

    /// Returns DELAY and GRACE to the caller, which decides how long to wait.
    pub fn delays_are_final(mut self) -> Self {
        self.delays_are_final = true;
        self
    }

    /// Executes the request that `make` builds for the objects at their server.
    ///
    /// # Errors
    /// The error of the operation that failed, and the errors of any call.
    pub async fn run(
        self,
        make: impl FnMut(&mut Target) -> Result<Compound> + Send + Sync,
    ) -> Result<(Target, Results)> {
        let deadline = self.deadline();
        let mut routed = self.routed(make);
        let (result, _) = drive(&mut routed, None, &deadline).await;
        routed.results(result)
    }

    /// Executes the request like [`run`](Self::run), but returns a reply with any status.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn answer(
        self,
        make: impl FnMut(&mut Target) -> Result<Compound> + Send + Sync,
        deadline: &Deadline,
    ) -> Result<(Target, Compound, CompoundRes)> {
        let mut routed = self.routed(make);
        let (result, _) = drive(&mut routed, None, deadline).await;
        let res = result?.expect("a request must be sent");
        let (target, compound) = routed.into_attempt();
        Ok((target, compound, res))
    }

    /// Executes the request like [`run`](Self::run), with the caller's buffer for the data. Returns the buffer with the
    /// results or the error, unless a transport still held it at the deadline.
    pub async fn run_with_buffer(
        self,
        make: impl FnMut(&mut Target) -> Result<Compound> + Send + Sync,
        buffer: Option<Region>,
    ) -> (Result<Results>, Option<SharedRegion>) {
        let deadline = self.deadline();
        let mut routed = self.routed(make);
        let (result, sink) = drive(&mut routed, buffer, &deadline).await;
        (routed.results(result).map(|(_, results)| results), sink)
    }

    fn deadline(&self) -> Deadline {
        self.v4.deadline()
    }

    fn routed<M>(self, make: M) -> Routed<'a, M> {
        let router = MigrationRouter::new(self.v4, self.one, self.other);
        Routed { request: self, router, make, attempt: None, refusals: 0 }
    }
}

/// A request and its current attempt.
struct Routed<'a, M> {
    request: Request<'a>,
    router: MigrationRouter<'a>,
    make: M,
    attempt: Option<(Target, Compound)>,
    /// The number of stateids that the server has refused.
    refusals: u32,
}

impl<M> Routed<'_, M> {
    #[inline]
    fn into_attempt(self) -> (Target, Compound) {
        self.attempt.expect("the request must have been sent")
    }

    /// Returns the results of the last attempt, which must have been sent.
    #[inline]
    fn results(self, driven: Result<Option<CompoundRes>>) -> Result<(Target, Results)> {
        let res = driven?.expect("a request must be sent");
        let (target, compound) = self.into_attempt();
        let results = target.server().client.results(&compound, res)?;
        Ok((target, results))
    }

    async fn stateid(&self, target: &Target, at: usize, deadline: &Deadline) -> Result<Stateid4> {
        if let StateidUse::This(stateid) = self.request.stateids[at] {
            return Ok(stateid);
        }
        let Some(file) = &target.files[at] else { return Ok(Stateid4::ANONYMOUS) };
        let caller = self.request.v4.caller.as_ref();
        match self.request.stateids[at] {
            StateidUse::Open(access) => file.0.stateid(target.opens(), (caller, access), deadline).await,
            StateidUse::IfOpen(access) => {
                Ok(file.0.open_stateid(target.opens(), (caller, access)).unwrap_or(Stateid4::ANONYMOUS))
            }
            StateidUse::No | StateidUse::This(_) => Ok(Stateid4::ANONYMOUS),
        }
    }
}

impl<M: FnMut(&mut Target) -> Result<Compound> + Send + Sync> Operation for Routed<'_, M> {
    async fn prepare(&mut self, deadline: &Deadline) -> Result<Next> {
        // Release the locks of the last attempt.
        self.attempt = None;
        let (place, other) = self.router.route(self.request.name, deadline).await?;
        let is_of_file = |used| matches!(used, StateidUse::Open(_) | StateidUse::IfOpen(_));
        let (opens, used) = (&place.v4.server.opens, self.request.stateids.map(is_of_file));
        let one = (used[0] || self.request.exclusive).then(|| opens.file(&place.handle));
        let two = other.as_ref().filter(|_| used[1]).map(|other| opens.file(other));
        let stateids = [Stateid4::ANONYMOUS; 2];
        let mut target = Target { place, other, files: [one, two], stateids, changes: None };
        for at in 0..2 {
            match self.stateid(&target, at, deadline).await {
                Ok(stateid) => target.stateids[at] = stateid,
                Err(error) if error.status4() == Some(Nfsstat4::Moved) => {
                    let Target { place, other, .. } = target;
                    return match self.router.moved(&place, other.as_ref(), deadline).await? {
                        true => Ok(Next::Again),
                        false => Err(error),
                    };
                }
                Err(error) => return Err(error),
            }
        }
        if self.request.exclusive {
            target.changes = Some(target.file().0.lock_changes().await);
            // The file can have moved with its state while another task held the lock.
            if !self.router.is_still_at(&target.place) {
                return Ok(Next::Again);
            }
        }
        let compound = (self.make)(&mut target)?.by(self.request.v4.caller.as_ref());
        self.attempt = Some((target, compound));
        Ok(if self.request.only_opens { Next::Done } else { Next::Send })
    }

    fn client(&self) -> &Arc<Client4> {
        &self.attempt.as_ref().expect("the operation must be prepared").0.server().client
    }

    fn compound(&self) -> &Compound {
        &self.attempt.as_ref().expect("the operation must be prepared").1
    }

    fn retries_delay(&self) -> bool {
        !self.request.delays_are_final
    }

    async fn recover(&mut self, res: &CompoundRes, deadline: &Deadline) -> Result<Retry> {
        let (target, _) = self.attempt.as_mut().expect("the operation must have been attempted");
        if res.status == Nfsstat4::Moved {
            target.changes = None;
            if self.request.may_cross && !is_about_object(res) {
                return Ok(Retry::No);
            }
            let moved = self.router.moved(&target.place, target.other.as_ref(), deadline).await?;
            return Ok(if moved { Retry::Now } else { Retry::No });
        }
        let mut refused = false;
        for (file, stateid) in target.files.iter().zip(target.stateids) {
            refused |= file.as_ref().is_some_and(|file| file.0.state_failed(&stateid, res.status));
        }
        if !refused {
            return Ok(Retry::No);
        }
        target.changes = None;
        for file in target.files.iter().flatten() {
            file.0.wait_for_changes().await;
        }
        self.refusals += 1;
        if self.refusals >= STATE_TRIES {
            return Err(failure(Nfsstat4::BadStateid, self.request.name));
        }
        Ok(Retry::Now)
    }

    fn before_pause(&mut self) {
        if let Some((target, _)) = &mut self.attempt {
            target.changes = None;
        }
    }
}
