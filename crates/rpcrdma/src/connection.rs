//! [`Connection`]: the state of RPC-over-RDMA on one connection, without I/O.
//!
//! Read RFC 8166 §3 first. The input is completions, time, the end of the connection, and commands. The output is
//! polled in this order until there is no more: work for the queue pair, then events, then the time of the next
//! timeout.
//!
//! Both sides can make and answer calls (RFC 8167). The [`Requester`] has the calls that this side makes, the
//! [`Responder`] those that it answers; they share the [`Link`]. This file decodes arriving messages (§4.5 for errors)
//! and passes each to one of them.
//!
//! The memory that a peer can occupy is bounded: its calls in progress by the credits granted to it, the bytes that are
//! read from its memory at once by an option, and those of all connections together. While it does not receive its
//! replies, its messages are not processed.
//!
//! Buffers: see [`crate`]. A receive's buffer becomes the message's memory, so no byte is copied. A new buffer takes
//! its place in the receive queue, unless that is shared and needs none. On error the caller gets ERR_VERS or
//! ERR_CHUNK. A message that is too short for a reply, or calls beyond the credits, close the connection: `Link::fail`
//! requests that, and [`handle_disconnect`](Connection::handle_disconnect) then fails each call and returns its sink.

use std::{collections::VecDeque, task::Context, time::Instant};

use buf::{Buffer, Pool};
use rdma::{Completion, CompletionKind, ReceiveSource, Status, WorkId, WorkRequest};
use rpc::{CallsMade, ReplyPlan, ReplyToken, TransportError};
use xdr::{Decoder, Message};

use crate::{
    CallId, Event, Registry, Settings, Work,
    call_memory::MemoryAccount,
    header::{Body, Header, HeaderError},
    link::{Deadline, Link, Name, shrink_idle},
    message::Direction,
    options::receives,
    requester::Requester,
    responder::{Refusal, Responder},
};

/// The protocol state of one connection.
pub struct Connection {
    link: Link,
    requester: Requester,
    responder: Responder,
    /// Messages that wait until the peer receives its replies. There are at most as many as there can be posted
    /// receives.
    unread: VecDeque<Buffer>,
}

impl Connection {
    /// Creates the state of a new connection. The initial receives must be posted before the peer sends, which it can
    /// do at any time.
    pub fn new(settings: Settings, pool: Pool) -> Self {
        Self {
            requester: Requester::new(&settings),
            responder: Responder::new(&settings, None),
            link: Link::new(settings, pool),
            unread: VecDeque::new(),
        }
    }

    /// Uses receives that the queue pair takes from `source` under the ID [`receive_id`](Self::receive_id). No receives
    /// are posted, and credits are granted as long as the source has buffers.
    pub fn with_receive_source(self, source: ReceiveSource) -> Self {
        Self { responder: Responder::new(&self.link.settings, Some(source)), ..self }
    }

    /// Limits the memory of calls by `memory`.
    pub(crate) fn with_call_memory(mut self, memory: MemoryAccount) -> Self {
        self.responder.set_memory(memory);
        self
    }

    /// Returns `true` if a call that waited for memory can proceed, so that there is work. Otherwise wakes the task
    /// when it can.
    pub(crate) fn poll_memory(&mut self, cx: &Context<'_>) -> bool {
        self.responder.poll_memory(cx)
    }

    /// Returns the work ID of completed receives.
    pub fn receive_id() -> WorkId {
        Name::Receive.into()
    }

    /// Returns the initial receives of a connection with these options and without a receive source.
    pub fn initial_receives(options: &crate::Options, pool: &Pool) -> Vec<(WorkId, Buffer)> {
        (0..receives(options)).map(|_| (Name::Receive.into(), pool.private().take(options.inline_recv))).collect()
    }

    /// Returns the settings agreed with the peer.
    pub fn settings(&self) -> &Settings {
        &self.link.settings
    }

    /// Handles the completion of a work request.
    pub fn handle_completion(&mut self, completion: Completion, now: Instant) {
        let name = Name::from(completion.id);
        let is_ok = completion.status == Status::Ok;
        let Self { link, requester, responder, unread } = self;
        match (name, completion.kind) {
            (Name::Receive, CompletionKind::Receive { buffer, invalidated, .. }) => {
                if let Some((stag, memory)) = invalidated
                    && !requester.handle_remote_invalidation(link, &buffer, stag, memory)
                {
                    responder.handle_remote_invalidation(stag);
                }
                if is_ok {
                    unread.push_back(buffer);
                    self.read_messages(now);
                    // More receives than this are not posted without a receive source.
                    if self.unread.len() > receives(&self.link.settings.options) {
                        self.link.fail_protocol(
                            "the peer sent more messages than its credits allow while it does not receive its replies",
                        );
                    }
                }
            }
            (Name::Call | Name::Write, CompletionKind::Send | CompletionKind::Write) => {}
            (Name::Reply, CompletionKind::Send) => {
                responder.handle_reply_sent(link, now);
                self.read_messages(now);
            }
            (Name::Read(key, part), CompletionKind::Read(buffer)) => {
                if is_ok
                    && link.is_up()
                    && let Err(refusal) = responder.handle_read(link, key, part, buffer, now)
                {
                    self.refuse(refusal);
                }
            }
            (Name::Invalidate(key, part), CompletionKind::Invalidate(memory)) => {
                requester.handle_invalidation(link, key, part, memory);
            }
            (Name::Fetch(key, part), CompletionKind::Read(buffer)) => {
                let is_ok = is_ok && link.is_up();
                requester.handle_fetched(link, key, part, buffer, is_ok, now);
            }
            (Name::InvalidateReply(key, part), CompletionKind::Invalidate(_)) => {
                responder.handle_reply_invalidated(key, part)
            }
            (name, kind) => unreachable!("completion of {name:?} as {kind:?}"),
        }
    }

    /// Handles the passing of time.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.poll_timeout() {
            if due > now || !self.link.is_up() {
                return;
            }
            self.link.deadline_passed(now);
        }
    }

    /// Handles the end of the queue pair, which has returned the buffers of all work requests.
    pub fn handle_disconnect(&mut self, reason: TransportError, registry: &mut dyn Registry) {
        let Some(error) = self.link.disconnected(reason) else { return };
        while let Some(work) = self.link.take_work() {
            if let Work::Post(request) = work {
                self.requester.take_back_fetch(request);
            }
        }
        self.unread.clear();
        self.responder.end(registry);
        self.requester.end(&mut self.link, &error, registry);
        self.link.report(Event::Closed(error));
    }

    /// Queues a call. [`Event::Reply`] with the same ID reports its outcome.
    pub fn call(&mut self, message: Message, plan: ReplyPlan) -> CallId {
        self.requester.call(&mut self.link, message, plan)
    }

    /// Cancels a call: there will be no event for it. If it was sent, its memory stays exposed and its credit in use
    /// until the reply arrives, because invalidating the memory during an RDMA Write would close the connection for all
    /// other calls.
    pub fn cancel(&mut self, id: CallId, now: Instant) {
        self.requester.cancel(&mut self.link, id, now);
    }

    /// Returns the number of calls that this side made.
    pub fn calls_made(&self) -> CallsMade {
        self.requester.calls_made()
    }

    /// Queues the reply to a call.
    ///
    /// # Errors
    /// There is no such call, or the reply does not fit in the memory that the caller offered. The caller gets an error
    /// from the transport.
    pub fn reply(&mut self, token: ReplyToken, message: Message) -> Result<(), TransportError> {
        self.responder.reply(&mut self.link, token, message)
    }

    /// Answers a call with ERR_CHUNK, because its reply cannot be created.
    ///
    /// # Errors
    /// There is no such call.
    pub fn refuse_call(&mut self, token: ReplyToken) -> Result<(), TransportError> {
        self.responder.refuse_call(&mut self.link, token)
    }

    /// Ends a call without a reply. Its caller can retransmit, or has cancelled it.
    pub fn forget(&mut self, token: &ReplyToken) {
        self.responder.forget(token);
    }

    /// Closes the connection after the work that is queued now, and after those of the queued calls for which there are credits.
    pub fn close(&mut self) {
        self.link.close(self.requester.sendable());
    }

    /// Returns the next work for the queue pair. `registry` registers the memory that a call exposes.
    pub fn poll_work(&mut self, registry: &mut dyn Registry) -> Option<Work> {
        while let Some(started) = self.responder.start_pull(&mut self.link, registry) {
            if let Err(refusal) = started {
                self.refuse(refusal);
            }
        }
        let Self { link, requester, responder, .. } = self;
        while !link.has_work()
            && (link.is_open() && responder.send_exposed_reply(link, registry)
                || requester.send_next_call(link, registry))
        {}
        link.take_last_work()
    }

    /// Returns work for which the queue pair had no room. The next poll returns it first.
    pub fn put_back(&mut self, request: WorkRequest) {
        self.link.put_back(request);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.link.take_event()
    }

    /// Frees memory that an idle connection does not need.
    pub fn shrink_idle(&mut self) {
        shrink_idle(&mut self.unread);
        self.link.shrink_idle();
        self.requester.shrink_idle();
        self.responder.shrink_idle();
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let Self { link, requester, responder, .. } = self;
        link.next_deadline(|deadline| match deadline {
            Deadline::Pull(key) => responder.is_pulling(key),
            Deadline::Abandoned(key) => requester.is_sent(key),
            Deadline::Fetch(key) => requester.is_fetching(key),
            Deadline::Done(key) => responder.awaits_done(key),
        })
    }

    fn read_messages(&mut self, now: Instant) {
        while self.link.is_up() && self.responder.can_receive(&self.link) {
            let Some(buffer) = self.unread.pop_front() else { return };
            self.handle_message(buffer, now);
        }
    }

    /// Handles an arriving message.
    fn handle_message(&mut self, buffer: Buffer, now: Instant) {
        if self.responder.posts_receives() {
            self.link.post_receive();
        }
        let message = Message::from(buffer.freeze());
        let mut decoder = Decoder::new(&message);
        let Header { xid, credits, body } = match Header::decode(&mut decoder) {
            Ok(header) => header,
            //= rfc8166-4.5-1
            Err(HeaderError::Short) => return self.link.fail_protocol(HeaderError::Short.to_string()),
            Err(error) => return self.refuse_header(&error),
        };
        let Self { link, requester, responder, .. } = self;
        let refusal = Refusal { xid, credits };
        let handled = match body {
            Body::Msg(lists) => {
                let stream = decoder.take_rest();
                //= rfc8166-4.2.1-1
                match Direction::of(&stream, xid) {
                    Some(Direction::Call) => responder.handle_call(link, xid, credits, lists, Some(stream), now),
                    Some(Direction::Reply) => {
                        requester.handle_reply(link, xid, credits, lists, Some(stream), now);
                        Ok(())
                    }
                    // RFC 8166 §4.5.2 requires an error if the XID in the header differs from that of the message.
                    None => return self.refuse_new(refusal),
                }
            }
            // The message of a call is in a read chunk. The message of a reply is in the reply chunk, or in a read
            // chunk if the requester fetches replies.
            Body::NoMsg(lists)
                if requester.is_outstanding(xid) && (lists.reads.is_empty() || link.settings.fetches_replies()) =>
            {
                requester.handle_reply(link, xid, credits, lists, None, now);
                Ok(())
            }
            Body::NoMsg(lists) if decoder.remaining() == 0 => {
                responder.handle_call(link, xid, credits, lists, None, now)
            }
            Body::NoMsg(_) => return self.refuse_new(refusal),
            Body::Done => {
                responder.handle_done(link, xid);
                Ok(())
            }
            Body::Error(error) => {
                requester.handle_error(link, xid, credits, error);
                Ok(())
            }
        };
        if let Err(refusal) = handled {
            self.refuse(refusal);
        }
    }

    /// Replies to a header that cannot be processed.
    fn refuse_header(&mut self, error: &HeaderError) {
        tracing::debug!(%error, "rejecting a message");
        match *error {
            HeaderError::Short => unreachable!("a short message has no XID for a reply"),
            //= rfc8166-4.5-7
            HeaderError::UnknownError(_) => {}
            HeaderError::Version { xid, version } => self.responder.refuse_version(&mut self.link, xid, version),
            HeaderError::Malformed { xid, .. } => self.refuse_new(Refusal { xid, credits: 0 }),
        }
    }

    /// Rejects a message that has not been counted as a call.
    fn refuse_new(&mut self, refusal: Refusal) {
        self.responder.count_refused();
        self.refuse(refusal);
    }

    /// Answers with ERR_CHUNK. Only a responder does that (RFC 8166 §4.5); a malformed reply to a call of this side
    /// closes the connection.
    fn refuse(&mut self, refusal: Refusal) {
        match self.requester.is_outstanding(refusal.xid) {
            //= rfc8166-4.2.4-2
            true => self.link.fail_protocol("the peer sent an invalid reply"),
            false => self.responder.refuse(&mut self.link, refusal),
        }
    }
}
