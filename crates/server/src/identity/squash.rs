//! [`Squash`]: which callers act as the anonymous user.

use rpc::Credential;
use serde::Deserialize;
use smallvec::SmallVec;
use vfs::Cred;

/// Which callers act as the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Squash {
    /// User and group 0.
    #[default]
    Root,
    /// Everybody.
    All,
    /// Nobody: a client's root is root here.
    None,
}

impl Squash {
    /// The identity with which the owner of a credential acts. `anonymous` is the user and the group that replace others.
    pub(crate) fn identity(self, credential: &Credential, (uid, gid): (u32, u32)) -> Cred {
        let anonymous = || Cred { uid, gid, groups: SmallVec::new() };
        let Credential::Sys(sys) = credential else { return anonymous() };
        match self {
            // `clone` copies them one by one.
            Squash::None => Cred { uid: sys.uid, gid: sys.gid, groups: SmallVec::from_slice(&sys.gids) },
            Squash::All => anonymous(),
            Squash::Root => {
                let keep = |id: u32, anonymous: u32| if id == 0 { anonymous } else { id };
                let groups = sys.gids.iter().map(|&id| keep(id, gid)).collect();
                Cred { uid: keep(sys.uid, uid), gid: keep(sys.gid, gid), groups }
            }
        }
    }
}

/// The user and group `nobody`.
pub(crate) const NOBODY: u32 = 65534;
