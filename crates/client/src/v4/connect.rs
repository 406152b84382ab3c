//! From connections to a mount of version 4: introductions, the session, its further connections, and the path.

use std::sync::Arc;

use bytes::Bytes;
use nfs::v4::{ClientOwner4, ExchangeIdOk, Nfsstat4, attr::Attr4};

use super::{attr, callbacks, migration::Dialer, protocol::V4, server::Server};
use crate::{
    call::Program,
    model::{Attr, Error, ErrorKind, FileKind, Handle, Result, Status},
    session::{
        backchannel::{Backchannel, CallbackService},
        compound::{Compound, value},
        identity,
        trunk::Trunk,
    },
};

/// The service for the server's callbacks, on the connections of a mount.
pub(crate) struct Callbacks {
    handler: Arc<callbacks::Callbacks>,
    backchannel: Arc<Backchannel>,
    pub server: Arc<rpc::Server>,
}

impl Callbacks {
    pub fn new() -> Self {
        let handler = Arc::new(callbacks::Callbacks::default());
        let backchannel = Arc::new(Backchannel::new(handler.clone()));
        let server = rpc::Server::builder().service(CallbackService(backchannel.clone())).build();
        Self { handler, backchannel, server }
    }
}

/// Where a mount begins, and what its server can take.
pub(crate) struct Root {
    pub handle: Handle,
    /// How many names of the URL's path lead there.
    pub names: usize,
    pub maxread: u64,
    pub maxwrite: u64,
}

impl V4 {
    /// Introduces a client in the newest of these minor versions that the server has. A client that was `known` at another server keeps
    /// that name, and has state to reclaim.
    ///
    /// # Errors
    /// It has none of them.
    pub(crate) async fn connect(
        first: Program,
        minors: &[u32],
        callbacks: &Callbacks,
        known: Option<ClientOwner4>,
    ) -> Result<(Self, Option<ExchangeIdOk>)> {
        let mut last = None;
        for &minor in minors {
            let trunk = Trunk::new(first.clone());
            let callbacks = (callbacks.handler.clone(), callbacks.backchannel.clone());
            match Server::establish(trunk, minor, callbacks, known.clone(), &first.deadline()).await {
                Ok((server, exchanged)) => {
                    server.keep();
                    return Ok((Self { server, timeout: first.timeout() }, exchanged));
                }
                Err(error) if is_another_version(&error) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.expect("a minor version was tried"))
    }

    /// Adds a connection, if it leads to the same server (RFC 8881 §2.10.5): at the same address it does.
    ///
    /// # Errors
    /// It does not, or cannot be bound to the session.
    pub(crate) async fn add_connection(
        &self,
        program: Program,
        known: Option<&ExchangeIdOk>,
        elsewhere: bool,
    ) -> Result<()> {
        let (minor, deadline) = (self.server.client.minor(), &program.deadline());
        let (Some(known), Some(session)) = (known, self.server.client.session()) else {
            if elsewhere {
                let problem = "version 4.0 cannot tell whether two addresses are of one server: give one";
                return Err(Error::new(ErrorKind::Invalid(problem), "SETCLIENTID").on(program.server()));
            }
            identity::greet(&program, deadline).await?;
            self.server.client.link.trunk.add(program);
            return Ok(());
        };
        if elsewhere {
            let found = identity::exchange_id(&program, minor, &self.server.client.owner, deadline).await?;
            let same = found.server_owner == known.server_owner
                && found.server_scope == known.server_scope
                && found.clientid == known.clientid;
            if !same {
                let problem = "the addresses are not of one server: its owner and scope differ";
                return Err(Error::new(ErrorKind::Protocol(problem.to_owned()), "EXCHANGE_ID").on(program.server()));
            }
        }
        identity::bind(&program, minor, session.id, deadline).await?;
        self.server.client.link.trunk.add(program);
        Ok(())
    }

    /// The longest part of a path that leads to a directory; crossing from file system to file system as the server does.
    ///
    /// # Errors
    /// The server's root cannot be looked at.
    pub(crate) async fn root(&self, names: &[Bytes]) -> Result<Root> {
        let (mut walked, mut handle, mut attr): (usize, Handle, Attr) = self.lookup_path(names).await?;
        if attr.kind != FileKind::Dir && walked > 0 {
            (walked, handle, attr) = self.lookup_path(&names[..walked - 1]).await?;
        }
        self.server.opens.names.lock().root(&handle, &names[..walked], &attr);
        let wanted = [Attr4::LeaseTime, Attr4::Maxread, Attr4::Maxwrite].into_iter().collect();
        let mut results = self.run(&Compound::on("GETATTR", &handle).get_attr(&wanted)).await?;
        results.skip(&[nfs::v4::Opnum4::PutFh])?;
        let attrs = attr::values(&value!(results, GetAttr)?)?;
        if let Some(lease) = attrs.lease_time {
            self.server.client.link.set_lease(lease);
        }
        let (mut maxread, mut maxwrite) = (attrs.maxread.unwrap_or(u64::MAX), attrs.maxwrite.unwrap_or(u64::MAX));
        if let Some(session) = self.server.client.session() {
            // The channel's limits are of whole messages: what is around the data is not much.
            let of = |size: u32| u64::from(size.saturating_sub(OVERHEAD).max(LEAST));
            maxread = maxread.min(of(session.fore.maxresponsesize));
            maxwrite = maxwrite.min(of(session.fore.maxrequestsize));
        }
        Ok(Root { handle, names: walked, maxread, maxwrite })
    }

    /// Sets what dials servers to which something moves, and the number of moves that have led to this one.
    pub(crate) fn set_dialer(&self, dialer: Arc<dyn Dialer>, moves: u32) {
        self.server.moves.set_dialer(dialer, moves);
    }

    /// Bytes of the longest message that all connections carry.
    pub(crate) fn message_max(&self) -> usize {
        self.server.client.link.trunk.message_max()
    }
}

/// Whether an error says that the server does not speak this version, and may speak another.
pub(crate) fn is_another_version(error: &Error) -> bool {
    use rpc::{AcceptStat, ClientError};
    match error.kind() {
        ErrorKind::Status(Status::NotSupported) => true,
        ErrorKind::Status(_) => error.status4() == Some(Nfsstat4::MinorVersMismatch),
        ErrorKind::Rpc(ClientError::NotExecuted(stat)) => {
            matches!(stat, AcceptStat::ProgMismatch { .. } | AcceptStat::ProgUnavail | AcceptStat::ProcUnavail)
        }
        _ => false,
    }
}

/// Bytes of a READ's reply or a WRITE's call that are not data.
const OVERHEAD: u32 = 1024;
const LEAST: u32 = 4096;
