//! Call and reply headers: RFC 5531 §9.
//!
//! A header is decoded from the start of a [`Message`] without removing it, so that payload positions still count from
//! the XID.

use std::fmt;

use xdr::{Decode, DecodeError, DecodeErrorKind, Decoder, Encode, Encoder, Message};

use crate::{AcceptError, AuthStat, OpaqueAuth, Xid};

/// The header of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHeader {
    /// The XID of the call.
    pub xid: Xid,
    /// The program number.
    pub program: u32,
    /// The program version.
    pub version: u32,
    /// The procedure number.
    pub procedure: u32,
    /// The credential of the caller.
    pub credential: OpaqueAuth,
    /// The verifier, which proves the credential.
    pub verifier: OpaqueAuth,
}

/// The reason why a call header is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallHeaderError {
    /// The message is no call, or is too short to have an XID. No reply can be addressed.
    NotACall,
    /// The header of the call ends early.
    Malformed(Xid),
    /// The RPC version is not 2.
    RpcMismatch(Xid),
    /// The credential or verifier is longer than 400 bytes.
    Auth(Xid, AuthStat),
}

impl CallHeader {
    /// Returns the number of bytes from the XID to the end of the credential, which a verifier can cover (RFC 2203
    /// §5.3.1).
    pub fn signed_len(&self) -> usize {
        // Six words, then the credential's flavour and length.
        8 * 4 + self.credential.body.len().next_multiple_of(4)
    }

    /// Decodes a header, and leaves `decoder` at the start of the arguments.
    ///
    /// # Errors
    /// The message does not start with a call header of RPC version 2.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self, CallHeaderError> {
        let xid = Xid(decoder.u32().map_err(|_| CallHeaderError::NotACall)?);
        if decoder.u32() != Ok(CALL) {
            return Err(CallHeaderError::NotACall);
        }
        let malformed = |_| CallHeaderError::Malformed(xid);
        if decoder.u32().map_err(malformed)? != RPC_VERSION {
            return Err(CallHeaderError::RpcMismatch(xid));
        }
        let mut word = || decoder.u32().map_err(malformed);
        let (program, version, procedure) = (word()?, word()?, word()?);
        let mut auth = |bad| {
            OpaqueAuth::decode(decoder).map_err(|error| match error.kind {
                DecodeErrorKind::Truncated => CallHeaderError::Malformed(xid),
                _ => CallHeaderError::Auth(xid, bad),
            })
        };
        let (credential, verifier) = (auth(AuthStat::BadCred)?, auth(AuthStat::BadVerf)?);
        Ok(Self { xid, program, version, procedure, credential, verifier })
    }
}

impl CallHeaderError {
    /// Returns the reply, or `None` if no reply can be addressed.
    pub fn reply(&self) -> Option<Message> {
        let (xid, body) = match *self {
            CallHeaderError::NotACall => return None,
            CallHeaderError::Malformed(xid) => (xid, ReplyBody::accepted(AcceptStat::GarbageArgs)),
            CallHeaderError::RpcMismatch(xid) => {
                (xid, ReplyBody::Denied(RejectStat::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION }))
            }
            CallHeaderError::Auth(xid, stat) => (xid, ReplyBody::Denied(RejectStat::AuthError(stat))),
        };
        Some(ReplyHeader { xid, body }.to_message())
    }
}

impl Encode for CallHeader {
    fn encode(&self, encoder: &mut Encoder) {
        [self.xid.0, CALL, RPC_VERSION, self.program, self.version, self.procedure]
            .into_iter()
            .for_each(|word| encoder.u32(word));
        self.credential.encode(encoder);
        self.verifier.encode(encoder);
    }
}

/// The header of a reply. After [`AcceptStat::Success`], the results follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The XID of the call that it answers.
    pub xid: Xid,
    /// The outcome of the call.
    pub body: ReplyBody,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ReplyBody {
    /// MSG_ACCEPTED.
    #[xdr(0)]
    Accepted {
        /// The verifier of the server.
        verifier: OpaqueAuth,
        /// The outcome of the accepted call.
        stat: AcceptStat,
    },
    /// MSG_DENIED.
    #[xdr(1)]
    Denied(RejectStat),
}

/// The outcome of an accepted call (RFC 5531 §9, `accept_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum AcceptStat {
    /// The call was executed; results follow.
    #[xdr(0)]
    Success,
    /// The server does not have the program.
    #[xdr(1)]
    ProgUnavail,
    /// The program does not have the version.
    #[xdr(2)]
    ProgMismatch {
        /// The lowest version that it has.
        low: u32,
        /// The highest version that it has.
        high: u32,
    },
    /// The version does not have the procedure.
    #[xdr(3)]
    ProcUnavail,
    /// The arguments cannot be decoded.
    #[xdr(4)]
    GarbageArgs,
    /// The server cannot execute the call.
    #[xdr(5)]
    SystemErr,
}

/// The reason why a call was denied (RFC 5531 §9, `reject_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum RejectStat {
    /// The server does not support the RPC version of the call.
    #[xdr(0)]
    RpcMismatch {
        /// The lowest version of RPC that it supports.
        low: u32,
        /// The highest version of RPC that it supports.
        high: u32,
    },
    /// The server rejected the caller.
    #[xdr(1)]
    AuthError(AuthStat),
}

impl ReplyBody {
    /// Creates the body of an accepted reply with the AUTH_NONE verifier.
    pub fn accepted(stat: AcceptStat) -> Self {
        ReplyBody::Accepted { verifier: OpaqueAuth::NONE, stat }
    }
}

impl ReplyHeader {
    /// Encodes a reply that consists of this header only.
    pub fn to_message(&self) -> Message {
        Message::encode(self)
    }

    /// Encodes the reply that reports `error`. Returns `None` for [`AcceptError::Drop`].
    pub fn of_error(xid: Xid, error: AcceptError) -> Option<Message> {
        let stat = match error {
            AcceptError::GarbageArgs => AcceptStat::GarbageArgs,
            AcceptError::SystemErr => AcceptStat::SystemErr,
            AcceptError::Drop => return None,
        };
        Some(ReplyHeader { xid, body: ReplyBody::accepted(stat) }.to_message())
    }
}

impl Encode for ReplyHeader {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(self.xid.0);
        encoder.u32(REPLY);
        self.body.encode(encoder);
    }
}

impl Decode for ReplyHeader {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let xid = Xid(decoder.u32()?);
        let error = decoder.position();
        match decoder.u32()? {
            REPLY => Ok(Self { xid, body: ReplyBody::decode(decoder)? }),
            other => Err(DecodeError { kind: DecodeErrorKind::BadDiscriminant(other), offset: error }),
        }
    }
}

impl fmt::Display for AcceptStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcceptStat::Success => write!(f, "SUCCESS"),
            AcceptStat::ProgUnavail => write!(f, "PROG_UNAVAIL: the server does not have this program"),
            AcceptStat::ProgMismatch { low, high } => {
                write!(f, "PROG_MISMATCH: the server has versions {low} to {high} of this program")
            }
            AcceptStat::ProcUnavail => write!(f, "PROC_UNAVAIL: the server does not have this procedure"),
            AcceptStat::GarbageArgs => write!(f, "GARBAGE_ARGS: the server cannot decode the arguments"),
            AcceptStat::SystemErr => write!(f, "SYSTEM_ERR: the server cannot execute the call"),
        }
    }
}

impl fmt::Display for RejectStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RejectStat::RpcMismatch { low, high } => {
                write!(f, "RPC_MISMATCH: the server supports versions {low} to {high} of RPC")
            }
            RejectStat::AuthError(stat) => write!(f, "AUTH_ERROR: {stat}"),
        }
    }
}

/// Reads the XID and direction in the first eight bytes of a message.
pub(crate) fn peek(start: &[u8]) -> Option<(Xid, u32)> {
    let (xid, rest) = start.split_first_chunk()?;
    let (direction, _) = rest.split_first_chunk()?;
    Some((Xid(u32::from_be_bytes(*xid)), u32::from_be_bytes(*direction)))
}

/// Length of the header of an accepted reply with the AUTH_NONE verifier, in bytes (RFC 5531 §9).
pub const REPLY_HEADER_LEN: usize = 24;

pub(crate) const CALL: u32 = 0;
pub(crate) const REPLY: u32 = 1;
pub(crate) const RPC_VERSION: u32 = 2;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn header() -> CallHeader {
        let credential = crate::AuthSys {
            stamp: 1,
            machine: Bytes::from_static(b"venus"),
            uid: 0,
            gid: 0,
            gids: Default::default(),
        };
        let (credential, verifier) = (credential.to_opaque(), OpaqueAuth::NONE);
        CallHeader { xid: Xid(0x1234), program: 100_003, version: 3, procedure: 1, credential, verifier }
    }

    #[test]
    fn call_header_matches_bytes_sent_by_linux() {
        // xid 0x1234, CALL, RPC 2, NFS 3 GETATTR, AUTH_SYS of machine "venus", verifier AUTH_NONE.
        let wire = "000012340000000000000002000186a30000000300000001\
                    000000010000001c000000010000000576656e7573000000000000000000000000000000\
                    0000000000000000";
        let bytes: Vec<u8> =
            (0..wire.len()).step_by(2).map(|at| u8::from_str_radix(&wire[at..at + 2], 16).unwrap()).collect();
        let message = Message::encode(&header());
        assert_eq!(&message.stream[..], bytes);
        assert_eq!(CallHeader::decode(&mut Decoder::new(&message)), Ok(header()));
    }

    #[test]
    fn truncated_header_is_answered_if_it_has_an_xid() {
        let whole = Message::encode(&header()).stream;
        for len in 0..whole.len() {
            let cut = Message::from(whole.slice(..len));
            let error = CallHeader::decode(&mut Decoder::new(&cut)).unwrap_err();
            let expected = if len < 8 { CallHeaderError::NotACall } else { CallHeaderError::Malformed(Xid(0x1234)) };
            assert_eq!(error, expected, "{len} bytes");
            assert_eq!(error.reply().is_some(), len >= 8);
        }
    }

    #[test]
    fn wrong_rpc_version_and_long_credential_are_denied() {
        let mut stream = Message::encode(&header()).stream.to_vec();
        stream[11] = 3;
        let error = CallHeader::decode(&mut Decoder::new(&Bytes::from(stream.clone()).into())).unwrap_err();
        let reply: ReplyHeader = error.reply().unwrap().decode().unwrap();
        assert_eq!(reply.body, ReplyBody::Denied(RejectStat::RpcMismatch { low: 2, high: 2 }));

        stream[11] = 2;
        stream[28..32].copy_from_slice(&401u32.to_be_bytes());
        let error = CallHeader::decode(&mut Decoder::new(&Bytes::from(stream).into())).unwrap_err();
        assert_eq!(error, CallHeaderError::Auth(Xid(0x1234), AuthStat::BadCred));
    }

    #[test]
    fn every_reply_header_round_trips() {
        let accepted = [
            AcceptStat::Success,
            AcceptStat::ProgUnavail,
            AcceptStat::ProgMismatch { low: 3, high: 4 },
            AcceptStat::ProcUnavail,
            AcceptStat::GarbageArgs,
            AcceptStat::SystemErr,
        ];
        let denied = [RejectStat::RpcMismatch { low: 2, high: 2 }, RejectStat::AuthError(AuthStat::TooWeak)];
        let bodies = accepted.map(ReplyBody::accepted).into_iter().chain(denied.map(ReplyBody::Denied));
        for body in bodies {
            let header = ReplyHeader { xid: Xid(9), body };
            assert_eq!(header.to_message().decode::<ReplyHeader>().unwrap(), header);
            let stream = header.to_message().stream;
            for len in 0..stream.len() {
                assert!(Message::from(stream.slice(..len)).decode::<ReplyHeader>().is_err());
            }
        }
    }
}
