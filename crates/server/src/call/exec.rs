//! Runs procedures: in place where that cannot block, on a thread that may wait where it must.
//!
//! A procedure is a function of its context and arguments. It first runs at once, on the thread that received the
//! call, with operations that must not wait. If one has to wait for storage, nothing has been done, and the procedure runs again
//! from its start on a thread of the export that it needs ([`blocking`](crate::blocking)). If that export's queue is full,
//! the procedure runs once more on a thread that is [refused](Thread::refused), and the caller gets its protocol's status for "try
//! again later".
//!
//! If an operation is pending, no thread is needed: the call's future awaits the completion on the worker that owns the connection, and
//! the procedure runs again from its start. What it has done before is in its [`Journal`] and is not done again.
//!
//! A call outlives its connection: its reply is for the duplicate request cache. It is dropped only with its worker.

use std::{fmt::Debug, marker::PhantomData, sync::Arc};

use rpc::{AcceptError, Answering, Call};
use xdr::{Decode, Encoder, Message};

use super::{
    context::{Context, Detached},
    core::ServiceState,
    error::WouldBlock,
    journal::Journal,
    thread::{Needed, Thread},
};
use crate::blocking::Outcome;

/// A procedure that the server executes.
pub(crate) trait Answer: 'static {
    /// The state of the service that it belongs to.
    type Shared: ServiceState;
    /// The type of its arguments.
    type Args: Decode + Send + 'static;
    /// The type of its status, for the log.
    type Status: Debug;
    /// Its name.
    const NAME: &'static str;

    /// Executes it and appends the results to `out`, in which the reply's header is. After something has been changed,
    /// no further operation may end with [`WouldBlock`] unless it is pending: all of it would be done again. An effect outside of the
    /// file system that comes before an operation is passed by [`Object::once`](crate::call::object::Object::once).
    fn answer(cx: &Context<'_, Self::Shared>, args: &Self::Args, out: &mut Encoder)
    -> Result<Self::Status, WouldBlock>;
}

/// The procedure NULL, which every program has.
pub(crate) struct Null<S>(PhantomData<S>);

impl<S: ServiceState> Answer for Null<S> {
    type Shared = S;
    type Args = ();
    type Status = ();
    const NAME: &'static str = "NULL";

    fn answer(_: &Context<'_, S>, (): &(), _: &mut Encoder) -> Result<(), WouldBlock> {
        Ok(())
    }
}

/// Executes `P` for a call.
pub(crate) fn run<'a, P: Answer>(shared: &'a Arc<P::Shared>, mut call: Call<'a>) -> Answering<'a> {
    let bytes = call.arguments.message_len();
    let args = P::Args::decode(&mut call.arguments).and_then(|args| call.arguments.finish().map(|()| args));
    let args = match args {
        Ok(args) => args,
        Err(error) => {
            tracing::debug!(procedure = P::NAME, peer = %call.peer, %error, "garbage arguments");
            return Answering::Ready(Err(AcceptError::GarbageArgs));
        }
    };
    let thread = Thread::worker();
    let context = Context::of_call(shared, &call, &thread);
    let mut out = call.encoder();
    let start = out.stream_len();
    if let Ok(status) = P::answer(&context, &args, &mut out)
        && !thread.is_pending()
    {
        log::<P>(&context, &status);
        return Answering::Ready(Ok(out.finish()));
    }
    let (detached, needs) = (context.detach(), thread.needs());
    let journal = thread.journal().cloned();
    let waiting = Waiting::<P> { detached, args, out, start, journal, needs, answered: false };
    Answering::Pending(Box::pin(wait(waiting, bytes)))
}

/// A procedure that could not go on where it was run last.
struct Waiting<P: Answer> {
    detached: Detached<P::Shared>,
    args: P::Args,
    out: Encoder,
    /// Where the results begin in `out`.
    start: usize,
    journal: Option<Arc<Journal>>,
    needs: Needed,
    answered: bool,
}

impl<P: Answer> Waiting<P> {
    fn answer(&mut self, thread: &Thread) {
        let context = self.detached.context(thread);
        self.out.truncate(self.start);
        let answered = P::answer(&context, &self.args, &mut self.out);
        self.answered = answered.is_ok() && !thread.is_pending();
        if let (Ok(status), true) = (&answered, self.answered) {
            log::<P>(&context, status);
        }
        self.needs = thread.needs();
        self.journal = thread.journal().cloned();
    }
}

/// Runs a procedure again until it is answered: on the worker when the operation that is pending has completed, or on a thread that
/// may wait for an export, or for what belongs to no export. There it stays.
async fn wait<P: Answer>(mut waiting: Waiting<P>, bytes: usize) -> Result<Message, AcceptError> {
    let (shared, source) = (waiting.detached.shared().clone(), waiting.detached.source());
    let mut pool = None;
    while !waiting.answered {
        match (waiting.needs, pool) {
            (Needed::Completion, _) => {
                if let Some(journal) = &waiting.journal {
                    journal.complete().await;
                }
            }
            (Needed::Thread(export), None) => pool = Some(export),
            (Needed::Thread(_), Some(_)) => {
                tracing::error!(procedure = P::NAME, "the file system would not wait although it may");
                return Err(AcceptError::SystemErr);
            }
        }
        let work = move |waiting: &mut Waiting<P>| waiting.answer(&Thread::again(pool, waiting.journal.as_ref()));
        let Some(export) = pool else {
            work(&mut waiting);
            continue;
        };
        waiting = match shared.core().pools.of(export).run(source, bytes, waiting, work).await {
            Outcome::Done(waiting) => waiting,
            Outcome::Refused(mut waiting) => {
                waiting.answer(&Thread::refused());
                // What needs no export has no status for this: the caller asks again by itself.
                return if waiting.answered { Ok(waiting.out.finish()) } else { Err(AcceptError::Drop) };
            }
            Outcome::Panicked => {
                tracing::error!(procedure = P::NAME, "the procedure has panicked");
                return Err(AcceptError::SystemErr);
            }
        };
    }
    Ok(waiting.out.finish())
}

fn log<P: Answer>(context: &Context<'_, P::Shared>, status: &P::Status) {
    tracing::debug!(procedure = P::NAME, peer = %context.peer, transport = context.transport.name, ?status);
}
