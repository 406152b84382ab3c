//! The probe by which a client asks for TLS, and its answer: RFC 9289 §4.1.

use bytes::Bytes;
use xdr::{Decoder, Encode, Encoder, Message};

use crate::{
    AuthStat, CallHeader, OpaqueAuth, RejectStat, ReplyBody, ReplyHeader, Xid, auth::AUTH_NONE, msg::AcceptStat,
};

/// The flavour of the probe.
pub(crate) const AUTH_TLS: u32 = 7;

/// Returns `true` if a call is a well-formed probe: the procedure NULL with AUTH_TLS and nothing else.
pub(crate) fn is_probe(call: &Message) -> bool {
    let flavor = call.stream.get(24..28);
    // Other calls are not decoded a second time.
    if flavor != Some(&AUTH_TLS.to_be_bytes()) || !call.payloads.is_empty() {
        return false;
    }
    let mut decoder = Decoder::new(call);
    let Ok(header) = CallHeader::decode(&mut decoder) else { return false };
    let empty = |auth: &OpaqueAuth, flavor| auth.flavor == flavor && auth.body.is_empty();
    header.procedure == 0
        && empty(&header.credential, AUTH_TLS)
        && empty(&header.verifier, AUTH_NONE)
        && decoder.remaining() == 0
}

/// Returns the probe of a client for this program and version.
pub(super) fn probe(xid: Xid, (program, version): (u32, u32)) -> Message {
    let credential = OpaqueAuth { flavor: AUTH_TLS, body: Bytes::new() };
    Message::encode(&CallHeader { xid, program, version, procedure: 0, credential, verifier: OpaqueAuth::NONE })
}

/// Returns the call of the procedure NULL with AUTH_NONE.
pub(super) fn null(xid: Xid, (program, version): (u32, u32)) -> Message {
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    Message::encode(&CallHeader { xid, program, version, procedure: 0, credential, verifier })
}

/// Returns the answer to a probe that starts TLS.
pub(crate) fn starttls(xid: Xid) -> Message {
    let verifier = OpaqueAuth { flavor: AUTH_NONE, body: Bytes::from_static(STARTTLS) };
    let mut encoder = Encoder::with_capacity(64);
    ReplyHeader { xid, body: ReplyBody::Accepted { verifier, stat: AcceptStat::Success } }.encode(&mut encoder);
    encoder.finish()
}

/// Returns `true` if the answer to a probe starts TLS.
pub(super) fn starts_tls(body: &ReplyBody) -> bool {
    matches!(body, ReplyBody::Accepted { verifier, .. } if verifier.flavor == AUTH_NONE && verifier.body == STARTTLS)
}

/// Returns the reply to a call that is rejected because its connection is not protected.
pub(crate) fn denied(xid: Xid) -> Message {
    let body = ReplyBody::Denied(RejectStat::AuthError(AuthStat::TooWeak));
    ReplyHeader { xid, body }.to_message()
}

const STARTTLS: &[u8] = b"STARTTLS";
