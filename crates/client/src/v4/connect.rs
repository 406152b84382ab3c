//! Makes a mount of NFSv4 from connections: registers the client, creates the session, adds connections, and looks up
//! the path.

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

/// The service for the server's callbacks on the connections of a mount.
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

/// The root of a mount, and the limits of its server.
pub(crate) struct Root {
    pub handle: Handle,
    /// The number of names of the URL's path that lead to the root.
    pub names: usize,
    pub maxread: u64,
    pub maxwrite: u64,
}

impl V4 {
    /// Registers a client in the newest of these minor versions that the server supports. If `known` is the client
    /// owner that another server knows, the client keeps it, and has state to reclaim.
    ///
    /// # Errors
    /// The server supports none of the minor versions.
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
                    server.start_housekeeping();
                    let v4 = Self { server, timeout: first.timeout(), caller: None, stateid: None };
                    return Ok((v4, exchanged));
                }
                Err(error) if is_another_version(&error) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.expect("the list of minor versions must not be empty"))
    }

    /// Adds a connection. If it is to another address, checks that it leads to the same server (RFC 8881 §2.10.5).
    ///
    /// # Errors
    /// The connection leads to another server, or cannot be bound to the session.
    pub(crate) async fn add_connection(
        &self,
        program: Program,
        known: Option<&ExchangeIdOk>,
        elsewhere: bool,
    ) -> Result<()> {
        let (minor, deadline) = (self.server.client.minor(), &program.deadline());
        let (Some(known), Some(session)) = (known, self.server.client.session()) else {
            if elsewhere {
                let problem =
                    "NFSv4.0 cannot check that two addresses belong to the same server; give only one address";
                return Err(Error::new(ErrorKind::Invalid(problem), "SETCLIENTID").on(program.server()));
            }
            identity::probe(&program, deadline).await?;
            self.server.client.link.trunk.add(program);
            return Ok(());
        };
        if elsewhere {
            let found = identity::exchange_id(&program, minor, &self.server.client.owner, deadline).await?;
            let same = found.server_owner == known.server_owner
                && found.server_scope == known.server_scope
                && found.clientid == known.clientid;
            if !same {
                let problem = "the addresses belong to different servers: owner, scope or client ID differ";
                return Err(Error::new(ErrorKind::Protocol(problem.to_owned()), "EXCHANGE_ID").on(program.server()));
            }
        }
        identity::bind(&program, minor, session.id, deadline).await?;
        self.server.client.link.trunk.add(program);
        Ok(())
    }

    /// Looks up the longest part of a path that leads to a directory. The path can cross file systems as the server's
    /// tree does.
    ///
    /// # Errors
    /// The root of the server cannot be looked up.
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
        let (read, write) = self.transfer_max();
        maxread = maxread.min(read as u64);
        maxwrite = maxwrite.min(write as u64);
        Ok(Root { handle, names: walked, maxread, maxwrite })
    }

    /// Returns the maximum bytes of the data of a READ and of a WRITE that the session permits.
    pub(crate) fn transfer_max(&self) -> (usize, usize) {
        let Some(session) = self.server.client.session() else { return (usize::MAX, usize::MAX) };
        // The limits of the channel are for whole messages, of which a small part is not data.
        let of = |size: u32| size.saturating_sub(OVERHEAD).max(LEAST) as usize;
        (of(session.fore.maxresponsesize), of(session.fore.maxrequestsize))
    }

    /// Sets the dialer, and the number of moves that have led to this server.
    pub(crate) fn set_dialer(&self, dialer: Arc<dyn Dialer>, moves: u32) {
        self.server.moves.set_dialer(dialer, moves);
    }

    /// Returns the bytes of the longest message that all connections can carry.
    pub(crate) fn message_max(&self) -> usize {
        self.server.client.link.trunk.message_max()
    }
}

/// Returns `true` if an error means that the server does not support this version and may support another.
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

/// Maximum bytes of a READ's reply or a WRITE's call without its data.
const OVERHEAD: u32 = 1024;
const LEAST: u32 = 4096;
