//! [`Handshake`]: the TLS handshake as a state machine without I/O.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use rustls::{
    AlertDescription, ClientConfig, ConnectionTrafficSecrets, Error, ServerConfig, SupportedCipherSuite,
    client::{ClientConnectionData, UnbufferedClientConnection},
    kernel::KernelConnection,
    pki_types::ServerName,
    server::{ServerConnectionData, UnbufferedServerConnection},
    unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus},
};

use super::{ALPN, Alpn, ConnectionTls, dns_names, session::Session};

/// A handshake in progress. Bytes of the peer go in, and bytes for the peer come out.
pub(crate) struct Handshake {
    side: Side,
    /// Bytes of the peer that are not yet consumed.
    incoming: Vec<u8>,
    /// Bytes for the peer.
    outgoing: Vec<u8>,
    /// Data that the peer sent right behind its last message of the handshake, decrypted.
    data: Vec<u8>,
    /// The client's demands on the server besides its certificate.
    demands: Demands,
}

/// The demands of a client on a server besides its certificate.
#[derive(Debug, Default)]
pub(crate) struct Demands {
    /// The rule for the application protocol.
    pub alpn: Alpn,
    /// The server must have asked for the client's certificate, which sets this flag. `None` if it need not.
    pub asked: Option<Arc<AtomicBool>>,
}

/// The reason why a client does not use a session, and the alert by which it tells the server.
#[derive(Debug)]
pub(crate) struct Unmet {
    pub alert: AlertDescription,
    pub error: Error,
}

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// The result of a step.
pub(crate) enum Progress {
    /// More bytes of the peer are needed.
    More,
    /// The handshake is complete.
    Done,
}

/// The key schedule of a connection after its handshake.
pub(crate) enum Keys {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Handshake {
    /// Begins a handshake as the client.
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>, demands: Demands) -> Result<Self, Error> {
        Ok(Self::new(Side::Client(Box::new(UnbufferedClientConnection::new(config, name)?)), demands))
    }

    /// Begins a handshake as the server.
    pub fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        Ok(Self::new(Side::Server(Box::new(UnbufferedServerConnection::new(config)?)), Demands::default()))
    }

    fn new(side: Side, demands: Demands) -> Self {
        Self { side, incoming: Vec::new(), outgoing: Vec::new(), data: Vec::new(), demands }
    }

    /// Takes the bytes for the peer.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        mem::take(&mut self.outgoing)
    }

    /// Returns the bytes of the peer that are held.
    pub fn held(&self) -> usize {
        self.incoming.len() + self.data.len()
    }

    /// Adds bytes of the peer, and processes them as far as possible.
    ///
    /// # Errors
    /// The handshake has failed. The outgoing bytes then have the alert for the peer.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Progress, Error> {
        if self.incoming.len() + bytes.len() > INCOMING_MAX {
            return Err(Error::General("a handshake message is too long".to_owned()));
        }
        self.incoming.extend_from_slice(bytes);
        loop {
            let step = self.step();
            match step {
                Ok(Step::Again) => {}
                Ok(Step::More) => return Ok(Progress::More),
                Ok(Step::Done) => return Ok(Progress::Done),
                Err(error) => {
                    // rustls has queued the alert that describes the error. It must not process further bytes.
                    while self.wants_write() {
                        let _ = self.step();
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Returns the session, the bytes that the peer has sent behind the handshake, and the peer's identity.
    ///
    /// # Errors
    /// The keys cannot be extracted.
    pub fn finish(self) -> Result<(Session, ConnectionTls), Error> {
        let Self { side, incoming, outgoing, data, demands: _ } = self;
        let (secrets, keys, tls) = match side {
            Side::Client(side) => {
                let (secrets, keys) = side.dangerous_into_kernel_connection()?;
                (secrets, Keys::Client(keys), ConnectionTls::Tls)
            }
            Side::Server(side) => {
                let names = side.peer_certificates().and_then(<[_]>::first).map(dns_names);
                let tls = names.map_or(ConnectionTls::Tls, |names| ConnectionTls::Mtls { names });
                let (secrets, keys) = side.dangerous_into_kernel_connection()?;
                (secrets, Keys::Server(keys), tls)
            }
        };
        Ok((Session::new(secrets, keys, &incoming, &data, outgoing)?, tls))
    }

    /// Checks what the client demands of the server, after the handshake is complete. If the server does not meet it, the
    /// session must carry nothing but the alert.
    pub fn check_demands(&self) -> Result<(), Unmet> {
        let Side::Client(side) = &self.side else { return Ok(()) };
        // RFC 9289 §5: the client must not use a session for which the server has not selected "sunrpc". rustls rejects a
        // protocol that was not offered, so only an absent one is left.
        if self.demands.alpn == Alpn::Required && side.alpn_protocol() != Some(ALPN) {
            let problem = "the server has not selected the application protocol sunrpc (RFC 9289); tls_alpn=optional permits that";
            return Err(Unmet {
                alert: AlertDescription::NoApplicationProtocol,
                error: Error::General(problem.to_owned()),
            });
        }
        if self.demands.asked.as_ref().is_some_and(|asked| !asked.load(Relaxed)) {
            let problem = "the server has not asked for the client's certificate, but xprtsec=mtls demands that";
            return Err(Unmet {
                alert: AlertDescription::InsufficientSecurity,
                error: Error::General(problem.to_owned()),
            });
        }
        Ok(())
    }

    fn wants_write(&self) -> bool {
        match &self.side {
            Side::Client(side) => side.wants_write(),
            Side::Server(side) => side.wants_write(),
        }
    }

    fn step(&mut self) -> Result<Step, Error> {
        let Self { side, incoming, outgoing, data, .. } = self;
        let (discard, step) = match side {
            Side::Client(side) => process(side.process_tls_records(incoming), outgoing, data),
            Side::Server(side) => process(side.process_tls_records(incoming), outgoing, data),
        };
        incoming.drain(..discard);
        step
    }
}

enum Step {
    Again,
    More,
    Done,
}

/// Handles one state of rustls. Returns the number of incoming bytes to discard.
fn process<Data>(
    UnbufferedStatus { discard, state }: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Vec<u8>,
    data: &mut Vec<u8>,
) -> (usize, Result<Step, Error>) {
    let mut also = 0;
    let step = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::EncodeTlsData(mut state)) => {
            let start = outgoing.len();
            outgoing.resize(start + RECORD_ROOM, 0);
            let mut encoded = state.encode(&mut outgoing[start..]);
            if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) = encoded {
                outgoing.resize(start + required_size, 0);
                encoded = state.encode(&mut outgoing[start..]);
            }
            outgoing.truncate(start + *encoded.as_ref().unwrap_or(&0));
            encoded.map(|_| Step::Again).map_err(|error| Error::General(error.to_string()))
        }
        Ok(ConnectionState::TransmitTlsData(state)) => {
            state.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::More),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Done),
        Ok(ConnectionState::ReadTraffic(mut state)) => loop {
            match state.next_record() {
                None => break Ok(Step::Again),
                Some(Ok(record)) => {
                    also += record.discard;
                    data.extend_from_slice(record.payload);
                }
                Some(Err(error)) => break Err(error),
            }
        },
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
            Err(Error::General("the peer closed the connection in the handshake".to_owned()))
        }
        Ok(_) => Err(Error::General("0-RTT data are not accepted".to_owned())),
    };
    (discard + also, step)
}

impl Keys {
    pub fn suite(&self) -> SupportedCipherSuite {
        match self {
            Keys::Client(keys) => keys.negotiated_cipher_suite(),
            Keys::Server(keys) => keys.negotiated_cipher_suite(),
        }
    }

    /// Derives the next key of the sending direction.
    pub fn next_sending(&mut self) -> Result<ConnectionTrafficSecrets, Error> {
        Ok(match self {
            Keys::Client(keys) => keys.update_tx_secret()?.1,
            Keys::Server(keys) => keys.update_tx_secret()?.1,
        })
    }

    /// Derives the next key of the receiving direction.
    pub fn next_receiving(&mut self) -> Result<ConnectionTrafficSecrets, Error> {
        Ok(match self {
            Keys::Client(keys) => keys.update_rx_secret()?.1,
            Keys::Server(keys) => keys.update_rx_secret()?.1,
        })
    }
}

/// Maximum bytes of the peer that the handshake holds. A message can have 64 KiB.
const INCOMING_MAX: usize = 128 << 10;
const RECORD_ROOM: usize = 2 << 10;
