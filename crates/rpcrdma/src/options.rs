//! [`Options`], which a user sets, and [`Settings`], which result from negotiation with the peer.

use std::time::Duration;

use rdma::registration::RegistrationOptions;
use rpc::{OptionError, OptionReader, RawOptions};

use crate::private_data::{INLINE_MAX, PrivateData};

/// The side that moves the data of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Design {
    /// The responder writes the data to memory that the requester offers (RFC 8166). Only requesters expose memory.
    #[default]
    ReadWrite,
    /// The responder exposes the data, and the requester reads them and then sends RDMA_DONE. This is the original
    /// design, which RFC 8166 §4.6.2 withdraws. For comparison only; see [`Options::allow_read_read`].
    ReadRead,
}

/// The options of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Maximum bytes of a Send by this side, if the peer can receive as much; a multiple of 1024.
    pub inline_send: usize,
    /// Size in bytes of each receive buffer; a multiple of 1024.
    pub inline_recv: usize,
    /// The method of registering memory with the provider, if the provider has several.
    pub registration: RegistrationOptions,
    /// The design. A connecting side that requests [`Design::ReadRead`] gets it or no connection. An accepting side
    /// that has it offers it to peers that request it.
    pub design: Design,
    /// Permits [`Design::ReadRead`] on the accepting side. Its memory is then advertised to peers, and a peer that does
    /// not send RDMA_DONE keeps that memory in use until `peer_timeout`.
    pub allow_read_read: bool,
    /// Maximum number of outstanding calls from the connecting to the accepting side: the former requests them, the
    /// latter grants them.
    pub credits: u32,
    /// Maximum number of outstanding calls in the other direction (RFC 8167); zero for none.
    pub callback_credits: u32,
    /// The number of bytes from which a call's payload travels as a read chunk even if it fits inline.
    pub min_chunk: usize,
    /// Maximum bytes of an RPC message.
    pub message_max: usize,
    /// Maximum bytes of calls that are read from the peer's memory at once. Further calls wait.
    pub pull_max: usize,
    /// Bytes of receive buffers that the accepted connections of one listener share. Credits are granted as long as
    /// there are buffers. Beyond that, each connection has a few guaranteed buffers.
    pub recv_memory: usize,
    /// Maximum bytes that the calls of all accepted connections of one listener hold: the data read from their peers'
    /// memory until they are answered, and their replies until these are sent. Further calls wait. One host, or one
    /// user of this host, gets at most half of it.
    pub call_memory: usize,
    /// Maximum bytes of replies that the peer can read from this side's memory at once ([`Design::ReadRead`]). Further
    /// replies wait.
    pub exposed_max: usize,
    /// The timeout of the peer for an RDMA Read, for RDMA_DONE, and for the reply to a cancelled call.
    pub peer_timeout: Duration,
    /// The timeout of setting up a connection.
    pub connect_timeout: Duration,
    /// Permits the peer to invalidate this side's memory with its reply (RFC 8797 flag R).
    pub remote_invalidation: bool,
    /// The time without calls after which a connection is closed. It is reopened when it is needed. The accepting side
    /// waits a fifth longer. `None`: never closed.
    pub idle: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            inline_send: 4096,
            inline_recv: 4096,
            registration: RegistrationOptions::default(),
            design: Design::ReadWrite,
            allow_read_read: false,
            credits: 128,
            callback_credits: 8,
            min_chunk: 4096,
            message_max: (1 << 20) + (64 << 10),
            pull_max: 32 << 20,
            recv_memory: 64 << 20,
            call_memory: 256 << 20,
            exposed_max: 32 << 20,
            peer_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            remote_invalidation: true,
            idle: Some(Duration::from_secs(300)),
        }
    }
}

impl Options {
    /// Parses options that replace some of these: `inline_send`, `inline_recv`, `min_chunk`, `message_max`, `pull_max`,
    /// `recv_memory`, `call_memory` and `exposed_max` in bytes, `credits`, `callback_credits`, `peer_timeout`,
    /// `connect_timeout`, `idle=TIME|off`, `remote_invalidation=on|off`, `design=read-write|read-read`,
    /// `allow_read_read=on|off`, `registration=per-io|fast|cache|pool`, and `cache_bytes` and `cache_entries` of the
    /// registration cache.
    ///
    /// # Errors
    /// An option is unknown or out of range.
    pub fn with(&self, raw: &RawOptions) -> Result<Self, OptionError> {
        let mut reader = OptionReader::new(crate::NAME, raw);
        let mut options = self.clone();
        for (name, size) in [("inline_send", &mut options.inline_send), ("inline_recv", &mut options.inline_recv)] {
            if let Some(bytes) = reader.bytes(name, 1024..=INLINE_MAX)? {
                if !bytes.is_multiple_of(1024) {
                    // RFC 8797 §4.2: sizes are sent in units of 1024 bytes.
                    return Err(reader.error(name, format!("{bytes} is not a multiple of 1024")));
                }
                *size = bytes;
            }
        }
        if let Some(way) = reader.text("registration").map(str::parse) {
            options.registration.way = Some(way.map_err(|problem| reader.error("registration", problem))?);
        }
        let bounds = &mut options.registration.cache;
        bounds.bytes = reader.bytes("cache_bytes", 1 << 16..=1 << 50)?.map_or(bounds.bytes, |bytes| bytes as u64);
        let entries = reader.number("cache_entries", 1..=1 << 20)?;
        bounds.entries = entries.map_or(bounds.entries, |entries| entries as usize);
        options.design = match reader.text("design") {
            None => self.design,
            Some("read-write") => Design::ReadWrite,
            Some("read-read") => Design::ReadRead,
            Some(other) => return Err(reader.error("design", format!("'{other}' is neither read-write nor read-read"))),
        };
        options.allow_read_read = reader.switch("allow_read_read")?.unwrap_or(self.allow_read_read);
        let credits = |value: u64| value as u32;
        options.credits = reader.number("credits", 1..=CREDITS_MAX)?.map_or(self.credits, credits);
        options.callback_credits =
            reader.number("callback_credits", 0..=CREDITS_MAX)?.map_or(self.callback_credits, credits);
        options.min_chunk = reader.bytes("min_chunk", 1..=1 << 30)?.unwrap_or(self.min_chunk);
        options.message_max = reader.bytes("message_max", 4096..=1 << 30)?.unwrap_or(self.message_max);
        options.pull_max = reader.bytes("pull_max", 1 << 20..=1 << 40)?.unwrap_or(self.pull_max);
        options.recv_memory = reader.bytes("recv_memory", INLINE_MAX..=1 << 40)?.unwrap_or(self.recv_memory);
        options.call_memory = reader.bytes("call_memory", 4 << 20..=1 << 40)?.unwrap_or(self.call_memory);
        options.exposed_max = reader.bytes("exposed_max", 1 << 20..=1 << 40)?.unwrap_or(self.exposed_max);
        options.peer_timeout = reader.duration("peer_timeout")?.unwrap_or(self.peer_timeout);
        options.connect_timeout = reader.duration("connect_timeout")?.unwrap_or(self.connect_timeout);
        options.idle = reader.duration_or_off("idle")?.unwrap_or(self.idle);
        options.remote_invalidation = reader.switch("remote_invalidation")?.unwrap_or(self.remote_invalidation);
        reader.finish()?;
        Ok(options)
    }

    /// Returns the options for a host that is not admitted: few calls, and no long ones.
    pub(crate) fn for_unadmitted_host(&self) -> Self {
        Self {
            credits: self.credits.min(UNADMITTED_CREDITS),
            callback_credits: 0,
            message_max: self.message_max.min(UNADMITTED_MESSAGE_MAX),
            pull_max: self.pull_max.min(UNADMITTED_MESSAGE_MAX),
            ..self.clone()
        }
    }

    /// Returns the design of a connection to a peer with this private data.
    pub fn agreed_design(&self, peer: &PrivateData) -> Design {
        if peer.read_read { self.design } else { Design::ReadWrite }
    }

    /// Returns the private data for the peer.
    pub fn private_data(&self) -> PrivateData {
        PrivateData {
            remote_invalidation: self.remote_invalidation,
            send_size: self.inline_send,
            recv_size: self.inline_recv,
            read_read: self.design == Design::ReadRead,
        }
    }
}

/// The side of the connection. Only the connecting side exposes memory, except in [`Design::ReadRead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connected: an RPC client, which can answer callbacks.
    Connecting,
    /// The side that accepted: an RPC server, which can make callbacks.
    Accepting,
}

/// The settings that both sides have agreed on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The role of this side.
    pub role: Role,
    /// The options of this side.
    pub options: Options,
    /// The design: [`Design::ReadRead`] only if both sides request it.
    pub design: Design,
    /// Maximum bytes of a Send from this side to the peer.
    pub send_max: usize,
    /// Maximum bytes of a Send from the peer to this side.
    pub recv_max: usize,
    /// `true` if replies of this side can invalidate the caller's memory.
    pub invalidate_peer: bool,
}

impl Settings {
    /// Combines `options` with the private data that the peer sent.
    pub fn negotiate(role: Role, options: Options, peer: Option<PrivateData>) -> Self {
        //= rfc8797-5.1-1
        let peer = peer.unwrap_or_default();
        Self {
            role,
            design: options.agreed_design(&peer),
            send_max: options.inline_send.min(peer.recv_size),
            recv_max: options.inline_recv.min(peer.send_size),
            // RFC 8797 §4.1: a responder can invalidate if both sides have set the flag.
            //= rfc8797-4.1-2
            invalidate_peer: options.remote_invalidation && peer.remote_invalidation,
            options,
        }
    }

    /// Returns `true` if the peer reads this side's replies from its memory.
    pub(crate) fn exposes_replies(&self) -> bool {
        self.design == Design::ReadRead && self.role == Role::Accepting
    }

    /// Returns `true` if this side reads replies from the peer's memory.
    pub(crate) fn fetches_replies(&self) -> bool {
        self.design == Design::ReadRead && self.role == Role::Connecting
    }

    /// Returns the maximum number of the peer's calls in progress.
    pub fn inbound_credits(&self) -> u32 {
        inbound_credits(self.role, &self.options)
    }

    /// Returns the maximum number of outstanding calls of this side.
    pub fn outbound_credits(&self) -> u32 {
        match self.role {
            Role::Connecting => self.options.credits,
            Role::Accepting => self.options.callback_credits,
        }
    }
}

/// Returns the number of receives to keep posted: one for each call of either direction (RFC 8167 §4.3), and a few for
/// errors.
pub fn receives(options: &Options) -> usize {
    // RDMA_DONE follows a reply that was read, and can arrive together with the call that uses its credit.
    let per_credit = if options.design == Design::ReadRead { 2 } else { 1 };
    //= rfc8166-3.3.1-3 rfc8166-3.3.1-4
    (per_credit * options.credits + options.callback_credits) as usize + SPARE_RECEIVES
}

fn inbound_credits(role: Role, options: &Options) -> u32 {
    match role {
        Role::Connecting => options.callback_credits,
        Role::Accepting => options.credits,
    }
}

const CREDITS_MAX: u64 = 4096;
const UNADMITTED_CREDITS: u32 = 4;
const UNADMITTED_MESSAGE_MAX: usize = 64 << 10;
const SPARE_RECEIVES: usize = 4;

#[cfg(test)]
mod tests {
    use rdma::registration::Registration;

    use super::*;

    fn with(name: &str, value: &str) -> Result<Options, OptionError> {
        Options::default().with(&RawOptions::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn options_are_parsed_and_invalid_ones_rejected() {
        assert_eq!(with("credits", "7").unwrap().credits, 7);
        assert_eq!(with("inline_recv", "8k").unwrap().inline_recv, 8192);
        assert_eq!(with("peer_timeout", "1500ms").unwrap().peer_timeout, Duration::from_millis(1500));
        assert!(!with("remote_invalidation", "off").unwrap().remote_invalidation);
        assert_eq!(with("design", "read-read").unwrap().design, Design::ReadRead);
        assert_eq!(with("registration", "per-io").unwrap().registration.way, Some(Registration::PerIo));
        assert_eq!(with("cache_entries", "9").unwrap().registration.cache.entries, 9);
        let bad = [
            ("credits", "0"),
            ("inline_send", "1000"),
            ("min_chunk", "x"),
            ("colour", "1"),
            ("design", "write"),
            ("registration", "x"),
        ];
        for (name, value) in bad {
            let error = with(name, value).unwrap_err();
            assert_eq!((error.transport, error.option.as_str()), ("rdma", name));
        }
    }

    #[test]
    fn thresholds_are_the_minimum_of_both_sides_and_1024_without_private_data() {
        let options = Options { inline_send: 8192, inline_recv: 2048, ..Options::default() };
        let silent = Settings::negotiate(Role::Connecting, options.clone(), None);
        //= rfc8797-5.1-1
        assert_eq!((silent.send_max, silent.recv_max, silent.invalidate_peer), (1024, 1024, false));
        let peer = PrivateData { remote_invalidation: true, send_size: 4096, recv_size: 4096, read_read: true };
        let agreed = Settings::negotiate(Role::Accepting, options, Some(peer));
        assert_eq!((agreed.send_max, agreed.recv_max, agreed.invalidate_peer), (4096, 2048, true));
        assert_eq!(agreed.design, Design::ReadWrite);
    }

    #[test]
    fn server_exposes_replies_only_if_both_sides_request_it() {
        let [plain, asking] =
            [Design::ReadWrite, Design::ReadRead].map(|design| Options { design, ..Options::default() });
        for (ours, peer, agreed) in [
            (&plain, &asking, Design::ReadWrite),
            (&asking, &plain, Design::ReadWrite),
            (&asking, &asking, Design::ReadRead),
        ] {
            let settings = Settings::negotiate(Role::Accepting, ours.clone(), Some(peer.private_data()));
            assert_eq!(settings.design, agreed);
        }
    }
}
