//! The parts of connection setup that all providers share.
//!
//! A listener is created on one thread and used on another, so its socket is registered with a runtime only at its
//! first use ([`Deferred`]). A connection request is first received from the peer and then answered once ([`Stage`]).
//! Each step has a timeout, and private data have a maximum length.

use std::{future::Future, io, time::Duration};

/// A resource that belongs to no runtime until its first use.
pub(crate) enum Deferred<U, R> {
    /// Not registered. `None` if registering it has failed.
    Made(Option<U>),
    Registered(R),
}

impl<U, R> Deferred<U, R> {
    pub(crate) fn new(made: U) -> Self {
        Self::Made(Some(made))
    }

    /// Returns the resource registered with the current runtime. `register` registers it at the first call.
    ///
    /// # Errors
    /// The error of `register`, or `NotConnected` if it failed before.
    pub(crate) fn registered(&mut self, register: impl FnOnce(U) -> io::Result<R>) -> io::Result<&R> {
        if let Self::Made(made) = self {
            let made = made.take().ok_or(io::ErrorKind::NotConnected)?;
            *self = Self::Registered(register(made)?);
        }
        match self {
            Self::Registered(registered) => Ok(registered),
            Self::Made(_) => unreachable!("the resource was just registered"),
        }
    }
}

/// The progress of a connection request.
pub(crate) enum Stage<F, A> {
    /// No byte of the request has been received.
    Fresh(F),
    /// The request has been received.
    Received(A),
    /// The request was answered, or failed.
    Gone,
}

impl<F, A> Stage<F, A> {
    /// Takes the initial state, if the request has not been received.
    pub(crate) fn take_fresh(&mut self) -> Option<F> {
        match std::mem::replace(self, Stage::Gone) {
            Stage::Fresh(fresh) => Some(fresh),
            stage => {
                *self = stage;
                None
            }
        }
    }

    /// Returns the received request.
    ///
    /// # Errors
    /// It was not received, or it was answered.
    pub(crate) fn received(&self) -> io::Result<&A> {
        match self {
            Stage::Received(received) => Ok(received),
            Stage::Fresh(_) | Stage::Gone => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Takes the received request in order to answer it.
    ///
    /// # Errors
    /// It was not received, or it was answered.
    pub(crate) fn take_received(&mut self) -> io::Result<A> {
        match std::mem::replace(self, Stage::Gone) {
            Stage::Received(received) => Ok(received),
            Stage::Fresh(_) | Stage::Gone => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// Runs a step with a timeout.
///
/// # Errors
/// The error of the step, or `TimedOut`.
pub(crate) async fn within<T>(limit: Duration, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, step).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Checks the length of private data.
///
/// # Errors
/// `InvalidInput` if the provider cannot carry that many bytes.
pub(crate) fn check_private_data(private_data: &[u8], max: usize) -> io::Result<()> {
    if private_data.len() > max {
        let why = format!("private data has {} bytes, but the maximum is {max}", private_data.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(())
}

/// Returns `true` if a failure to accept does not affect the listener: the peer closed the connection, or descriptors
/// are temporarily exhausted.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    ) || matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::PROTO))
}

/// The pause after such a failure.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_received_once_and_answered_once() {
        let mut stage = Stage::<u8, &str>::Fresh(1);
        assert!(stage.received().is_err());
        assert_eq!((stage.take_fresh(), stage.take_fresh()), (Some(1), None));
        stage = Stage::Received("what");
        assert_eq!((stage.take_fresh(), *stage.received().unwrap()), (None, "what"));
        assert_eq!(stage.take_received().unwrap(), "what");
        assert!(stage.take_received().is_err() && stage.received().is_err());
    }

    #[test]
    fn failed_registration_is_not_retried() {
        let mut deferred = Deferred::<u8, u8>::new(1);
        assert!(deferred.registered(|_| Err(io::ErrorKind::OutOfMemory.into())).is_err());
        assert_eq!(deferred.registered(Ok).unwrap_err().kind(), io::ErrorKind::NotConnected);
        let mut deferred = Deferred::<u8, u8>::new(1);
        assert_eq!(*deferred.registered(|made| Ok(made + 1)).unwrap(), 2);
        assert_eq!(*deferred.registered(|_| unreachable!("a resource must be registered once")).unwrap(), 2);
    }
}
