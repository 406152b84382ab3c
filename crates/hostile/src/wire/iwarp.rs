//! iWARP and RPC-over-RDMA: MPA (RFC 5044), DDP (RFC 5041), RDMAP (RFC 5040) and version 1 of RFC 8166.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

use super::{Xdr, rpc};

/// Encodes the MPA start frame of an initiator (RFC 5044 §7.1.1), revision 1, with CRCs.
pub fn start_frame(private_data: &[u8]) -> Vec<u8> {
    let mut frame = b"MPA ID Req Frame".to_vec();
    frame.extend([0x40, 1]);
    frame.extend((private_data.len() as u16).to_be_bytes());
    frame.extend(private_data);
    frame
}

/// Connects and exchanges the start frames.
///
/// # Errors
/// The server refuses.
pub fn connect(from: Ipv4Addr, remote: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = rpc::connect(from, remote)?;
    stream.write_all(&start_frame(&[]))?;
    let mut answer = [0; 20];
    stream.read_exact(&mut answer)?;
    if &answer[..16] != b"MPA ID Rep Frame" || answer[16] & 0x20 != 0 {
        return Err(io::Error::other("the server does not agree to MPA"));
    }
    let len = usize::from(u16::from_be_bytes([answer[18], answer[19]]));
    stream.read_exact(&mut vec![0; len])?;
    Ok(stream)
}

/// Encodes an FPDU with a DDP segment (RFC 5044 §4.1): length, padding and CRC.
pub fn fpdu(segment: &[u8]) -> Vec<u8> {
    let mut fpdu = (segment.len() as u16).to_be_bytes().to_vec();
    fpdu.extend(segment);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = crc32c(&fpdu);
    fpdu.extend(crc.to_le_bytes());
    fpdu
}

/// Encodes the header of an untagged segment (RFC 5041 §4.3): its queue, the number of its message, and the offset in
/// the message.
pub fn untagged(last: bool, operation: u8, queue: u32, number: u32, offset: u32) -> Xdr {
    Xdr(vec![if last { 0x41 } else { 0x01 }, 0x40 | operation]).u32(0).u32(queue).u32(number).u32(offset)
}

/// Encodes the header of a tagged segment (RFC 5041 §4.2).
pub fn tagged(last: bool, operation: u8, stag: u32, offset: u64) -> Xdr {
    Xdr(vec![if last { 0xc1 } else { 0x81 }, 0x40 | operation]).u32(stag).u64(offset)
}

/// Encodes a Send of one segment.
pub fn send(number: u32, message: &[u8]) -> Vec<u8> {
    let mut segment = untagged(true, SEND, 0, number, 0).0;
    segment.extend(message);
    fpdu(&segment)
}

/// Encodes an RDMA_MSG (RFC 8166 §4.3) with a call and without chunks.
pub fn inline(xid: u32, call: &Xdr) -> Vec<u8> {
    let mut message = Xdr::default().u32(xid).u32(1).u32(32).u32(0).u32(0).u32(0).u32(0).0;
    message.extend(&call.0);
    message
}

/// Encodes an RDMA_MSG with a call, of which `len` bytes at `position` are in a read chunk.
pub fn with_read_chunk(xid: u32, position: u32, len: u32, call: &Xdr) -> Vec<u8> {
    let header = Xdr::default().u32(xid).u32(1).u32(32).u32(0);
    let mut message = header.u32(1).u32(position).u32(0x1234_5600).u32(len).u64(0).u32(0).u32(0).u32(0).0;
    message.extend(&call.0);
    message
}

/// Computes the CRC32c (RFC 3720, appendix B.4) with a table.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| CRC_TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// RDMAP's operation code of Send.
pub const SEND: u8 = 3;

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn crc32c_is_that_of_rfc_3720() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
