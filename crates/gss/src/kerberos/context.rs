//! [`KerberosContext`]: checksums and encryption in an established context (RFC 4121 §4.2).
//!
//! A message is copied once, to its place in the token, where the library encrypts it; and a token is copied once, and the copy
//! is decrypted in place. The library's functions without IOV allocate and copy several times.
//!
//! Checksums do not use the library if the context has [`MicKeys`]. Then they need no lock.

use std::{
    ffi::c_int,
    ptr::null_mut,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{
    Loaded, OwnedContext,
    library::{Buffer, BufferDesc, DATA, HEADER, IovDesc, PADDING, STREAM, TRAILER, input},
};
use crate::{
    mechanism::{Context, GssError, major},
    mic::MicKeys,
};

/// An established context.
pub(super) struct KerberosContext {
    pub(super) context: Mutex<OwnedContext>,
    /// `false` if the client has negotiated no confidentiality. Then calls with privacy are refused.
    encrypts: bool,
    /// The keys of MIC tokens. Without them, the library makes and verifies these.
    pub(super) mic_keys: Option<MicKeys>,
    /// `true` after the library has accepted a token that the keys do not verify.
    is_foreign_noted: AtomicBool,
}

impl KerberosContext {
    /// Takes a context that was negotiated, with or without confidentiality.
    pub fn new(context: OwnedContext, encrypts: bool, mic_keys: Option<MicKeys>) -> Self {
        Self { context: Mutex::new(context), encrypts, mic_keys, is_foreign_noted: AtomicBool::new(false) }
    }

    fn check_encrypts(&self, operation: &str) -> Result<(), GssError> {
        match self.encrypts {
            true => Ok(()),
            false => Err(GssError::new(operation, major::FAILURE, "the context has no confidentiality")),
        }
    }
}

impl Context for KerberosContext {
    fn mic(&self, message: &[u8]) -> Result<Bytes, GssError> {
        match &self.mic_keys {
            Some(keys) => Ok(keys.mic(message)),
            None => self.context.lock().mic(message),
        }
    }

    /// Verifies a checksum by the keys. The library decides about those that the keys do not verify, so exactly the tokens are accepted that
    /// the library accepts: RFC 4121 also permits tokens with the subkey of the initiator if there is one of the acceptor.
    fn verify(&self, message: &[u8], mic: &[u8]) -> Result<(), GssError> {
        if self.mic_keys.as_ref().is_some_and(|keys| keys.verifies(message, mic)) {
            return Ok(());
        }
        self.context.lock().verify(message, mic)?;
        if self.mic_keys.is_some() && !self.is_foreign_noted.swap(true, Relaxed) {
            tracing::debug!("the Kerberos library verifies checksums of this context that have another form");
        }
        Ok(())
    }

    /// Copies the message once, to its place in the token, and encrypts it there.
    fn wrap(&self, message: &[&[u8]], out: &mut Vec<u8>) -> Result<(), GssError> {
        self.check_encrypts("encryption")?;
        let context = self.context.lock();
        let len = message.iter().map(|part| part.len()).sum();
        let [header, padding, trailer] = context.token_lengths(len)?;
        let start = out.len();
        out.reserve(header + len + padding + trailer);
        out.resize(start + header, 0);
        message.iter().for_each(|part| out.extend_from_slice(part));
        out.resize(start + header + len + padding + trailer, 0);
        let (head, rest) = out[start..].split_at_mut(header);
        let (data, rest) = rest.split_at_mut(len);
        let (pad, tail) = rest.split_at_mut(padding);
        let mut parts =
            [IovDesc::of(HEADER, head), IovDesc::of(DATA, data), IovDesc::of(PADDING, pad), IovDesc::of(TRAILER, tail)];
        let (mut minor, mut is_encrypted) = (0, 0);
        // SAFETY: the context is valid and locked. The parts are disjoint and borrowed mutably until after the call. The
        // library writes in them only, because none has the flag to allocate memory.
        let major = unsafe {
            (context.library.0.functions.gss_wrap_iov)(
                &mut minor,
                context.handle,
                1,
                0,
                &mut is_encrypted,
                parts.as_mut_ptr(),
                parts.len() as c_int,
            )
        };
        context.library.check("encryption", major, minor)?;
        if is_encrypted == 0 {
            return Err(GssError::new("encryption", major::FAILURE, "the library has not encrypted"));
        }
        // A cipher with padding can use less of it than was reserved.
        let lengths = [header, len, padding, trailer];
        if parts.iter().map(|part| part.buffer.length).ne(lengths) {
            return Err(GssError::new(
                "encryption",
                major::FAILURE,
                "the token has another length than the library said",
            ));
        }
        Ok(())
    }

    /// Copies the token once, and decrypts the copy in place.
    fn unwrap(&self, token: &[u8]) -> Result<Bytes, GssError> {
        self.check_encrypts("decryption")?;
        let mut token = token.to_vec();
        let context = self.context.lock();
        let mut parts = [IovDesc::of(STREAM, &mut token), IovDesc::without_memory(DATA, 0)];
        let (mut minor, mut is_encrypted) = (0, 0);
        // SAFETY: the context is valid and locked. The library decrypts the token in place, and sets the second part to a
        // range of it. It allocates nothing that the caller must release, because no part has that flag. Null results
        // are not wanted.
        let major = unsafe {
            (context.library.0.functions.gss_unwrap_iov)(
                &mut minor,
                context.handle,
                &mut is_encrypted,
                null_mut(),
                parts.as_mut_ptr(),
                parts.len() as c_int,
            )
        };
        context.library.check("decryption", major, minor)?;
        // A token without encryption has a valid checksum, too.
        if is_encrypted == 0 {
            return Err(GssError::new("decryption", major::FAILURE, "the token was not encrypted"));
        }
        let BufferDesc { length, value } = parts[1].buffer;
        let start = (value as usize).wrapping_sub(token.as_ptr() as usize);
        match start.checked_add(length) {
            Some(end) if end <= token.len() => Ok(Bytes::from(token).slice(start..end)),
            _ => Err(GssError::new("decryption", major::FAILURE, "the library has not decrypted in place")),
        }
    }
}

impl OwnedContext {
    /// Computes the checksum of a message by the library.
    pub(super) fn mic(&self, message: &[u8]) -> Result<Bytes, GssError> {
        let Loaded(library) = self.library;
        let (mut minor, mut output) = (0, Buffer::empty(library));
        // SAFETY: the context is valid, and used by this thread only; the library fills the buffer, which `Buffer` releases.
        let major =
            unsafe { (library.functions.gss_get_mic)(&mut minor, self.handle, 0, &input(message), &mut output.desc) };
        self.library.check("checksum", major, minor)?;
        Ok(Bytes::copy_from_slice(output.bytes()))
    }

    /// Verifies a checksum by the library.
    pub(super) fn verify(&self, message: &[u8], mic: &[u8]) -> Result<(), GssError> {
        let mut minor = 0;
        // SAFETY: the context is valid, and used by this thread only; the library only reads the buffers. Null results are not
        // wanted.
        let major = unsafe {
            (self.library.0.functions.gss_verify_mic)(&mut minor, self.handle, &input(message), &input(mic), null_mut())
        };
        self.library.check("verification of a checksum", major, minor)
    }

    /// Returns the lengths of the header, the padding and the trailer of the token of a message.
    fn token_lengths(&self, len: usize) -> Result<[usize; 3], GssError> {
        let mut parts = [HEADER, DATA, PADDING, TRAILER].map(|kind| IovDesc::without_memory(kind, 0));
        parts[1].buffer.length = len;
        let mut minor = 0;
        // SAFETY: the context is valid and locked. The library only sets the lengths; the null result is not wanted.
        let major = unsafe {
            (self.library.0.functions.gss_wrap_iov_length)(
                &mut minor,
                self.handle,
                1,
                0,
                null_mut(),
                parts.as_mut_ptr(),
                parts.len() as c_int,
            )
        };
        self.library.check("length of a token", major, minor)?;
        let [header, _, padding, trailer] = parts;
        Ok([header, padding, trailer].map(|part| part.buffer.length))
    }
}
