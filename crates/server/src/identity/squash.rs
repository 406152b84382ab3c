//! [`Squash`]: which callers act as the anonymous user.

use rpc::Identity;
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
    /// The identity with which a caller acts. The user and the group replace others, and are those of a caller without numbers.
    pub(crate) fn identity(self, caller: &Identity, (uid, gid): (u32, u32)) -> Cred {
        let anonymous = || Cred { uid, gid, groups: SmallVec::new() };
        let sys = match caller {
            Identity::Sys(sys) => sys,
            // Names are not mapped to users.
            Identity::None | Identity::Principal(_) => return anonymous(),
        };
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
