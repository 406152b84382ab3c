//! [`Passage`]: files that the accepting side passes to the connecting side.
//!
//! A file is a packet on the socket, sent before the message that names its number. The connecting side reads the socket only
//! when it has nothing else to do, so a task that has got that message reads the socket itself. It may find a doorbell there,
//! which it leaves for the queue pair. One lock covers all receiving, so a packet is never between two tasks.
//!
//! A peer can pass files that nobody takes: of these, [`FILES_MAX`] are kept.

use std::{
    collections::VecDeque,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Weak,
    task::{Context, Waker},
};

use parking_lot::Mutex;

use super::{
    packet::Packet,
    socket::{Received, receive_packet, send_packet},
};
use crate::Descriptors;

/// The side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Connecting,
    Accepting,
}

/// The channel for files of one connection.
pub(crate) struct Passage {
    /// Weak, so that the peer sees when the queue pair has closed its end.
    socket: Weak<OwnedFd>,
    end: End,
    arrived: Mutex<Arrived>,
}

/// The packets that were received, but not by their user.
#[derive(Default)]
struct Arrived {
    files: VecDeque<(u64, OwnedFd)>,
    /// A doorbell.
    bell: bool,
    /// An invalid packet.
    garbage: bool,
    /// The task of the queue pair, while it waits for a packet.
    waiting: Option<Waker>,
}

impl Passage {
    pub(super) fn new(socket: Weak<OwnedFd>, end: End) -> Self {
        Self { socket, end, arrived: Mutex::default() }
    }

    /// Receives a packet for the queue pair, if there is one. A file counts as a doorbell.
    ///
    /// # Errors
    /// The socket failed.
    pub(super) fn receive(&self, socket: &OwnedFd) -> io::Result<Received> {
        if self.end == End::Accepting {
            return receive_packet(socket);
        }
        let mut arrived = self.arrived.lock();
        let received = receive_packet(socket)?;
        Ok(match arrived.keep_file(received) {
            None => Received::Packet(Packet::Bell, None),
            Some(received) => received,
        })
    }

    /// Returns a packet for the queue pair that another task has received. Otherwise registers the task to be woken when there
    /// is one.
    pub(super) fn register(&self, cx: &Context<'_>) -> Option<Received> {
        if self.end == End::Accepting {
            return None;
        }
        let mut arrived = self.arrived.lock();
        if arrived.garbage {
            return Some(Received::Garbage);
        }
        if std::mem::take(&mut arrived.bell) {
            return Some(Received::Packet(Packet::Bell, None));
        }
        match &mut arrived.waiting {
            Some(waiting) => waiting.clone_from(cx.waker()),
            waiting => *waiting = Some(cx.waker().clone()),
        }
        None
    }
}

impl Arrived {
    /// Keeps a file. Returns any other packet.
    fn keep_file(&mut self, received: Received) -> Option<Received> {
        match received {
            Received::Packet(Packet::File { number }, Some(file)) => {
                if self.files.len() == FILES_MAX {
                    self.files.pop_front();
                }
                self.files.push_back((number, file));
                None
            }
            other => Some(other),
        }
    }

    fn take(&mut self, number: u64) -> Option<OwnedFd> {
        let at = self.files.iter().position(|(other, _)| *other == number)?;
        self.files.remove(at).map(|(_, file)| file)
    }
}

impl Descriptors for Passage {
    fn send(&self, descriptor: BorrowedFd<'_>) -> io::Result<u64> {
        if self.end == End::Connecting {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let socket = self.socket.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let number = entropy::random();
        send_packet(&socket, &Packet::File { number }, Some(descriptor))?;
        Ok(number)
    }

    fn take(&self, number: u64) -> Option<OwnedFd> {
        let mut arrived = self.arrived.lock();
        loop {
            if let Some(file) = arrived.take(number) {
                return Some(file);
            }
            if self.end == End::Accepting {
                return None;
            }
            let socket = self.socket.upgrade()?;
            match arrived.keep_file(receive_packet(&socket).ok()?) {
                None => {}
                Some(Received::Packet(Packet::Bell, None)) => arrived.bell = true,
                Some(Received::Packet(..) | Received::Garbage) => arrived.garbage = true,
                // The queue pair sees the end as well.
                Some(Received::Nothing | Received::End) => return None,
            }
            if (arrived.bell || arrived.garbage)
                && let Some(waiting) = arrived.waiting.take()
            {
                waiting.wake();
            }
            if arrived.garbage {
                return None;
            }
        }
    }
}

/// The maximum number of files of a connection that are kept for those who take them.
const FILES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::Read,
        os::fd::AsFd,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        task::Wake,
    };

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    struct Pair {
        sockets: [Arc<OwnedFd>; 2],
        accepting: Passage,
        connecting: Passage,
    }

    fn pair() -> Pair {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let sockets = [Arc::new(one), Arc::new(other)];
        let passage = |at: usize, end| Passage::new(Arc::downgrade(&sockets[at]), end);
        let (accepting, connecting) = (passage(0, End::Accepting), passage(1, End::Connecting));
        Pair { sockets, accepting, connecting }
    }

    fn file(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        file
    }

    fn text(file: OwnedFd) -> String {
        let mut text = String::new();
        File::from(file).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn each_file_is_taken_by_its_number_in_any_order() {
        let pair = pair();
        let numbers = ["a", "b", "c"].map(|text| pair.accepting.send(file(text).as_fd()).unwrap());
        // The queue pair has received the first one.
        let received = pair.connecting.receive(&pair.sockets[1]).unwrap();
        assert!(matches!(received, Received::Packet(Packet::Bell, None)));
        let taken = [2, 0, 1].map(|at: usize| text(pair.connecting.take(numbers[at]).unwrap()));
        assert_eq!(taken, ["c", "a", "b"]);
        assert!(pair.connecting.take(numbers[0]).is_none());
        assert!(pair.connecting.send(file("x").as_fd()).is_err(), "the connecting side passes no files");
    }

    #[test]
    fn a_doorbell_that_another_task_receives_wakes_the_queue_pair() {
        let pair = pair();
        let wakes = Arc::new(Wakes::default());
        let (waker, number) = (Waker::from(wakes.clone()), pair.accepting.send(file("a").as_fd()).unwrap());
        let cx = Context::from_waker(&waker);
        assert!(pair.connecting.register(&cx).is_none());
        send_packet(&pair.sockets[0], &Packet::Bell, None).unwrap();
        let later = pair.accepting.send(file("b").as_fd()).unwrap();
        assert_eq!(text(pair.connecting.take(later).unwrap()), "b");
        assert_eq!(wakes.0.load(Relaxed), 1);
        assert!(matches!(pair.connecting.register(&cx), Some(Received::Packet(Packet::Bell, None))));
        assert!(pair.connecting.register(&cx).is_none(), "the doorbell is reported once");
        assert_eq!(text(pair.connecting.take(number).unwrap()), "a");
    }

    #[test]
    fn files_that_nobody_takes_are_bounded_and_garbage_reaches_the_queue_pair() {
        let pair = pair();
        let first = pair.accepting.send(file("first").as_fd()).unwrap();
        for _ in 0..FILES_MAX {
            pair.accepting.send(file("x").as_fd()).unwrap();
            pair.connecting.receive(&pair.sockets[1]).unwrap();
        }
        pair.connecting.receive(&pair.sockets[1]).unwrap();
        assert!(pair.connecting.take(first).is_none());
        assert_eq!(pair.connecting.arrived.lock().files.len(), FILES_MAX);
        send_packet(&pair.sockets[0], &Packet::Forget { number: 1 }, None).unwrap();
        assert!(pair.connecting.take(first).is_none());
        assert!(matches!(pair.connecting.register(&Context::from_waker(Waker::noop())), Some(Received::Garbage)));
    }
}
