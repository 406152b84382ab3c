//! [`ProtectedCall`]: a call with a [`ClientFlavor`], through all of its transmissions.

use std::time::Duration;

use buf::SharedRegion;
use smallvec::SmallVec;
use tokio::time::timeout;
use xdr::{Decode, Decoder, Message};

use super::{Channel, ClientFlavor, NotReady, Place, Tampered, Transmission, client::encode_start, server::gather};
use crate::{
    AcceptStat, ClientError, RejectStat, Reply, ReplyBody, ReplyHeader, ReplyPlan, Xid,
    client::{RETRANSMIT_MAX, attempt},
};

/// The part of a call that all transmissions share.
pub(crate) struct ProtectedCall<'a> {
    pub flavor: &'a dyn ClientFlavor,
    pub xid: Xid,
    /// The program, version and procedure.
    pub target: (u32, u32, u32),
    pub arguments: Message,
}

/// The transmissions over one connection, the latest last.
type Sent = SmallVec<[Box<dyn Transmission>; 1]>;

/// A reply whose verifier is correct.
pub(crate) struct VerifiedReply {
    pub reply: Reply,
    /// `true` if the message is only the results, which were unwrapped.
    pub is_bare: bool,
}

/// Reports whether the place is in the context of the latest transmission.
fn is_of(place: &Option<Place>, sent: &Sent) -> bool {
    let latest = sent.last().map(|transmission| transmission.context());
    place.as_ref().map(|place| place.context) == latest
}

/// The outcome of checking a reply.
enum Judgement {
    Verified(VerifiedReply),
    /// The call must be sent again, unless the limit of retries is reached.
    Retry(ClientError, Option<SharedRegion>),
    Failed(ClientError, Option<SharedRegion>),
}

impl ProtectedCall<'_> {
    /// Sends the call over one connection until its reply is verified. The sink is in `plan` whenever no transport
    /// holds it.
    pub async fn exchange(&self, channel: Channel<'_>, plan: &mut ReplyPlan) -> Result<VerifiedReply, ClientError> {
        self.flavor.note_connection(channel);
        let mut sent = Sent::new();
        let mut pause = channel.retransmit;
        let (mut refused, mut refreshed) = (0, 0);
        let mut place: Option<Place> = None;
        loop {
            // A sequence number is taken only after the wait, so that it is not old when it is sent.
            let limited = match self.flavor.place() {
                Some(free) if place.is_none() => {
                    place = free.await;
                    true
                }
                free => free.is_some(),
            };
            let message = match self.next_transmission(&mut sent) {
                Ok(Ok(message)) if !limited || is_of(&place, &sent) => message,
                // Another call has replaced the context since.
                Ok(Ok(_)) => {
                    drop((sent.pop(), place.take()));
                    continue;
                }
                Ok(Err(NotReady)) if refreshed < REFRESHED_MAX => {
                    self.flavor.refresh(channel).await?;
                    refreshed += 1;
                    // A late reply to a transmission of another context is not used.
                    sent.clear();
                    place = None;
                    continue;
                }
                Ok(Err(NotReady)) => {
                    return Err(ClientError::Security(
                        "contexts with the server expire before they can be used".to_owned(),
                    ));
                }
                Err(Tampered) => return Err(ClientError::Security("the call cannot be protected".to_owned())),
            };
            let reply = match self.attempt(channel, message, plan, pause).await {
                None => {
                    pause = (pause * 2).min(RETRANSMIT_MAX);
                    continue;
                }
                Some(reply) => reply?,
            };
            let (error, sink) = match self.judge(reply, &sent, plan) {
                Judgement::Verified(reply) => return Ok(reply),
                Judgement::Retry(error, sink) if refused < REFUSED_MAX => {
                    refused += 1;
                    tracing::debug!(xid = self.xid.0, %error, "retransmitting a call");
                    (None, sink)
                }
                Judgement::Retry(error, sink) | Judgement::Failed(error, sink) => (Some(error), sink),
            };
            plan.sink = plan.sink.take().or_else(|| sink.and_then(|sink| sink.into_region().ok()));
            if let Some(error) = error {
                return Err(error);
            }
        }
    }

    /// Creates the message of the next transmission.
    fn next_transmission(&self, sent: &mut Sent) -> Result<Result<Message, NotReady>, Tampered> {
        let wraps = self.flavor.wraps();
        let room = 512 + if wraps { self.arguments.len() } else { self.arguments.stream.len() };
        let mut encoder = encode_start(self.xid, self.target, room);
        let transmission = match self.flavor.begin(&mut encoder) {
            Ok(transmission) => transmission,
            Err(NotReady) => return Ok(Err(NotReady)),
        };
        let header = encoder.stream_len() as u32;
        let mut payloads = Vec::new();
        match wraps {
            true => transmission.wrap(gather(&self.arguments, 0)?, &mut encoder)?,
            false => {
                encoder.raw(&self.arguments.stream);
                payloads.clone_from(&self.arguments.payloads);
            }
        }
        payloads.iter_mut().filter_map(|payload| payload.position.as_mut()).for_each(|at| *at += header);
        if sent.len() == SENT_MAX {
            sent.remove(0);
        }
        sent.push(transmission);
        Ok(Ok(Message { payloads, ..encoder.finish() }))
    }

    /// Sends a message and waits for its reply. Returns `None` if the message must be retransmitted, over a transport
    /// that loses messages.
    async fn attempt(
        &self,
        channel: Channel<'_>,
        message: Message,
        plan: &mut ReplyPlan,
        pause: Duration,
    ) -> Option<Result<Reply, ClientError>> {
        let growth = self.flavor.reply_growth();
        let mut own = match self.flavor.wraps() {
            true => plan.without_placement(growth),
            false => ReplyPlan {
                inline_max: plan.inline_max + growth,
                payload_max: plan.payload_max,
                locate: plan.locate,
                // Cancelling a call drops its sink.
                sink: if channel.transport.caps().lossy { None } else { plan.sink.take() },
            },
        };
        let call = attempt(channel.transport, message, &mut own);
        let outcome = match channel.transport.caps().lossy {
            true => timeout(pause, call).await.ok()?,
            false => call.await,
        };
        if let Some(sink) = own.sink.take() {
            plan.sink = Some(sink);
        }
        Some(outcome.map_err(ClientError::Transport))
    }

    fn judge(&self, reply: Reply, sent: &Sent, plan: &mut ReplyPlan) -> Judgement {
        let Reply { message, sink } = reply;
        let mut decoder = Decoder::new(&message);
        let header = match ReplyHeader::decode(&mut decoder) {
            Ok(header) => header,
            Err(error) => return Judgement::Retry(ClientError::Decode(error), sink),
        };
        let (verifier, stat) = match header.body {
            ReplyBody::Accepted { verifier, stat } => (verifier, stat),
            ReplyBody::Denied(stat) => {
                let last = sent.last().expect("an answered call must have a transmission");
                let again = matches!(stat, RejectStat::AuthError(stat) if self.flavor.denied(&**last, stat));
                let error = ClientError::Denied(stat);
                return if again { Judgement::Retry(error, sink) } else { Judgement::Failed(error, sink) };
            }
        };
        // RFC 2203 §5.3.3.2: the reply can answer any of the transmissions.
        let Some(answered) = sent.iter().rev().find(|sent| sent.verifies(&verifier)) else {
            return Judgement::Retry(ClientError::Security("the verifier of the reply is wrong".to_owned()), sink);
        };
        if !self.flavor.wraps() {
            let sink = sink.or_else(|| plan.sink.take().map(SharedRegion::from));
            return Judgement::Verified(VerifiedReply { reply: Reply { sink, message }, is_bare: false });
        }
        if stat != AcceptStat::Success {
            // Arguments that were changed in transit also cause GARBAGE_ARGS.
            let error = ClientError::NotExecuted(stat);
            return match stat {
                AcceptStat::GarbageArgs => Judgement::Retry(error, sink),
                _ => Judgement::Failed(error, sink),
            };
        }
        if !message.payloads.is_empty() {
            return Judgement::Retry(
                ClientError::Security("a part of the wrapped results was placed".to_owned()),
                sink,
            );
        }
        let at = message.stream.len() - decoder.remaining();
        match answered.unwrap(message.stream.slice(at..)) {
            Ok(results) => {
                let sink = plan.sink.take().map(SharedRegion::from);
                Judgement::Verified(VerifiedReply { reply: Reply { message: results.into(), sink }, is_bare: true })
            }
            Err(Tampered) => {
                Judgement::Retry(ClientError::Security("the results could not be verified".to_owned()), sink)
            }
        }
    }
}

/// Maximum number of transmissions whose replies are recognised.
const SENT_MAX: usize = 8;
/// Maximum number of retries because the call or its reply was rejected.
const REFUSED_MAX: u32 = 3;
/// Maximum number of negotiations for a call: one for each transmission, and more if other calls destroy the context
/// meanwhile.
const REFRESHED_MAX: u32 = 8;
