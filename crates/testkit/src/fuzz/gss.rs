//! RPCSEC_GSS: its formats, and calls to a server with a context.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context as Polling, Waker},
};

use bytes::Bytes;
use gss::{
    GssLimits, GssServer, Service,
    mechanism::{Acceptor, Context, Established, GssError, Negotiation, Step, StepFailed, major},
    mic::{Enctype, MicKeys, MicToken, Side},
    wire::{self, Control, GssCredential, InitArgument, InitResult},
};
use parking_lot::Mutex;
use rpc::{Drain, OpaqueAuth, ReplyHeader, Server};
use xdr::{Decode, Decoder, Encode, Encoder, Message};

use super::rpc::{Count, Script};

/// The first byte of the input selects one of these.
///
/// 0: a credential. 1: the results of a negotiation. These must encode to the same bytes. 2: a wrapped body, after a
/// byte that selects its service. 3: a message to a server. 5: a MIC token, after bytes that select its encryption type and the length of its
/// message, and the message. Others: a call to that server in an established context:
/// the words of the credential in a byte each, then the verifier and the body. The calls arrive twice, and the
/// second one must not be executed.
pub fn gss(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    let bytes = Bytes::copy_from_slice(rest);
    match kind {
        0 => {
            if let Ok(credential) = GssCredential::from_body(&bytes) {
                // The service of a negotiation can have any value, and is not kept.
                let is_kept = matches!(credential.control, Control::Data | Control::Destroy);
                assert!(!is_kept || credential.to_opaque().body == bytes, "the encoding must be canonical");
            }
        }
        1 => {
            if let Ok(result) = Message::from(bytes.clone()).decode::<InitResult>() {
                assert_eq!(Message::encode(&result).stream, bytes, "the encoding must be canonical");
            }
        }
        2 => {
            let Some((&service, _)) = rest.split_first() else { return };
            let body = bytes.slice(1..);
            let (service, len) = (service_of(service), body.len());
            if let Ok(body) = wire::unwrap(&Trusting, service, 7, body) {
                assert!(body.len() <= len);
            }
        }
        3 => {
            let flavor = GssServer::new(Trusting, GssLimits::default());
            let (executed, _) = calls(&flavor, &Message::from(bytes));
            assert!(executed <= 1, "the second call must be a duplicate");
        }
        5 => mic_token(rest),
        _ => in_context(rest),
    }
}

/// Verifies a token. It must be valid exactly if it is the one that the peer makes for this message and sequence number.
fn mic_token(data: &[u8]) {
    let [enctype, len, rest @ ..] = data else { return };
    let enctype = Enctype::ALL[usize::from(*enctype) % Enctype::ALL.len()];
    let (message, token) = rest.split_at(rest.len().min(usize::from(*len)));
    let keys = |side, sequence| {
        let key = vec![7; enctype.key_len()];
        MicKeys::new(enctype, &key, side, true, sequence).expect("the length must be valid")
    };
    let expected = MicToken::parse(token).map(|parsed| {
        assert_eq!([&parsed.header[..], parsed.checksum].concat(), token, "the fields must be all of the token");
        keys(Side::Initiator, parsed.sequence).mic(message)
    });
    let is_valid = keys(Side::Acceptor, 0).verifies(message, token);
    assert_eq!(is_valid, expected.is_some_and(|expected| expected == token));
}

fn service_of(byte: u8) -> Service {
    [Service::None, Service::Integrity, Service::Privacy][usize::from(byte % 3)]
}

/// Sends a call in an established context.
fn in_context(data: &[u8]) {
    let [control, sequence, service, procedure, verifier, body @ ..] = data else { return };
    let flavor = GssServer::new(Trusting, GssLimits::default());
    let message = |words: [u32; 4], handle: &[u8], verifier: OpaqueAuth, body: &[u8]| {
        let [control, sequence, service, procedure] = words;
        let mut encoder = Encoder::default();
        [9, 0, 2, 0x2000_0000, 1, procedure].into_iter().for_each(|word| encoder.u32(word));
        let mut credential = Encoder::default();
        [1, control, sequence, service].into_iter().for_each(|word| credential.u32(word));
        credential.opaque(handle);
        OpaqueAuth { flavor: wire::RPCSEC_GSS, body: credential.finish().stream }.encode(&mut encoder);
        verifier.encode(&mut encoder);
        let header = encoder.finish().stream;
        Message::from(Bytes::from([&header[..], body].concat()))
    };
    let token = Message::encode(&InitArgument(Bytes::from_static(b"token"))).stream;
    let (_, replies) = calls(&flavor, &message([1, 0, 1, 0], &[], OpaqueAuth::NONE, &token));
    let mut decoder = Decoder::new(&replies[0]);
    ReplyHeader::decode(&mut decoder).expect("our own replies must decode");
    let InitResult { handle, .. } = InitResult::decode(&mut decoder).expect("our own results must decode");
    assert_eq!(flavor.contexts(), 2, "both negotiations must succeed");

    let words = [control, sequence, service, procedure].map(|&byte| u32::from(byte));
    let verifier = OpaqueAuth { flavor: wire::RPCSEC_GSS, body: Bytes::copy_from_slice(&[*verifier]) };
    let (executed, _) = calls(&flavor, &message(words, &handle, verifier.clone(), body));
    assert!(executed <= 1, "the second call must be a replay");
    assert!(executed == 0 || verifier.body[0].is_multiple_of(2), "the verifier must be verified");
}

/// Sends a message twice. Returns how often a call was executed, and the replies.
fn calls(flavor: &Arc<GssServer>, message: &Message) -> (u32, Vec<Message>) {
    let count = Arc::new(Mutex::new(0));
    let server = Server::builder().service(Count(count.clone())).flavor(flavor.clone()).build();
    let script = Arc::new(Script::new([message.clone(), message.clone()]));
    let mut serving = pin!(server.serve(script.clone(), Drain::never()));
    let ended = serving.as_mut().poll(&mut Polling::from_waker(Waker::noop()));
    assert!(ended.is_ready(), "the server must not wait");
    let replies = std::mem::take(&mut *script.replies.lock());
    let executed = *count.lock();
    (executed, replies)
}

/// A mechanism that accepts every token. Checksums of an even first byte are correct, and bodies are not encrypted.
struct Trusting;

impl Acceptor for Trusting {
    fn begin(&self) -> Result<Box<dyn Negotiation>, GssError> {
        Ok(Box::new(Trusting))
    }

    fn local_name(&self, _: &[u8]) -> Option<String> {
        None
    }

    fn blocks(&self) -> bool {
        false
    }
}

impl Negotiation for Trusting {
    fn step(&mut self, token: &[u8]) -> Result<Step, StepFailed> {
        if token.is_empty() {
            return Err(GssError::new("token", major::DEFECTIVE_TOKEN, "empty").into());
        }
        let established =
            Established { context: Box::new(Trusting), peer: Bytes::from_static(b"user"), lifetime: None };
        // A token of an odd first byte needs another one.
        let established = (token[0].is_multiple_of(2)).then_some(established);
        Ok(Step { token: Bytes::new(), established })
    }
}

impl Context for Trusting {
    fn mic(&self, _: &[u8]) -> Result<Bytes, GssError> {
        Ok(Bytes::from_static(b"\0mic"))
    }

    fn verify(&self, _: &[u8], mic: &[u8]) -> Result<(), GssError> {
        match mic.first() {
            Some(byte) if byte % 2 == 0 => Ok(()),
            _ => Err(GssError::new("verify", major::BAD_SIG, "odd")),
        }
    }

    fn wrap(&self, message: &[&[u8]], out: &mut Vec<u8>) -> Result<(), GssError> {
        out.extend(message.concat());
        Ok(())
    }

    fn unwrap(&self, token: &[u8]) -> Result<Bytes, GssError> {
        Ok(Bytes::copy_from_slice(token))
    }
}
