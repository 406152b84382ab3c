//! [`MountClient`]: the MOUNT protocol, version 3 (RFC 1813 appendix I).

use nfs::{
    MOUNT_PROGRAM,
    mount::{Dirpath, ExportEntry, MountEntry, MountOk, MountProc3, MountRes},
};
use rpc::{ReplyPlan, Switch};
use xdr::{Decode, Encode, List};

use crate::{Error, ErrorKind, NfsUrl, Result, connect, program::Program};

/// A server's MOUNT service: what is exported, who has mounted it, and the handles of exports.
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
    /// Finds the MOUNT service of the URL's server and connects to it.
    ///
    /// # Errors
    /// The host is not known, or no MOUNT service answers there.
    pub async fn connect(url: &NfsUrl, switch: &Switch) -> Result<Self> {
        connect::mountd(url, switch).await
    }

    pub(crate) fn new(program: Program) -> Self {
        assert_eq!(program.number(), MOUNT_PROGRAM);
        Self { program }
    }

    /// NULL: asks whether the service answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn null(&self) -> Result<()> {
        self.call(MountProc3::Null, &(), 0).await
    }

    /// MNT: the handle of a path.
    ///
    /// # Errors
    /// The server has no such path, or does not export it to this client.
    pub async fn mnt(&self, path: &[u8]) -> Result<MountOk> {
        match self.call(MountProc3::Mnt, &dirpath(path)?, HANDLE_MAX).await? {
            MountRes::Ok(ok) => Ok(ok),
            MountRes::Fail(status) => {
                Err(Error::new(ErrorKind::Mount(status), "MNT").on(self.program.server()).at(path))
            }
        }
    }

    /// UMNT: forgets this client's mount of a path.
    ///
    /// # Errors
    /// The server cannot be told.
    pub async fn umnt(&self, path: &[u8]) -> Result<()> {
        self.call(MountProc3::Umnt, &dirpath(path)?, 0).await
    }

    /// UMNTALL: forgets all mounts of this client.
    ///
    /// # Errors
    /// The server cannot be told.
    pub async fn umnt_all(&self) -> Result<()> {
        self.call(MountProc3::UmntAll, &(), 0).await
    }

    /// DUMP: who has mounted what.
    ///
    /// # Errors
    /// The server does not say.
    pub async fn mounts(&self) -> Result<Vec<MountEntry>> {
        self.call::<_, List<MountEntry>>(MountProc3::Dump, &(), LIST_MAX).await.map(|list| list.0)
    }

    /// EXPORT: what is exported, and to whom.
    ///
    /// # Errors
    /// The server does not say.
    pub async fn exports(&self) -> Result<Vec<ExportEntry>> {
        self.call::<_, List<ExportEntry>>(MountProc3::Export, &(), LIST_MAX).await.map(|list| list.0)
    }

    async fn call<A: Encode, R: Decode>(&self, procedure: MountProc3, args: &A, results_max: usize) -> Result<R> {
        let plan = ReplyPlan { inline_max: HEADER_MAX + results_max, ..ReplyPlan::default() };
        self.program.call(procedure as u32, procedure.name(), args, plan, &self.program.deadline()).await.0
    }
}

fn dirpath(path: &[u8]) -> Result<Dirpath> {
    let path = bytes::Bytes::copy_from_slice(path);
    if path.len() > DIRPATH_MAX {
        let status = nfs::mount::Mountstat3::NameTooLong;
        return Err(Error::new(ErrorKind::Mount(status), "MNT").at(path));
    }
    Ok(Dirpath::from(path))
}

/// RFC 1813 appendix I: MNTPATHLEN.
const DIRPATH_MAX: usize = 1024;
/// Bytes of a reply's header, with the longest verifier.
const HEADER_MAX: usize = 24 + 400;
/// Bytes of a handle and its authentication flavours.
const HANDLE_MAX: usize = 512;
/// Bytes of the longest list that is taken.
const LIST_MAX: usize = 1 << 20;
