//! What making a connection has in common, whatever the provider.
//!
//! A listener is made on one thread and used on another, so that its socket becomes known to a runtime only when it is first
//! used ([`Deferred`]). A request is first asked what the peer wants, and then answered, once ([`Stage`]). Every
//! step has its time, and private data its length.

use std::{future::Future, io, time::Duration};

/// Something that belongs to no runtime until it is first used.
pub(crate) enum Deferred<U, R> {
    /// Gone if registering it has failed.
    Made(Option<U>),
    Registered(R),
}

impl<U, R> Deferred<U, R> {
    pub(crate) fn new(made: U) -> Self {
        Self::Made(Some(made))
    }

    /// As the current runtime knows it; `register` makes it known.
    ///
    /// # Errors
    /// As `register`, now or before.
    pub(crate) fn registered(&mut self, register: impl FnOnce(U) -> io::Result<R>) -> io::Result<&R> {
        if let Self::Made(made) = self {
            let made = made.take().ok_or(io::ErrorKind::NotConnected)?;
            *self = Self::Registered(register(made)?);
        }
        match self {
            Self::Registered(registered) => Ok(registered),
            Self::Made(_) => unreachable!("just registered"),
        }
    }
}

/// How far a request has come.
pub(crate) enum Stage<F, A> {
    /// Nothing has been read.
    Fresh(F),
    /// What the peer wants is known.
    Asked(A),
    /// Answered, or failed.
    Gone,
}

impl<F, A> Stage<F, A> {
    /// What is to be asked now, if it has not been.
    pub(crate) fn take_fresh(&mut self) -> Option<F> {
        match std::mem::replace(self, Stage::Gone) {
            Stage::Fresh(fresh) => Some(fresh),
            stage => {
                *self = stage;
                None
            }
        }
    }

    /// What the peer wants.
    ///
    /// # Errors
    /// It could not be found out.
    pub(crate) fn asked(&self) -> io::Result<&A> {
        match self {
            Stage::Asked(asked) => Ok(asked),
            Stage::Fresh(_) | Stage::Gone => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The same, to be answered.
    ///
    /// # Errors
    /// As [`asked`](Self::asked).
    pub(crate) fn take_asked(&mut self) -> io::Result<A> {
        match std::mem::replace(self, Stage::Gone) {
            Stage::Asked(asked) => Ok(asked),
            Stage::Fresh(_) | Stage::Gone => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// A step that may take so long.
///
/// # Errors
/// The step's, or `TimedOut`.
pub(crate) async fn within<T>(limit: Duration, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, step).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// # Errors
/// `InvalidInput` if the provider cannot carry that many bytes.
pub(crate) fn check_private_data(private_data: &[u8], max: usize) -> io::Result<()> {
    if private_data.len() > max {
        let why = format!("{} bytes of private data, of which {max} can be carried", private_data.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(())
}

/// Whether a failure to accept says nothing about the listener: the peer gave up, or descriptors are short.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    ) || matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::PROTO))
}

/// How long to wait for better times then.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_asked_once_and_answered_once() {
        let mut stage = Stage::<u8, &str>::Fresh(1);
        assert!(stage.asked().is_err());
        assert_eq!((stage.take_fresh(), stage.take_fresh()), (Some(1), None));
        stage = Stage::Asked("what");
        assert_eq!((stage.take_fresh(), *stage.asked().unwrap()), (None, "what"));
        assert_eq!(stage.take_asked().unwrap(), "what");
        assert!(stage.take_asked().is_err() && stage.asked().is_err());
    }

    #[test]
    fn what_could_not_be_registered_is_gone() {
        let mut deferred = Deferred::<u8, u8>::new(1);
        assert!(deferred.registered(|_| Err(io::ErrorKind::OutOfMemory.into())).is_err());
        assert_eq!(deferred.registered(Ok).unwrap_err().kind(), io::ErrorKind::NotConnected);
        let mut deferred = Deferred::<u8, u8>::new(1);
        assert_eq!(*deferred.registered(|made| Ok(made + 1)).unwrap(), 2);
        assert_eq!(*deferred.registered(|_| unreachable!("once")).unwrap(), 2);
    }
}
