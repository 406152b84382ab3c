//! The callback program of our client, called by a hostile server.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use client::harness::callback_service;
use nfs::v4::{callback::*, compound::CbCompoundRes, *};
use rpc::{Identity, Service};
use xdr::{Encode, Encoder, Message};

use crate::paper::{Paper, results};

/// Sends CB_COMPOUNDs one after the other to a client with a session and no other state.
///
/// | bytes | meaning |
/// |---|---|
/// | 0 | bits 0–1: the minor version; bits 2–3: the slot; bit 4: without CB_SEQUENCE; bit 5: of another session; bit 6:
/// with a wrong sequence ID |
/// | 1 | the number of operations after CB_SEQUENCE |
/// | 2 | the length of these operations, in words |
/// | … | the operations, and so on with the next compound |
pub fn nfs4_callback(data: &[u8]) {
    let mut server = Server::new();
    let mut rest = data;
    while let [how, count, words, following @ ..] = rest {
        let len = (usize::from(*words) * 4).min(following.len() & !3);
        let (operations, following) = following.split_at(len);
        server.call(*how, u32::from(*count), operations);
        rest = following;
    }
    // After any input, a valid callback must be answered.
    for slot in 0..SLOTS as u8 {
        let answered = server.call(1 | slot << 2, 0, &[]);
        assert_eq!(answered, Some(Nfsstat4::Ok));
    }
}

struct Server {
    client: Arc<dyn Service>,
    paper: Paper,
    /// The last sequence ID of each slot.
    sequences: [u32; SLOTS],
}

impl Server {
    fn new() -> Self {
        let client = callback_service(SESSION, SLOTS as u32);
        Self { client, paper: Paper::new("tcp", 1 << 20), sequences: [0; SLOTS] }
    }

    /// Returns the status of the reply, if there is one.
    fn call(&mut self, how: u8, count: u32, operations: &[u8]) -> Option<Nfsstat4> {
        let has = |bit: u8| how >> bit & 1 == 1;
        let slot = usize::from(how >> 2 & 3);
        let honest = !has(4) && !has(5) && !has(6);
        let sequenceid = Sequenceid4(self.sequences[slot].wrapping_add(if has(6) { 7 } else { 1 }));
        let sequence = CbSequenceArgs {
            sessionid: if has(5) { Sessionid4([9; 16]) } else { SESSION },
            sequenceid,
            slotid: Slotid4(slot as u32),
            highest_slotid: Slotid4(slot as u32),
            cachethis: true,
            referring_call_lists: Default::default(),
        };
        let mut out = Encoder::default();
        out.opaque(b"tag");
        out.u32(u32::from(how & 3));
        out.u32(0);
        out.u32(count + u32::from(!has(4)));
        if !has(4) {
            CbArgop4::Sequence(sequence).encode(&mut out);
        }
        out.raw(operations);
        let message = Message::from(out.finish().to_rope().to_bytes().expect("memory"));
        let answer = self.raw(&message)?;
        let answered: CbCompoundRes = results(&answer);
        assert!(answered.resarray.len() <= 1 + count as usize, "there must not be more results than operations");
        assert!(answered.resarray.iter().rev().skip(1).all(|result| result.status() == Nfsstat4::Ok));
        if let Some(CbResop4::Sequence(Res4::Ok(ok))) = answered.resarray.first() {
            // Without our CB_SEQUENCE, the operations can begin with a valid one, or with a retry of the last request.
            let last = &mut self.sequences[ok.slotid.0 as usize];
            let in_sequence = ok.sequenceid.0 == last.wrapping_add(1) || has(4) && ok.sequenceid.0 == *last;
            let in_session = ok.sessionid == SESSION && (has(4) || honest);
            assert!(in_session && in_sequence, "only requests with a valid session and sequence ID may be executed");
            *last = ok.sequenceid.0;
            let again = self.raw(&message).expect("a retry must be answered");
            assert_eq!(results::<CbCompoundRes>(&again), answered);
        }
        Some(answered.status)
    }

    fn raw(&self, message: &Message) -> Option<Message> {
        let peer = SocketAddr::from(([192, 0, 2, 1], 2049));
        let future = self.paper.call(&*self.client, PROC_COMPOUND, (peer, &Identity::None), message);
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result.ok(),
            Poll::Pending => panic!("a client without state must not wait"),
        }
    }
}

const SESSION: Sessionid4 = Sessionid4([5; 16]);
const SLOTS: usize = 4;
