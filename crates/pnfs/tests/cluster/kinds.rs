//! The kinds of the data servers of a run.

use crate::stores::STORES;

/// The kinds of the data servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    Nfs3,
    Slipway,
    /// Half of them are of kind `slipway`.
    Both,
}

impl Kinds {
    /// Returns the kinds of a run.
    pub fn of(seed: u64) -> Self {
        [Self::Nfs3, Self::Slipway, Self::Both][seed as usize % 3]
    }

    /// Reports whether a data server is of kind `slipway`.
    pub fn is_slipway(self, server: u32) -> bool {
        match self {
            Self::Nfs3 => false,
            Self::Slipway => true,
            Self::Both => server <= STORES / 2,
        }
    }
}
