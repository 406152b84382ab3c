//! Runs procedures: in place where that cannot block, on a thread that may wait where it must.
//!
//! A procedure is a function of its context and arguments. It first runs at once, on the thread that received the
//! call, with operations that must not wait. If one would have to, nothing has been done, and the procedure runs again
//! from its start on a thread of the export that it needs ([`blocking`](crate::blocking)). If that export's queue is full,
//! the caller is told to try again later: NFS3ERR_JUKEBOX.

use std::{fmt::Debug, future::ready, marker::PhantomData, sync::Arc};

use rpc::{AcceptError, BoxFuture, Call};
use xdr::{Decode, Encoder, Message};

use super::{
    context::{Context, Detached},
    core::ServiceState,
    error::WouldBlock,
    thread::Thread,
};
use crate::{
    blocking::{Outcome, Source},
    handle::ExportId,
};

/// A procedure that the server executes.
pub(crate) trait Answer: 'static {
    /// The state of the service that it belongs to.
    type Shared: ServiceState;
    /// What it takes.
    type Args: Decode + Send + 'static;
    /// How it went, for the log.
    type Status: Debug;
    /// Its name.
    const NAME: &'static str;

    /// Executes it and appends the results to `out`, in which the reply's header is. After something has been changed,
    /// no further operation may end with [`WouldBlock`]: all of it would be done again.
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
pub(crate) fn run<'a, P: Answer>(
    shared: &'a Arc<P::Shared>,
    mut call: Call<'a>,
) -> BoxFuture<'a, Result<Message, AcceptError>> {
    let bytes = call.arguments.message_len();
    let args = P::Args::decode(&mut call.arguments).and_then(|args| call.arguments.finish().map(|()| args));
    let args = match args {
        Ok(args) => args,
        Err(error) => {
            tracing::debug!(procedure = P::NAME, peer = %call.peer, %error, "garbage arguments");
            return Box::pin(ready(Err(AcceptError::GarbageArgs)));
        }
    };
    let thread = Thread::worker();
    let context = Context::of_call(shared, &call, &thread);
    let mut out = call.encoder();
    match P::answer(&context, &args, &mut out) {
        Ok(status) => {
            log::<P>(&context, &status);
            Box::pin(ready(Ok(out.finish())))
        }
        Err(WouldBlock) => {
            let source = Source::of(call.peer, call.transport.peer_user());
            let (detached, out) = (context.detach(), call.encoder());
            let waiting = Waiting::<P> { detached, args, out, answered: Err(WouldBlock) };
            Box::pin(wait(waiting, (source, bytes), thread.needed()))
        }
    }
}

/// A procedure that needs a thread which may wait.
struct Waiting<P: Answer> {
    detached: Detached<P::Shared>,
    args: P::Args,
    out: Encoder,
    answered: Result<(), WouldBlock>,
}

impl<P: Answer> Waiting<P> {
    fn answer(&mut self, thread: &Thread) {
        let context = self.detached.context(thread);
        let answered = P::answer(&context, &self.args, &mut self.out);
        self.answered = answered.map(|status| log::<P>(&context, &status));
    }

    fn finish(self) -> Result<Message, AcceptError> {
        match self.answered {
            Ok(()) => Ok(self.out.finish()),
            Err(WouldBlock) => {
                tracing::error!(procedure = P::NAME, "the file system would not wait although it may");
                Err(AcceptError::SystemErr)
            }
        }
    }
}

/// Executes a procedure on a thread that may wait for `export`, or, if that is none, for what belongs to no export.
async fn wait<P: Answer>(
    waiting: Waiting<P>,
    (source, bytes): (Source, usize),
    export: Option<ExportId>,
) -> Result<Message, AcceptError> {
    let shared = waiting.detached.shared().clone();
    let work = move |waiting: &mut Waiting<P>| waiting.answer(&Thread::of_pool(export));
    match shared.core().pools.of(export).run(source, bytes, waiting, work).await {
        Outcome::Done(waiting) => waiting.finish(),
        Outcome::Refused(mut waiting) => {
            waiting.answer(&Thread::refused());
            // What needs no export has no status for this: the caller asks again by itself.
            if waiting.answered.is_ok() { waiting.finish() } else { Err(AcceptError::Drop) }
        }
        Outcome::Panicked => {
            tracing::error!(procedure = P::NAME, "the procedure has panicked");
            Err(AcceptError::SystemErr)
        }
    }
}

fn log<P: Answer>(context: &Context<'_, P::Shared>, status: &P::Status) {
    tracing::debug!(procedure = P::NAME, peer = %context.peer, transport = context.transport.name, ?status);
}
