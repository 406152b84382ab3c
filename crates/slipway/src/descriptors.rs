//! File descriptors: each connection takes one, and the usual limit of a shell is low.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit to at least `wanted`, its children's with it.
///
/// # Errors
/// Why that cannot be, and what to do.
pub fn raise(wanted: u64) -> Result<(), String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    // Beyond the hard limit only root can go.
    let maximum = maximum.map(|maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).map_err(|error| {
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        format!("{wanted} file descriptors are needed and this process may have {hard} (ulimit -Hn): {error}; raise it")
    })
}

/// Raises this process's limit to what it may have.
pub fn raise_to_most() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "the limit of file descriptors stays as it is");
    }
}

/// How many this process may have.
pub fn limit() -> usize {
    let Rlimit { current, .. } = getrlimit(Resource::Nofile);
    current.and_then(|current| usize::try_from(current).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_had_is_had_and_what_not_is_explained() {
        raise(1).unwrap();
        raise_to_most();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        // No system has so many, whoever asks.
        let problem = raise(1 << 40).unwrap_err();
        assert!(problem.contains("ulimit -Hn"), "{problem}");
    }
}
