//! Runs procedures: in place if they need not block, otherwise on a thread that may.
//!
//! A procedure is a function of its context and arguments. It first runs on the thread that received the call, with
//! operations that must not block. If an operation would have to wait for storage, it has had no effect, and the
//! procedure runs again from its start on a thread of the export that it needs ([`blocking`](crate::blocking)). If the
//! queue of that export is full, the procedure runs once more on a [refused](Thread::refused) thread, and the client
//! gets the status of its protocol for "try again later".
//!
//! If an operation is pending, no thread is needed. The future of the call awaits the completion on the worker that
//! owns the connection, and then the procedure runs again from its start. Operations that have been executed are in its
//! [`Journal`] and are not executed again.
//!
//! A call outlives its connection, because its reply goes to the duplicate request cache. The call is dropped only with
//! its worker.

use std::{fmt::Debug, marker::PhantomData, sync::Arc};

use rpc::{AcceptError, Answering, Call};
use xdr::{Decode, Encoder, Message};

use super::{
    audit::Action,
    context::{Context, Detached},
    core::ServiceState,
    error::WouldBlock,
    journal::Journal,
    thread::{Needed, Thread},
};
use crate::blocking::Outcome;

/// A procedure that the server executes.
pub(crate) trait Answer: 'static {
    /// The state of the service to which the procedure belongs.
    type Shared: ServiceState;
    /// The type of the arguments.
    type Args: Decode + Send + 'static;
    /// The type of the status, for the log.
    type Status: Debug;
    /// The name of the procedure.
    const NAME: &'static str;

    /// Returns what the procedure is about to do, if the audit log can record it.
    fn action(_: &Context<'_, Self::Shared>, _: &Self::Args) -> Option<Action> {
        None
    }

    /// Executes the procedure and appends the results to `out`, which already contains the reply's header. After a
    /// change has been made, no later operation may fail with [`WouldBlock`] unless it is pending, because the whole
    /// procedure would run again. An effect outside of the file system that precedes an operation must go through
    /// [`Object::once`](crate::call::object::Object::once).
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

/// Decodes the arguments of a call and executes procedure `P`.
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
    let (thread, refused) = (Thread::worker(), Thread::refused());
    let mut context = Context::of_call(shared, &call, &thread);
    if context.delays(|| P::action(&context, &args)) {
        context.thread = &refused;
    }
    let mut out = call.encoder();
    let start = out.stream_len();
    if let Ok(status) = P::answer(&context, &args, &mut out)
        && !thread.is_pending()
    {
        log::<P>(&context, &args, &status);
        return Answering::Ready(Ok(out.finish()));
    }
    let (detached, needs) = (context.detach(), thread.needs());
    let journal = thread.journal().cloned();
    let waiting = Waiting::<P> { detached, args, out, start, journal, needs, answered: false };
    Answering::Pending(Box::pin(wait(waiting, bytes)))
}

/// A procedure that could not continue in its last run.
struct Waiting<P: Answer> {
    detached: Detached<P::Shared>,
    args: P::Args,
    out: Encoder,
    /// The position in `out` at which the results begin.
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
            log::<P>(&context, &self.args, status);
        }
        self.needs = thread.needs();
        self.journal = thread.journal().cloned();
    }
}

/// Runs a procedure again until it succeeds or fails for good: on the worker when its pending operation has completed,
/// or on a thread of a pool. After its first run on a pool, it stays on that pool.
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
                tracing::error!(procedure = P::NAME, "an operation that may block failed with WouldBlock");
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
                // Work that belongs to no export has no status for "try again later". The client retransmits the call.
                return if waiting.answered { Ok(waiting.out.finish()) } else { Err(AcceptError::Drop) };
            }
            Outcome::Panicked => {
                tracing::error!(procedure = P::NAME, "the procedure panicked");
                return Err(AcceptError::SystemErr);
            }
        };
    }
    Ok(waiting.out.finish())
}

/// Writes what a procedure has done to the log and to the audit log. A call that was refused was not executed, whatever
/// status its protocol has for that, and is not recorded: records of such calls would fill a queue that is already full.
fn log<P: Answer>(context: &Context<'_, P::Shared>, args: &P::Args, status: &P::Status) {
    if context.thread.admit().is_ok() {
        context.record(|| P::action(context, args), status, false);
    }
    tracing::debug!(procedure = P::NAME, peer = %context.peer, transport = context.transport.name, ?status);
}
