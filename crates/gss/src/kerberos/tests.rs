//! Tests with MIT's library.
//!
//! Those of `realm` need a realm of Kerberos, so `cargo xtask interop --only kerberos` runs them: once for each encryption type, whose number is in
//! `SLIPWAY_ENCTYPE`. `KRB5_CONFIG`, `KRB5CCNAME` and `KRB5_KTNAME` name the realm, the ticket of a user and the key of the service, and
//! `SLIPWAY_SERVICE` is the principal of the service.

use std::ffi::OsStr;

use super::*;

#[test]
fn the_path_of_a_keytab_is_not_changed() {
    assert_eq!(keytab_name(Path::new(OsStr::from_bytes(b"/etc/k\xffy"))), b"FILE:/etc/k\xffy");
}

mod realm {
    use std::hint::black_box;

    use super::*;
    use crate::{
        mechanism::Context,
        mic::{Enctype, HEADER_LEN, MicToken, SENT_BY_ACCEPTOR},
    };

    /// Establishes a context. Returns the client's side and the server's side.
    fn pair() -> [KerberosContext; 2] {
        let service = env::var("SLIPWAY_SERVICE").expect("SLIPWAY_SERVICE must be a principal");
        let acceptor = KerberosAcceptor::open(&service, None).expect("the keytab must have the key");
        let initiator = KerberosInitiator::new(&service, None).expect("the library must be there");
        let mut client = initiator.negotiation().expect("there must be a ticket");
        let mut server = acceptor.negotiation().expect("there must be a key");
        let call = client.progress(&[]).expect("the KDC must know the service");
        let reply = server.progress(&call.token).expect("the ticket must be valid");
        let end = client.progress(&reply.token).expect("the server must know the key");
        [end, reply].map(|progress| progress.established.expect("one round must suffice").0)
    }

    /// A realm whose keys have one encryption type: that type, if this crate knows it.
    struct Realm(Option<Enctype>);

    /// Returns the realm that the environment names. Without one, prints that the test is skipped.
    fn realm() -> Option<Realm> {
        let Ok(number) = env::var("SLIPWAY_ENCTYPE") else {
            println!("SKIPPED checksums of Kerberos: there is no realm (cargo xtask interop --only kerberos)");
            return None;
        };
        Some(Realm(Enctype::from_number(number.parse().expect("SLIPWAY_ENCTYPE must be a number"))))
    }

    fn by_library(context: &KerberosContext, message: &[u8]) -> Bytes {
        context.context.lock().mic(message).expect("the library must make a token")
    }

    fn library_verifies(context: &KerberosContext, message: &[u8], token: &[u8]) -> bool {
        context.context.lock().verify(message, token).is_ok()
    }

    fn keys_verify(context: &KerberosContext, message: &[u8], token: &[u8]) -> bool {
        context.mic_keys.as_ref().expect("the context must have keys").verifies(message, token)
    }

    #[test]
    fn keys_and_library_make_and_verify_the_same_tokens() {
        let Some(Realm(enctype)) = realm() else { return };
        let [client, server] = pair();
        for context in [&client, &server] {
            assert_eq!(context.mic_keys.as_ref().map(|keys| keys.enctype()), enctype);
        }
        let lengths = [0, 1, 4, 39, 40, 47, 48, 55, 56, 63, 64, 65, 111, 112, 128, 1000, 131_072];
        for (sender, receiver) in [(&client, &server), (&server, &client)] {
            for len in lengths {
                let message: Vec<u8> = (0..len).map(|at| at as u8).collect();
                let token = sender.mic(&message).expect("an established context makes tokens");
                assert!(library_verifies(receiver, &message, &token), "the library must verify {len} bytes");
                assert!(receiver.verify(&message, &token).is_ok(), "{len} bytes");
                if enctype.is_some() {
                    let theirs = by_library(sender, &message);
                    assert!(keys_verify(receiver, &message, &theirs), "the keys must verify {len} bytes");
                    let [ours, theirs] = [&token, &theirs].map(|token| MicToken::parse(token).expect("a token"));
                    assert_eq!((ours.flags, ours.checksum.len()), (theirs.flags, theirs.checksum.len()));
                }
            }
        }
    }

    #[test]
    fn tokens_of_a_hostile_peer_are_refused_as_the_library_refuses_them() {
        let Some(_) = realm() else { return };
        let [client, server] = pair();
        let message = b"a header of a call";
        for (sender, receiver) in [(&client, &server), (&server, &client)] {
            let token = sender.mic(message).expect("an established context makes tokens");
            let is_refused = |message: &[u8], token: &[u8], what: &str| {
                assert!(!library_verifies(receiver, message, token), "the library accepts {what}");
                assert!(receiver.verify(message, token).is_err(), "{what}");
            };
            for at in 0..token.len() {
                for bit in 0..8 {
                    let mut changed = token.to_vec();
                    changed[at] ^= 1 << bit;
                    is_refused(message, &changed, &format!("byte {at}, bit {bit}"));
                }
                is_refused(message, &token[..at], &format!("{at} bytes"));
            }
            is_refused(message, &[&token[..], &[0]].concat(), "a longer token");
            is_refused(&message[1..], &token, "another message");
            assert!(sender.verify(message, &token).is_err(), "a reflected token");
        }
    }

    #[test]
    fn a_context_gets_keys_only_if_they_make_the_tokens_of_the_library() {
        let Some(Realm(enctype)) = realm() else { return };
        let [client, server] = pair();
        let of = |context: &KerberosContext, side, flags| mic_keys(&context.context.lock(), side, flags).is_some();
        for (context, side, other) in
            [(&client, Side::Initiator, Side::Acceptor), (&server, Side::Acceptor, Side::Initiator)]
        {
            assert_eq!(of(context, side, MUTUAL | INTEGRITY), enctype.is_some());
            assert!(!of(context, other, MUTUAL | INTEGRITY), "the side is wrong");
            // GSS_C_REPLAY_FLAG and GSS_C_SEQUENCE_FLAG.
            for counts in [4, 8, 12] {
                assert!(!of(context, side, MUTUAL | INTEGRITY | counts), "the library must count");
            }
        }
    }

    /// Returns the processor time of this thread.
    fn cpu_time() -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
    }

    /// Prints the processor time of each token by the library and by the keys.
    #[test]
    fn cost_of_tokens() {
        let Some(Realm(enctype)) = realm() else { return };
        let [client, server] = pair();
        for (len, rounds) in [(40, 20_000u32), (131_072, 200)] {
            let message = vec![7; len];
            let ours = client.mic(&message).expect("an established context makes tokens");
            assert!(MicToken::parse(&ours).is_some_and(|token| token.flags & SENT_BY_ACCEPTOR == 0));
            let measure = |what: &str, work: &dyn Fn() -> bool| {
                let start = cpu_time();
                assert!((0..rounds).all(|_| black_box(work())), "{what}");
                let each = (cpu_time() - start) / rounds;
                println!("{:?}, {len} bytes, {what}: {} ns", enctype, each.as_nanos());
            };
            measure("get_mic of the library", &|| by_library(&client, &message).len() >= HEADER_LEN);
            measure("mic", &|| client.mic(&message).is_ok_and(|token| token.len() == ours.len()));
            measure("verify_mic of the library", &|| library_verifies(&server, &message, &ours));
            measure("verify", &|| server.verify(&message, &ours).is_ok());
        }
    }
}
