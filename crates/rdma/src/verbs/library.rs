//! The two shared libraries, which are loaded at first use and never unloaded.
//!
//! A build requires neither headers nor libraries. If something is missing, the error of [`Library::load`] names it.
//! The functions have the default symbol versions, whose ABI does not change.
//!
//! Fork safety: a child must not share registered pages copy-on-write, or the parent's next write moves the page to a
//! place that the adapter does not know. Linux 5.12 and later copy such pages at the fork; on older kernels
//! `ibv_fork_init` excludes registered memory from the child. It is called before anything is registered.

#![expect(unsafe_code, reason = "calls of C")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fmt, io,
    sync::OnceLock,
};

use libloading::os::unix::{Library as Shared, RTLD_LOCAL, RTLD_NOW};
use rustix::process::Resource;

use super::ffi::*;

macro_rules! functions {
    ($($(#[$of:meta])* $library:ident { $(fn $name:ident($($arg:ty),*) $(-> $ret:ty)?;)* })*) => {
        /// The functions of both libraries.
        pub(super) struct Functions {
            $($(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*)*
        }

        impl Functions {
            /// # Safety
            /// The libraries belong to rdma-core and are never unloaded.
            unsafe fn find($($library: &Shared),*) -> Result<Self, Unavailable> {
                // SAFETY: the types are those of the functions with the same names in rdma-core's headers.
                unsafe { Ok(Self { $($($name: *symbol($library, stringify!($name))?,)*)* }) }
            }
        }
    };
}

functions! {
    ibverbs {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(*mut *mut ibv_device);
        fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(*mut ibv_context) -> c_int;
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        fn ibv_destroy_srq(*mut ibv_srq) -> c_int;
        fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
        fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(*mut ibv_async_event);
        fn ibv_fork_init() -> c_int;
        fn ibv_wc_status_str(c_uint) -> *const c_char;
    }
    rdmacm {
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(*mut rdma_event_channel);
        fn rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
        fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        fn rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        fn rdma_bind_addr(*mut rdma_cm_id, *mut c_void) -> c_int;
        fn rdma_resolve_addr(*mut rdma_cm_id, *mut c_void, *mut c_void, c_int) -> c_int;
        fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        fn rdma_destroy_qp(*mut rdma_cm_id);
        fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
        fn rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
    }
}

/// The two libraries, loaded.
pub(super) struct Library {
    pub(super) functions: Functions,
}

/// The reason that no adapters are available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// A library is not installed, or lacks a function.
    Library(String),
    /// The libraries found no device.
    NoDevice,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Library(why) => write!(f, "{why}"),
            Unavailable::NoDevice => write!(f, "no RDMA device: see `rdma link` and /sys/class/infiniband"),
        }
    }
}

impl std::error::Error for Unavailable {}

impl From<Unavailable> for io::Error {
    fn from(unavailable: Unavailable) -> Self {
        io::Error::new(io::ErrorKind::Unsupported, unavailable)
    }
}

impl Library {
    /// Returns the libraries, and loads them if necessary.
    ///
    /// # Errors
    /// Returns an error if they are not installed.
    pub(super) fn load() -> Result<&'static Self, Unavailable> {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        // A library that is missing now can be installed while the process runs.
        match LIBRARY.get() {
            Some(library) => Ok(library),
            None => {
                let opened = Self::open(IBVERBS, RDMACM)?;
                Ok(LIBRARY.get_or_init(|| opened))
            }
        }
    }

    fn open(ibverbs: &str, rdmacm: &str) -> Result<Self, Unavailable> {
        let (ibverbs, rdmacm) = (shared(ibverbs)?, shared(rdmacm)?);
        // SAFETY: by their names both belong to rdma-core, and the handles are forgotten below without closing.
        let functions = unsafe { Functions::find(&ibverbs, &rdmacm)? };
        // Devices, their threads and these functions exist until the end of the process.
        std::mem::forget((ibverbs, rdmacm));
        // SAFETY: the function has no arguments; nothing is registered yet.
        if unsafe { (functions.ibv_fork_init)() } != 0 {
            tracing::debug!("ibv_fork_init failed: do not fork while connections are in use, on kernels before 5.12");
        }
        Ok(Self { functions })
    }

    /// Returns the description of a work completion's status.
    pub(super) fn status_text(&self, status: c_uint) -> String {
        // SAFETY: the library returns a static string for every value.
        let text = unsafe { CStr::from_ptr((self.functions.ibv_wc_status_str)(status)) };
        text.to_string_lossy().into_owned()
    }
}

fn shared(name: &str) -> Result<Shared, Unavailable> {
    // SAFETY: rdma-core's libraries run no code at load time that has requirements for the caller.
    let opened = unsafe { Shared::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
    opened.map_err(|error| Unavailable::Library(format!("{error}")))
}

/// # Safety
/// `T` is the type of the function.
unsafe fn symbol<T>(library: &Shared, name: &str) -> Result<libloading::os::unix::Symbol<T>, Unavailable> {
    // SAFETY: guaranteed by the caller.
    let found = unsafe { library.get(name.as_bytes()) };
    found.map_err(|error| Unavailable::Library(format!("{name}: {error}")))
}

/// Returns the error of a call, if its result reports one.
pub(super) fn check(returned: c_int, what: &str) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        // librdmacm returns -1 and sets errno; libibverbs often returns the error number itself.
        -1 => Err(last_error(what)),
        errno => Err(with_context(io::Error::from_raw_os_error(errno.abs()), what)),
    }
}

/// Returns the system's last error, with the operation that failed.
pub(super) fn last_error(what: &str) -> io::Error {
    with_context(io::Error::last_os_error(), what)
}

/// Adds the operation that failed. If the limit of locked memory can be the reason, the text also says how to raise it:
/// registered memory is locked, and so are the queues of most adapters.
fn with_context(error: io::Error, what: &str) -> io::Error {
    let limit = match error.kind() {
        io::ErrorKind::OutOfMemory => rustix::process::getrlimit(Resource::Memlock).current,
        _ => None,
    };
    let text = match limit {
        None => format!("{what}: {error}"),
        Some(limit) => format!(
            "{what}: {error}; memory that an adapter uses is locked, and RLIMIT_MEMLOCK allows {} KiB of it: raise it by \
             `ulimit -l unlimited`, by LimitMEMLOCK=infinity in a systemd unit, or in /etc/security/limits.conf",
            limit >> 10
        ),
    };
    io::Error::new(error.kind(), text)
}

const IBVERBS: &str = "libibverbs.so.1";
const RDMACM: &str = "librdmacm.so.1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_a_missing_library() {
        let Err(Unavailable::Library(why)) = Library::open("libnot-ibverbs.so.1", RDMACM) else { panic!("found") };
        assert!(why.contains("libnot-ibverbs.so.1"), "{why}");
    }

    #[test]
    fn errors_of_both_styles_name_the_failed_operation() {
        let error = check(12, "registering 5 bytes").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert!(error.to_string().starts_with("registering 5 bytes: "), "{error}");
        assert!(check(0, "nothing").is_ok());
    }
}
