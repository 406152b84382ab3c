//! Runs procedures: in place where that cannot block, on a thread that may wait where it must.
//!
//! A procedure is a function of its context and arguments. It first runs at once, on the thread that received the
//! call, with operations that must not wait. If one would have to, nothing has been done, and the procedure runs again
//! from its start on tokio's pool of blocking threads; where there is no such pool (a simulation), in place.

use std::{fmt::Debug, future::ready, sync::Arc};

use rpc::{AcceptError, BoxFuture, Call};
use xdr::{Decode, Encode, Encoder, Message};

use crate::{
    context::{Carrier, Context, Detached, Shared},
    error::{Fault, WouldBlock},
};

/// A procedure that the server executes.
pub(crate) trait Answer: 'static {
    /// What it takes.
    type Args: Decode + Send + 'static;
    /// How it went, for the log.
    type Status: Debug;
    /// Its name.
    const NAME: &'static str;

    /// Executes it and appends the results to `out`, in which the reply's header is. After something has been changed,
    /// no further operation may end with [`WouldBlock`]: all of it would be done again.
    fn answer(cx: &Context<'_>, args: &Self::Args, out: &mut Encoder) -> Result<Self::Status, WouldBlock>;
}

/// Executes `P` for a call.
pub(crate) fn run<'a, P: Answer>(
    shared: &'a Arc<Shared>,
    mut call: Call<'a>,
) -> BoxFuture<'a, Result<Message, AcceptError>> {
    let args = P::Args::decode(&mut call.arguments).and_then(|args| call.arguments.finish().map(|()| args));
    let args = match args {
        Ok(args) => args,
        Err(error) => {
            tracing::debug!(procedure = P::NAME, peer = %call.peer, %error, "garbage arguments");
            return Box::pin(ready(Err(AcceptError::GarbageArgs)));
        }
    };
    let caps = call.transport.caps();
    let carrier = Carrier { name: caps.name, message_max: caps.message_max, file_ranges: caps.file_ranges };
    let context = Context {
        shared,
        credential: call.credential,
        peer: call.peer,
        carrier,
        pool: call.transport.pool(),
        may_block: false,
    };
    let mut out = call.encoder();
    match P::answer(&context, &args, &mut out) {
        Ok(status) => {
            log::<P>(&context, &status);
            Box::pin(ready(Ok(out.finish())))
        }
        Err(WouldBlock) => Box::pin(elsewhere::<P>(context.detach(shared), args, call.encoder())),
    }
}

/// Appends a result: OK and `value`, or a status and what `failure` says.
pub(crate) fn conclude<T: Encode, F: Encode>(
    out: &mut Encoder,
    result: Result<T, Fault>,
    failure: impl FnOnce() -> Result<F, WouldBlock>,
) -> Result<nfs::v3::Nfsstat3, WouldBlock> {
    match result {
        Ok(value) => {
            nfs::v3::Nfsstat3::Ok.encode(out);
            value.encode(out);
            Ok(nfs::v3::Nfsstat3::Ok)
        }
        Err(Fault::WouldBlock) => Err(WouldBlock),
        Err(Fault::Status(status)) => {
            status.encode(out);
            failure()?.encode(out);
            Ok(status)
        }
    }
}

async fn elsewhere<P: Answer>(detached: Detached, args: P::Args, mut out: Encoder) -> Result<Message, AcceptError> {
    let work = move || {
        let context = detached.context();
        match P::answer(&context, &args, &mut out) {
            Ok(status) => {
                log::<P>(&context, &status);
                Ok(out.finish())
            }
            Err(WouldBlock) => {
                tracing::error!(procedure = P::NAME, "the file system would not wait although it may");
                Err(AcceptError::SystemErr)
            }
        }
    };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await.unwrap_or_else(|error| {
            tracing::error!(procedure = P::NAME, %error, "the procedure did not end");
            Err(AcceptError::SystemErr)
        }),
        Err(_) => work(),
    }
}

fn log<P: Answer>(context: &Context<'_>, status: &P::Status) {
    tracing::debug!(procedure = P::NAME, peer = %context.peer, transport = context.carrier.name, ?status);
}
