//! [`Wire`]: a stream that is in clear until it has a TLS session.

use std::{
    future::poll_fn,
    io,
    net::{Shutdown, SocketAddr},
    task::{Context, Poll, ready},
};

use buf::{Piece, Received, RecvStage, SendQueue};
use bytes::Bytes;
use xdr::{Decode, Decoder, Message};

use super::{ClientTls, Handshake, Ktls, Progress, Unmet, probe, session::Session};
use crate::{
    ReplyBody, ReplyHeader, Xid,
    record::{LAST_FRAGMENT, STAGE_BYTES},
    tcp::Stream,
};

/// A stream socket, with its TLS session if it has one.
pub(crate) struct Wire<S> {
    socket: S,
    session: Option<Box<Session>>,
    /// `true` while sending is shut down as soon as the socket has room for the last alert.
    ending: bool,
}

impl<S: Stream> Wire<S> {
    /// Creates a stream in clear.
    pub fn clear(socket: S) -> Self {
        Self { socket, session: None, ending: false }
    }

    /// Creates a stream as a client: in clear without `tls`, else with a session that both sides have confirmed.
    ///
    /// # Errors
    /// The connection was lost, the server does not support TLS, or one side has refused the other's certificate.
    pub async fn connect(socket: S, tls: Option<&ClientTls>) -> io::Result<Self> {
        let mut wire = Self::clear(socket);
        if let Some(tls) = tls {
            wire.start_tls(tls).await?;
        }
        Ok(wire)
    }

    /// Sends all further data over `session`, which leaves the encryption to the system if it can and `ktls` permits it.
    pub fn secure(&mut self, mut session: Session, ktls: Ktls) {
        session.begin(&self.socket, ktls);
        self.session = Some(Box::new(session));
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Returns `true` if the system may pace what the socket sends.
    pub fn is_paced(&self) -> bool {
        self.socket.is_paced()
    }

    /// Returns `true` if the stream is in clear.
    pub fn is_clear(&self) -> bool {
        self.session.is_none()
    }

    /// Waits until [`try_receive`](Self::try_receive) may return something.
    #[inline]
    pub fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.session {
            Some(session) if session.is_readable() => Poll::Ready(Ok(())),
            _ => self.socket.poll_read_ready(cx),
        }
    }

    /// Waits until the socket is writable.
    #[inline]
    pub fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_write_ready(cx)
    }

    /// Receives once, like [`Stream::try_receive`].
    #[inline]
    pub fn try_receive(&mut self, stage: &mut RecvStage, direct: &mut [u8], ahead: usize) -> io::Result<Received> {
        match &mut self.session {
            None => self.socket.try_receive(stage, direct, ahead),
            Some(session) => session.receive(&self.socket, stage, direct, ahead),
        }
    }

    /// Sends until the queue is empty, like [`Stream::try_send`].
    #[inline]
    pub fn try_send(&mut self, queue: &mut SendQueue) -> io::Result<()> {
        match &mut self.session {
            None => self.socket.try_send(queue),
            Some(session) => session.send(&self.socket, queue),
        }
    }

    /// Returns the encrypted bytes that wait to be sent.
    #[inline]
    pub fn unsent(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.unsent())
    }

    /// Returns the received bytes that cannot be decrypted yet.
    #[inline]
    pub fn held(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.held())
    }

    /// Frees the memory that holds no bytes.
    #[inline]
    pub fn shrink_idle(&mut self) {
        if let Some(session) = &mut self.session {
            session.shrink_idle();
        }
    }

    /// Returns `true` if this side needs another key for sending, and the system cannot replace the one that it has. The
    /// connection should be closed soon.
    #[inline]
    pub fn has_spent_key(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.has_spent_key())
    }

    /// Returns `true` if the last alert of this side is queued, because the peer has violated TLS or has asked for another
    /// key that the system cannot use. The connection must be closed.
    pub fn has_failed(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.has_failed())
    }

    /// Receives and discards, until the peer has shut down sending or the connection is lost. Nothing is decrypted.
    pub fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.ending && self.socket.poll_write_ready(cx).is_ready() {
            self.end();
        }
        let mut stage = RecvStage::new(STAGE_BYTES);
        while ready!(self.socket.poll_read_ready(cx)).is_ok() {
            match self.socket.try_receive(&mut stage, &mut [], STAGE_BYTES) {
                Ok(received) if received.staged > 0 => stage.consume(received.staged),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => break,
            }
        }
        Poll::Ready(())
    }

    /// Shuts the socket down. Before sending ends, the peer is told in the session.
    pub fn shutdown(&mut self, how: Shutdown) {
        if let (Shutdown::Write, Some(session)) = (how, &mut self.session) {
            if !session.has_failed() {
                session.queue_end();
            }
            return self.end();
        }
        self.socket.shutdown(how);
    }

    /// Returns `true` if sending is not shut down yet, because the socket has no room for the last alert.
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Sends what the session has queued, and shuts down sending.
    fn end(&mut self) {
        let Some(session) = &mut self.session else { return };
        let sent = session.send(&self.socket, &mut SendQueue::new());
        // The system can still hold a part of a record, which would be lost. Sending ends when there is room for the alert.
        let blocked = sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        self.ending = blocked && session.is_by_system();
        if !self.ending {
            self.socket.shutdown(Shutdown::Write);
        }
    }

    /// Returns the session.
    #[cfg(test)]
    pub fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("the stream must have a session")
    }

    async fn start_tls(&mut self, tls: &ClientTls) -> io::Result<()> {
        let xid = Xid(entropy::random());
        self.send_all(record(&probe::probe(xid, tls.program()))).await?;
        // RFC 9289 §4.1: the client waits for the answer before it begins the handshake.
        match self.reply(xid).await? {
            body if probe::starts_tls(&body) => {}
            ReplyBody::Denied(why) => return Err(other(format!("the server does not support RPC with TLS: {why}"))),
            ReplyBody::Accepted { .. } => return Err(other("the server does not support RPC with TLS".to_owned())),
        }
        let (config, demands) = tls.for_connection();
        let failed = |error: rustls::Error| other(tls.describe(&error));
        let mut handshake = Handshake::client(config, tls.name().clone(), demands).map_err(failed)?;
        let mut stage = RecvStage::new(STAGE_BYTES);
        let mut progress = handshake.advance(&[]);
        loop {
            // The messages, or the alert after an error.
            let sent = self.send_all(handshake.take_outgoing().into()).await;
            match progress.map_err(failed)? {
                Progress::Done => break,
                Progress::More => sent?,
            }
            if self.receive(&mut stage).await? == 0 {
                return Err(other("the server closed the connection in the TLS handshake".to_owned()));
            }
            progress = handshake.advance(stage.bytes());
            stage.consume(stage.bytes().len());
        }
        let unmet = handshake.check_demands().err();
        let (mut session, _) = handshake.finish().map_err(failed)?;
        if let Some(Unmet { alert, .. }) = unmet {
            session.fail(alert);
        }
        self.secure(session, tls.ktls());
        let confirmed = match unmet {
            Some(Unmet { error, .. }) => Err(failed(error)),
            None => self.confirm(tls).await,
        };
        if self.has_failed() {
            // The alert.
            self.shutdown(Shutdown::Write);
        }
        confirmed
    }

    /// Makes one call in the session. In TLS 1.3, a server judges the client's certificate after the client has completed
    /// the handshake, so only an answer shows that it has accepted the client.
    async fn confirm(&mut self, tls: &ClientTls) -> io::Result<()> {
        let xid = Xid(entropy::random());
        self.send_all(record(&probe::null(xid, tls.program()))).await?;
        self.reply(xid).await.map(drop)
    }

    /// Receives the reply to the only outstanding call.
    pub(super) async fn reply(&mut self, xid: Xid) -> io::Result<ReplyBody> {
        let mut stage = RecvStage::new(STAGE_BYTES);
        loop {
            if let Some(mark) = stage.bytes().first_chunk() {
                let mark = u32::from_be_bytes(*mark);
                let len = (mark & !LAST_FRAGMENT) as usize;
                if mark & LAST_FRAGMENT == 0 || len + 4 > REPLY_MAX {
                    return Err(other("the reply to the TLS probe is not one short record".to_owned()));
                }
                if let Some(reply) = stage.bytes().get(4..4 + len) {
                    if stage.bytes().len() > 4 + len {
                        return Err(other("bytes follow the reply to the TLS probe".to_owned()));
                    }
                    let message = Message::from(Bytes::copy_from_slice(reply));
                    let header = ReplyHeader::decode(&mut Decoder::new(&message));
                    return match header {
                        Ok(header) if header.xid == xid => Ok(header.body),
                        _ => Err(other("the reply to the TLS probe is malformed".to_owned())),
                    };
                }
            }
            if self.receive(&mut stage).await? == 0 {
                return Err(other("the server closed the connection before TLS was confirmed".to_owned()));
            }
        }
    }

    /// Receives bytes into the stage. Returns their number, which is zero at the end of the stream.
    pub(super) async fn receive(&mut self, stage: &mut RecvStage) -> io::Result<usize> {
        loop {
            poll_fn(|cx| self.poll_read_ready(cx)).await?;
            let ahead = READ_BYTES.min(REPLY_MAX - stage.bytes().len().min(REPLY_MAX - 1));
            match self.try_receive(stage, &mut [], ahead) {
                Ok(received) => return Ok(received.staged),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) async fn send_all(&mut self, bytes: Bytes) -> io::Result<()> {
        let mut queue = SendQueue::new();
        queue.push(Piece::Memory(bytes));
        while !queue.is_empty() || self.unsent() > 0 {
            poll_fn(|cx| self.poll_write_ready(cx)).await?;
            match self.try_send(&mut queue) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns a short message as a record of one fragment.
pub(crate) fn record(message: &Message) -> Bytes {
    let mark = LAST_FRAGMENT | message.stream.len() as u32;
    [&mark.to_be_bytes(), &message.stream[..]].concat().into()
}

fn other(problem: String) -> io::Error {
    io::Error::other(problem)
}

const REPLY_MAX: usize = 1024;
const READ_BYTES: usize = 16 << 10;
