//! [`mic_keys`]: the key of an established context, with which MIC tokens are made without the library.
//!
//! The library returns the key of a context that remains usable, and its encryption type (`GSS_C_INQ_SSPI_SESSION_KEY`; MIT's library
//! since version 1.7): the subkey of the acceptor if there is one, as RFC 4121 §4.2.2 demands. It does not say which of them it is. The
//! first token that the library makes does, by its flags. A context gets keys only if they make exactly this token.

use std::{fmt, sync::Once};

use zeroize::Zeroizing;

use super::{
    Loaded, OwnedContext, Word,
    library::{SESSION_KEY, SESSION_KEY_ENCTYPE, SecretSet},
};
use crate::{
    mechanism::{GssError, major},
    mic::{ACCEPTOR_SUBKEY, Enctype, MicKeys, MicToken, Side},
};

/// Returns the keys of MIC tokens of a context that was established with these flags, or `None` if the library has to make them.
pub(super) fn mic_keys(context: &OwnedContext, side: Side, flags: Word) -> Option<MicKeys> {
    static WARNED: Once = Once::new();
    match find(context, side, flags) {
        Ok(keys) => {
            tracing::debug!(enctype = ?keys.enctype(), "checksums of a context need no Kerberos library");
            Some(keys)
        }
        Err(why) => {
            if matches!(why, NoKeys::Differ(_)) {
                WARNED.call_once(|| tracing::warn!(%why, "the Kerberos library makes the checksums of some contexts, which is slower"));
            }
            tracing::debug!(%why, "the Kerberos library makes the checksums of a context");
            None
        }
    }
}

/// The reason why the library makes the checksums of a context.
#[derive(Debug)]
enum NoKeys {
    /// The context detects replays, or the order of tokens, which the library must count.
    Counts,
    Library(GssError),
    /// The identifier that the library has returned with the key has another form, or its encryption type is not known here.
    Enctype(Vec<u8>),
    Differ(Enctype),
}

impl fmt::Display for NoKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counts => f.write_str("the client wants the library to detect replays"),
            Self::Library(error) => error.fmt(f),
            Self::Enctype(oid) => write!(f, "the encryption type is another one (object identifier {oid:02x?})"),
            Self::Differ(enctype) => write!(f, "the library makes another checksum with {enctype:?}"),
        }
    }
}

fn find(context: &OwnedContext, side: Side, flags: Word) -> Result<MicKeys, NoKeys> {
    if flags & (REPLAY | SEQUENCE) != 0 {
        return Err(NoKeys::Counts);
    }
    let (enctype, key) = context.session_key()?;
    let sample = context.mic(SAMPLE).map_err(NoKeys::Library)?;
    let differ = NoKeys::Differ(enctype);
    let Some(MicToken { flags, sequence, .. }) = MicToken::parse(&sample) else { return Err(differ) };
    match MicKeys::new(enctype, &key, side, flags & ACCEPTOR_SUBKEY != 0, sequence) {
        // The next token then has the number after that of the library.
        Some(keys) if keys.mic(SAMPLE) == sample => Ok(keys),
        _ => Err(differ),
    }
}

impl OwnedContext {
    /// Returns the key that protects messages, and its encryption type.
    fn session_key(&self) -> Result<(Enctype, Zeroizing<Vec<u8>>), NoKeys> {
        let Loaded(library) = self.library;
        let (mut minor, mut secrets) = (0, SecretSet::empty(library));
        // SAFETY: the context is valid, and used by this thread only; the library makes a set, which `SecretSet` releases.
        let major = unsafe {
            (library.functions.gss_inquire_sec_context_by_oid)(
                &mut minor,
                self.handle,
                &SESSION_KEY.0,
                &mut secrets.set,
            )
        };
        self.library.check("key of a context", major, minor).map_err(NoKeys::Library)?;
        let missing =
            || NoKeys::Library(GssError::new("key of a context", major::FAILURE, "the library returns no key"));
        let (key, oid) = (secrets.get(0).ok_or_else(missing)?, secrets.get(1).ok_or_else(missing)?);
        let enctype = match oid.strip_prefix(SESSION_KEY_ENCTYPE) {
            Some(&[number]) => Enctype::from_number(number),
            _ => None,
        };
        let enctype = enctype.ok_or_else(|| NoKeys::Enctype(oid.to_vec()))?;
        Ok((enctype, Zeroizing::new(key.to_vec())))
    }
}

/// The message whose token shows that the keys are those of the library. It is no message of RPCSEC_GSS: these have 4 bytes, or begin with an XID
/// or a length and a sequence number.
const SAMPLE: &[u8] = b"?";
/// `GSS_C_REPLAY_FLAG` and `GSS_C_SEQUENCE_FLAG`.
const REPLAY: Word = 4;
const SEQUENCE: Word = 8;
