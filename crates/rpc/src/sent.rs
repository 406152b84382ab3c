//! [`SentCall`]: a call over the present connection, which ends with that connection.
//!
//! The transport's own future is polled directly unless the call needs more: protection by a security flavour, a permit, or
//! retransmissions. So a call costs one allocation and no state machine of this crate.
//!
//! Buffers: as for any call of a [`Client`](crate::Client). The future owns the caller's sink until the transport takes it.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
};

use xdr::Decode;

use crate::{Answer, BoxFuture, CallError, CallFailed, ClientError, Reply, request::decode, security::VerifiedReply};

/// The future of a call that was sent by [`Client::send_while_connected`](crate::Client::send_while_connected). It borrows
/// nothing and can be moved, also after it was polled. Dropping it cancels the call.
pub struct SentCall<R> {
    stage: Stage,
    results: PhantomData<fn() -> R>,
}

enum Stage {
    /// The transport's future, and the flag to set when it has an answer.
    Direct(BoxFuture<'static, Result<Reply, CallError>>, Arc<AtomicBool>),
    Exchange(BoxFuture<'static, Result<VerifiedReply, CallFailed>>),
}

impl<R> SentCall<R> {
    /// Makes a call that one transmission over a transport completes. An answer sets `answered`.
    pub(crate) fn direct(reply: BoxFuture<'static, Result<Reply, CallError>>, answered: Arc<AtomicBool>) -> Self {
        Self { stage: Stage::Direct(reply, answered), results: PhantomData }
    }

    /// Makes a call that can need several transmissions or has to wait before.
    pub(crate) fn exchange(exchange: impl Future<Output = Result<VerifiedReply, CallFailed>> + Send + 'static) -> Self {
        Self { stage: Stage::Exchange(Box::pin(exchange)), results: PhantomData }
    }
}

impl<R: Decode> Future for SentCall<R> {
    type Output = Result<Answer<R>, CallFailed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.stage {
            Stage::Direct(reply, answered) => match ready!(reply.as_mut().poll(cx)) {
                Ok(reply) => {
                    answered.store(true, Relaxed);
                    return Poll::Ready(results(reply, false));
                }
                Err(CallError { error, sink }) => Err(CallFailed { error: ClientError::Transport(error), sink }),
            },
            Stage::Exchange(exchange) => ready!(exchange.as_mut().poll(cx)),
        };
        Poll::Ready(outcome.and_then(|VerifiedReply { reply, is_bare }| results(reply, is_bare)))
    }
}

/// Decodes the results in a reply.
///
/// # Errors
/// The server did not execute the call, or the reply cannot be decoded.
pub(crate) fn results<R: Decode>(Reply { message, sink }: Reply, is_bare: bool) -> Result<Answer<R>, CallFailed> {
    let decoded = decode(&message, is_bare);
    // The sink can become the caller's region again only when no view of it is left.
    drop(message);
    match decoded {
        Ok(results) => Ok(Answer { results, sink }),
        Err(error) => Err(CallFailed { error, sink: sink.and_then(|sink| sink.into_region().ok()) }),
    }
}
