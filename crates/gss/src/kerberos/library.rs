//! MIT's `libgssapi_krb5.so.2`, which is opened at first use and never closed.
//!
//! A build requires neither headers nor libraries. If something is missing, the error of [`Library::load`] names it.

use std::{
    ffi::{c_char, c_int, c_void},
    fmt,
    ptr::null_mut,
    sync::OnceLock,
};

use libloading::os::unix::{Library as Shared, RTLD_LOCAL, RTLD_NOW};
use zeroize::Zeroize;

use crate::mechanism::{GssError, major};

/// `OM_uint32`.
pub(super) type Word = u32;
/// `gss_name_t`, `gss_cred_id_t` and `gss_ctx_id_t`.
pub(super) type Handle = *mut c_void;

/// `gss_buffer_desc`.
#[repr(C)]
pub(super) struct BufferDesc {
    pub length: usize,
    pub value: *mut c_void,
}

/// `gss_iov_buffer_desc`: a part of a token, in memory of the caller.
#[repr(C)]
pub(super) struct IovDesc {
    pub kind: Word,
    pub buffer: BufferDesc,
}

impl IovDesc {
    /// Describes a part in `bytes`, which the library reads and writes.
    pub fn of(kind: Word, bytes: &mut [u8]) -> Self {
        Self { kind, buffer: BufferDesc { length: bytes.len(), value: bytes.as_mut_ptr().cast() } }
    }

    /// Describes a part of `length` bytes without memory, whose length is asked or which the library points to.
    pub fn without_memory(kind: Word, length: usize) -> Self {
        Self { kind, buffer: BufferDesc { length, value: null_mut() } }
    }
}

/// `GSS_IOV_BUFFER_TYPE_DATA`, `…_HEADER`, `…_TRAILER`, `…_PADDING` and `…_STREAM`.
pub(super) const DATA: Word = 1;
pub(super) const HEADER: Word = 2;
pub(super) const TRAILER: Word = 7;
pub(super) const PADDING: Word = 9;
pub(super) const STREAM: Word = 10;

/// `gss_OID_desc`.
#[repr(C)]
pub(super) struct OidDesc {
    pub length: Word,
    pub elements: *const c_void,
}

/// `gss_OID_set_desc`.
#[repr(C)]
pub(super) struct OidSetDesc {
    pub count: usize,
    pub elements: *const OidDesc,
}

/// `gss_buffer_set_desc`.
#[repr(C)]
pub(super) struct BufferSetDesc {
    pub count: usize,
    pub elements: *mut BufferDesc,
}

/// `gss_key_value_element_desc`.
#[repr(C)]
pub(super) struct KeyValue {
    pub key: *const c_char,
    pub value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
pub(super) struct KeyValueSet {
    pub count: Word,
    pub elements: *const KeyValue,
}

macro_rules! functions {
    ($(fn $name:ident($($arg:ty),*);)*) => {
        /// The functions of the library.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Word,)*
        }

        impl Functions {
            /// # Safety
            /// The library is MIT's, and is never closed.
            unsafe fn find(library: &Shared) -> Result<Self, Unavailable> {
                // SAFETY: the types are those of the functions with the same names in gssapi.h and gssapi_ext.h.
                unsafe { Ok(Self { $($name: *symbol(library, stringify!($name))?,)* }) }
            }
        }
    };
}

functions! {
    fn gss_import_name(*mut Word, *const BufferDesc, *const OidDesc, *mut Handle);
    fn gss_display_name(*mut Word, Handle, *mut BufferDesc, *mut *const OidDesc);
    fn gss_release_name(*mut Word, *mut Handle);
    fn gss_localname(*mut Word, Handle, *const OidDesc, *mut BufferDesc);
    fn gss_acquire_cred_from(*mut Word, Handle, Word, *const OidSetDesc, c_int, *const KeyValueSet, *mut Handle,
        *mut *mut OidSetDesc, *mut Word);
    fn gss_inquire_cred(*mut Word, Handle, *mut Handle, *mut Word, *mut c_int, *mut *mut OidSetDesc);
    fn gss_release_cred(*mut Word, *mut Handle);
    fn gss_init_sec_context(*mut Word, Handle, *mut Handle, Handle, *const OidDesc, Word, Word, *mut c_void,
        *const BufferDesc, *mut *const OidDesc, *mut BufferDesc, *mut Word, *mut Word);
    fn gss_accept_sec_context(*mut Word, *mut Handle, Handle, *const BufferDesc, *mut c_void, *mut Handle,
        *mut *const OidDesc, *mut BufferDesc, *mut Word, *mut Word, *mut Handle);
    fn gss_delete_sec_context(*mut Word, *mut Handle, *mut BufferDesc);
    fn gss_inquire_sec_context_by_oid(*mut Word, Handle, *const OidDesc, *mut *mut BufferSetDesc);
    fn gss_release_buffer_set(*mut Word, *mut *mut BufferSetDesc);
    fn gss_get_mic(*mut Word, Handle, Word, *const BufferDesc, *mut BufferDesc);
    fn gss_verify_mic(*mut Word, Handle, *const BufferDesc, *const BufferDesc, *mut Word);
    fn gss_wrap_iov(*mut Word, Handle, c_int, Word, *mut c_int, *mut IovDesc, c_int);
    fn gss_wrap_iov_length(*mut Word, Handle, c_int, Word, *mut c_int, *mut IovDesc, c_int);
    fn gss_unwrap_iov(*mut Word, Handle, *mut c_int, *mut Word, *mut IovDesc, c_int);
    fn gss_display_status(*mut Word, Word, c_int, *const OidDesc, *mut Word, *mut BufferDesc);
    fn gss_release_buffer(*mut Word, *mut BufferDesc);
}

/// The library, opened.
pub(super) struct Library {
    pub(super) functions: Functions,
}

/// The error that the library is not installed, or lacks a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; install MIT Kerberos (Debian: libgssapi-krb5-2, Fedora: krb5-libs)", self.0)
    }
}

impl std::error::Error for Unavailable {}

impl From<Unavailable> for GssError {
    fn from(unavailable: Unavailable) -> Self {
        GssError::new("Kerberos is not available", major::FAILURE, unavailable.to_string())
    }
}

impl Library {
    /// Returns the library, and opens it if necessary.
    ///
    /// # Errors
    /// The library is not installed.
    pub(super) fn load() -> Result<&'static Self, Unavailable> {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        // A library that is missing now can be installed while the process runs.
        match LIBRARY.get() {
            Some(library) => Ok(library),
            None => {
                let opened = Self::open(NAME)?;
                Ok(LIBRARY.get_or_init(|| opened))
            }
        }
    }

    fn open(name: &str) -> Result<Self, Unavailable> {
        // SAFETY: the code that MIT's libraries run at load time has no requirements for the caller.
        let opened = unsafe { Shared::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        let library = opened.map_err(|error| Unavailable(error.to_string()))?;
        // SAFETY: by its name it is MIT's library, and it is forgotten below without closing.
        let functions = unsafe { Functions::find(&library)? };
        std::mem::forget(library);
        Ok(Self { functions })
    }

    /// Returns the texts of a status, of GSS-API and of the mechanism. It must be called by the thread that got the
    /// status.
    pub(super) fn text(&'static self, major: Word, minor: Word) -> String {
        let mut texts = Vec::new();
        for (status, kind) in [(major, GSS_CODE), (minor, MECHANISM_CODE)] {
            // A minor status of zero has no information, and neither has GSS_S_FAILURE with another one.
            if minor == 0 && kind == MECHANISM_CODE || minor != 0 && status == major::FAILURE && kind == GSS_CODE {
                continue;
            }
            let mut more = 0;
            for _ in 0..TEXTS_MAX {
                let mut text = Buffer::empty(self);
                let mut ignored = 0;
                // SAFETY: all pointers are valid for the call; the library fills the buffer, which `Buffer` releases.
                let shown = unsafe {
                    (self.functions.gss_display_status)(
                        &mut ignored,
                        status,
                        kind,
                        &KERBEROS.0,
                        &mut more,
                        &mut text.desc,
                    )
                };
                if major::is_error(shown) {
                    break;
                }
                texts.push(String::from_utf8_lossy(text.bytes()).into_owned());
                if more == 0 {
                    break;
                }
            }
        }
        texts.join(": ")
    }
}

/// A buffer that the library has filled, and that it must release.
pub(super) struct Buffer {
    library: &'static Library,
    pub desc: BufferDesc,
}

impl Buffer {
    /// Makes an empty buffer, which the library can fill.
    pub fn empty(library: &'static Library) -> Self {
        Self { library, desc: BufferDesc { length: 0, value: null_mut() } }
    }

    pub fn bytes(&self) -> &[u8] {
        match self.desc.value.is_null() || self.desc.length == 0 {
            true => &[],
            // SAFETY: the library has set `value` to `length` initialized bytes, which stay until `Drop`.
            false => unsafe { std::slice::from_raw_parts(self.desc.value.cast::<u8>(), self.desc.length) },
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the buffer is empty or was filled by the library, and is released once.
        unsafe { (self.library.functions.gss_release_buffer)(&mut minor, &mut self.desc) };
    }
}

/// A set of buffers with keys, which the library allocates.
pub(super) struct SecretSet {
    library: &'static Library,
    pub(super) set: *mut BufferSetDesc,
}

impl SecretSet {
    pub(super) fn empty(library: &'static Library) -> Self {
        Self { library, set: null_mut() }
    }

    /// Returns the buffer at a position, if there is one.
    pub(super) fn get(&self, at: usize) -> Option<&[u8]> {
        if self.set.is_null() {
            return None;
        }
        // SAFETY: the library has set `set` to a set with `count` elements, which stay until `Drop`.
        let element = unsafe {
            let BufferSetDesc { count, elements } = *self.set;
            if at >= count {
                return None;
            }
            &*elements.add(at)
        };
        match element.value.is_null() {
            true => Some(&[]),
            // SAFETY: the library has set `value` to `length` initialized bytes, which stay until `Drop`.
            false => unsafe { Some(std::slice::from_raw_parts(element.value.cast::<u8>(), element.length)) },
        }
    }
}

impl Drop for SecretSet {
    /// Overwrites the buffers, which the library does not, and releases them.
    fn drop(&mut self) {
        if self.set.is_null() {
            return;
        }
        // SAFETY: as in `get`. Nobody else has a reference to the buffers, because they are borrowed from this value.
        unsafe {
            let BufferSetDesc { count, elements } = *self.set;
            for at in 0..count {
                let BufferDesc { length, value } = *elements.add(at);
                if !value.is_null() {
                    std::slice::from_raw_parts_mut(value.cast::<u8>(), length).zeroize();
                }
            }
        }
        let mut minor = 0;
        // SAFETY: the set was filled by the library, and is released once.
        unsafe { (self.library.functions.gss_release_buffer_set)(&mut minor, &mut self.set) };
    }
}

/// Returns the description of bytes that the library only reads.
pub(super) fn input(bytes: &[u8]) -> BufferDesc {
    BufferDesc { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

/// An object identifier in static memory.
pub(super) struct Oid(pub OidDesc);

// SAFETY: the pointer is to static memory that nobody writes.
unsafe impl Sync for Oid {}

/// A set of one object identifier in static memory.
pub(super) struct OidSet(pub OidSetDesc);

// SAFETY: the pointer is to static memory that nobody writes.
unsafe impl Sync for OidSet {}

const fn oid(der: &'static [u8]) -> Oid {
    Oid(OidDesc { length: der.len() as Word, elements: der.as_ptr().cast() })
}

/// Kerberos 5, 1.2.840.113554.1.2.2 (RFC 4121 §1).
pub(super) static KERBEROS: Oid = oid(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02");
/// Only Kerberos 5.
pub(super) static MECHANISMS: OidSet = OidSet(OidSetDesc { count: 1, elements: &KERBEROS.0 });
/// `GSS_C_NT_HOSTBASED_SERVICE`, 1.2.840.113554.1.2.1.4 (RFC 2743 §4.1).
pub(super) static HOSTBASED_SERVICE: Oid = oid(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04");
/// `GSS_KRB5_NT_PRINCIPAL_NAME`, 1.2.840.113554.1.2.2.1 (RFC 1964 §2.1.1).
pub(super) static PRINCIPAL_NAME: Oid = oid(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01");
/// `GSS_C_INQ_SSPI_SESSION_KEY`, 1.2.840.113554.1.2.2.5.5: asks for the key of a context.
pub(super) static SESSION_KEY: Oid = oid(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x05\x05");
/// The beginning of the identifier that the library returns with the key, 1.2.840.113554.1.2.2.4. The number of the encryption type follows.
pub(super) const SESSION_KEY_ENCTYPE: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x04";

/// # Safety
/// `T` is the type of the function.
unsafe fn symbol<T>(library: &Shared, name: &str) -> Result<libloading::os::unix::Symbol<T>, Unavailable> {
    // SAFETY: guaranteed by the caller.
    let found = unsafe { library.get(name.as_bytes()) };
    found.map_err(|error| Unavailable(format!("{NAME} lacks {name}: {error}")))
}

const NAME: &str = "libgssapi_krb5.so.2";
const GSS_CODE: c_int = 1;
const MECHANISM_CODE: c_int = 2;
/// Maximum number of texts of one status.
const TEXTS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_a_missing_library_and_its_package() {
        let Err(error) = Library::open("libnot-gssapi.so.2") else { panic!("found") };
        let error = error.to_string();
        assert!(error.contains("libnot-gssapi.so.2") && error.contains("libgssapi-krb5-2"), "{error}");
    }
}
