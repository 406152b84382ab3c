//! The bodies of layouts, device addresses, hints and reports, for the layout types of this project.
//!
//! The operations carry these bodies as opaque data with the number of the layout type ([`LayoutBody4`]). Read RFC 8881
//! §12.2 and §13 for [`files`], and RFC 8435 for [`flex`]. [`stripe`] computes which data server holds which byte.

pub mod files;
pub mod flex;
pub mod stripe;

use std::fmt;

use xdr::{Decode, DecodeError, Encode, Message, Opaque};

use super::{
    ops::LayoutBody4,
    types::{BODY_BOUND, Layouttype4, Netaddr4},
};

/// The addresses of one data server: all of them lead to the same server (RFC 8881 §13.3).
pub type MultipathList4 = Vec<Netaddr4>;

/// A body that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadBody {
    /// The body has another layout type than the expected one.
    Type {
        /// The type of the body.
        found: Layouttype4,
        /// The expected type.
        expected: Layouttype4,
    },
    /// The body cannot be decoded, or bytes follow it.
    Decode(DecodeError),
}

impl LayoutBody4 {
    /// Encodes a body of `layout_type`.
    ///
    /// # Panics
    /// If the body is longer than [`BODY_BOUND`] bytes.
    pub fn new(layout_type: Layouttype4, body: &impl Encode) -> Self {
        Self { layout_type, body: encode_body(body) }
    }

    /// Decodes a body of `layout_type`.
    ///
    /// # Errors
    /// The body has another type, or is not one complete `T`.
    pub fn decode_as<T: Decode>(&self, layout_type: Layouttype4) -> Result<T, BadBody> {
        match self.layout_type == layout_type {
            true => decode_body(&self.body),
            false => Err(BadBody::Type { found: self.layout_type, expected: layout_type }),
        }
    }
}

/// Encodes a body whose type is given elsewhere, such as that of a LAYOUTRETURN.
///
/// # Panics
/// If the body is longer than [`BODY_BOUND`] bytes.
pub fn encode_body(body: &impl Encode) -> Opaque<BODY_BOUND> {
    let bytes = Message::encode(body).stream;
    assert!(bytes.len() <= BODY_BOUND, "a layout body of {} bytes exceeds {BODY_BOUND}", bytes.len());
    Opaque(bytes)
}

/// Decodes a body whose type is given elsewhere.
///
/// # Errors
/// The body is not one complete `T`.
pub fn decode_body<T: Decode>(body: &Opaque<BODY_BOUND>) -> Result<T, BadBody> {
    Message::from(body.0.clone()).decode().map_err(BadBody::Decode)
}

impl fmt::Display for BadBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type { found, expected } => write!(f, "layout type {} instead of {}", found.0, expected.0),
            Self::Decode(error) => write!(f, "malformed layout body: {error}"),
        }
    }
}

impl std::error::Error for BadBody {}
