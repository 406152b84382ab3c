//! Captures the traffic of connections in a file that Wireshark dissects.
//!
//! A user-space stack has no packets to capture. So the capture adds generated Ethernet, IP and TCP headers to the
//! bytes of each direction, with the addresses and ports of the real connection.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

/// A capture file to which any number of connections write. Clones write to the same file.
#[derive(Clone)]
pub struct Pcap(Arc<Mutex<Box<dyn Write + Send>>>);

/// The capture of one connection.
#[derive(Clone)]
pub(crate) struct Tap {
    file: Pcap,
    flow: Arc<Mutex<Flow>>,
}

struct Flow {
    /// This side and the peer.
    ends: [SocketAddr; 2],
    /// The next sequence number of each side.
    next: [u32; 2],
}

impl Pcap {
    /// Creates or replaces a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::new(BufWriter::new(File::create(path)?))
    }

    /// Writes to `out`.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn new(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let mut header = Vec::with_capacity(24);
        header.extend(0xa1b2_c3d4u32.to_le_bytes());
        header.extend([2, 0, 4, 0]);
        header.extend([0; 8]);
        header.extend(SNAP_LEN.to_le_bytes());
        header.extend(LINK_ETHERNET.to_le_bytes());
        out.write_all(&header)?;
        Ok(Self(Arc::new(Mutex::new(Box::new(out)))))
    }

    /// Writes buffered data to the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&self) -> io::Result<()> {
        self.0.lock().flush()
    }

    /// Begins the capture of a connection. `initiator` means that this side opened it.
    pub(crate) fn tap(&self, local: SocketAddr, peer: SocketAddr, initiator: bool) -> Tap {
        let flow = Flow { ends: [local, peer], next: [0, 0] };
        let tap = Tap { file: self.clone(), flow: Arc::new(Mutex::new(flow)) };
        let (first, second) = if initiator { (0, 1) } else { (1, 0) };
        tap.segment(first, FLAG_SYN, &[]);
        tap.segment(second, FLAG_SYN | FLAG_ACK, &[]);
        tap.segment(first, FLAG_ACK, &[]);
        tap
    }

    /// Writes a packet. An error does not close the connection, but is logged.
    fn packet(&self, packet: &[u8]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = (packet.len() as u32).to_le_bytes();
        let mut record = [0; 16];
        record[..4].copy_from_slice(&(now.as_secs() as u32).to_le_bytes());
        record[4..8].copy_from_slice(&now.subsec_micros().to_le_bytes());
        record[8..12].copy_from_slice(&len);
        record[12..].copy_from_slice(&len);
        let mut out = self.0.lock();
        if let Err(error) = out.write_all(&record).and_then(|()| out.write_all(packet)) {
            tracing::warn!(%error, "the capture file is incomplete");
        }
    }
}

impl std::fmt::Debug for Pcap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pcap")
    }
}

impl Tap {
    /// Captures bytes that this side sent.
    pub(crate) fn sent(&self, bytes: &[u8]) {
        self.data(0, bytes);
    }

    /// Captures bytes that this side received.
    pub(crate) fn received(&self, bytes: &[u8]) {
        self.data(1, bytes);
    }

    /// Captures the end of the connection.
    pub(crate) fn closed(&self) {
        self.segment(0, FLAG_FIN | FLAG_ACK, &[]);
        self.segment(1, FLAG_FIN | FLAG_ACK, &[]);
        if let Err(error) = self.file.flush() {
            tracing::warn!(%error, "the capture file is incomplete");
        }
    }

    fn data(&self, from: usize, bytes: &[u8]) {
        for chunk in bytes.chunks(SEGMENT_MAX) {
            self.segment(from, FLAG_ACK | FLAG_PSH, chunk);
        }
    }

    fn segment(&self, from: usize, flags: u8, data: &[u8]) {
        let mut flow = self.flow.lock();
        let (source, target) = (flow.ends[from], flow.ends[1 - from]);
        let (seq, ack) = (flow.next[from], if flags & FLAG_ACK == 0 { 0 } else { flow.next[1 - from] });
        let counted = u32::from(flags & (FLAG_SYN | FLAG_FIN) != 0);
        flow.next[from] = seq.wrapping_add(data.len() as u32).wrapping_add(counted);

        let mut tcp = Vec::with_capacity(20 + data.len());
        tcp.extend(source.port().to_be_bytes());
        tcp.extend(target.port().to_be_bytes());
        tcp.extend(seq.to_be_bytes());
        tcp.extend(ack.to_be_bytes());
        tcp.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(data);
        self.file.packet(&in_ip(source.ip(), target.ip(), tcp));
    }
}

/// Adds IP and Ethernet headers and checksums to a TCP segment.
fn in_ip(source: IpAddr, target: IpAddr, mut tcp: Vec<u8>) -> Vec<u8> {
    let len = tcp.len() as u16;
    let mut packet = vec![0; 12];
    let pseudo = match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            packet.extend([0x08, 0x00]);
            let at = packet.len();
            packet.extend([0x45, 0]);
            packet.extend((20 + len).to_be_bytes());
            packet.extend([0, 0, 0x40, 0, 64, PROTOCOL_TCP, 0, 0]);
            packet.extend(source.octets());
            packet.extend(target.octets());
            let sum = checksum(&[&packet[at..]]);
            packet[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
            [&source.octets()[..], &target.octets()].concat()
        }
        (source, target) => {
            let v6 = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend(len.to_be_bytes());
            packet.extend([PROTOCOL_TCP, 64]);
            packet.extend(v6(source));
            packet.extend(v6(target));
            [v6(source), v6(target)].concat()
        }
    };
    let sum = checksum(&[&pseudo, &[0, PROTOCOL_TCP], &len.to_be_bytes(), &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    packet.extend(tcp);
    packet
}

/// Computes the Internet checksum (RFC 1071) of several parts. All parts except the last have even lengths.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

const SNAP_LEN: u32 = 1 << 18;
const LINK_ETHERNET: u32 = 1;
const SEGMENT_MAX: usize = 60_000;
const PROTOCOL_TCP: u8 = 6;
const FLAG_FIN: u8 = 0x01;
const FLAG_SYN: u8 = 0x02;
const FLAG_PSH: u8 = 0x08;
const FLAG_ACK: u8 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_matches_example_of_rfc_1071() {
        // The example of RFC 1071 §3 sums to ddf2.
        assert_eq!(checksum(&[&[0x00, 0x01, 0xf2, 0x03], &[0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
        assert_eq!(checksum(&[&[0xff]]), !0xff00);
    }
}
