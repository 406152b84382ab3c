//! The layout type LAYOUT4_NFSV4_1_FILES (RFC 8881 §13): stripes of a file on servers of NFSv4.1 and later.

use xdr::{Decode, Encode};

use super::MultipathList4;
use crate::v4::types::{Deviceid4, NfsFh4};

/// The striping flags and the stripe unit of a layout, in one number (`nfl_util4`, RFC 8881 §13.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct FileLayoutUtil4(pub u32);

impl FileLayoutUtil4 {
    /// The packing is dense: data files have no holes where other data servers hold the data (`NFL4_UFLG_DENSE`).
    pub const DENSE: u32 = 1;
    /// The client must send COMMIT to the metadata server (`NFL4_UFLG_COMMIT_THRU_MDS`).
    pub const COMMIT_THRU_MDS: u32 = 2;
    /// The bits of the stripe unit (`NFL4_UFLG_STRIPE_UNIT_SIZE_MASK`).
    pub const STRIPE_UNIT_MASK: u32 = !0x3f;

    /// Joins the stripe unit in bytes and the flags. Returns `None` if the unit is 0 or no multiple of 64 bytes.
    pub fn new(stripe_unit: u32, flags: u32) -> Option<Self> {
        let valid = stripe_unit != 0 && stripe_unit & !Self::STRIPE_UNIT_MASK == 0;
        valid.then_some(Self(stripe_unit | flags & !Self::STRIPE_UNIT_MASK))
    }

    /// Returns the stripe unit in bytes.
    pub fn stripe_unit(self) -> u32 {
        self.0 & Self::STRIPE_UNIT_MASK
    }

    /// Returns `true` if the packing is dense.
    pub fn is_dense(self) -> bool {
        self.0 & Self::DENSE != 0
    }

    /// Returns `true` if the client must send COMMIT to the metadata server.
    pub fn commits_through_mds(self) -> bool {
        self.0 & Self::COMMIT_THRU_MDS != 0
    }
}

/// A layout (`nfsv4_1_file_layout4`, RFC 8881 §13.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FileLayout4 {
    /// The device with the data servers and the stripe indices.
    pub deviceid: Deviceid4,
    /// The stripe unit and the flags.
    pub util: FileLayoutUtil4,
    /// The index of the first stripe in the device's stripe indices.
    pub first_stripe_index: u32,
    /// The offset in the file at which the pattern starts.
    pub pattern_offset: u64,
    /// The file handles on the data servers. The packing determines their number.
    pub fh_list: Vec<NfsFh4>,
}

/// A device address (`nfsv4_1_file_layout_ds_addr4`, RFC 8881 §13.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FileLayoutDsAddr4 {
    /// For each stripe, the index of its data server in `multipath_ds_list`.
    pub stripe_indices: Vec<u32>,
    /// The data servers, each with its addresses.
    pub multipath_ds_list: Vec<MultipathList4>,
}

/// A client's hint for the layout of a file (`nfsv4_1_file_layouthint4`, RFC 8881 §13.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FileLayoutHint4 {
    /// The fields that the client cares about: `NFLH4_CARE_` bits.
    pub care: u32,
    /// The desired stripe unit and flags.
    pub util: FileLayoutUtil4,
    /// The desired number of stripes.
    pub stripe_count: u32,
}

/// The client cares about the packing.
pub const NFLH4_CARE_DENSE: u32 = FileLayoutUtil4::DENSE;
/// The client cares about the server to which it sends COMMIT.
pub const NFLH4_CARE_COMMIT_THRU_MDS: u32 = FileLayoutUtil4::COMMIT_THRU_MDS;
/// The client cares about the stripe unit.
pub const NFLH4_CARE_STRIPE_UNIT_SIZE: u32 = 0x40;
/// The client cares about the number of stripes.
pub const NFLH4_CARE_STRIPE_COUNT: u32 = 0x80;
