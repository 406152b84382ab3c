//! The limit of file descriptors. Each connection needs one, and the default limit of a shell is low.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of this process and its children to at least `wanted`.
///
/// # Errors
/// The limit cannot be raised. The message says why, and what to do.
pub fn raise(wanted: u64) -> Result<(), String> {
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

/// Raises the limit of this process to its hard limit.
pub fn raise_to_most() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "cannot raise the limit of file descriptors");
    }
}

/// Returns the limit of file descriptors.
pub fn limit() -> usize {
    let Rlimit { current, .. } = getrlimit(Resource::Nofile);
    current.and_then(|current| usize::try_from(current).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_raised_or_the_error_explains_why_not() {
        raise(1).unwrap();
        raise_to_most();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        // No system has this many descriptors, not even for root.
        let problem = raise(1 << 40).unwrap_err();
        assert!(problem.contains("ulimit -Hn"), "{problem}");
    }
}
