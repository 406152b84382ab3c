//! [`Squash`]: the callers that are replaced by the anonymous user.

use rpc::Identity;
use serde::Deserialize;
use smallvec::SmallVec;
use vfs::Cred;

use super::users::Resolved;

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
    /// Returns the identity with which a caller acts. `resolved` is the result of the look-up. `uid` and `gid` are the
    /// anonymous user, who also replaces a caller that is no user.
    pub(crate) fn identity(self, caller: &Identity, resolved: &Resolved, (uid, gid): (u32, u32)) -> Cred {
        let anonymous = || Cred { uid, gid, groups: SmallVec::new() };
        let (own_uid, own_gid, groups) = match (resolved, caller) {
            (Resolved::AsClaimed, Identity::Sys(sys)) => (sys.uid, sys.gid, &sys.gids[..]),
            (Resolved::Groups(groups), Identity::Sys(sys)) => (sys.uid, sys.gid, &groups[..]),
            (Resolved::User(user), _) => (user.uid, user.gid, &user.groups[..]),
            _ => return anonymous(),
        };
        match self {
            // `clone` would copy the groups one by one.
            Squash::None => Cred { uid: own_uid, gid: own_gid, groups: SmallVec::from_slice(groups) },
            Squash::All => anonymous(),
            Squash::Root => {
                let keep = |id: u32, anonymous: u32| if id == 0 { anonymous } else { id };
                let groups = groups.iter().map(|&id| keep(id, gid)).collect();
                Cred { uid: keep(own_uid, uid), gid: keep(own_gid, gid), groups }
            }
        }
    }
}

/// The ID of the user and of the group `nobody`.
pub(crate) const NOBODY: u32 = 65534;
