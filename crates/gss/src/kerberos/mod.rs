//! Kerberos 5 by MIT's library (RFC 4121), which is opened when it is first used.
//!
//! The configuration is the library's: `/etc/krb5.conf`, or the file that `KRB5_CONFIG` names. A client uses the
//! credential cache of its user (`KRB5CCNAME`), or the one that it is told.
//!
//! **Replay cache.** An acceptor has none. The library's cache would write and sync a file for each context. A replayed
//! token gives the attacker a context whose key it does not know. It also cannot replay calls there, because the
//! verifier of each call covers the handle, which is random and new. Such a context stays unproved (see
//! [`crate::GssServer`]), and can evict only unproved contexts.
//!
//! **Checksums** are computed without the library if it gives the key of the context (`key.rs`, [`crate::mic`]). The library makes everything else.
//!
//! **Threads.** The library uses a context for one thread at a time, and allows no more.

#![expect(unsafe_code, reason = "calls of C")]

mod context;
mod key;
mod library;
#[cfg(test)]
mod tests;
mod user;

use std::{
    env,
    ffi::{CString, OsString, c_int},
    fmt,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    ptr::{null, null_mut},
    time::Duration,
};

use bytes::Bytes;

use self::{
    context::KerberosContext,
    key::mic_keys,
    library::{
        Buffer, HOSTBASED_SERVICE, Handle, KERBEROS, KeyValue, KeyValueSet, Library, MECHANISMS, OidDesc,
        PRINCIPAL_NAME, Word, input,
    },
};
use crate::{
    mechanism::{Acceptor, Established, GssError, Initiator, Negotiation, Step, StepFailed, major},
    mic::Side,
};

pub use library::Unavailable;
pub use user::{KerberosTickets, UserInitiator};

/// Reports whether the library is installed.
///
/// # Errors
/// The library cannot be opened.
pub fn available() -> Result<(), Unavailable> {
    Library::load().map(drop)
}

/// The key of a service, from a keytab.
#[derive(Debug)]
pub struct KerberosAcceptor {
    library: Loaded,
    service: String,
    keytab: Option<PathBuf>,
}

impl KerberosAcceptor {
    /// Creates an acceptor for `service`: `nfs@host.example.com`, `nfs` for any host of which the keytab has a key, or a
    /// principal such as `nfs/host.example.com@REALM`. The keytab is the library's default one if it is `None`.
    ///
    /// # Errors
    /// The library is not installed, or the keytab has no key of the service.
    pub fn open(service: &str, keytab: Option<PathBuf>) -> Result<Self, GssError> {
        let library = Loaded(Library::load()?);
        let acceptor = Self { library, service: service.to_owned(), keytab };
        acceptor.acquire()?;
        Ok(acceptor)
    }

    /// Acquires the key. It is acquired for each context, so a keytab can be replaced.
    fn acquire(&self) -> Result<Credential, GssError> {
        let what = || {
            let keytab = self.keytab.as_ref();
            let keytab = keytab.map_or("the default keytab".to_owned(), |path| path.display().to_string());
            format!("no key of {} in {keytab}", self.service)
        };
        let name = service_name(self.library, &self.service)?;
        let mut store = vec![("rcache", b"none:".to_vec())];
        store.extend(self.keytab.as_deref().map(|path| ("keytab", keytab_name(path))));
        Credential::acquire(self.library, Some(&name), ACCEPT, &store).map_err(|error| error.of(&what()))
    }

    fn negotiation(&self) -> Result<Accepting, GssError> {
        Ok(Accepting { credential: self.acquire()?, context: OwnedContext::none(self.library) })
    }
}

impl Acceptor for KerberosAcceptor {
    fn begin(&self) -> Result<Box<dyn Negotiation>, GssError> {
        Ok(Box::new(self.negotiation()?))
    }

    fn local_name(&self, principal: &[u8]) -> Option<String> {
        let name = Name::import(self.library, principal, &PRINCIPAL_NAME.0).ok()?;
        let Loaded(library) = self.library;
        let mut text = Buffer::empty(library);
        let mut minor = 0;
        // SAFETY: the name is valid; the library fills the buffer, which `Buffer` releases.
        let major = unsafe { (library.functions.gss_localname)(&mut minor, name.handle, &KERBEROS.0, &mut text.desc) };
        if major::is_error(major) {
            return None;
        }
        String::from_utf8(text.bytes().to_vec()).ok()
    }
}

/// The ticket of a user, or of a service that calls another one, for one service.
pub struct KerberosInitiator {
    library: Loaded,
    service: String,
    cache: Option<String>,
    /// The name of the service that gets the ticket by its key, and the keytab.
    key: Option<(String, Option<PathBuf>)>,
}

impl KerberosInitiator {
    /// Creates an initiator for `service`, such as `nfs@server.example.com`. The credential cache is the library's
    /// default one if it is `None`: the one that `KRB5CCNAME` names, or that of the user of the process.
    ///
    /// # Errors
    /// The library is not installed.
    pub fn new(service: &str, cache: Option<String>) -> Result<Self, GssError> {
        Ok(Self { library: Loaded(Library::load()?), service: service.to_owned(), cache, key: None })
    }

    /// Creates an initiator for `service`, whose ticket the library gets with the key of the service `own`: `nfs@host.example.com`, or
    /// `nfs` of this host. The keytab is that of `KRB5_KTNAME`, or `/etc/krb5.keytab`, if it is `None`. The ticket is only in memory.
    ///
    /// # Errors
    /// The library is not installed.
    pub fn of_key(service: &str, own: &str, keytab: Option<PathBuf>) -> Result<Self, GssError> {
        let key = Some((own.to_owned(), keytab));
        Ok(Self { key, ..Self::new(service, Some("MEMORY:slipway".to_owned()))? })
    }

    fn acquire(&self) -> Result<Credential, GssError> {
        if let Some((own, keytab)) = &self.key {
            let own = service_name(self.library, own)?;
            let mut store: Vec<_> = self.cache.iter().map(|cache| ("ccache", cache.clone().into_bytes())).collect();
            let default = || env::var_os("KRB5_KTNAME").map_or_else(|| DEFAULT_KEYTAB.to_vec(), OsString::into_vec);
            store.push(("client_keytab", keytab.as_deref().map_or_else(default, keytab_name)));
            return Credential::acquire(self.library, Some(&own), INITIATE, &store)
                .map_err(|error| error.of(&format!("{self:?}: no ticket by the server's key")));
        }
        let store: Vec<_> = self.cache.iter().map(|cache| ("ccache", cache.clone().into_bytes())).collect();
        Credential::acquire(self.library, None, INITIATE, &store)
            .map_err(|error| with_remedy(error.of(&format!("{self:?}: no ticket"))))
    }
}

impl fmt::Debug for KerberosInitiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kerberos, service {}", self.service)?;
        self.cache.as_ref().map_or(Ok(()), |cache| write!(f, ", credential cache {cache}"))
    }
}

impl KerberosInitiator {
    fn negotiation(&self) -> Result<Initiating, GssError> {
        let credential = self.acquire()?;
        // The library does not return the name of expired credentials.
        let user = credential.name().unwrap_or_else(|_| "the user of the credential cache".to_owned());
        let target = service_name(self.library, &self.service)?;
        let what = format!("{self:?}, as {user}");
        Ok(Initiating { credential, target, context: OwnedContext::none(self.library), what })
    }
}

impl Initiator for KerberosInitiator {
    fn begin(&self) -> Result<Box<dyn Negotiation>, GssError> {
        Ok(Box::new(self.negotiation()?))
    }
}

/// Returns the library's name of a keytab. The bytes of a path need not be UTF-8.
fn keytab_name(path: &Path) -> Vec<u8> {
    [b"FILE:", path.as_os_str().as_bytes()].concat()
}

/// Returns the name of a service in the form that the library wants.
fn service_name(library: Loaded, service: &str) -> Result<Name, GssError> {
    let kind = if service.contains('/') { &PRINCIPAL_NAME.0 } else { &HOSTBASED_SERVICE.0 };
    Name::import(library, service.as_bytes(), kind)
}

/// The opened library.
#[derive(Clone, Copy)]
struct Loaded(&'static Library);

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("libgssapi_krb5")
    }
}

impl Loaded {
    /// Converts the status of a function that this thread has called.
    fn check(self, operation: &str, major: Word, minor: Word) -> Result<(), GssError> {
        if !major::is_error(major) {
            return Ok(());
        }
        Err(GssError { operation: operation.to_owned(), major, minor, text: self.0.text(major, minor) })
    }
}

impl GssError {
    /// Returns the error with a description of the operation for people.
    fn of(self, operation: &str) -> Self {
        Self { operation: operation.to_owned(), ..self }
    }
}

/// Adds what a user can do, if a ticket is missing or has expired.
fn with_remedy(mut error: GssError) -> GssError {
    let is_missing = matches!(error.major, major::NO_CRED | major::CREDENTIALS_EXPIRED);
    if is_missing || error.minor == TICKET_EXPIRED {
        error.text.push_str("; `klist` shows your tickets, and `kinit` gets one");
    }
    error
}

/// A name of the library.
struct Name {
    library: Loaded,
    handle: Handle,
}

// SAFETY: the library's objects belong to no thread.
unsafe impl Send for Name {}

impl Name {
    fn import(library: Loaded, text: &[u8], kind: &'static OidDesc) -> Result<Self, GssError> {
        let (mut minor, mut handle, text) = (0, null_mut(), input(text));
        // SAFETY: the pointers are valid for the call, and the library copies the text.
        let major = unsafe { (library.0.functions.gss_import_name)(&mut minor, &text, kind, &mut handle) };
        let name = Self { library, handle };
        library.check("import of a name", major, minor)?;
        Ok(name)
    }

    fn display(&self) -> Result<Bytes, GssError> {
        let Loaded(library) = self.library;
        let mut text = Buffer::empty(library);
        let (mut minor, mut kind) = (0, null());
        // SAFETY: the name is valid; the library fills the buffer, which `Buffer` releases. `kind` is static memory of
        // the library.
        let major = unsafe { (library.functions.gss_display_name)(&mut minor, self.handle, &mut text.desc, &mut kind) };
        self.library.check("name of a principal", major, minor)?;
        Ok(Bytes::copy_from_slice(text.bytes()))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            let mut minor = 0;
            // SAFETY: the name is valid and is released once.
            unsafe { (self.library.0.functions.gss_release_name)(&mut minor, &mut self.handle) };
        }
    }
}

/// Credentials of the library.
struct Credential {
    library: Loaded,
    handle: Handle,
}

// SAFETY: the library's objects belong to no thread. Each of these is used by one thread at a time.
unsafe impl Send for Credential {}

impl Credential {
    /// Acquires credentials for Kerberos alone, from a store that keys and values describe.
    fn acquire(
        library: Loaded,
        name: Option<&Name>,
        usage: c_int,
        store: &[(&str, Vec<u8>)],
    ) -> Result<Self, GssError> {
        let operation = "credentials";
        let text = |text: &[u8]| {
            CString::new(text).map_err(|_| GssError::new(operation, major::FAILURE, "zero byte in a name of a file"))
        };
        let texts = store.iter().map(|(key, value)| Ok((text(key.as_bytes())?, text(value)?)));
        let texts: Vec<(CString, CString)> = texts.collect::<Result<_, GssError>>()?;
        let elements: Vec<KeyValue> =
            texts.iter().map(|(key, value)| KeyValue { key: key.as_ptr(), value: value.as_ptr() }).collect();
        let set = KeyValueSet { count: elements.len() as Word, elements: elements.as_ptr() };
        let set = if elements.is_empty() { null() } else { &raw const set };
        let (mut minor, mut handle) = (0, null_mut());
        let name = name.map_or(null_mut(), |name| name.handle);
        // SAFETY: the pointers are valid for the call: `texts`, `elements` and the set outlive it. Null results are not
        // wanted.
        let major = unsafe {
            (library.0.functions.gss_acquire_cred_from)(
                &mut minor,
                name,
                INDEFINITE,
                &MECHANISMS.0,
                usage,
                set,
                &mut handle,
                null_mut(),
                null_mut(),
            )
        };
        let credential = Self { library, handle };
        library.check(operation, major, minor)?;
        Ok(credential)
    }

    /// Returns the name of the principal.
    fn name(&self) -> Result<String, GssError> {
        let (mut minor, mut handle) = (0, null_mut());
        // SAFETY: the credentials are valid; null results are not wanted. `Name` releases the name.
        let major = unsafe {
            (self.library.0.functions.gss_inquire_cred)(
                &mut minor,
                self.handle,
                &mut handle,
                null_mut(),
                null_mut(),
                null_mut(),
            )
        };
        let name = Name { library: self.library, handle };
        self.library.check("name of the user", major, minor)?;
        Ok(String::from_utf8_lossy(&name.display()?).into_owned())
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            let mut minor = 0;
            // SAFETY: the credentials are valid and are released once.
            unsafe { (self.library.0.functions.gss_release_cred)(&mut minor, &mut self.handle) };
        }
    }
}

/// A context of the library, established or not.
struct OwnedContext {
    library: Loaded,
    handle: Handle,
}

// SAFETY: the library's objects belong to no thread. Each of these is used by one thread at a time.
unsafe impl Send for OwnedContext {}

impl OwnedContext {
    fn none(library: Loaded) -> Self {
        Self { library, handle: null_mut() }
    }

    /// Takes the context out of a negotiation.
    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::none(self.library))
    }
}

impl Drop for OwnedContext {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            let mut minor = 0;
            // SAFETY: the context is valid and is deleted once; no token is wanted.
            unsafe { (self.library.0.functions.gss_delete_sec_context)(&mut minor, &mut self.handle, null_mut()) };
        }
    }
}

/// The result of a step of either side.
struct Progress {
    token: Bytes,
    established: Option<(KerberosContext, Peer)>,
}

/// The peer of an established context, and the time until the context expires.
struct Peer {
    name: Bytes,
    lifetime: Option<Duration>,
}

impl From<Progress> for Step {
    fn from(Progress { token, established }: Progress) -> Self {
        let boxed =
            |(context, Peer { name, lifetime })| Established { context: Box::new(context), peer: name, lifetime };
        Self { token, established: established.map(boxed) }
    }
}

/// The server's side of a negotiation.
struct Accepting {
    credential: Credential,
    context: OwnedContext,
}

impl Negotiation for Accepting {
    fn step(&mut self, token: &[u8]) -> Result<Step, StepFailed> {
        self.progress(token).map(Step::from)
    }
}

impl Accepting {
    fn progress(&mut self, token: &[u8]) -> Result<Progress, StepFailed> {
        let Loaded(library) = self.context.library;
        let mut output = Buffer::empty(library);
        let mut peer = Name { library: self.context.library, handle: null_mut() };
        let (mut minor, mut flags, mut lifetime) = (0, 0, 0);
        // SAFETY: the pointers are valid for the call. The context is null or from an earlier step. `output`, `peer` and
        // `context` release what the library returns, also after an error; null results are not wanted.
        let major = unsafe {
            (library.functions.gss_accept_sec_context)(
                &mut minor,
                &mut self.context.handle,
                self.credential.handle,
                &input(token),
                null_mut(),
                &mut peer.handle,
                null_mut(),
                &mut output.desc,
                &mut flags,
                &mut lifetime,
                null_mut(),
            )
        };
        let token = Bytes::copy_from_slice(output.bytes());
        if let Err(error) = self.context.library.check("a client's token was not accepted", major, minor) {
            return Err(StepFailed { error, token });
        }
        let established = match major & major::CONTINUE_NEEDED {
            0 => {
                require(flags, INTEGRITY)?;
                let encrypts = flags & CONFIDENTIALITY != 0;
                let context = self.context.take();
                let mic_keys = mic_keys(&context, Side::Acceptor, flags);
                let peer = Peer { name: peer.display()?, lifetime: time(lifetime) };
                Some((KerberosContext::new(context, encrypts, mic_keys), peer))
            }
            _ => None,
        };
        Ok(Progress { token, established })
    }
}

/// The client's side of a negotiation.
struct Initiating {
    credential: Credential,
    target: Name,
    context: OwnedContext,
    /// The service and the user, for errors.
    what: String,
}

impl Negotiation for Initiating {
    fn step(&mut self, token: &[u8]) -> Result<Step, StepFailed> {
        self.progress(token).map(Step::from)
    }
}

impl Initiating {
    fn progress(&mut self, token: &[u8]) -> Result<Progress, StepFailed> {
        let Loaded(library) = self.context.library;
        let mut output = Buffer::empty(library);
        let (mut minor, mut flags, mut lifetime) = (0, 0, 0);
        // SAFETY: as for `Accepting`.
        let major = unsafe {
            (library.functions.gss_init_sec_context)(
                &mut minor,
                self.credential.handle,
                &mut self.context.handle,
                self.target.handle,
                &KERBEROS.0,
                MUTUAL | INTEGRITY | CONFIDENTIALITY,
                0,
                null_mut(),
                &input(token),
                null_mut(),
                &mut output.desc,
                &mut flags,
                &mut lifetime,
            )
        };
        let token = Bytes::copy_from_slice(output.bytes());
        if let Err(error) = self.context.library.check(&self.what, major, minor) {
            return Err(StepFailed { error: with_remedy(error), token });
        }
        let established = match major & major::CONTINUE_NEEDED {
            0 => {
                // Without mutual authentication, any server could answer.
                require(flags, MUTUAL | INTEGRITY | CONFIDENTIALITY)?;
                let context = self.context.take();
                let mic_keys = mic_keys(&context, Side::Initiator, flags);
                let peer = Peer { name: self.target.display()?, lifetime: time(lifetime) };
                Some((KerberosContext::new(context, true, mic_keys), peer))
            }
            _ => None,
        };
        Ok(Progress { token, established })
    }
}

fn require(flags: Word, wanted: Word) -> Result<(), GssError> {
    if flags & wanted == wanted {
        return Ok(());
    }
    let text = format!("the context lacks a service: it has the flags {flags:#x} and needs {wanted:#x}");
    Err(GssError::new("negotiation", major::FAILURE, text))
}

fn time(lifetime: Word) -> Option<Duration> {
    (lifetime != INDEFINITE).then(|| Duration::from_secs(lifetime.into()))
}

/// The keytab of a host's services, unless `krb5.conf` names another one.
const DEFAULT_KEYTAB: &[u8] = b"FILE:/etc/krb5.keytab";
/// `GSS_C_INDEFINITE`.
const INDEFINITE: Word = u32::MAX;
/// `GSS_C_INITIATE` and `GSS_C_ACCEPT`.
const INITIATE: c_int = 1;
const ACCEPT: c_int = 2;
/// `GSS_C_MUTUAL_FLAG`, `GSS_C_CONF_FLAG` and `GSS_C_INTEG_FLAG`.
const MUTUAL: Word = 2;
const CONFIDENTIALITY: Word = 16;
const INTEGRITY: Word = 32;
/// `KRB5KRB_AP_ERR_TKT_EXPIRED`.
const TICKET_EXPIRED: Word = -1_765_328_352_i32 as Word;
