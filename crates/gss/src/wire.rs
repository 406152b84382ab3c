//! The formats of RPCSEC_GSS version 1 (RFC 2203 §5): the credential, the arguments and results of a negotiation, and
//! wrapped bodies.
//!
//! Tokens are at most [`TOKEN_MAX`] bytes. Decoded bodies share the memory of their message.

use bytes::Bytes;
use rpc::{OpaqueAuth, security::Tampered};
use xdr::{Decode, DecodeError, DecodeErrorKind, Decoder, Encode, Encoder, Message};

use crate::mechanism::Context;

/// The number of the flavour (RFC 2203 §3).
pub const RPCSEC_GSS: u32 = 6;
/// Maximum bytes of a token. A ticket with the groups of a user in a large directory has tens of KiB.
pub const TOKEN_MAX: usize = 64 << 10;
/// The first sequence number that is not allowed in a context (RFC 2203 §5.3.3.1, `MAXSEQ`).
pub const MAXSEQ: u32 = 0x8000_0000;
/// Maximum bytes of a handle. A credential has at most 400 bytes.
pub const HANDLE_MAX: usize = 380;

/// The protection of a call's body (`rpc_gss_service_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum Service {
    /// Only the header is authenticated: `krb5`.
    #[xdr(1)]
    None,
    /// Bodies have a checksum: `krb5i`.
    #[xdr(2)]
    Integrity,
    /// Bodies are encrypted: `krb5p`.
    #[xdr(3)]
    Privacy,
}

/// Returns the number for Kerberos 5 with this protection (RFC 2623 §2.4.3, RFC 7530 §3.2.1.1).
pub const fn pseudo_flavor(service: Service) -> u32 {
    match service {
        Service::None => 390_003,
        Service::Integrity => 390_004,
        Service::Privacy => 390_005,
    }
}

/// The kind of a call (`rpc_gss_proc_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Control {
    /// A call of a program.
    #[xdr(0)]
    Data,
    /// The first call of a negotiation.
    #[xdr(1)]
    Init,
    /// A further call of a negotiation.
    #[xdr(2)]
    ContinueInit,
    /// The end of a context.
    #[xdr(3)]
    Destroy,
}

/// A credential (`rpc_gss_cred_vers_1_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GssCredential {
    /// The kind of the call.
    pub control: Control,
    /// The sequence number of the transmission.
    pub sequence: u32,
    /// The protection of the body.
    pub service: Service,
    /// The server's name of the context.
    pub handle: Bytes,
}

impl GssCredential {
    /// Encodes the credential for a call header.
    pub fn to_opaque(&self) -> OpaqueAuth {
        OpaqueAuth { flavor: RPCSEC_GSS, body: Message::encode(self).stream }
    }

    /// Decodes the body of a credential.
    ///
    /// # Errors
    /// The bytes are malformed, or of another version.
    pub fn from_body(body: &Bytes) -> Result<Self, DecodeError> {
        Message::from(body.clone()).decode()
    }
}

impl Encode for GssCredential {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(VERSION);
        self.control.encode(encoder);
        encoder.u32(self.sequence);
        self.service.encode(encoder);
        encoder.opaque(&self.handle);
    }
}

impl Decode for GssCredential {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let version = decoder.u32()?;
        if version != VERSION {
            return Err(decoder.error(DecodeErrorKind::BadDiscriminant(version)));
        }
        let (control, sequence) = (Control::decode(decoder)?, decoder.u32()?);
        let service = match control {
            Control::Data | Control::Destroy => Service::decode(decoder)?,
            // RFC 2203 §5.2.2: the service of a negotiation is undefined, so each value is allowed.
            Control::Init | Control::ContinueInit => match decoder.u32()? {
                2 => Service::Integrity,
                3 => Service::Privacy,
                _ => Service::None,
            },
        };
        Ok(Self { control, sequence, service, handle: decoder.opaque(HANDLE_MAX)? })
    }
}

/// The arguments of a call of a negotiation (`rpc_gss_init_arg`): a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitArgument(pub Bytes);

impl Encode for InitArgument {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.opaque(&self.0);
    }
}

impl Decode for InitArgument {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.opaque(TOKEN_MAX).map(Self)
    }
}

/// The results of a call of a negotiation (`rpc_gss_init_res`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitResult {
    /// The name of the context; empty after an error.
    pub handle: Bytes,
    /// The status of GSS-API.
    pub major: u32,
    /// The status of the mechanism.
    pub minor: u32,
    /// The length of the server's sequence window.
    pub window: u32,
    /// A token for the client.
    pub token: Bytes,
}

impl Encode for InitResult {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.opaque(&self.handle);
        [self.major, self.minor, self.window].into_iter().for_each(|word| encoder.u32(word));
        encoder.opaque(&self.token);
    }
}

impl Decode for InitResult {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let handle = decoder.opaque(HANDLE_MAX)?;
        let (major, minor, window) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
        Ok(Self { handle, major, minor, window, token: decoder.opaque(TOKEN_MAX)? })
    }
}

/// Appends a body in the form that is sent (RFC 2203 §5.3.2): `rpc_gss_integ_data` or `rpc_gss_priv_data`.
///
/// # Errors
/// The context cannot protect the body. `out` must then not be sent.
pub fn wrap(
    context: &dyn Context,
    service: Service,
    sequence: u32,
    body: &[u8],
    out: &mut Encoder,
) -> Result<(), Tampered> {
    let failed = |error| {
        tracing::warn!(%error, "a body could not be protected");
        Tampered
    };
    match service {
        Service::None => out.raw(body),
        Service::Integrity => {
            out.length(4 + body.len());
            let start = out.stream_len();
            out.u32(sequence);
            out.raw(body);
            let mic = context.mic(out.written(start)).map_err(failed)?;
            out.opaque(&mic);
        }
        Service::Privacy => {
            out.opaque_by(|token| context.wrap(&[&sequence.to_be_bytes(), body], token)).map_err(failed)?;
        }
    }
    Ok(())
}

/// Returns a body that [`wrap`] has protected.
///
/// # Errors
/// The body is malformed, was changed, or belongs to another sequence number.
pub fn unwrap(context: &dyn Context, service: Service, sequence: u32, body: Bytes) -> Result<Bytes, Tampered> {
    let message = Message::from(body);
    let mut decoder = Decoder::new(&message);
    let clear = match service {
        Service::None => return Ok(decoder.take_rest()),
        Service::Integrity => {
            let (data, mic) = read(&mut decoder, |decoder| {
                Ok((decoder.opaque(decoder.remaining())?, decoder.opaque_in_place(TOKEN_MAX)?))
            })?;
            context.verify(&data, mic).map_err(|_| Tampered)?;
            data
        }
        Service::Privacy => {
            let token = read(&mut decoder, |decoder| decoder.opaque_in_place(decoder.remaining()))?;
            context.unwrap(token).map_err(|_| Tampered)?
        }
    };
    // RFC 2203 §5.3.2.2: the number in the body must be that of the credential.
    if clear.get(..4) != Some(&sequence.to_be_bytes()[..]) {
        return Err(Tampered);
    }
    Ok(clear.slice(4..))
}

fn read<'a, T>(
    decoder: &mut Decoder<'a>,
    items: impl FnOnce(&mut Decoder<'a>) -> Result<T, DecodeError>,
) -> Result<T, Tampered> {
    let read = items(decoder).and_then(|items| decoder.finish().map(|()| items));
    read.map_err(|_| Tampered)
}

const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::{GssError, major};

    /// A context whose checksum is a sum, and whose cipher inverts bits.
    struct Toy;

    impl Context for Toy {
        fn mic(&self, message: &[u8]) -> Result<Bytes, GssError> {
            let sum: u32 = message.iter().zip(1..).map(|(&byte, at)| at * u32::from(byte)).sum();
            Ok(Bytes::copy_from_slice(&sum.to_be_bytes()))
        }

        fn verify(&self, message: &[u8], mic: &[u8]) -> Result<(), GssError> {
            if self.mic(message)? == mic { Ok(()) } else { Err(GssError::new("verify", major::BAD_SIG, "wrong")) }
        }

        fn wrap(&self, message: &[&[u8]], out: &mut Vec<u8>) -> Result<(), GssError> {
            out.extend(message.concat().iter().map(|byte| !byte));
            Ok(())
        }

        fn unwrap(&self, token: &[u8]) -> Result<Bytes, GssError> {
            Ok(token.iter().map(|byte| !byte).collect())
        }
    }

    #[test]
    fn credential_has_the_layout_of_the_rfc() {
        let handle = Bytes::from_static(b"abcde");
        let credential = GssCredential { control: Control::Destroy, sequence: 7, service: Service::Privacy, handle };
        let opaque = credential.to_opaque();
        assert_eq!(opaque.flavor, 6);
        assert_eq!(&opaque.body[..], b"\0\0\0\x01\0\0\0\x03\0\0\0\x07\0\0\0\x03\0\0\0\x05abcde\0\0\0");
        assert_eq!(GssCredential::from_body(&opaque.body), Ok(credential));
    }

    #[test]
    fn malformed_credentials_are_rejected() {
        let credential =
            GssCredential { control: Control::Data, sequence: 7, service: Service::None, handle: Bytes::new() };
        let good = credential.to_opaque().body;
        for len in 0..good.len() {
            assert!(GssCredential::from_body(&good.slice(..len)).is_err(), "{len} bytes");
        }
        for (word, value) in [(0, 0), (0, 2), (1, 4), (3, 0), (3, 4), (4, 1), (4, u32::MAX)] {
            let mut bad = good.to_vec();
            bad[4 * word..][..4].copy_from_slice(&u32::to_be_bytes(value));
            assert!(GssCredential::from_body(&bad.into()).is_err(), "word {word} = {value}");
        }
        let longer = [&good[..], &[0; 4]].concat();
        assert!(GssCredential::from_body(&longer.into()).is_err(), "bytes after the end");
        for (control, is_valid) in [(0, false), (1, true), (2, true), (3, false)] {
            for service in [0, 4, u32::MAX] {
                let mut other = good.to_vec();
                other[4..8].copy_from_slice(&u32::to_be_bytes(control));
                other[12..16].copy_from_slice(&u32::to_be_bytes(service));
                assert_eq!(GssCredential::from_body(&other.into()).is_ok(), is_valid, "{control}, {service}");
            }
        }
        for control in [Control::Data, Control::Init, Control::ContinueInit, Control::Destroy] {
            for service in [Service::None, Service::Integrity, Service::Privacy] {
                let credential = GssCredential { control, sequence: 7, service, handle: Bytes::new() };
                assert_eq!(GssCredential::from_body(&credential.to_opaque().body), Ok(credential));
            }
        }
    }

    #[test]
    fn results_of_a_negotiation_round_trip_and_tokens_are_bounded() {
        let token = Bytes::from(vec![7; TOKEN_MAX]);
        let result =
            InitResult { handle: Bytes::from_static(b"h"), major: 1, minor: 2, window: 3, token: token.clone() };
        assert_eq!(Message::encode(&result).decode(), Ok(result));
        assert_eq!(Message::encode(&InitArgument(token.clone())).decode(), Ok(InitArgument(token)));
        let long = InitArgument(vec![7; TOKEN_MAX + 1].into());
        assert!(Message::encode(&long).decode::<InitArgument>().is_err());
    }

    #[test]
    fn bodies_round_trip_and_every_change_is_noticed() {
        let body = Bytes::from_static(b"arguments of 20 byte");
        for service in [Service::None, Service::Integrity, Service::Privacy] {
            let mut out = Encoder::default();
            wrap(&Toy, service, 9, &body, &mut out).unwrap();
            let wrapped = out.finish().stream;
            assert_eq!(unwrap(&Toy, service, 9, wrapped.clone()), Ok(body.clone()), "{service:?}");
            if service == Service::None {
                assert_eq!(wrapped, body, "the body must not be changed");
                continue;
            }
            assert_eq!(unwrap(&Toy, service, 8, wrapped.clone()), Err(Tampered), "another sequence number");
            for len in 0..wrapped.len() {
                assert_eq!(unwrap(&Toy, service, 9, wrapped.slice(..len)), Err(Tampered), "{len} bytes");
            }
            let longer = [&wrapped[..], &[0; 4]].concat();
            assert_eq!(unwrap(&Toy, service, 9, longer.into()), Err(Tampered));
        }
        let mut out = Encoder::default();
        wrap(&Toy, Service::Integrity, 9, &body, &mut out).unwrap();
        let wrapped = out.finish().stream;
        for at in 0..wrapped.len() {
            let mut changed = wrapped.to_vec();
            changed[at] ^= 1;
            assert_eq!(unwrap(&Toy, Service::Integrity, 9, changed.into()), Err(Tampered), "byte {at}");
        }
    }
}
