//! Calls in encoded form, and the results in their replies.
//!
//! A call with AUTH_NONE or AUTH_SYS is encoded once. With another flavour only its arguments are: each transmission is protected
//! separately (see [`security`](crate::security)).

use std::sync::Arc;

use bytes::Bytes;
use xdr::{Decode, Decoder, Encode, Encoder, Message};

use crate::{
    AcceptStat, ClientError, Credential, OpaqueAuth, ReplyBody, ReplyHeader, Xid,
    msg::REPLY,
    security::{ClientFlavor, ProtectedCall, encode_start},
};

/// A call that is encoded, but not sent yet: see [`Client::encode`](crate::Client::encode).
pub struct EncodedCall {
    pub(crate) xid: Xid,
    pub(crate) procedure: u32,
    /// The whole message, or only the arguments if each transmission is protected separately.
    pub(crate) message: Message,
}

/// A [`Credential`] in the form that calls need.
#[derive(Clone)]
pub(crate) enum Auth {
    /// Credential and verifier, encoded as in every call.
    Plain(Bytes),
    Flavor(Arc<dyn ClientFlavor>),
}

impl Auth {
    pub fn new(credential: &Credential) -> Self {
        let plain = |credential: OpaqueAuth| {
            let mut encoder = Encoder::default();
            credential.encode(&mut encoder);
            OpaqueAuth::NONE.encode(&mut encoder);
            Auth::Plain(encoder.finish().stream)
        };
        match credential {
            Credential::None => plain(OpaqueAuth::NONE),
            Credential::Sys(sys) => plain(sys.to_opaque()),
            Credential::Flavor(flavor) => Auth::Flavor(flavor.clone()),
        }
    }

    /// Encodes a call of the program, version and procedure `target`: the whole message, or only the arguments if each
    /// transmission is protected separately.
    pub fn encode(&self, xid: Xid, target: (u32, u32, u32), arguments: &impl Encode) -> Message {
        match self {
            Auth::Plain(auth) => {
                let mut encoder = encode_start(xid, target, 256);
                encoder.raw(auth);
                arguments.encode(&mut encoder);
                encoder.finish()
            }
            Auth::Flavor(_) => Message::encode(arguments),
        }
    }

    /// Makes a request from the result of [`encode`](Self::encode).
    pub fn request(&self, xid: Xid, target: (u32, u32, u32), message: Message) -> Request<'_> {
        match self {
            Auth::Plain(_) => Request::Plain(message),
            Auth::Flavor(flavor) => {
                Request::Protected(ProtectedCall { flavor: &**flavor, xid, target, arguments: message })
            }
        }
    }
}

/// A call to be sent.
pub(crate) enum Request<'a> {
    /// The same message for each transmission.
    Plain(Message),
    Protected(ProtectedCall<'a>),
}

impl<'a> Request<'a> {
    /// Encodes a call of the program, version and procedure `target`.
    pub fn new(xid: Xid, target: (u32, u32, u32), auth: &'a Auth, arguments: &impl Encode) -> Self {
        auth.request(xid, target, auth.encode(xid, target, arguments))
    }
}

/// Decodes the results in a reply. `is_bare` means that the message has results only, without a reply header.
pub(crate) fn decode<R: Decode>(message: &Message, is_bare: bool) -> Result<R, ClientError> {
    let mut decoder = Decoder::new(message);
    // Most headers have these words after the XID: REPLY, MSG_ACCEPTED, the verifier of AUTH_NONE, SUCCESS.
    let mut usual = decoder.clone();
    if !is_bare && matches!(usual.words(), Ok([_, REPLY, 0, 0, 0, 0])) {
        decoder = usual;
    } else if !is_bare {
        match ReplyHeader::decode(&mut decoder).map_err(ClientError::Decode)?.body {
            ReplyBody::Accepted { stat: AcceptStat::Success, .. } => {}
            ReplyBody::Accepted { stat, .. } => return Err(ClientError::NotExecuted(stat)),
            ReplyBody::Denied(stat) => return Err(ClientError::Denied(stat)),
        }
    }
    let results = R::decode(&mut decoder).map_err(ClientError::Decode)?;
    decoder.finish().map_err(ClientError::Decode)?;
    Ok(results)
}
