//! kTLS: the kernel encrypts what a stream socket sends.
//!
//! Read Linux's `Documentation/networking/tls.rst` first. Only the sending direction is used, for TLS 1.3. After [`encrypt_sent`],
//! bytes that are written to the socket, also by `sendfile`, leave it in records of TLS. Bytes that were written before are
//! sent as they are. What is received is not changed.
//!
//! On error, the socket sends as before.

#![expect(unsafe_code)]

use std::{
    io,
    mem::{MaybeUninit, size_of, size_of_val},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use libc::{c_int, c_void};
use rustix::event::{PollFd, PollFlags, Timespec};

/// The first key of the sending direction of a TLS 1.3 connection, with its cipher. No record has been sent with it.
pub enum RecordKey {
    /// TLS_AES_128_GCM_SHA256.
    Aes128Gcm {
        /// The key.
        key: [u8; 16],
        /// The initialization vector.
        iv: [u8; 12],
    },
    /// TLS_AES_256_GCM_SHA384.
    Aes256Gcm {
        /// The key.
        key: [u8; 32],
        /// The initialization vector.
        iv: [u8; 12],
    },
    /// TLS_CHACHA20_POLY1305_SHA256.
    Chacha20Poly1305 {
        /// The key.
        key: [u8; 32],
        /// The initialization vector.
        iv: [u8; 12],
    },
}

/// Makes the kernel encrypt all further bytes that a connected TCP socket sends.
///
/// # Errors
/// `NotFound` if the kernel has no TLS or not this cipher, or an error of the socket, for example because it is not connected. A
/// kernel without TLS is asked only once in a process, because it searches for the module each time.
pub fn encrypt_sent(socket: impl AsFd, key: &RecordKey) -> io::Result<()> {
    let socket = socket.as_fd();
    if MISSING.load(Relaxed) {
        return Err(io::ErrorKind::NotFound.into());
    }
    attach(socket).inspect_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            MISSING.store(true, Relaxed);
        }
    })?;
    let info = |cipher_type| libc::tls_crypto_info { version: libc::TLS_1_3_VERSION, cipher_type };
    // The ciphers of GCM call the first four bytes of the initialization vector the salt.
    let parts = |iv: &[u8; 12]| {
        let (salt, rest) = iv.split_at(4);
        (salt.try_into().expect("the salt must have 4 bytes"), rest.try_into().expect("the rest must have 8 bytes"))
    };
    let rec_seq = [0; 8];
    match *key {
        RecordKey::Aes128Gcm { key, iv } => {
            let ((salt, iv), info) = (parts(&iv), info(libc::TLS_CIPHER_AES_GCM_128));
            let info = libc::tls12_crypto_info_aes_gcm_128 { info, iv, key, salt, rec_seq };
            set(socket, libc::SOL_TLS, libc::TLS_TX, &info)
        }
        RecordKey::Aes256Gcm { key, iv } => {
            let ((salt, iv), info) = (parts(&iv), info(libc::TLS_CIPHER_AES_GCM_256));
            let info = libc::tls12_crypto_info_aes_gcm_256 { info, iv, key, salt, rec_seq };
            set(socket, libc::SOL_TLS, libc::TLS_TX, &info)
        }
        RecordKey::Chacha20Poly1305 { key, iv } => {
            let info = info(libc::TLS_CIPHER_CHACHA20_POLY1305);
            let info = libc::tls12_crypto_info_chacha20_poly1305 { info, iv, key, salt: [], rec_seq };
            set(socket, libc::SOL_TLS, libc::TLS_TX, &info)
        }
    }
}

/// Sends one record of another type than data, behind everything that was written to the socket before.
///
/// The kernel can still hold a part of an earlier record for which the socket had no room, and it tells nobody. That part is lost
/// if the socket is shut down. So the record is sent only when the socket has much room: then the kernel passes all of it on.
///
/// # Errors
/// `WouldBlock` if the socket has not enough room now, or an error of the socket.
pub fn send_record(socket: impl AsFd, content_type: u8, payload: &[u8]) -> io::Result<()> {
    let socket = socket.as_fd();
    let mut ready = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    rustix::event::poll(&mut ready, Some(&Timespec::default()))?;
    if !ready[0].revents().intersects(PollFlags::OUT) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let mut control = MaybeUninit::<Control>::zeroed();
    let mut part = libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    // SAFETY: all fields of these structures may be zero. The control buffer is aligned as a header, and has the space that
    // `CMSG_SPACE` reports for one byte. The kernel only reads the payload and the control buffer, which outlive the call.
    let sent = unsafe {
        (*control.as_mut_ptr()).header.cmsg_level = libc::SOL_TLS;
        (*control.as_mut_ptr()).header.cmsg_type = libc::TLS_SET_RECORD_TYPE;
        (*control.as_mut_ptr()).header.cmsg_len = libc::CMSG_LEN(1) as _;
        (*control.as_mut_ptr()).data[0] = content_type;
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(1) as _;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    match usize::try_from(sent) {
        Ok(sent) if sent == payload.len() => Ok(()),
        Ok(_) => Err(io::Error::other("the kernel has sent a part of a record")),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Examines whether the kernel has TLS, with a connection of this host to itself.
///
/// # Errors
/// `NotFound` if the kernel has no TLS or its module is not loaded, or an error of the connection.
pub fn available() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    attach(socket.as_fd())
}

/// Gives the socket the upper layer protocol "tls", which changes nothing until there is a key.
fn attach(socket: BorrowedFd<'_>) -> io::Result<()> {
    match set(socket, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls") {
        // The kernel knows no upper layer protocols, or a filter rejects the option.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP)) => {
            Err(io::ErrorKind::NotFound.into())
        }
        done => done,
    }
}

fn set<T>(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of_val(value) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of the value, all of which are initialized: the types have no padding.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, ptr::from_ref(value).cast::<c_void>(), len) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A control message with one byte.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    data: [u8; size_of::<usize>()],
}

/// `true` after the kernel has reported that it has no TLS.
static MISSING: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_are_encrypted_by_the_kernel_or_sent_as_before() {
        let (mut near, mut far) = pair();
        let keys = [
            RecordKey::Aes128Gcm { key: [1; 16], iv: [2; 12] },
            RecordKey::Aes256Gcm { key: [1; 32], iv: [2; 12] },
            RecordKey::Chacha20Poly1305 { key: [1; 32], iv: [2; 12] },
        ];
        for key in keys {
            let encrypted = encrypt_sent(&near, &key);
            assert_eq!(encrypted.is_ok(), available().is_ok(), "{encrypted:?}");
            near.write_all(b"text").unwrap();
            let mut received = [0; 4];
            far.read_exact(&mut received).unwrap();
            match encrypted {
                // A record of data (RFC 8446 §5.1) with 4 bytes, their type, and 16 bytes of the cipher.
                Ok(()) => assert_eq!(received, [23, 3, 3, 0]),
                Err(error) => assert_eq!((error.kind(), &received), (io::ErrorKind::NotFound, b"text")),
            }
            (near, far) = pair();
        }
    }

    #[test]
    fn record_of_another_type_waits_for_room() {
        let (near, mut far) = pair();
        near.set_nonblocking(true).unwrap();
        while (&near).write(&[0; 65_536]).is_ok() {}
        let waits = send_record(&near, 21, &[1, 0]).unwrap_err();
        assert_eq!(waits.kind(), io::ErrorKind::WouldBlock);
        let mut block = vec![0; 1 << 20];
        // Without TLS, the kernel rejects the control message, or ignores it.
        while send_record(&near, 21, &[1, 0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            assert!(far.read(&mut block).unwrap() > 0);
        }
    }
}
