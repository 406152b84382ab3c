//! The loops without NFS, which show the limit of the machine in the same run.
//!
//! `send` and `sendfile` ask a separate process for blocks of a file, over one TCP connection for each thread, with as
//! many outstanding requests as the point says. Processes and congestion control are the same as with NFS, but there is
//! no RPC, no XDR and no event loop. `pread` reads the same file in the client itself, `memcpy` copies memory,
//! `cipher` encrypts memory as TLS does, and `kerberos` as krb5p does. `send-cipher` is `send` with the cipher at both
//! ends: the peer encrypts what it sends, and the client decrypts it. Each loop has as many buffers as operations in
//! flight, and uses them in turn, so that the effect of the CPU caches is the same as with NFS.
//!
//! A request is 12 bytes, the offset and the length. The response is the bytes. With `send-cipher`, it is encrypted
//! records of 16 KiB, each followed by its tag.

use std::{
    collections::VecDeque,
    env,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use clap::ValueEnum;
use gss::{
    kerberos::{KerberosAcceptor, KerberosInitiator},
    mechanism::{Acceptor as _, Context, GssError, Initiator as _},
};
use serde::Serialize;

use super::{
    load::{self, Costs},
    meter::Meter,
    point::Point,
    runner::{Measured, Subject},
    sample::Tally,
    site,
};
use crate::exit::Failure;

/// The kind of loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bare {
    /// A peer preads and sends
    Send,
    /// A peer uses sendfile
    Sendfile,
    /// A peer preads, encrypts as TLS does, and sends; the client decrypts
    SendCipher,
    /// The client itself reads the file
    Pread,
    /// The client copies memory
    Memcpy,
    /// The client encrypts memory with the cipher of TLS, AES-256-GCM, in records of 16 KiB
    Cipher,
    /// The client encrypts memory block by block as krb5p does, by the Kerberos library. It needs --keytab and a ticket
    Kerberos,
}

/// A loop that is ready to be measured.
pub struct BareSubject<'a> {
    bare: Bare,
    file: PathBuf,
    file_size: u64,
    limit: Duration,
    congestion: Option<String>,
    keytab: Option<PathBuf>,
    peer: Option<Peer>,
    meter: &'a Meter,
}

/// The arguments of the hidden `slipway bench peer`.
#[derive(Debug, clap::Args)]
pub struct PeerArgs {
    /// The file that the client asks for
    file: PathBuf,
    /// The loop of the client that asks
    #[arg(long, value_enum, default_value = "send")]
    answer: Bare,
    /// Congestion control of the connections
    #[arg(long)]
    congestion: Option<String>,
}

impl Bare {
    /// Returns the name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().expect("every value must have a name").get_name().to_owned()
    }
}

impl<'a> BareSubject<'a> {
    /// Prepares the loop over `file`, which must have the file size for each thread.
    ///
    /// # Errors
    /// The peer cannot be started.
    pub fn start(
        bare: Bare,
        file: &Path,
        file_size: u64,
        limit: Duration,
        congestion: Option<&str>,
        keytab: Option<&Path>,
        meter: &'a Meter,
    ) -> Result<Self, Failure> {
        let peer = match bare {
            Bare::Send | Bare::Sendfile | Bare::SendCipher => Some(Peer::start(file, bare, congestion)?),
            Bare::Kerberos if keytab.is_none() => {
                return Err(Failure::usage("--beside kerberos needs --keytab, a file with the key of nfs/localhost"));
            }
            Bare::Pread | Bare::Memcpy | Bare::Cipher | Bare::Kerberos => None,
        };
        let (file, congestion, keytab) = (file.to_owned(), congestion.map(str::to_owned), keytab.map(Path::to_owned));
        Ok(Self { bare, file, file_size, limit, congestion, keytab, peer, meter })
    }

    fn connect(&self) -> io::Result<Way> {
        Ok(match (&self.peer, self.bare) {
            (Some(peer), _) => {
                let stream = TcpStream::connect(peer.address)?;
                stream.set_nodelay(true)?;
                congestion(&stream, self.congestion.as_deref())?;
                Way::Stream(stream, (self.bare == Bare::SendCipher).then(|| Box::new(key())))
            }
            (None, Bare::Pread) => Way::File(File::open(&self.file)?),
            (None, Bare::Cipher) => Way::Cipher(Box::new(key())),
            (None, Bare::Kerberos) => Way::Kerberos(context(self.keytab.as_deref()).map_err(io::Error::other)?),
            (None, _) => Way::Memory(site::pattern(self.file_size as usize)),
        })
    }

    fn drive(&self, way: &Way, thread: u32, point: &Point, end: Instant) -> io::Result<Tally> {
        let mut buffers = vec![vec![0; point.block]; point.in_flight.max(1) as usize];
        let blocks = self.file_size / point.block as u64;
        let first = u64::from(thread) * self.file_size;
        let offset = |turn| first + site::block_at(turn, point, blocks) * point.block as u64;
        let mut tally = Tally::until(end);
        let mut turn = 0;
        let mut asked = VecDeque::new();
        while tally.goes_on() || !asked.is_empty() {
            let buffer = turn as usize % buffers.len();
            match way {
                Way::File(file) => file.read_exact_at(&mut buffers[buffer], offset(turn))?,
                Way::Memory(memory) => {
                    let at = (offset(turn) - first) as usize;
                    buffers[buffer].copy_from_slice(&memory[at..at + point.block]);
                    std::hint::black_box(&buffers);
                }
                Way::Cipher(key) => {
                    for (record, data) in buffers[buffer].chunks_mut(RECORD).enumerate() {
                        let _ = std::hint::black_box(encrypt(key, nonce(turn, record), data));
                    }
                }
                Way::Kerberos(context) => {
                    let mut token = Vec::with_capacity(point.block + TOKEN_GROWTH);
                    context.wrap(&[&buffers[buffer]], &mut token).map_err(io::Error::other)?;
                    std::hint::black_box(token);
                }
                Way::Stream(stream, key) => {
                    // As many requests are sent at once as there is room for. At the end, all are answered.
                    let mut requests = Vec::new();
                    while tally.goes_on() && asked.len() < buffers.len() {
                        requests.extend_from_slice(&request(offset(turn + asked.len() as u64), point.block));
                        asked.push_back(Instant::now());
                    }
                    let mut stream = stream;
                    stream.write_all(&requests)?;
                    if asked.is_empty() {
                        break;
                    }
                    match key {
                        None => stream.read_exact(&mut buffers[buffer])?,
                        Some(key) => {
                            let block = &mut buffers[buffer];
                            block.resize(encrypted_len(point.block), 0);
                            stream.read_exact(block)?;
                            decrypt(key, offset(turn), block)?;
                        }
                    }
                }
            }
            tally.count(point.block, asked.pop_front());
            turn += 1;
        }
        Ok(tally)
    }
}

impl Subject for BareSubject<'_> {
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
        if !point.operation.reads_blocks() {
            return Ok(Measured::Unable("this loop only reads blocks of a file".to_owned()));
        }
        let failure = |error: io::Error| Failure::failed(format!("{} without NFS: {error}", self.bare.name()));
        let servers: Vec<u32> = self.peer.iter().map(|peer| peer.child.id()).collect();
        let costs = Costs { servers: &servers, data_servers: &[], meter: self.meter };
        let connect = |thread| self.connect().map(|way| (way, thread)).map_err(failure);
        let drive = |(way, thread): &(Way, u32), end| self.drive(way, *thread, point, end).map_err(failure);
        load::measure(point.threads, self.limit, &costs, connect, drive, |_| Ok(())).map(Measured::Sample)
    }
}

/// The source of a thread's blocks.
enum Way {
    /// The connection, and the key if the peer encrypts.
    Stream(TcpStream, Option<Box<LessSafeKey>>),
    File(File),
    Memory(bytes::Bytes),
    Cipher(Box<LessSafeKey>),
    Kerberos(Box<dyn Context>),
}

/// Negotiates a context of Kerberos with itself: the user's ticket for `nfs/localhost`, and its key in the keytab.
fn context(keytab: Option<&Path>) -> Result<Box<dyn Context>, GssError> {
    let acceptor = KerberosAcceptor::open("nfs", keytab.map(Path::to_owned))?;
    let mut client = KerberosInitiator::new("nfs@localhost", None)?.begin()?;
    let first = client.step(&[]).map_err(|failed| failed.error)?;
    let answer = acceptor.begin()?.step(&first.token).map_err(|failed| failed.error)?;
    let last = client.step(&answer.token).map_err(|failed| failed.error)?;
    Ok(last.established.expect("Kerberos must have one round").context)
}

/// Returns a key of the cipher that TLS selects first.
fn key() -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32]).expect("the key must have the length of the cipher"))
}

/// Returns a nonce for a record of a block.
fn nonce(block: u64, record: usize) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&block.to_le_bytes());
    nonce[8..].copy_from_slice(&(record as u32).to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Encrypts a record in place.
fn encrypt(key: &LessSafeKey, nonce: Nonce, data: &mut [u8]) -> Tag {
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(HEADER), data);
    tag.expect("a record must not be too long")
}

/// Returns the length of an encrypted block with its tags.
fn encrypted_len(block: usize) -> usize {
    block + block.div_ceil(RECORD) * TAG
}

/// Decrypts the records of the block at `offset` in place.
fn decrypt(key: &LessSafeKey, offset: u64, block: &mut [u8]) -> io::Result<()> {
    for (record, data) in block.chunks_mut(RECORD + TAG).enumerate() {
        let opened = key.open_in_place(nonce(offset, record), Aad::from(HEADER), data);
        opened.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a record of the peer is invalid"))?;
    }
    Ok(())
}

/// The process that answers. It ends when its standard input is closed.
struct Peer {
    child: Child,
    address: SocketAddr,
}

impl Peer {
    fn start(file: &Path, answer: Bare, congestion: Option<&str>) -> Result<Self, Failure> {
        let failed = |what: &dyn std::fmt::Display| Failure::failed(format!("cannot start the bare peer: {what}"));
        let mut command = Command::new(env::current_exe().map_err(|error| failed(&error))?);
        command.args(["bench", "peer"]).arg(file);
        command.arg(format!("--answer={}", answer.name()));
        command.args(congestion.map(|name| format!("--congestion={name}")));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| failed(&error))?;
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().expect("stdout must be piped")).read_line(&mut line);
        match (read, line.trim().parse()) {
            (Ok(_), Ok(address)) => Ok(Self { child, address }),
            _ => {
                let _ = child.kill();
                let status = child.wait().map_err(|error| failed(&error))?;
                Err(failed(&status))
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs the peer: prints its address, and answers until its standard input is closed.
///
/// # Errors
/// The file cannot be opened, or no port can be used.
pub fn peer(args: &PeerArgs) -> Result<(), Failure> {
    let start = || {
        File::open(&args.file)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        congestion(&listener, args.congestion.as_deref())?;
        println!("{}", listener.local_addr()?);
        Ok(listener)
    };
    let listener = start().map_err(|error: io::Error| Failure::failed(format!("{}: {error}", args.file.display())))?;
    let (file, how) = (args.file.clone(), args.answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let file = File::open(&file);
            // Each connection has a thread, which ends when the connection fails.
            thread::spawn(move || answer(stream, &file?, how));
        }
    });
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop).map_err(Failure::failed)
}

fn answer(mut stream: TcpStream, file: &File, how: Bare) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut buffer, mut asked, key) = (Vec::new(), [0; 12], key());
    loop {
        stream.read_exact(&mut asked)?;
        let (offset, len) = asked.split_at(8);
        let mut offset = u64::from_le_bytes(offset.try_into().expect("8 bytes"));
        let len = u32::from_le_bytes(len.try_into().expect("4 bytes")) as usize;
        if len > BLOCK_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if how == Bare::Sendfile {
            let mut left = len;
            while left > 0 {
                match rustix::fs::sendfile(&stream, file, Some(&mut offset), left)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    sent => left -= sent,
                }
            }
        } else if how == Bare::SendCipher {
            buffer.resize(encrypted_len(len), 0);
            let block = offset;
            for (record, place) in buffer.chunks_mut(RECORD + TAG).enumerate() {
                let (data, tag) = place.split_at_mut(place.len() - TAG);
                file.read_exact_at(data, offset)?;
                offset += data.len() as u64;
                tag.copy_from_slice(encrypt(&key, nonce(block, record), data).as_ref());
            }
            stream.write_all(&buffer)?;
        } else {
            buffer.resize(len, 0);
            file.read_exact_at(&mut buffer, offset)?;
            stream.write_all(&buffer)?;
        }
    }
}

fn request(offset: u64, len: usize) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    bytes[8..].copy_from_slice(&(len as u32).to_le_bytes());
    bytes
}

fn congestion(socket: &impl std::os::fd::AsFd, name: Option<&str>) -> io::Result<()> {
    name.map_or(Ok(()), |name| Ok(rustix::net::sockopt::set_tcp_congestion(socket, name)?))
}

/// The same maximum as with NFS.
const BLOCK_MAX: usize = 4 << 20;
/// More than what a token has in addition to its message.
const TOKEN_GROWTH: usize = 512;
/// Maximum data of a record of TLS.
const RECORD: usize = 16 << 10;
/// The length of the tag of a record.
const TAG: usize = 16;
/// The data that a record authenticates besides its own, as long as a header of TLS.
const HEADER: [u8; 5] = [0; 5];

#[cfg(test)]
mod tests {
    use super::super::point::Operation;
    use super::*;

    /// Answers on threads of this process as the peer does in a separate one.
    fn answering(file: &Path, how: Bare) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, file) = (listener.local_addr().unwrap(), file.to_owned());
        thread::spawn(move || answer(listener.accept().unwrap().0, &File::open(file).unwrap(), how));
        address
    }

    #[test]
    fn send_and_sendfile_return_the_bytes_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content = site::pattern(1 << 20);
        std::fs::write(&path, &content).unwrap();
        for how in [Bare::Send, Bare::Sendfile] {
            let mut stream = TcpStream::connect(answering(&path, how)).unwrap();
            stream.write_all(&[request(4096, 300_000), request(7, 1)].concat()).unwrap();
            let mut got = vec![0; 300_001];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(got[..300_000], content[4096..304_096]);
            assert_eq!(got[300_000], content[7]);
            stream.write_all(&request(0, BLOCK_MAX + 1)).unwrap();
            assert_eq!(stream.read(&mut got).unwrap(), 0, "an oversized request must close the connection");
        }
    }

    #[test]
    fn send_cipher_returns_the_encrypted_bytes_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content = site::pattern(1 << 20);
        std::fs::write(&path, &content).unwrap();
        let mut stream = TcpStream::connect(answering(&path, Bare::SendCipher)).unwrap();
        stream.write_all(&request(4096, 40_000)).unwrap();
        let mut got = vec![0; encrypted_len(40_000)];
        stream.read_exact(&mut got).unwrap();
        assert_ne!(got[..64], content[4096..][..64], "the bytes must be encrypted");
        let mut forged = got.clone();
        forged[20_000] ^= 1;
        assert!(decrypt(&key(), 4096, &mut forged).is_err(), "the client must check the tags");
        decrypt(&key(), 4096, &mut got).unwrap();
        let data: Vec<_> = got.chunks(RECORD + TAG).flat_map(|record| &record[..record.len() - TAG]).copied().collect();
        assert_eq!(data, content[4096..][..40_000]);
    }

    #[test]
    fn loops_without_a_peer_count_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, meter) = (dir.path().join("file"), Meter::find("/nowhere".as_ref()));
        std::fs::write(&path, site::pattern(2 << 16)).unwrap();
        for bare in [Bare::Pread, Bare::Memcpy, Bare::Cipher] {
            let limit = Duration::from_millis(1);
            let mut subject = BareSubject::start(bare, &path, 1 << 16, limit, None, None, &meter).unwrap();
            let point = Point::new(Operation::Read, 4096, 4).threads(2);
            let Ok(Measured::Sample(sample)) = subject.measure(&point) else { panic!("{bare:?} runs") };
            assert_eq!(sample.bytes, sample.operations * 4096);
            assert!(sample.operations >= 2 && sample.server_cpu.is_none());
            assert!(matches!(subject.measure(&Point::new(Operation::Write, 4096, 1)), Ok(Measured::Unable(_))));
        }
    }
}
