//! [`Session`]: the records of a TLS 1.3 connection after its handshake. RFC 8446 §5.
//!
//! Buffers: received bytes are in one block of the session. A record is decrypted in place there, and its data are then
//! copied to the destination that the record reader chose. Sent data are copied from the pieces of the queue into the
//! record, which is encrypted in place. An idle session holds only the bytes of an incomplete record.
//!
//! Each direction has its own key, which either side can replace (KeyUpdate). This side does so long before the cipher's
//! limit.
//!
//! If the system encrypts what is sent (kTLS), the pieces of the queue go to the socket as in clear. Linux before 6.14 cannot
//! replace a key, so such a session has one key for sending. It ends when the limit is near, or when the peer asks for
//! another key.
//!
//! After an error in what the peer sent, the session sends the fatal alert that names it and nothing else (RFC 8446 §6.2), and
//! decrypts nothing more.

use std::{cell::Cell, io, mem, ops::Range};

use buf::{Piece, Received, RecvStage, SendQueue, ktls::RecordKey};
use bytes::Bytes;
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets, InvalidMessage, PeerMisbehaved,
    ProtocolVersion, SupportedCipherSuite,
    crypto::cipher::{
        InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
        Tls13AeadAlgorithm,
    },
};

use super::{
    Ktls,
    error::describe,
    handshake::Keys,
    ktls::{self, record_key},
};
use crate::{record::STAGE_BYTES, tcp::Stream};

/// An encrypted connection.
pub(crate) struct Session {
    keys: Keys,
    sealer: Sealer,
    /// The key of the sealer, until it is decided who encrypts.
    first_key: Option<RecordKey>,
    /// The number of records that were encrypted with the present key. If the system encrypts, an upper bound in practice.
    sealed: u64,
    /// The number of records after which the key is replaced, or the session ends.
    update_after: u64,
    opener: Box<dyn MessageDecrypter>,
    /// The number of records that were decrypted with the present key.
    opened: u64,
    received: Block,
    /// The start of an incomplete message of the handshake layer.
    messages: Vec<u8>,
    /// KeyUpdates of the peer during its last [`UPDATES_SPAN`] bytes of data.
    updates: u32,
    /// The data of the peer since `updates` was zero, in bytes.
    since_update: usize,
    /// `true` if the peer has asked this side to replace its key.
    answer: bool,
    /// The records and tickets of the peer since its last data.
    without_data: u32,
    /// Encrypted records.
    outgoing: SendQueue,
    /// `true` if the peer sends no more data.
    ended: bool,
    /// `true` after the last alert of this side, which tells why the session ends.
    failed: bool,
}

/// The encryption of the records of this side.
enum Sealer {
    /// This session.
    Session(Box<dyn MessageEncrypter>),
    /// The system, whenever data are sent.
    System {
        /// The alert that waits to be sent.
        alert: Option<[u8; 2]>,
        /// The bytes that were sent.
        bytes: u64,
        /// The system calls that have sent them.
        sends: u64,
    },
}

impl Session {
    /// Creates a session. `incoming` are further bytes of the peer, `data` those that are already decrypted, and `outgoing`
    /// are bytes for the peer.
    pub fn new(
        ExtractedSecrets { tx, rx }: ExtractedSecrets,
        keys: Keys,
        incoming: &[u8],
        data: &[u8],
        outgoing: Vec<u8>,
    ) -> Result<Self, Error> {
        // The cipher requires the sequence numbers from zero on (RFC 8446 §5.3). The handshake sends no data and no tickets.
        if tx.0 != 0 {
            return Err(Error::General("the handshake has sent records after its end".to_owned()));
        }
        let suite = keys.suite();
        let limit = suite.tls13().map_or(0, |suite| suite.common.confidentiality_limit);
        let mut queue = SendQueue::new();
        queue.push(Piece::Memory(Bytes::from(outgoing)));
        Ok(Self {
            first_key: record_key(&tx.1),
            sealer: Sealer::Session(sealer(suite, tx.1)?),
            sealed: 0,
            update_after: limit / 2,
            opener: opener(suite, rx.1)?,
            opened: rx.0,
            keys,
            received: Block::new(data, incoming),
            messages: Vec::new(),
            updates: 0,
            since_update: 0,
            answer: false,
            without_data: 0,
            outgoing: queue,
            ended: false,
            failed: false,
        })
    }

    /// Decides who encrypts what is sent: the system if it can and `ktls` permits it, else this session.
    pub fn begin<S: Stream>(&mut self, socket: &S, ktls: Ktls) {
        let key = self.first_key.take();
        // The system would encrypt once more what is queued already: an alert after a handshake.
        let (Ktls::Auto, Some(key), true) = (ktls, key, self.outgoing.is_empty()) else { return };
        let begun = socket.encrypt_sent(&key);
        ktls::log(&begun);
        if begun.is_ok() {
            self.sealer = Sealer::System { alert: None, bytes: 0, sends: 0 };
        }
    }

    /// Returns `true` if the system encrypts what is sent.
    pub fn is_by_system(&self) -> bool {
        matches!(self.sealer, Sealer::System { .. })
    }

    /// Returns `true` if the limit of the cipher is near, and the key cannot be replaced.
    pub fn has_spent_key(&self) -> bool {
        self.is_by_system() && self.sealed >= self.update_after
    }

    /// Returns `true` if [`receive`](Self::receive) can return something without bytes from the socket.
    pub fn is_readable(&self) -> bool {
        // An invalid record is reported by `receive`.
        self.ended || !self.received.plain.is_empty() || !matches!(self.received.record(), Ok(None))
    }

    /// Returns the bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.outgoing.len()
    }

    /// Returns the received bytes that wait for the rest of their record.
    pub fn held(&self) -> usize {
        self.received.len() + self.messages.len()
    }

    /// Reduces the memory to the bytes that are held, because the next ones may take long to arrive.
    pub fn shrink_idle(&mut self) {
        self.received.shrink_idle();
        self.outgoing.shrink_idle();
    }

    /// Receives like [`Stream::try_receive`].
    ///
    /// # Errors
    /// `WouldBlock` if no data have arrived, an error of the socket, or the peer has violated TLS. In the last case the alert
    /// is queued, and the connection must be closed.
    pub fn receive<S: Stream>(
        &mut self,
        socket: &S,
        stage: &mut RecvStage,
        direct: &mut [u8],
        ahead: usize,
    ) -> io::Result<Received> {
        let (mut placed, mut staged) = (0, 0);
        // The stage does not grow, unless it would have no room at all.
        let ahead = ahead.min(STAGE_BYTES.saturating_sub(stage.bytes().len())).max(usize::from(direct.is_empty()));
        loop {
            placed += self.received.copy_to(&mut direct[placed..]);
            let now = self.received.plain(ahead - staged);
            stage.put(now);
            let now = now.len();
            self.received.plain.start += now;
            staged += now;
            if self.ended || (placed == direct.len() && staged == ahead) {
                break;
            }
            match self.open_next() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    if let (false, Some(alert)) = (self.failed, alert_of(&error)) {
                        self.fail(alert);
                    }
                    return Err(failed(&error));
                }
            }
            if placed + staged > 0 {
                break;
            }
            if self.received.fill(socket)? == 0 {
                self.ended = true;
            }
        }
        self.received.release_if_empty();
        Ok(Received { direct: placed, staged, short: false })
    }

    /// Encrypts and sends until the queue is empty.
    ///
    /// # Errors
    /// `WouldBlock` if the socket accepts no more bytes now, an error of the socket, or a piece that cannot be read.
    pub fn send<S: Stream>(&mut self, socket: &S, queue: &mut SendQueue) -> io::Result<()> {
        if self.is_by_system() {
            return self.send_by_system(socket, queue);
        }
        loop {
            if !self.outgoing.is_empty() {
                socket.try_send(&mut self.outgoing)?;
            }
            if queue.is_empty() {
                return Ok(());
            }
            while !queue.is_empty() && self.outgoing.len() < BATCH {
                let len = {
                    let front = queue.front(FRAGMENT_MAX)?;
                    self.seal(ContentType::ApplicationData, &front).map_err(|error| failed(&error))?;
                    front.iter().map(|piece| piece.len()).sum()
                };
                queue.consume(len);
            }
        }
    }

    /// Sends a queue that the system encrypts, and then the alert.
    fn send_by_system<S: Stream>(&mut self, socket: &S, queue: &mut SendQueue) -> io::Result<()> {
        let Sealer::System { alert, bytes, sends } = &mut self.sealer else { return Ok(()) };
        if !queue.is_empty() {
            let before = (queue.len(), queue.sends());
            let sent = socket.try_send(queue);
            *bytes += (before.0 - queue.len()) as u64;
            *sends += queue.sends() - before.1;
            // A record ends when it is full, and with each system call. (`sendfile` ends two at most: it reads the file by
            // parts of 64 KiB from a boundary of a page. That is within the distance to the limit.)
            self.sealed = *bytes / FRAGMENT_MAX as u64 + *sends;
            sent?;
        }
        if let Some(content) = alert {
            socket.send_record(u8::from(ContentType::Alert), content)?;
            *alert = None;
        }
        Ok(())
    }

    /// Queues the message that ends this side's data.
    pub fn queue_end(&mut self) {
        let close = [WARNING, u8::from(AlertDescription::CloseNotify)];
        match &mut self.sealer {
            Sealer::System { alert, .. } => *alert = Some(close),
            // Without it, the peer only sees the end of the stream.
            Sealer::Session(_) => drop(self.seal(ContentType::Alert, &[&close])),
        }
    }

    /// Queues the fatal alert after which this side sends nothing. RFC 8446 §6.2.
    pub fn fail(&mut self, alert: AlertDescription) {
        self.failed = true;
        let fatal = [FATAL, u8::from(alert)];
        match &mut self.sealer {
            Sealer::System { alert, .. } => *alert = Some(fatal),
            // Without it, the peer only sees that the connection is closed.
            Sealer::Session(_) => drop(self.seal_with_present_key(ContentType::Alert, &[&fatal])),
        }
    }

    /// Returns `true` after the last alert of this side. The connection must be closed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Encrypts a record, and queues it.
    fn seal(&mut self, typ: ContentType, payload: &[&[u8]]) -> Result<(), Error> {
        // RFC 8446 §4.6.3: the answer to a KeyUpdate is due before the next data. If it were queued at once, a peer that
        // does not read could make the queue grow without limit. One answer is enough for several requests.
        let answer = typ == ContentType::ApplicationData && mem::take(&mut self.answer);
        if answer || self.sealed >= self.update_after {
            self.update_sending(false)?;
        }
        self.seal_with_present_key(typ, payload)
    }

    fn seal_with_present_key(&mut self, typ: ContentType, payload: &[&[u8]]) -> Result<(), Error> {
        let payload = OutboundChunks::new(payload);
        let message = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_2, payload };
        let Sealer::Session(sealer) = &mut self.sealer else {
            return Err(Error::General("the system encrypts this session".to_owned()));
        };
        let record = sealer.encrypt(message, self.sealed)?.encode();
        self.sealed += 1;
        self.outgoing.push(Piece::Memory(Bytes::from(record)));
        Ok(())
    }

    /// Replaces the key of the sending direction. RFC 8446 §4.6.3.
    fn update_sending(&mut self, request: bool) -> Result<(), Error> {
        let message = [KEY_UPDATE, 0, 0, 1, u8::from(request)];
        self.seal_with_present_key(ContentType::Handshake, &[&message])?;
        let secrets = self.keys.next_sending()?;
        self.sealer = Sealer::Session(sealer(self.keys.suite(), secrets)?);
        self.sealed = 0;
        Ok(())
    }

    /// Decrypts the next record, if it has arrived. Returns `false` if it has not.
    fn open_next(&mut self) -> Result<bool, Error> {
        let Some(record) = self.received.record()? else { return Ok(false) };
        let end = record.end;
        let body = &mut self.received.memory[record.start..end];
        let message = InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, body);
        let message = self.opener.decrypt(message, self.opened)?;
        self.opened += 1;
        let (typ, payload) = (message.typ, message.payload);
        self.received.start = end;
        match typ {
            ContentType::ApplicationData => {
                let len = payload.len();
                self.received.plain = record.start..record.start + len;
                match len {
                    0 => self.count_without_data()?,
                    _ => self.without_data = 0,
                }
                self.since_update += len;
                if self.since_update >= UPDATES_SPAN {
                    (self.updates, self.since_update) = (0, 0);
                }
            }
            // RFC 8446 §5.1: a record of the handshake layer is never empty.
            ContentType::Handshake if payload.is_empty() => return Err(unexpected("an empty record")),
            ContentType::Handshake => {
                self.messages.extend_from_slice(payload);
                self.read_messages()?;
                self.count_without_data()?;
            }
            ContentType::Alert => match *payload {
                [_, alert] if AlertDescription::from(alert) == AlertDescription::CloseNotify => self.ended = true,
                [_, alert] => return Err(Error::AlertReceived(alert.into())),
                _ => return Err(Error::InvalidMessage(InvalidMessage::MissingData("alert"))),
            },
            _ => return Err(unexpected("a record of another type")),
        }
        Ok(true)
    }

    /// Counts a record or ticket that costs work and yields no data.
    fn count_without_data(&mut self) -> Result<(), Error> {
        self.without_data += 1;
        match self.without_data > WITHOUT_DATA_MAX {
            true => Err(Error::PeerMisbehaved(PeerMisbehaved::TooManyEmptyFragments)),
            false => Ok(()),
        }
    }

    /// Handles the messages of the handshake layer that have arrived completely.
    fn read_messages(&mut self) -> Result<(), Error> {
        while let [typ, high, middle, low, rest @ ..] = &self.messages[..] {
            let len = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
            if len > MESSAGE_MAX {
                return Err(Error::InvalidMessage(InvalidMessage::MessageTooLarge));
            }
            let Some(body) = rest.get(..len) else { return Ok(()) };
            match (*typ, body) {
                // RFC 8446 §5.1: a message before a change of keys ends its record.
                (KEY_UPDATE, [request @ (0 | 1)]) if rest.len() == len => {
                    let requested = *request == 1;
                    self.messages = Vec::new();
                    return self.update_receiving(requested);
                }
                // RFC 8446 §4.6.3: any other value is illegal.
                (KEY_UPDATE, [_]) if rest.len() == len => {
                    return Err(Error::InvalidMessage(InvalidMessage::InvalidKeyUpdate));
                }
                // There is no resumption, so tickets of other implementations are not used.
                (NEW_SESSION_TICKET, _) if matches!(self.keys, Keys::Client(_)) => {}
                _ => return Err(unexpected("a message of the handshake")),
            }
            self.messages.drain(..4 + len);
            self.count_without_data()?;
        }
        Ok(())
    }

    fn update_receiving(&mut self, requested: bool) -> Result<(), Error> {
        self.updates += 1;
        if self.updates > UPDATES_MAX {
            return Err(Error::PeerMisbehaved(PeerMisbehaved::TooManyKeyUpdateRequests));
        }
        let secrets = self.keys.next_receiving()?;
        self.opener = opener(self.keys.suite(), secrets)?;
        self.opened = 0;
        if requested && self.is_by_system() {
            // RFC 8446 §4.6.3: no data may follow before this side's own KeyUpdate.
            self.queue_end();
            self.failed = true;
            return Err(Error::General(NO_NEW_KEY.to_owned()));
        }
        self.answer |= requested;
        Ok(())
    }

    /// Queues a record with any content.
    #[cfg(test)]
    pub fn queue(&mut self, typ: ContentType, payload: &[u8]) {
        self.seal_with_present_key(typ, &[payload]).expect("a record must be encrypted");
    }

    /// Replaces the key after so many records.
    #[cfg(test)]
    pub fn update_after(&mut self, records: u64) {
        self.update_after = records;
    }

    /// Replaces the own key, and asks the peer to replace its key.
    #[cfg(test)]
    pub fn request_update(&mut self) {
        self.update_sending(true).expect("a key must be derived");
    }

    /// Returns the number of KeyUpdates of the peer during its last data.
    #[cfg(test)]
    pub fn updates(&self) -> u32 {
        self.updates
    }
}

/// The bytes from the socket. Those from `start` to `end` are encrypted; `plain` are decrypted and precede them.
struct Block {
    memory: Vec<u8>,
    plain: Range<usize>,
    start: usize,
    end: usize,
}

impl Block {
    fn new(data: &[u8], incoming: &[u8]) -> Self {
        let memory = [data, incoming].concat();
        Self { plain: 0..data.len(), start: data.len(), end: memory.len(), memory }
    }

    fn len(&self) -> usize {
        self.plain.len() + self.end - self.start
    }

    /// Returns at most `max` decrypted bytes.
    fn plain(&self, max: usize) -> &[u8] {
        let now = self.plain.len().min(max);
        &self.memory[self.plain.start..][..now]
    }

    /// Moves decrypted bytes to `into`. Returns their number.
    fn copy_to(&mut self, into: &mut [u8]) -> usize {
        let now = self.plain(into.len());
        into[..now.len()].copy_from_slice(now);
        let now = now.len();
        self.plain.start += now;
        now
    }

    /// Returns the range of the next record's body, if the record has arrived.
    fn record(&self) -> Result<Option<Range<usize>>, Error> {
        let encrypted = &self.memory[self.start..self.end];
        let Some(&[typ, _, _, high, low]) = encrypted.first_chunk() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if typ != u8::from(ContentType::ApplicationData) {
            return Err(unexpected("a record in clear"));
        }
        if len > BODY_MAX {
            return Err(Error::PeerSentOversizedRecord);
        }
        let start = self.start + HEADER;
        Ok((start + len <= self.end).then_some(start..start + len))
    }

    /// Reads once from the socket. Returns the number of bytes.
    fn fill<S: Stream>(&mut self, socket: &S) -> io::Result<usize> {
        debug_assert!(self.plain.is_empty(), "decrypted data must be consumed before more is received");
        if self.memory.len() < BLOCK {
            let mut memory = SPARE.take();
            memory.resize(BLOCK, 0);
            memory[..self.end - self.start].copy_from_slice(&self.memory[self.start..self.end]);
            self.memory = memory;
        } else {
            self.memory.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end, self.plain) = (0, self.end - self.start, 0..0);
        let mut stage = RecvStage::new(STAGE_BYTES);
        let received = socket.try_receive(&mut stage, &mut self.memory[self.end..], 0);
        if received.is_err() {
            self.release_if_empty();
        }
        let received = received?.direct;
        self.end += received;
        Ok(received)
    }

    /// Keeps only the bytes that are held.
    fn shrink_idle(&mut self) {
        if self.memory.len() >= BLOCK {
            let plain = self.plain.len();
            let held = [&self.memory[self.plain.clone()], &self.memory[self.start..self.end]].concat();
            let memory = mem::replace(&mut self.memory, held);
            (self.plain, self.start, self.end) = (0..plain, plain, self.memory.len());
            SPARE.set(memory);
        }
    }

    fn release_if_empty(&mut self) {
        if self.plain.is_empty() && self.start == self.end {
            self.shrink_idle();
        }
    }
}

fn algorithm(suite: SupportedCipherSuite) -> Result<&'static dyn Tls13AeadAlgorithm, Error> {
    suite.tls13().map(|suite| suite.aead_alg).ok_or(Error::HandshakeNotComplete)
}

fn sealer(suite: SupportedCipherSuite, secrets: ConnectionTrafficSecrets) -> Result<Box<dyn MessageEncrypter>, Error> {
    use ConnectionTrafficSecrets as Secrets;
    match secrets {
        Secrets::Aes128Gcm { key, iv } | Secrets::Aes256Gcm { key, iv } | Secrets::Chacha20Poly1305 { key, iv } => {
            Ok(algorithm(suite)?.encrypter(key, iv))
        }
        _ => Err(Error::General("the cipher is not known".to_owned())),
    }
}

fn opener(suite: SupportedCipherSuite, secrets: ConnectionTrafficSecrets) -> Result<Box<dyn MessageDecrypter>, Error> {
    use ConnectionTrafficSecrets as Secrets;
    match secrets {
        Secrets::Aes128Gcm { key, iv } | Secrets::Aes256Gcm { key, iv } | Secrets::Chacha20Poly1305 { key, iv } => {
            Ok(algorithm(suite)?.decrypter(key, iv))
        }
        _ => Err(Error::General("the cipher is not known".to_owned())),
    }
}

fn unexpected(what: &'static str) -> Error {
    Error::InvalidMessage(InvalidMessage::UnexpectedMessage(what))
}

/// Returns the alert that tells the peer about an error in its records. RFC 8446 §6.2. The peer's own alert has no answer.
fn alert_of(error: &Error) -> Option<AlertDescription> {
    Some(match error {
        Error::AlertReceived(_) => return None,
        Error::DecryptError => AlertDescription::BadRecordMac,
        Error::PeerSentOversizedRecord => AlertDescription::RecordOverflow,
        Error::InvalidMessage(InvalidMessage::UnexpectedMessage(_)) | Error::PeerMisbehaved(_) => {
            AlertDescription::UnexpectedMessage
        }
        Error::InvalidMessage(InvalidMessage::InvalidKeyUpdate) => AlertDescription::IllegalParameter,
        Error::InvalidMessage(_) => AlertDescription::DecodeError,
        _ => AlertDescription::InternalError,
    })
}

fn failed(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, describe(error))
}

thread_local! {
    /// A block that no session of this thread uses.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Maximum bytes that are received at once. A larger block does not stay in the cache until it is decrypted.
const BLOCK: usize = 128 << 10;
/// The number of encrypted bytes from which no more are encrypted before some are sent.
const BATCH: usize = 128 << 10;
const HEADER: usize = 5;
/// RFC 8446 §5.1: maximum data of a record.
const FRAGMENT_MAX: usize = 1 << 14;
/// RFC 8446 §5.2: maximum body of an encrypted record.
const BODY_MAX: usize = FRAGMENT_MAX + 256;
/// Maximum bytes of a message of the handshake layer.
const MESSAGE_MAX: usize = 16 << 10;
/// Maximum KeyUpdates of a peer during [`UPDATES_SPAN`] bytes of its data.
const UPDATES_MAX: u32 = 32;
const UPDATES_SPAN: usize = 1 << 20;
/// Maximum records and tickets of a peer without data between them.
const WITHOUT_DATA_MAX: u32 = 32;
const NO_NEW_KEY: &str = "the peer asks for a new key, which the kernel cannot use (ktls=off permits it)";
const WARNING: u8 = 1;
const FATAL: u8 = 2;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
