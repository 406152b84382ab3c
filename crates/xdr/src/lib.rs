//! XDR (RFC 4506), and the message type that all transports carry.
//!
//! Read RFC 4506 §3–4 first, and RFC 8166 §3.4 for the reason of payloads.
//!
//! - [`Encode`] / [`Decode`] (derivable) convert types to XDR and back. Decoding is bounded: a length is accepted only
//!   if that many bytes are in the stream or in a payload.
//! - [`Message`] is an XDR stream plus *payloads*: large opaque items that are not copied into the stream but held
//!   beside it at a known position. A transport chooses how it transfers them.
//!
//! ```
//! use xdr::{Decode, Encode, Message, Opaque, Payload};
//!
//! #[derive(Debug, PartialEq, Encode, Decode)]
//! struct WriteArgs {
//!     name: Opaque<255>,
//!     offset: u64,
//!     data: Payload<65536>,
//! }
//!
//! let args = WriteArgs { name: "notes".into(), offset: 8, data: bytes::Bytes::from_static(b"hello").into() };
//! let message = Message::encode(&args);
//! assert_eq!(message.payloads[0].position, Some(24)); // after name (12), offset (8) and the length word (4)
//! let back: WriteArgs = message.decode().unwrap();
//! assert_eq!(back, args);
//! let flat = Message::from(message.to_rope().to_bytes().unwrap()); // as it would arrive over TCP
//! assert_eq!(flat.decode::<WriteArgs>().unwrap(), args);
//! ```

// The derive macros refer to `::xdr`. This lets them be used in this crate too.
extern crate self as xdr;

mod codec;
mod message;
mod types;

pub use codec::{Decode, DecodeError, DecodeErrorKind, Decoder, Encode, Encoder};
pub use message::{Located, Message, PlacedPayload};
pub use types::{Array, List, Opaque, Payload, Text};
pub use xdr_derive::{Decode, Encode};
