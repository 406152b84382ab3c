//! The interface to a GSS-API mechanism (RFC 2743), as far as RPCSEC_GSS needs it.
//!
//! Protocol code uses only these traits. [`kerberos`](crate::kerberos) implements them with a library, and tests
//! without one.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

/// The key material of a server: it accepts contexts.
pub trait Acceptor: Send + Sync + 'static {
    /// Begins the negotiation of a context.
    ///
    /// # Errors
    /// The server has no key.
    fn begin(&self) -> Result<Box<dyn Negotiation>, GssError>;

    /// Returns the name of the local user who belongs to an authenticated name, if there is one. This can read files.
    fn local_name(&self, principal: &[u8]) -> Option<String>;

    /// Reports whether [`begin`](Self::begin) and [`Negotiation::step`] can block, so that they need another thread.
    fn blocks(&self) -> bool {
        true
    }
}

/// The credentials of a user for one service: they initiate contexts.
pub trait Initiator: fmt::Debug + Send + Sync + 'static {
    /// Begins the negotiation of a context.
    ///
    /// # Errors
    /// The user has no valid credentials.
    fn begin(&self) -> Result<Box<dyn Negotiation>, GssError>;

    /// Reports whether [`begin`](Self::begin) and [`Negotiation::step`] can block, so that they need another thread.
    fn blocks(&self) -> bool {
        true
    }
}

/// The tickets of the users of a client.
pub trait Tickets: fmt::Debug + Send + Sync + 'static {
    /// Returns the credentials of the user of this process for a service, such as `nfs@server.example.com`.
    ///
    /// # Errors
    /// The mechanism is not available.
    fn of_process(&self, service: &str) -> Result<Arc<dyn Initiator>, GssError>;

    /// Returns the credentials of the user with this ID for a service.
    fn of_user(&self, service: &str, uid: u32) -> Arc<dyn Initiator>;
}

/// A context that is being negotiated, on either side.
pub trait Negotiation: Send {
    /// Processes the peer's token, which is empty at the initiator's first step.
    ///
    /// # Errors
    /// The context cannot be established.
    fn step(&mut self, token: &[u8]) -> Result<Step, StepFailed>;
}

/// The result of a step.
pub struct Step {
    /// The token for the peer. It is empty if there is none.
    pub token: Bytes,
    /// The context, when it is established.
    pub established: Option<Established>,
}

/// The failure of a step.
#[derive(Debug)]
pub struct StepFailed {
    /// The reason.
    pub error: GssError,
    /// A token that tells the peer the reason. It can be empty.
    pub token: Bytes,
}

impl From<GssError> for StepFailed {
    fn from(error: GssError) -> Self {
        Self { error, token: Bytes::new() }
    }
}

/// An established context.
pub struct Established {
    /// The context.
    pub context: Box<dyn Context>,
    /// The name of the peer, such as `user@REALM`.
    pub peer: Bytes,
    /// The time until the context expires; `None` if it does not.
    pub lifetime: Option<Duration>,
}

/// An established context. Its functions do no I/O.
pub trait Context: Send + Sync {
    /// Computes the checksum of a message (`GSS_GetMIC`).
    ///
    /// # Errors
    /// The context is not usable.
    fn mic(&self, message: &[u8]) -> Result<Bytes, GssError>;

    /// Verifies the checksum of a message (`GSS_VerifyMIC`).
    ///
    /// # Errors
    /// The peer has not computed this checksum for this message.
    fn verify(&self, message: &[u8], mic: &[u8]) -> Result<(), GssError>;

    /// Encrypts a message, which has several parts (`GSS_Wrap` with confidentiality). Appends the token to `out`.
    ///
    /// # Errors
    /// The context is not usable. The end of `out` can then have a part of the message in clear.
    fn wrap(&self, message: &[&[u8]], out: &mut Vec<u8>) -> Result<(), GssError>;

    /// Decrypts a message (`GSS_Unwrap`).
    ///
    /// # Errors
    /// The peer has not encrypted this message.
    fn unwrap(&self, token: &[u8]) -> Result<Bytes, GssError>;
}

/// The failure of a GSS-API function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GssError {
    /// The operation that failed, for people.
    pub operation: String,
    /// The status of GSS-API (RFC 2743 §1.2.1.1).
    pub major: u32,
    /// The status of the mechanism.
    pub minor: u32,
    /// The text of both, from the library.
    pub text: String,
}

impl GssError {
    /// Makes an error without a status of a mechanism.
    pub fn new(operation: impl Into<String>, major: u32, text: impl Into<String>) -> Self {
        Self { operation: operation.into(), major, minor: 0, text: text.into() }
    }
}

impl fmt::Display for GssError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", printable(&self.operation))?;
        write!(f, "{}", printable(&self.text))
    }
}

/// Returns a text for people with at most [`TEXT_MAX`] characters, without control characters. Texts of a library can
/// repeat what a peer has sent.
fn printable(text: &str) -> impl fmt::Display {
    let escape = |char: char| char.is_control().then(|| char.escape_default());
    fmt::from_fn(move |f| {
        for char in text.chars().take(TEXT_MAX) {
            match escape(char) {
                Some(escaped) => write!(f, "{escaped}")?,
                None => write!(f, "{char}")?,
            }
        }
        if text.chars().nth(TEXT_MAX).is_some() { f.write_str("…") } else { Ok(()) }
    })
}

/// Maximum number of characters of the operation of a [`GssError`], and of its text.
const TEXT_MAX: usize = 512;

impl std::error::Error for GssError {}

/// The statuses of GSS-API that this crate uses (RFC 2744 §3.9.1).
pub mod major {
    /// The function succeeded.
    pub const COMPLETE: u32 = 0;
    /// Another token of the peer is needed.
    pub const CONTINUE_NEEDED: u32 = 1;
    /// The checksum is wrong.
    pub const BAD_SIG: u32 = 6 << 16;
    /// There are no credentials.
    pub const NO_CRED: u32 = 7 << 16;
    /// There is no context.
    pub const NO_CONTEXT: u32 = 8 << 16;
    /// The token is malformed.
    pub const DEFECTIVE_TOKEN: u32 = 9 << 16;
    /// The credentials have expired.
    pub const CREDENTIALS_EXPIRED: u32 = 11 << 16;
    /// Another failure.
    pub const FAILURE: u32 = 13 << 16;

    /// Reports whether a status is an error. The other bits of a status only inform.
    pub const fn is_error(status: u32) -> bool {
        status & 0xffff_0000 != 0
    }

    /// Returns the description of a status that a peer has sent. Only the peer's library knows its minor status.
    pub fn describe(status: u32) -> String {
        let routine = match status >> 16 & 0xff {
            1 => "unsupported mechanism",
            2 => "malformed name",
            3 => "name of an unsupported type",
            4 => "wrong channel bindings",
            6 => "wrong checksum",
            7 => "no credentials, or they are not accessible",
            8 => "no context",
            9 => "malformed token",
            10 => "malformed credentials",
            11 => "expired credentials",
            12 => "expired context",
            13 => "failure of the mechanism",
            15 => "not authorized",
            16 => "not available",
            _ => return format!("GSS-API status {status:#x}"),
        };
        format!("{routine} (GSS-API status {status:#x})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_library_are_bounded_and_escaped() {
        let error = GssError::new("negotiation", major::FAILURE, "a\n\u{1b}[31mé");
        assert_eq!(error.to_string(), "negotiation: a\\n\\u{1b}[31mé");
        let long = GssError::new("negotiation", major::FAILURE, "é".repeat(100_000)).to_string();
        assert_eq!(long, format!("negotiation: {}…", "é".repeat(TEXT_MAX)));
    }
}
