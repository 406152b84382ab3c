//! The limits of file descriptors and of locked memory. Each connection needs a descriptor, memory that an RDMA adapter uses
//! is locked, and the default limits of a shell are low.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of file descriptors of this process and its children to at least `wanted`.
///
/// # Errors
/// The limit cannot be raised. The message says why, and what to do.
pub fn raise_files(wanted: u64) -> Result<(), String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    // Only root can exceed the hard limit.
    let maximum = maximum.map(|maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).map_err(|error| {
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        format!("{wanted} file descriptors are needed, and the hard limit is {hard} (ulimit -Hn): {error}; raise it")
    })
}

/// Raises the limit of file descriptors of this process to its hard limit.
pub fn raise_files_to_most() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "cannot raise the limit of file descriptors");
    }
}

/// Removes the limit of locked memory if this process may, or raises it to its hard limit. The kernel exempts root
/// (CAP_IPC_LOCK) for most adapters, but not for siw, which checks only the limit.
pub fn raise_locked_memory() {
    let none = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, none).is_err() {
        let maximum = getrlimit(Resource::Memlock).maximum;
        // A failure is not reported: the error of a registration that exceeds the limit names it.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    }
}

/// Returns the limit of file descriptors.
pub fn files() -> usize {
    let Rlimit { current, .. } = getrlimit(Resource::Nofile);
    current.and_then(|current| usize::try_from(current).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_raised_or_the_error_explains_why_not() {
        raise_files(1).unwrap();
        raise_files_to_most();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        // No system has this many descriptors, not even for root.
        let problem = raise_files(1 << 40).unwrap_err();
        assert!(problem.contains("ulimit -Hn"), "{problem}");
    }

    #[test]
    fn locked_memory_is_limited_by_the_hard_limit_only() {
        raise_locked_memory();
        let Rlimit { current, maximum } = getrlimit(Resource::Memlock);
        assert_eq!(current, maximum);
    }
}
