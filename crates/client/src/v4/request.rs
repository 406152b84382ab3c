//! [`Request`]: one request of version 4 on objects, by the server that has them and with the stateids of their files. The loop of
//! [`drive`] attempts it.

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

/// A request, before it is made.
pub(crate) struct Request<'a> {
    v4: &'a V4,
    name: &'static str,
    one: &'a Handle,
    other: Option<&'a Handle>,
    stateids: [StateidUse; 2],
    alone: bool,
    crosses: bool,
    only_opens: bool,
    delays_are_final: bool,
}

/// The stateid of a file that a request names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StateidUse {
    /// None.
    No,
    /// That of the open for this access; the file is opened first if it is not open for that.
    Open(u32),
    /// That of the open if it is for this access; else the anonymous stateid.
    IfOpen(u32),
}

/// The objects of an attempt, at the server that has them.
pub(crate) struct Target {
    pub place: Place,
    other: Option<Handle>,
    files: [Option<InUse>; 2],
    /// The stateids of the files. A stateid that the server refuses is forgotten, and the request is made again.
    pub stateids: [Stateid4; 2],
    /// Keeps others from opening, closing and locking the first file.
    alone: Option<OwnedMutexGuard<()>>,
}

impl Target {
    /// The handle of the first object.
    pub fn handle(&self) -> &Handle {
        &self.place.handle
    }

    /// The handle of the other object.
    pub fn other(&self) -> &Handle {
        self.other.as_ref().expect("the request has two objects")
    }

    /// The server of the objects.
    pub fn server(&self) -> &Arc<Server> {
        &self.place.v4.server
    }

    /// What is open at the server.
    pub fn opens(&self) -> &Arc<Opens> {
        &self.server().opens
    }

    /// The first file.
    pub fn file(&self) -> &InUse {
        self.files[0].as_ref().expect("the request has a file")
    }
}

impl V4 {
    /// A request on an object.
    pub(super) fn request<'a>(&'a self, name: &'static str, object: &'a Handle) -> Request<'a> {
        let stateids = [StateidUse::No; 2];
        Request {
            v4: self,
            name,
            one: object,
            other: None,
            stateids,
            alone: false,
            crosses: false,
            only_opens: false,
            delays_are_final: false,
        }
    }
}

impl<'a> Request<'a> {
    /// With another object of the same server.
    pub fn and(mut self, other: &'a Handle) -> Self {
        self.other = Some(other);
        self
    }

    /// With the stateid of the file's open for this access.
    pub fn open_for(mut self, access: u32) -> Self {
        self.stateids[0] = StateidUse::Open(access);
        self
    }

    /// With the stateid of the file if it is open for this access.
    pub fn if_open_for(mut self, access: u32) -> Self {
        self.stateids[0] = StateidUse::IfOpen(access);
        self
    }

    /// With the stateid of the other file's open for this access.
    pub fn other_open_for(mut self, access: u32) -> Self {
        self.stateids[1] = StateidUse::Open(access);
        self
    }

    /// While nothing else opens, closes or locks the file.
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// For a request that looks a name up: what it finds can be on another server, although the object has not moved.
    pub fn crosses(mut self) -> Self {
        self.crosses = true;
        self
    }

    /// Opens the files where they are, and sends no other request.
    ///
    /// # Errors
    /// OPEN failed.
    pub async fn open(mut self, deadline: &Deadline) -> Result<Target> {
        self.only_opens = true;
        let mut routed = self.routed(|_: &mut Target| Ok(Compound::new("OPEN")));
        drive(&mut routed, None, deadline).await.0?;
        Ok(routed.sent().0)
    }

    /// DELAY and GRACE are answers: the caller decides how long to wait.
    pub fn delays_are_final(mut self) -> Self {
        self.delays_are_final = true;
        self
    }

    /// Executes the request that `make` makes for the objects, where they are.
    ///
    /// # Errors
    /// That of the operation that failed, or what can fail with any call.
    pub async fn run(
        self,
        make: impl FnMut(&mut Target) -> Result<Compound> + Send + Sync,
    ) -> Result<(Target, Results)> {
        let deadline = self.deadline();
        let mut routed = self.routed(make);
        let (result, _) = drive(&mut routed, None, &deadline).await;
        routed.results(result)
    }

    /// The same, and returns the answer whatever its status is.
    ///
    /// # Errors
    /// It was not answered.
    pub async fn answer(
        self,
        make: impl FnMut(&mut Target) -> Result<Compound> + Send + Sync,
        deadline: &Deadline,
    ) -> Result<(Target, Compound, CompoundRes)> {
        let mut routed = self.routed(make);
        let (result, _) = drive(&mut routed, None, deadline).await;
        let res = result?.expect("it is always sent");
        let (target, compound) = routed.sent();
        Ok((target, compound, res))
    }

    /// The same, with the caller's buffer for the data. The buffer returns with the results, or beside the error, unless a transport
    /// still held it at the deadline.
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

/// A request with its present attempt.
struct Routed<'a, M> {
    request: Request<'a>,
    router: MigrationRouter<'a>,
    make: M,
    attempt: Option<(Target, Compound)>,
    /// Stateids that the server has refused.
    refusals: u32,
}

impl<M> Routed<'_, M> {
    fn sent(self) -> (Target, Compound) {
        self.attempt.expect("it was sent")
    }

    /// The results of the last attempt, which was sent.
    fn results(self, driven: Result<Option<CompoundRes>>) -> Result<(Target, Results)> {
        let res = driven?.expect("it is always sent");
        let (target, compound) = self.sent();
        let results = target.server().client.results(&compound, res)?;
        Ok((target, results))
    }

    async fn stateid(&self, target: &Target, at: usize, deadline: &Deadline) -> Result<Stateid4> {
        let Some(file) = &target.files[at] else { return Ok(Stateid4::ANONYMOUS) };
        match self.request.stateids[at] {
            StateidUse::Open(access) => file.0.stateid(target.opens(), access, deadline).await,
            StateidUse::IfOpen(access) => Ok(file.0.ready(target.opens(), access).unwrap_or(Stateid4::ANONYMOUS)),
            StateidUse::No => Ok(Stateid4::ANONYMOUS),
        }
    }
}

impl<M: FnMut(&mut Target) -> Result<Compound> + Send + Sync> Operation for Routed<'_, M> {
    async fn prepare(&mut self, deadline: &Deadline) -> Result<Next> {
        // What the last attempt kept is not needed by this one.
        self.attempt = None;
        let (place, other) = self.router.route(self.request.name, deadline).await?;
        let (opens, used) = (&place.v4.server.opens, self.request.stateids.map(|used| used != StateidUse::No));
        let one = (used[0] || self.request.alone).then(|| opens.file(&place.handle));
        let two = other.as_ref().filter(|_| used[1]).map(|other| opens.file(other));
        let stateids = [Stateid4::ANONYMOUS; 2];
        let mut target = Target { place, other, files: [one, two], stateids, alone: None };
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
        if self.request.alone {
            target.alone = Some(target.file().0.changing().await);
            // While another task had the file to itself, it may have moved with its state.
            if !self.router.is_still_at(&target.place) {
                return Ok(Next::Again);
            }
        }
        let compound = (self.make)(&mut target)?;
        self.attempt = Some((target, compound));
        Ok(if self.request.only_opens { Next::Done } else { Next::Send })
    }

    fn client(&self) -> &Arc<Client4> {
        &self.attempt.as_ref().expect("it was prepared").0.server().client
    }

    fn compound(&self) -> &Compound {
        &self.attempt.as_ref().expect("it was prepared").1
    }

    fn retries_delay(&self) -> bool {
        !self.request.delays_are_final
    }

    async fn recover(&mut self, res: &CompoundRes, deadline: &Deadline) -> Result<Retry> {
        let (target, _) = self.attempt.as_mut().expect("it was attempted");
        if res.status == Nfsstat4::Moved {
            target.alone = None;
            if self.request.crosses && !is_about_object(res) {
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
        target.alone = None;
        for file in target.files.iter().flatten() {
            file.0.settled().await;
        }
        self.refusals += 1;
        if self.refusals >= STATE_TRIES {
            return Err(failure(Nfsstat4::BadStateid, self.request.name));
        }
        Ok(Retry::Now)
    }

    fn before_pause(&mut self) {
        if let Some((target, _)) = &mut self.attempt {
            target.alone = None;
        }
    }
}
