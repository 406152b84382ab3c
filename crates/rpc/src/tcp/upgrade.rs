//! The accepting side of STARTTLS: RFC 9289 §4.1.
//!
//! A probe is answered here, not by a service: nothing of the connection is executed between the probe and the end of the
//! handshake. Bytes that follow the probe before its answer was sent close the connection, because an attacker can have
//! inserted them.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use buf::{Piece, RecvStage, SendQueue};
use tokio::time::{Sleep, sleep};

use super::Stream;
use crate::{
    Host, TransportError, Xid,
    tls::{ConnectionTls, HalfOpen, Handshake, Progress, Required, ServerTls, Wire, denied, is_probe, starttls, wire},
};
use xdr::Message;

/// TLS of an accepted connection that is in clear.
pub(super) struct Upgrade {
    tls: Arc<ServerTls>,
    /// The client.
    peer: SocketAddr,
    /// `true` if an export admits the client's host.
    admitted: bool,
    /// `true` after the first record.
    begun: bool,
}

/// The decision about a call on a connection in clear.
pub(super) enum Judged {
    /// The call is executed, or rejected by its flavour.
    Deliver,
    /// The connection continues with the handshake.
    Start(Box<Handshaking>),
    /// This reply is sent, and the connection is closed.
    Refuse(Message),
}

/// A handshake with a client.
pub(super) struct Handshaking {
    tls: Arc<ServerTls>,
    handshake: Option<Handshake>,
    outgoing: SendQueue,
    /// Set when the handshake has failed. The alert is sent first.
    failed: Option<TransportError>,
    deadline: Pin<Box<Sleep>>,
    _counted: HalfOpen,
}

impl Upgrade {
    pub fn new(tls: Arc<ServerTls>, peer: SocketAddr, admitted: bool) -> Self {
        Self { tls, peer, admitted, begun: false }
    }

    /// Judges a call that arrived in clear, behind which `behind` bytes have arrived already.
    ///
    /// # Errors
    /// The connection must be closed.
    pub fn judge(&mut self, xid: Xid, call: &Message, behind: usize) -> Result<Judged, TransportError> {
        let first = !std::mem::replace(&mut self.begun, true);
        // A later probe, whose answer could be confused with those of other calls, is rejected by its flavour.
        if first && is_probe(call) {
            let started = self.start(xid, behind).inspect_err(|error| self.tls.log_failure(self.peer, error));
            return Ok(Judged::Start(Box::new(started?)));
        }
        Ok(match self.tls.required() {
            Required::None => Judged::Deliver,
            Required::Tls | Required::Mtls => Judged::Refuse(denied(xid)),
        })
    }

    fn start(&self, xid: Xid, behind: usize) -> Result<Handshaking, TransportError> {
        if behind > 0 {
            let problem = "bytes follow the TLS probe before its answer";
            return Err(TransportError::Protocol(problem.to_owned()));
        }
        let counted = self.tls.begin(Host::of(self.peer.ip()), self.admitted);
        let counted =
            counted.ok_or_else(|| TransportError::Lost("too many TLS handshakes are half open".to_owned()))?;
        let handshake = Handshake::server(self.tls.config()).map_err(|error| self.tls.lost(&error))?;
        let mut outgoing = SendQueue::new();
        outgoing.push(Piece::Memory(wire::record(&starttls(xid))));
        let deadline = Box::pin(sleep(HANDSHAKE_MAX));
        let tls = self.tls.clone();
        Ok(Handshaking { tls, handshake: Some(handshake), outgoing, failed: None, deadline, _counted: counted })
    }
}

impl Handshaking {
    /// Logs why the client got no session.
    pub fn log_failure(&self, peer: SocketAddr, error: &TransportError) {
        self.tls.log_failure(peer, error);
    }

    /// Returns the bytes of the client that are held.
    pub fn held(&self) -> usize {
        self.handshake.as_ref().map_or(0, Handshake::held)
    }

    /// Drives the handshake, and gives the stream its session.
    ///
    /// # Errors
    /// The handshake has failed or timed out, or the connection was lost.
    pub fn poll<S: Stream>(
        &mut self,
        wire: &mut Wire<S>,
        stage: &mut RecvStage,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ConnectionTls, TransportError>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(TransportError::Lost("the TLS handshake timed out".to_owned())));
        }
        loop {
            while !self.outgoing.is_empty() {
                ready!(wire.poll_write_ready(cx)).map_err(lost)?;
                match wire.try_send(&mut self.outgoing) {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(lost(error))),
                    _ => {}
                }
            }
            if let Some(error) = self.failed.take() {
                return Poll::Ready(Err(error));
            }
            ready!(wire.poll_read_ready(cx)).map_err(lost)?;
            match wire.try_receive(stage, &mut [], READ_BYTES) {
                Ok(received) if received.staged == 0 => {
                    let problem = "the peer closed the connection in the TLS handshake";
                    return Poll::Ready(Err(TransportError::Lost(problem.to_owned())));
                }
                Ok(_) => {
                    if let Some(tls) = self.advance(wire, stage)? {
                        return Poll::Ready(Ok(tls));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(lost(error))),
            }
        }
    }

    /// Processes the staged bytes. Returns the state of the connection when the handshake is complete.
    fn advance<S: Stream>(
        &mut self,
        wire: &mut Wire<S>,
        stage: &mut RecvStage,
    ) -> Result<Option<ConnectionTls>, TransportError> {
        let handshake = self.handshake.as_mut().expect("a completed handshake must not be driven");
        let progress = handshake.advance(stage.bytes());
        stage.consume(stage.bytes().len());
        match progress {
            Ok(Progress::Done) => {
                let done = self.handshake.take().expect("it was checked above").finish();
                let (session, tls) = done.map_err(|error| self.tls.lost(&error))?;
                wire.secure(session, self.tls.ktls());
                Ok(Some(tls))
            }
            Ok(Progress::More) => {
                self.outgoing.push(Piece::Memory(handshake.take_outgoing().into()));
                Ok(None)
            }
            Err(error) => {
                self.outgoing.push(Piece::Memory(handshake.take_outgoing().into()));
                self.failed = Some(self.tls.lost(&error));
                Ok(None)
            }
        }
    }
}

fn lost(error: io::Error) -> TransportError {
    TransportError::Lost(error.to_string())
}

/// Maximum time of a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 16 << 10;
