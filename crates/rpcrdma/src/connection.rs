//! [`Connection`]: RPC-over-RDMA on one connection, without I/O.
//!
//! Read RFC 8166 §3 first. In: completions, time, the end of the connection, and commands. Out, until each has
//! no more: work for the queue pair, then events, then the time at which to be called.
//!
//! Both sides can call and answer (RFC 8167). The [`Requester`] has the calls that we make, the [`Responder`] those that we
//! answer; they share the [`Link`]. This file decodes arriving messages (§4.5 for errors) and hands each to one of them.
//!
//! What a peer can make us hold is bounded: its calls in progress by the credits it was granted, the bytes read from its
//! memory at once by an option, and that of all connections together. While it does not take its replies, its messages are left unread.
//!
//! Buffers: see [`crate`]. A receive's buffer becomes the message's memory: no byte is copied, and a fresh buffer takes its
//! place in the receive queue, unless that is shared and needs none. On error the caller hears ERR_VERS or ERR_CHUNK; a
//! message too short to answer, or calls beyond the credits, end the connection: `Link::fail` asks for that, and
//! [`handle_disconnect`](Connection::handle_disconnect) then ends every call and gives its sink back.

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

/// The protocol's state on one connection.
pub struct Connection {
    link: Link,
    requester: Requester,
    responder: Responder,
    /// Messages that wait until the peer takes its replies; no more than there can be receives posted.
    unread: VecDeque<Buffer>,
}

impl Connection {
    /// A connection just made, and the receives to post before the peer can send (the peer may already do so).
    pub fn new(settings: Settings, pool: Pool) -> Self {
        Self {
            requester: Requester::new(&settings),
            responder: Responder::new(&settings, None),
            link: Link::new(settings, pool),
            unread: VecDeque::new(),
        }
    }

    /// The same with receives that the queue pair takes from `source` under the name of [`receive_id`](Self::receive_id):
    /// none are posted, and credits are granted as far as the source has buffers.
    pub fn with_receive_source(self, source: ReceiveSource) -> Self {
        Self { responder: Responder::new(&self.link.settings, Some(source)), ..self }
    }

    /// The same with the memory for calls that have RDMA Read bounded by `memory`.
    pub(crate) fn with_call_memory(mut self, memory: MemoryAccount) -> Self {
        self.responder.set_memory(memory);
        self
    }

    /// Whether a call that waited for memory can go on, and there is work; otherwise the task is woken for that.
    pub(crate) fn poll_memory(&mut self, cx: &Context<'_>) -> bool {
        self.responder.poll_memory(cx)
    }

    /// The id that completed receives have.
    pub fn receive_id() -> WorkId {
        Name::Receive.into()
    }

    /// The receives that a connection with these options, and no source of them, starts with.
    pub fn initial_receives(options: &crate::Options, pool: &Pool) -> Vec<(WorkId, Buffer)> {
        (0..receives(options)).map(|_| (Name::Receive.into(), pool.private().take(options.inline_recv))).collect()
    }

    /// What was agreed with the peer.
    pub fn settings(&self) -> &Settings {
        &self.link.settings
    }

    /// A work request has ended.
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
                    // Where receives are posted there are no more of them.
                    if self.unread.len() > receives(&self.link.settings.options) {
                        self.link.fail_protocol("more messages than it has credits for, and its replies not taken");
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
            (Name::Withdraw(key, part), CompletionKind::Invalidate(_)) => responder.handle_withdrawn(key, part),
            (name, kind) => unreachable!("completion of {name:?} as {kind:?}"),
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.poll_timeout() {
            if due > now || !self.link.is_up() {
                return;
            }
            self.link.deadline_passed(now);
        }
    }

    /// The queue pair has ended, for this reason, and has given back the buffers of every work request.
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

    /// Queues a call. [`Event::Reply`] of the same id tells its end.
    pub fn call(&mut self, message: Message, plan: ReplyPlan) -> CallId {
        self.requester.call(&mut self.link, message, plan)
    }

    /// Nobody waits for this call any more: there will be no event. If it was sent, its memory and its credit stay
    /// out until the reply comes, because taking the memory from under an RDMA Write would end the connection
    /// for all other calls.
    pub fn cancel(&mut self, id: CallId, now: Instant) {
        self.requester.cancel(&mut self.link, id, now);
    }

    /// The calls that were made here.
    pub fn calls_made(&self) -> CallsMade {
        self.requester.calls_made()
    }

    /// Queues the reply to a call.
    ///
    /// # Errors
    /// There is no such call, or the reply does not fit what the caller offered; the caller has been told.
    pub fn reply(&mut self, token: ReplyToken, message: Message) -> Result<(), TransportError> {
        self.responder.reply(&mut self.link, token, message)
    }

    /// Answers a call with ERR_CHUNK, because its reply cannot be made.
    ///
    /// # Errors
    /// There is no such call.
    pub fn refuse_call(&mut self, token: ReplyToken) -> Result<(), TransportError> {
        self.responder.refuse_call(&mut self.link, token)
    }

    /// Ends a call that is not answered: its caller may call again, or have given up.
    pub fn forget(&mut self, token: &ReplyToken) {
        self.responder.forget(token);
    }

    /// Ends the connection when the work queued so far is done.
    pub fn close(&mut self) {
        self.link.close();
    }

    /// The next thing for the queue pair. `registry` registers what a call exposes.
    pub fn poll_work(&mut self, registry: &mut dyn Registry) -> Option<Work> {
        while let Some(started) = self.responder.start_pull(&mut self.link, registry) {
            if let Err(refusal) = started {
                self.refuse(refusal);
            }
        }
        let Self { link, requester, responder, .. } = self;
        while !link.has_work()
            && link.is_open()
            && (responder.send_exposed_reply(link, registry) || requester.send_next_call(link, registry))
        {}
        link.take_work()
    }

    /// Puts work back that the queue pair had no room for. It comes first the next time.
    pub fn put_back(&mut self, request: WorkRequest) {
        self.link.put_back(request);
    }

    /// The next thing that has happened.
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

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let Self { link, requester, responder, .. } = self;
        link.next_deadline(|deadline| match deadline {
            Deadline::Pull(key) => responder.is_pulling(key),
            Deadline::Abandoned(key) => requester.is_sent(key),
            Deadline::Fetch(key) => requester.is_fetching(key),
            Deadline::Done(key) => responder.is_undone(key),
        })
    }

    fn read_messages(&mut self, now: Instant) {
        while self.link.is_up() && self.responder.may_receive(&self.link) {
            let Some(buffer) = self.unread.pop_front() else { return };
            self.handle_message(buffer, now);
        }
    }

    /// A message has arrived.
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
                    // RFC 8166 §4.5.2: an XID in the header that is not the message's is such an error.
                    None => return self.refuse_new(refusal),
                }
            }
            // The message of a call is in a read chunk. The message of a reply is in the reply chunk, or in a read chunk
            // where the requester reads replies.
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

    /// Answers a header that cannot be used.
    fn refuse_header(&mut self, error: &HeaderError) {
        tracing::debug!(%error, "refusing a message");
        match *error {
            HeaderError::Short => unreachable!("it has no XID to answer with"),
            //= rfc8166-4.5-7
            HeaderError::UnknownError(_) => {}
            HeaderError::Version { xid, version } => self.responder.refuse_version(&mut self.link, xid, version),
            HeaderError::Malformed { xid, .. } => self.refuse_new(Refusal { xid, credits: 0 }),
        }
    }

    /// Refuses what was not yet counted as a call.
    fn refuse_new(&mut self, refusal: Refusal) {
        self.responder.count_refused();
        self.refuse(refusal);
    }

    /// Answers ERR_CHUNK. Only a responder does (RFC 8166 §4.5): a malformed answer to a call of ours ends the connection.
    fn refuse(&mut self, refusal: Refusal) {
        match self.requester.is_outstanding(refusal.xid) {
            //= rfc8166-4.2.4-2
            true => self.link.fail_protocol("a reply that makes no sense"),
            false => self.responder.refuse(&mut self.link, refusal),
        }
    }
}
