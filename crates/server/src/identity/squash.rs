//! [`Squash`]: the callers that are replaced by the anonymous user.

use rpc::Identity;
use serde::Deserialize;
use smallvec::SmallVec;
use vfs::Cred;

/// The callers that are replaced by the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Squash {
    /// Callers with user ID 0. Group ID 0 is replaced, too.
    #[default]
    Root,
    /// All callers.
    All,
    /// No callers with credentials. Root on a client is root on the server.
    None,
}

impl Squash {
    /// Returns the identity with which a caller acts. `uid` and `gid` are the anonymous user, who also replaces a
    /// caller without AUTH_SYS credentials.
    pub(crate) fn identity(self, caller: &Identity, (uid, gid): (u32, u32)) -> Cred {
        let anonymous = || Cred { uid, gid, groups: SmallVec::new() };
        let sys = match caller {
            Identity::Sys(sys) => sys,
            // Principals are not mapped to users.
            Identity::None | Identity::Principal(_) => return anonymous(),
        };
        match self {
            // `clone` would copy the groups one by one.
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

/// The ID of the user and of the group `nobody`.
pub(crate) const NOBODY: u32 = 65534;
