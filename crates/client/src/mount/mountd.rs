//! [`MountClient`]: the MOUNT protocol, version 3 (RFC 1813 appendix I).

use std::{fmt, net::SocketAddr, sync::Arc};

use nfs::{
    MOUNT_PROGRAM,
    mount::{Dirpath, ExportEntry, MountEntry, MountOk, MountProc3, MountRes},
};
use rpc::{ReplyPlan, TransportKind};
use xdr::{Decode, Encode, List};

use crate::{
    call::{Link, Program},
    model::{Error, MountOptions, Result, Status},
};

/// The MOUNT service of a server. It lists exports and mounts, and returns the handles of exports.
///
/// ```no_run
/// # async fn example(switch: rpc::Switch) -> client::Result<()> {
/// let mountd = client::MountClient::connect(&"nfs://server".parse()?, &switch).await?;
/// for export in mountd.exports().await? {
///     println!("{:?}", export.dir);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MountClient {
    program: Program,
}

impl MountClient {
    pub(crate) fn new(program: Program) -> Self {
        assert_eq!(program.number(), MOUNT_PROGRAM);
        Self { program }
    }

    /// NULL: checks that the service answers.
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn null(&self) -> Result<()> {
        self.call(MountProc3::Null, &(), 0).await
    }

    /// MNT: returns the handle of a path.
    ///
    /// # Errors
    /// The path does not exist on the server, or the server does not export it to this client.
    pub async fn mnt(&self, path: &[u8]) -> Result<MountOk> {
        match self.call(MountProc3::Mnt, &dirpath(path)?, HANDLE_MAX).await? {
            MountRes::Ok(ok) => Ok(ok),
            MountRes::Fail(status) => Err(Error::of_status(status, "MNT").on(self.program.server()).at(path)),
        }
    }

    /// UMNT: removes this client's mount of a path from the server's list.
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn umnt(&self, path: &[u8]) -> Result<()> {
        self.call(MountProc3::Umnt, &dirpath(path)?, 0).await
    }

    /// UMNTALL: removes all mounts of this client from the server's list.
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn umnt_all(&self) -> Result<()> {
        self.call(MountProc3::UmntAll, &(), 0).await
    }

    /// DUMP: returns the mounts of all clients.
    ///
    /// # Errors
    /// The service does not answer, or refuses.
    pub async fn mounts(&self) -> Result<Vec<MountEntry>> {
        self.call::<_, List<MountEntry>>(MountProc3::Dump, &(), LIST_MAX).await.map(|list| list.0)
    }

    /// EXPORT: returns the exports and the clients that can mount them.
    ///
    /// # Errors
    /// The service does not answer, or refuses.
    pub async fn exports(&self) -> Result<Vec<ExportEntry>> {
        self.call::<_, List<ExportEntry>>(MountProc3::Export, &(), LIST_MAX).await.map(|list| list.0)
    }

    async fn call<A: Encode, R: Decode>(&self, procedure: MountProc3, args: &A, results_max: usize) -> Result<R> {
        let plan = ReplyPlan { inline_max: HEADER_MAX + results_max, ..ReplyPlan::default() };
        self.program.call(procedure as u32, procedure.name(), args, plan, &self.program.deadline()).await.0
    }
}

/// The location of a MOUNT service: a connection that it shares with NFS, or an address.
pub(crate) enum Mountd {
    Shared(MountClient),
    At(Box<MountdAddress>),
}

/// The address of a MOUNT service, and the options of a connection to it.
pub(crate) struct MountdAddress {
    pub kind: Arc<dyn TransportKind>,
    pub address: SocketAddr,
    pub options: MountOptions,
    /// The name of the host.
    pub host: String,
    /// The server's name, for messages.
    pub server: Arc<str>,
}

impl Mountd {
    /// Returns a client that is connected to the service.
    pub async fn client(&self) -> Result<MountClient> {
        match self {
            Mountd::Shared(client) => Ok(client.clone()),
            Mountd::At(at) => {
                let link = Link::connect(at.kind.clone(), (at.address, &at.host), &at.options, None).await?;
                Ok(MountClient::new(program(link, at.server.clone(), &at.options).pinged().await?))
            }
        }
    }
}

impl fmt::Debug for Mountd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mountd::Shared(_) => write!(f, "with NFS"),
            Mountd::At(at) => write!(f, "{} {}", at.kind.name(), at.address),
        }
    }
}

/// Returns the MOUNT program over a connection.
pub(crate) fn program(link: Link, server: Arc<str>, options: &MountOptions) -> Program {
    Program::new(link, MOUNT_PROGRAM, nfs::mount::VERSION, server, options.deadline)
}

fn dirpath(path: &[u8]) -> Result<Dirpath> {
    let path = bytes::Bytes::copy_from_slice(path);
    if path.len() > DIRPATH_MAX {
        return Err(Error::refused(Status::NameTooLong, "MNT").at(path));
    }
    Ok(Dirpath::from(path))
}

/// Maximum bytes of a path (RFC 1813 appendix I: MNTPATHLEN).
const DIRPATH_MAX: usize = 1024;
/// Maximum bytes of a reply's header with the longest verifier.
const HEADER_MAX: usize = 24 + 400;
/// Maximum bytes of a handle and its authentication flavours.
const HANDLE_MAX: usize = 512;
/// Maximum bytes of a list that is accepted.
const LIST_MAX: usize = 1 << 20;
