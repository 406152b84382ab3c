//! Finds the lock manager of a server of NFSv3: NLM is at the port `nlmport`, else on the connection of NFS, where Slipway's server answers
//! it, else at the port that rpcbind returns, over TCP. All of these have the security flavour and the TLS of the mount.

use std::net::{IpAddr, SocketAddr};

use nfs::nlm::{NLM_PROGRAM, VERSION};
use rpc::{AcceptStat, BoxFuture, ClientError, RawOptions, RejectStat, ReplyPlan};

use super::connect::Site;
use crate::{
    call::{Link, Program},
    model::{Error, ErrorKind, Result, Security},
    v3::locks::LockDialer,
};

/// The places at which a server of NFSv3 can have its lock manager.
pub(super) struct LockManager {
    pub site: Site,
    pub ip: IpAddr,
    /// The connection of NFS.
    pub nfs: Program,
}

impl LockDialer for LockManager {
    fn dial(&self) -> BoxFuture<'_, Result<Program>> {
        Box::pin(async move {
            let fixed = self.site.options().nlm_port;
            // The loss of a connection tells that the server may have restarted, and UDP has no connections.
            if fixed.is_none() && !self.site.is_lossy() {
                let shared = self.nfs.sibling(NLM_PROGRAM, VERSION);
                match null(&shared).await {
                    Ok(()) => return Ok(shared),
                    Err(error) if lacks_nlm(&error) => {
                        tracing::debug!(%error, "the connection of NFS does not serve NLM");
                    }
                    Err(error) => return Err(error),
                }
            }
            let port = match fixed {
                Some(port) => port,
                None => self.port_of_rpcbind().await?,
            };
            let program = self.connect(port).await?;
            // The port of rpcbind can be another one after a restart of the server.
            Ok(if fixed.is_some() { program } else { program.unless_refused(REFUSED) })
        })
    }
}

impl LockManager {
    async fn port_of_rpcbind(&self) -> Result<u16> {
        let port = self.site.ask_rpcbind(self.ip, NLM_PROGRAM, VERSION, "tcp").await;
        port.ok_or_else(|| {
            let problem = format!(
                "the server has no lock manager: the connection of NFS does not serve NLM, and rpcbind on {} has no port of it",
                self.ip
            );
            self.error(problem)
        })
    }

    async fn connect(&self, port: u16) -> Result<Program> {
        let (site, address) = (&self.site, SocketAddr::new(self.ip, port));
        let kind = site.kind("tcp", &RawOptions::new(), (NLM_PROGRAM, VERSION))?;
        let link = Link::connect(kind, (address, site.host()), site.options(), None).await?;
        let program = Program::new(link, NLM_PROGRAM, VERSION, site.server().clone(), site.options().deadline);
        match null(&program).await {
            Ok(()) => Ok(program),
            Err(error) if lacks_nlm(&error) => {
                Err(self.error(format!("the server has no lock manager at port {port}: {error}")))
            }
            Err(error) if self.is_flavor_refused(&error) => {
                let problem = format!(
                    "the lock manager at port {port} refuses the security flavour of the mount: {error}; Linux's lock manager has only \
                     sec=sys, so use NFSv4, which has locks with every flavour"
                );
                Err(self.error(problem))
            }
            Err(error) => Err(error),
        }
    }

    fn is_flavor_refused(&self, error: &Error) -> bool {
        let is_refused = matches!(
            error.kind(),
            ErrorKind::Rpc(ClientError::Security(_) | ClientError::Denied(RejectStat::AuthError(_)))
        );
        is_refused && self.site.options().security != Security::Sys
    }

    fn error(&self, problem: String) -> Error {
        Error::new(ErrorKind::LockManager(problem), "NLM").on(self.site.server())
    }
}

/// Checks that a connection serves NLM.
async fn null(program: &Program) -> Result<()> {
    program.call::<(), ()>(0, "NULL", &(), ReplyPlan::default(), &program.deadline()).await.0
}

fn lacks_nlm(error: &Error) -> bool {
    use AcceptStat::{ProcUnavail, ProgMismatch, ProgUnavail};
    matches!(error.kind(), ErrorKind::Rpc(ClientError::NotExecuted(ProgUnavail | ProgMismatch { .. } | ProcUnavail)))
}

/// The time for which a call waits while a port of rpcbind refuses connections, before rpcbind is asked again.
const REFUSED: std::time::Duration = std::time::Duration::from_secs(1);
