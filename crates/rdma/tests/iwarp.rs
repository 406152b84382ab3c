//! Tests specific to iWARP: the handshake with other implementations, Terminate messages, packet captures.

use std::{io, net::SocketAddr, time::Duration};

use buf::Buffer;
use bytes::{BufMut, Bytes, BytesMut};
use conformance::provider::{End, Fabric, pattern};
use rdma::{
    Memory, Provider, QpError, QpOptions, Stag, WorkId,
    iwarp::{
        Iwarp, IwarpOptions, Pcap,
        ddp::Header,
        mpa::{self, Enhanced, Handshake},
        rdmap::{ErrorCode, Opcode, ReadRequest, Terminate},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

fn fabric(options: IwarpOptions) -> Fabric {
    Fabric::new(Iwarp::new(options))
}

/// A client that sends raw bytes to an [`Iwarp`] listener, while the test polls the accepted end.
struct RawPeer {
    stream: TcpStream,
    reply: Handshake,
}

impl RawPeer {
    async fn read_fpdu(&mut self) -> Option<(Header, Vec<u8>)> {
        let len = self.stream.read_u16().await.ok()? as usize;
        let mut rest = vec![0; mpa::fpdu_len(len) - 2];
        self.stream.read_exact(&mut rest).await.unwrap();
        //= rfc5044-4.1-2
        assert!(rest[len..rest.len() - mpa::CRC_LEN].iter().all(|&pad| pad == 0), "padding is zero");
        let header = Header::parse(&rest[..len]).unwrap().unwrap();
        Some((header, rest[header.encoded_len()..len].to_vec()))
    }

    async fn terminate(&mut self) -> Terminate {
        loop {
            let (header, payload) = self.read_fpdu().await.expect("the stream must contain a Terminate");
            if header.ulp() == Opcode::Terminate.ulp() {
                //= rfc5040-5.4-1 rfc5040-5.4-2 rfc5040-5.4-3 rfc5040-5.4-5
                assert!(matches!(header, Header::Untagged { queue: 2, msn: 1, offset: 0, last: true, .. }));
                let terminate = Terminate::parse(&payload).unwrap();
                //= rfc5040-5.4-8 rfc5040-6.1-1
                assert!(self.read_fpdu().await.is_none(), "nothing may follow a Terminate");
                return terminate;
            }
        }
    }
}

fn request(private_data: &'static [u8]) -> Handshake {
    Handshake {
        reply: false,
        markers: false,
        crc: false,
        rejected: false,
        revision: 2,
        reserved: 0,
        enhanced: Some(Enhanced { inbound_reads: 128, outbound_reads: 2, ..Enhanced::default() }),
        private_data: Bytes::from_static(private_data),
    }
}

async fn raw_connect(at: SocketAddr, request: &Handshake) -> io::Result<RawPeer> {
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(&request.encode()).await?;
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some((reply, len)) = Handshake::parse(&bytes, true).unwrap() {
            assert_eq!(len, bytes.len(), "the responder must wait for the first FPDU");
            return Ok(RawPeer { stream, reply });
        }
    }
}

/// Connects a raw client. Returns it with the accepted end.
async fn with_raw(iwarp: &Iwarp, request: &Handshake, recvs: u64) -> (RawPeer, End) {
    let mut listener = iwarp.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr();
    let accept = async {
        let posted = (0..recvs).map(|id| (WorkId(1000 + id), Buffer::zeroed(100))).collect();
        listener.accept().await.unwrap().accept(&QpOptions::default(), b"", posted).await.unwrap()
    };
    let (raw, qp) = tokio::join!(raw_connect(at, request), accept);
    (raw.unwrap(), End::new(qp))
}

fn fpdu(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    let len = header.encoded_len() + payload.len();
    out.put_u16(len as u16);
    header.encode(&mut out);
    out.put_slice(payload);
    out.put_bytes(0, mpa::pad_len(len) + mpa::CRC_LEN);
    out.to_vec()
}

fn untagged(opcode: Opcode, queue: u32, msn: u32, offset: u32) -> Header {
    Header::Untagged { last: true, ulp: opcode.ulp(), ulp_word: 0, queue, msn, offset }
}

fn tagged(opcode: Opcode, stag: u32, offset: u64) -> Header {
    Header::Tagged { last: true, ulp: opcode.ulp(), stag: Stag(stag), offset }
}

fn read_request(size: u32, source_stag: u32, source_offset: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let source_stag = Stag(source_stag);
    ReadRequest { sink_stag: Stag(1), sink_offset: 0, size, source_stag, source_offset }.encode(&mut out);
    out
}

/// Polls `end` while `peer` runs.
async fn beside<T>(end: &mut End, peer: impl Future<Output = T>) -> T {
    let mut peer = Box::pin(peer);
    let both = std::future::poll_fn(|cx| {
        while end.error.is_none() {
            match end.qp.poll_completions(cx, &mut end.done) {
                std::task::Poll::Ready(Ok(())) => {}
                std::task::Poll::Ready(Err(error)) => end.error = Some(error),
                std::task::Poll::Pending => break,
            }
        }
        peer.as_mut().poll(cx)
    });
    tokio::time::timeout(Duration::from_secs(60), both).await.expect("the test must finish within 60 seconds")
}

#[tokio::test]
async fn every_error_of_a_peer_is_answered_with_the_matching_terminate() {
    // Long: one case for each error.
    let iwarp = Iwarp::new(IwarpOptions::default());
    let old_ddp = |header: Header| {
        let mut bytes = fpdu(header, b"x");
        bytes[2] ^= 3;
        bytes
    };
    let mut old_rdmap = fpdu(untagged(Opcode::Send, 0, 1, 0), b"x");
    old_rdmap[3] = 0x03;
    let mut unknown = fpdu(untagged(Opcode::Send, 0, 1, 0), b"x");
    unknown[3] = 0x4b;
    let many_reads: Vec<u8> = (1..=3)
        .flat_map(|msn| fpdu(untagged(Opcode::ReadRequest, 1, msn, 0), &read_request(5_000_000, 0x201, 0)))
        .collect();
    let mut in_parts = untagged(Opcode::ReadRequest, 1, 1, 0);
    if let Header::Untagged { last, .. } = &mut in_parts {
        *last = false;
    }
    let cases = [
        ("tagged version", old_ddp(tagged(Opcode::Write, 0x101, 0)), (1, 1, 4)),
        ("untagged version", old_ddp(untagged(Opcode::Send, 0, 1, 0)), (1, 2, 6)),
        ("RDMAP version", old_rdmap, (0, 2, 5)),
        ("unknown operation", unknown, (0, 2, 6)),
        ("unknown region", fpdu(tagged(Opcode::Write, 0x555, 0), b"x"), (1, 1, 0)),
        ("beyond the region", fpdu(tagged(Opcode::Write, 0x101, 100), b"x"), (1, 1, 1)),
        ("wrapping offset", fpdu(tagged(Opcode::Write, 0x101, u64::MAX), b"xx"), (1, 1, 3)),
        ("no write access", fpdu(tagged(Opcode::Write, 0x201, 0), b"x"), (0, 1, 2)),
        ("unsolicited response", fpdu(tagged(Opcode::ReadResponse, 0x101, 0), b"x"), (1, 1, 0)),
        ("tagged Send", fpdu(tagged(Opcode::Send, 0x101, 0), b"x"), (0, 2, 6)),
        ("untagged Write", fpdu(untagged(Opcode::Write, 0, 1, 0), b"x"), (0, 2, 6)),
        ("unknown queue", fpdu(untagged(Opcode::Send, 3, 1, 0), b"x"), (1, 2, 1)),
        ("Send on another queue", fpdu(untagged(Opcode::Send, 1, 1, 0), b"x"), (0, 2, 6)),
        ("message number", fpdu(untagged(Opcode::Send, 0, 2, 0), b"x"), (1, 2, 3)),
        ("message offset", fpdu(untagged(Opcode::Send, 0, 1, 4), b"x"), (1, 2, 4)),
        ("too long", fpdu(untagged(Opcode::Send, 0, 1, 0), &[0; 101]), (1, 2, 5)),
        ("read of unknown region", fpdu(untagged(Opcode::ReadRequest, 1, 1, 0), &read_request(9, 0x555, 0)), (0, 1, 0)),
        ("read beyond", fpdu(untagged(Opcode::ReadRequest, 1, 1, 0), &read_request(9, 0x201, 1 << 30)), (0, 1, 1)),
        ("read without access", fpdu(untagged(Opcode::ReadRequest, 1, 1, 0), &read_request(9, 0x101, 0)), (0, 1, 2)),
        ("read that wraps", fpdu(untagged(Opcode::ReadRequest, 1, 1, 0), &read_request(9, 0x201, u64::MAX)), (0, 1, 4)),
        ("more reads than negotiated", many_reads, (1, 2, 2)),
        ("short read request", fpdu(untagged(Opcode::ReadRequest, 1, 1, 0), &[0; 27]), (0, 2, 0xff)),
        ("long read request", fpdu(untagged(Opcode::ReadRequest, 1, 1, 0), &[0; 29]), (1, 2, 5)),
        ("read request in parts", fpdu(in_parts, &[0; 14]), (0, 2, 0xff)),
        ("FPDU too short", vec![0, 13, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], (2, 0, 3)),
    ];
    for (case, bytes, (layer, kind, code)) in cases {
        let (mut raw, mut end) = with_raw(&iwarp, &request(b""), 1).await;
        assert_eq!(end.qp.register(Memory::Write(Buffer::zeroed(100).into())).unwrap().stag, Stag(0x101));
        assert_eq!(end.qp.register(Memory::Read(pattern(1, 5_000_000).into())).unwrap().stag, Stag(0x201));
        let late = fpdu(untagged(Opcode::Send, 0, 1, 0), b"late");
        let terminate = beside(&mut end, async {
            raw.stream.write_all(&[bytes, late].concat()).await.unwrap();
            raw.terminate().await
        })
        .await;
        //= rfc5041-4.2-6 rfc5041-7.1-1 rfc5041-7.1-2 rfc5041-7.2-1 rfc5041-8.3-4 rfc5041-4.1-9 rfc5041-6.2.2-1
        //= rfc5040-5.2.1-3 rfc5040-5.2.2-3 rfc5040-6.1-2 rfc5040-6.1-5 rfc5040-5.2.1-13 rfc5040-7.2-1 rfc5040-7.2-2
        //= rfc5040-7.2-3 rfc5040-7.2-6 rfc5040-7.2-7 rfc5040-7.2-8
        assert_eq!(terminate.error, ErrorCode { layer, kind, code }, "{case}");
        //= rfc5040-7.2-9 rfc5040-7.2-11 rfc5040-7.2-12 rfc5040-7.2-13 rfc5040-4.2-1 rfc5040-4.8-3 rfc5040-7.1-2
        assert_eq!(terminate.read_request.is_some(), case.starts_with("read ") && layer == 0 && kind == 1, "{case}");
        drop(raw);
        beside(&mut end, std::future::ready(())).await;
        while end.error.is_none() {
            let _ = std::future::poll_fn(|cx| end.qp.poll_completions(cx, &mut end.done)).await.map_err(|error| {
                end.error = Some(error);
            });
        }
        //= rfc5041-6.2.2-1 rfc5041-7.1-3 rfc5040-7.1-1
        assert_eq!(end.error, Some(QpError::Protocol(terminate.error.to_string())), "{case}");
        //= rfc5041-7.1-4 rfc5044-8-3
        assert_eq!(
            end.statuses(),
            [(WorkId(1000), rdma::Status::Flushed)],
            "{case}: nothing is delivered behind the error"
        );
    }
}

#[tokio::test]
async fn segments_of_a_message_share_their_fields_and_have_their_offsets() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    let (mut raw, mut end) = with_raw(&iwarp, &request(b""), 0).await;
    let data = pattern(1, 200_000);
    end.send(data.clone());
    end.write(data.clone(), Stag(0x777), 5000);
    end.send(data.clone());
    let messages = beside(&mut end, async {
        raw.stream.write_all(&fpdu(tagged(Opcode::Write, 0, 0), b"")).await.unwrap();
        let mut messages = vec![Vec::new()];
        while messages.len() <= 3 {
            let (header, payload) = raw.read_fpdu().await.unwrap();
            messages.last_mut().unwrap().push((header, payload));
            if header.last() {
                messages.push(Vec::new());
            }
        }
        messages
    })
    .await;
    for (message, msn) in messages[..3].iter().zip([1, 0, 2]) {
        assert!(message.len() > 1, "more than one segment");
        let mut at = 0;
        for (header, payload) in message {
            match *header {
                //= rfc5041-4.3-4 rfc5041-4.3-5 rfc5041-4.3-6 rfc5041-4.3-7 rfc5041-4.3-8 rfc5041-4.3-10 rfc5041-4.3-11
                //= rfc5041-4.3-12 rfc5041-5.2-5
                //= rfc5040-4.1-1 rfc5040-4.1-4 rfc5040-4.1-5 rfc5040-4.1-6 rfc5040-4.1-7 rfc5040-4.1-8 rfc5040-4.1-10
                //= rfc5040-5.3-1 rfc5040-5.3-2 rfc5040-5.3-5
                Header::Untagged { ulp, ulp_word, queue, msn: number, offset, .. } => {
                    assert_eq!((ulp, ulp_word, queue), (Opcode::Send.ulp(), 0, 0));
                    assert_eq!((number, offset as usize), (msn, at));
                }
                //= rfc5041-4.2-4 rfc5041-4.2-5 rfc5041-4.2-7 rfc5041-4.2-9 rfc5041-4.2-10 rfc5041-5.2-7
                //= rfc5040-5.1-1 rfc5040-5.1-2
                Header::Tagged { ulp, stag, offset, .. } => {
                    assert_eq!((ulp, stag, offset), (Opcode::Write.ulp(), Stag(0x777), 5000 + at as u64));
                }
            }
            at += payload.len();
            //= rfc5041-4.1-3 rfc5041-4.1-4 rfc5041-4.1-5 rfc5041-4.1-6
            assert_eq!(header.last(), at == data.len());
        }
        let sent: Vec<u8> = message.iter().flat_map(|(_, payload)| payload).copied().collect();
        //= rfc5041-5.2-1 rfc5041-5.2-3 rfc5040-5.1-4 rfc5040-5.3-6 rfc5040-5.5-4
        assert!(sent == data);
    }
}

#[tokio::test]
async fn a_steering_tag_is_of_no_use_on_another_connection() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    let (_raw, mut owner) = with_raw(&iwarp, &request(b""), 0).await;
    let region = owner.expose_for_write(100);
    let (mut raw, mut end) = with_raw(&iwarp, &request(b""), 0).await;
    let terminate = beside(&mut end, async {
        raw.stream.write_all(&fpdu(tagged(Opcode::Write, region.stag.0, region.offset), b"x")).await.unwrap();
        raw.terminate().await
    })
    .await;
    //= rfc5041-8.2-3 rfc5040-7.2-5 rfc5040-7.2-10
    assert_eq!(terminate.error, ErrorCode::TAGGED_STAG);
}

#[tokio::test]
async fn a_send_without_a_receive_is_answered_with_the_matching_terminate() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    let (mut raw, mut end) = with_raw(&iwarp, &request(b""), 0).await;
    let terminate = beside(&mut end, async {
        raw.stream.write_all(&fpdu(untagged(Opcode::Send, 0, 1, 0), b"x")).await.unwrap();
        raw.terminate().await
    })
    .await;
    assert_eq!(terminate.error, ErrorCode::UNTAGGED_NO_BUFFER);
}

#[tokio::test]
async fn a_wrong_crc_is_answered_with_the_matching_terminate() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    let (mut raw, mut end) = with_raw(&iwarp, &Handshake { crc: true, ..request(b"") }, 1).await;
    assert!(raw.reply.crc, "a request for CRCs must be accepted");
    let terminate = beside(&mut end, async {
        raw.stream.write_all(&fpdu(untagged(Opcode::Send, 0, 1, 0), b"x")).await.unwrap();
        raw.terminate().await
    })
    .await;
    //= rfc5044-4.4-1 rfc5044-7.1.1-11 rfc5044-4.4-9 rfc5044-4.4-10 rfc5044-6-2 rfc5044-8-1 rfc5044-8-4 rfc5044-8-3
    assert_eq!(terminate.error, ErrorCode::MPA_CRC);
    //= rfc5041-5.4-1
    assert!(end.done.iter().all(|done| done.status == rdma::Status::Flushed), "nothing may be delivered");
}

#[tokio::test]
async fn padding_and_crc_are_ignored_where_crcs_were_not_agreed_on() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    let (mut raw, mut end) = with_raw(&iwarp, &Handshake { reserved: 0x0f, ..request(b"") }, 1).await;
    //= rfc5044-7.1.1-13
    assert_eq!((raw.reply.crc, raw.reply.reserved), (false, 0));
    let mut bytes = fpdu(untagged(Opcode::Send, 0, 1, 0), b"x");
    let around = mpa::pad_len(19) + mpa::CRC_LEN;
    assert_eq!(around, 7);
    let behind = bytes.len() - around;
    bytes[behind..].fill(0xff);
    // A second Send shows that the end of the first was found. Each octet is a TCP segment of its own.
    bytes.extend(fpdu(untagged(Opcode::Send, 0, 2, 0), b"y"));
    beside(&mut end, async {
        for octet in bytes {
            raw.stream.write_all(&[octet]).await.unwrap();
            tokio::task::yield_now().await;
        }
    })
    .await;
    while end.done.is_empty() {
        std::future::poll_fn(|cx| end.qp.poll_completions(cx, &mut end.done)).await.unwrap();
    }
    //= rfc5044-4.1-2 rfc5044-4.1-3 rfc5044-4.4-5 rfc5044-7.1.1-10 rfc5044-7.1.1-12 rfc5044-5.1-1
    assert_eq!(end.received(WorkId(1000)), b"x");
}

#[tokio::test]
async fn the_numbers_of_reads_are_negotiated() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    let (raw, end) = with_raw(&iwarp, &request(b""), 0).await;
    let enhanced = raw.reply.enhanced.unwrap();
    assert_eq!((enhanced.inbound_reads, enhanced.outbound_reads), (2, 32));
    assert!(!enhanced.peer_to_peer);
    assert_eq!(end.qp.caps().outbound_reads, 32);
    assert_eq!(raw.reply.revision, 2);

    let first = Handshake { revision: 1, enhanced: None, ..request(b"old") };
    let (raw, end) = with_raw(&iwarp, &first, 0).await;
    assert_eq!((raw.reply.revision, raw.reply.enhanced), (1, None));
    assert_eq!(end.qp.caps().outbound_reads, 32);

    // Unspecified numbers set no limit.
    let unspecified = Enhanced {
        inbound_reads: mpa::READS_UNSPECIFIED,
        outbound_reads: mpa::READS_UNSPECIFIED,
        ..Default::default()
    };
    let (raw, _) = with_raw(&iwarp, &Handshake { enhanced: Some(unspecified), ..request(b"") }, 0).await;
    let enhanced = raw.reply.enhanced.unwrap();
    assert_eq!((enhanced.inbound_reads, enhanced.outbound_reads), (32, 32));
}

#[tokio::test]
async fn the_responder_waits_for_the_first_fpdu_and_accepts_each_ready_indication() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    let p2p =
        |rtr_write, rtr_read| Enhanced { peer_to_peer: true, rtr_write, rtr_read, ..request(b"").enhanced.unwrap() };
    let write = fpdu(tagged(Opcode::Write, 0, 0), b"");
    let read = fpdu(untagged(Opcode::ReadRequest, 1, 1, 0), &read_request(0, 0, 0));
    for (offered, chosen, indication) in [
        (p2p(true, true), (true, false), &write),
        (p2p(true, false), (true, false), &write),
        (p2p(false, true), (false, true), &read),
    ] {
        let offer = Handshake { enhanced: Some(offered), ..request(b"") };
        let (mut raw, mut end) = with_raw(&iwarp, &offer, 0).await;
        let enhanced = raw.reply.enhanced.unwrap();
        assert_eq!((enhanced.rtr_write, enhanced.rtr_read), chosen);
        assert!(enhanced.peer_to_peer);
        end.send(Bytes::from_static(b"first"));
        let (early, got) = beside(&mut end, async {
            // The clock advances only while neither end has anything to do.
            tokio::time::pause();
            let early = tokio::time::timeout(Duration::from_secs(10), raw.stream.readable()).await.is_ok();
            tokio::time::resume();
            raw.stream.write_all(indication).await.unwrap();
            let mut got = Vec::new();
            while got.len() < 1 + usize::from(chosen.1) {
                got.push(raw.read_fpdu().await.unwrap());
            }
            (early, got)
        })
        .await;
        //= rfc5044-7.1.2-8
        assert!(!early, "the responder must not send before the ready indication");
        //= rfc5044-7.1.1-8 rfc5044-4.3-11
        assert!(got.iter().any(|(header, payload)| header.ulp() == Opcode::Send.ulp() && payload == b"first"));
        //= rfc5040-5.5-3 rfc5040-5.5-8
        //= rfc5040-4.4-2 rfc5040-5.2.2-1 rfc5040-5.2.2-2
        assert_eq!(got.contains(&(tagged(Opcode::ReadResponse, 1, 0), Vec::new())), chosen.1);
    }
}

#[tokio::test]
async fn the_acceptor_may_send_first_in_peer_to_peer_mode() {
    let mut pair = fabric(IwarpOptions::default()).pair_with(&QpOptions::default(), &QpOptions::default(), 1).await;
    pair.server.send(Bytes::from_static(b"welcome"));
    pair.until(|pair| pair.client.has(&[WorkId(1000)])).await;
    assert_eq!(pair.client.received(WorkId(1000)), b"welcome");
}

#[tokio::test]
async fn revision_1_connects_without_negotiation() {
    let options = IwarpOptions { revision: 1, ..IwarpOptions::default() };
    let mut pair = fabric(options).pair_with(&QpOptions::default(), &QpOptions::default(), 1).await;
    let source = pair.server.expose_for_read(b"read over revision 1");
    let read = pair.client.read(4, source.stag, source.offset);
    pair.until(|pair| pair.client.has(&[read])).await;
    assert_eq!(pair.client.read_result(read), b"read");
}

#[tokio::test]
async fn a_peer_that_requires_markers_is_rejected() {
    let fabric = fabric(IwarpOptions::default());
    let mut listener = fabric.provider.listen(fabric.listen).unwrap();
    let at = listener.local_addr();
    let offer = Handshake { markers: true, ..request(b"") };
    let accept = async { listener.accept().await.unwrap().private_data().await };
    let (raw, accepted) = tokio::join!(raw_connect(at, &offer), accept);
    let reply = raw.unwrap().reply;
    //= rfc5044-4.3-1
    assert!(reply.rejected && !reply.markers);
    assert_eq!(accepted.unwrap_err().kind(), io::ErrorKind::Unsupported);
}

#[tokio::test]
async fn bytes_that_are_not_mpa_end_the_handshake() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"MPA ID Req Frame\x10\x03\0\0", b"MPA ID Req Frame\0\x01\xff\xff"] {
        let fabric = fabric(IwarpOptions::default());
        let mut listener = fabric.provider.listen(fabric.listen).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let error = listener.accept().await.unwrap().private_data().await.unwrap_err();
        //= rfc5044-7.1.1-2 rfc5044-7.1.1-16 rfc5044-7.1.1-18 rfc5044-7.1.2-2 rfc5044-7.1.2-3 rfc5044-7.1.2-9
        //= rfc5044-7.1.2-11 rfc5044-7.1.2-13
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
}

#[tokio::test]
async fn the_handshake_with_a_silent_peer_times_out() {
    let fabric = fabric(IwarpOptions { handshake_timeout: Duration::from_millis(50), ..IwarpOptions::default() });
    let mut listener = fabric.provider.listen(fabric.listen).unwrap();
    let _silent = TcpStream::connect(listener.local_addr()).await.unwrap();
    let error = listener.accept().await.unwrap().private_data().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);

    let unresponsive = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = unresponsive.local_addr().unwrap();
    let error = fabric.provider.connect(at, &QpOptions::default(), b"", Vec::new()).await.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

/// Connects to a raw responder. Returns the result, and the responder.
async fn connect_to_raw(enhanced: Enhanced) -> (io::Result<rdma::Connected>, RawPeer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let iwarp = Iwarp::new(IwarpOptions::default());
    let options = QpOptions::default();
    let respond = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; mpa::HEADER_LEN + mpa::ENHANCED_LEN];
        stream.read_exact(&mut bytes).await.unwrap();
        //= rfc5044-7.1.2-1
        let (received, _) = Handshake::parse(&bytes, false).unwrap().unwrap();
        let reply = Handshake { reply: true, enhanced: Some(enhanced), ..received };
        stream.write_all(&reply.encode()).await.unwrap();
        RawPeer { stream, reply }
    };
    tokio::join!(iwarp.connect(at, &options, b"", Vec::new()), respond)
}

#[tokio::test]
async fn a_responder_that_sends_no_reply_frame_is_left() {
    for reply in [request(b"").encode(), Bytes::from_static(b"HTTP/1.1 400 Bad Request\r\n\r\n")] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (iwarp, options) = (Iwarp::new(IwarpOptions::default()), QpOptions::default());
        let connect = iwarp.connect(listener.local_addr().unwrap(), &options, b"", Vec::new());
        let respond = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&reply).await.unwrap();
            stream
        };
        let (connected, mut stream) = tokio::join!(connect, respond);
        //= rfc5044-7.1.1-4 rfc5044-7.1.2-6 rfc5044-7.1.2-10 rfc5044-8-2
        assert_eq!(connected.err().unwrap().kind(), io::ErrorKind::InvalidData);
        // The initiator has closed the connection: its request is followed by the end of the stream, or by a reset.
        let mut request = Vec::new();
        let _ = stream.read_to_end(&mut request).await;
    }
}

/// Same as [`connect_to_raw`], but returns the Terminate that the responder received, if any.
async fn answered(enhanced: Enhanced) -> (io::Result<rdma::Connected>, Option<Terminate>) {
    let (connected, mut raw) = connect_to_raw(enhanced).await;
    let terminate = if connected.is_err() { Some(raw.terminate().await) } else { None };
    (connected, terminate)
}

#[tokio::test]
async fn an_unacceptable_reply_is_answered_with_the_matching_terminate() {
    let valid =
        Enhanced { peer_to_peer: true, rtr_write: true, inbound_reads: 7, outbound_reads: 32, ..Default::default() };
    let (connected, _) = answered(valid).await;
    //= rfc5044-7.1.2-5
    assert_eq!(connected.unwrap().qp.caps().outbound_reads, 7);
    let (connected, terminate) = answered(Enhanced { outbound_reads: 33, ..valid }).await;
    assert!(connected.is_err());
    assert_eq!(terminate.unwrap().error, ErrorCode::MPA_READS);
    let (_, terminate) = answered(Enhanced { rtr_write: false, rtr_read: true, ..valid }).await;
    assert_eq!(terminate.unwrap().error, ErrorCode::MPA_RTR);
}

/// Some responders (siw of Linux) do not notice data that arrived while they accepted until more data arrives.
#[tokio::test]
async fn the_ready_indication_is_repeated_until_the_responder_sends() {
    let valid =
        Enhanced { peer_to_peer: true, rtr_write: true, inbound_reads: 7, outbound_reads: 32, ..Default::default() };
    let (connected, mut raw) = connect_to_raw(valid).await;
    let mut end = End::new(connected.unwrap().qp);
    tokio::time::pause();
    beside(&mut end, async {
        for _ in 0..3 {
            assert_eq!(raw.read_fpdu().await, Some((tagged(Opcode::Write, 0, 0), Vec::new())));
        }
    })
    .await;
    assert_eq!(end.error, None);
}

#[tokio::test]
async fn a_terminate_of_the_peer_is_reported_as_text() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    let (mut raw, mut end) = with_raw(&iwarp, &request(b""), 1).await;
    let mut payload = Vec::new();
    Terminate { error: ErrorCode::UNTAGGED_TOO_LONG, segment: None, read_request: None }.encode(&mut payload);
    let bytes = fpdu(untagged(Opcode::Terminate, 2, 1, 0), &payload);
    beside(&mut end, async {
        raw.stream.write_all(&bytes).await.unwrap();
        assert!(raw.read_fpdu().await.is_none(), "a Terminate must not be answered");
    })
    .await;
    //= rfc5040-5.4-4 rfc5040-5.4-6 rfc5040-5.4-7
    assert_eq!(end.error, Some(QpError::Terminated("DDP: message too long for its buffer (1/2/0x05)".into())));
}

/// Messages that arrived before the peer's connection was reset are processed.
#[tokio::test]
async fn messages_before_a_reset_are_received() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    for _ in 0..20 {
        let (mut raw, mut end) = with_raw(&iwarp, &request(b""), 1).await;
        let mut payload = Vec::new();
        Terminate { error: ErrorCode::CATASTROPHIC_STREAM, segment: None, read_request: None }.encode(&mut payload);
        let mut bytes = fpdu(untagged(Opcode::Send, 0, 1, 0), b"last message");
        bytes.extend(fpdu(untagged(Opcode::Terminate, 2, 1, 0), &payload));
        // Data to the peer is in flight and never read, so the peer's socket answers with a reset.
        beside(&mut end, raw.stream.write_all(&fpdu(tagged(Opcode::Write, 0, 0), b""))).await.unwrap();
        let send = end.send(pattern(1, 8 << 20));
        beside(&mut end, raw.stream.readable()).await.unwrap();
        raw.stream.write_all(&bytes).await.unwrap();
        drop(raw);
        while end.error.is_none() {
            if let Err(error) = std::future::poll_fn(|cx| end.qp.poll_completions(cx, &mut end.done)).await {
                end.error = Some(error);
            }
        }
        assert_eq!(end.received(WorkId(1000)), b"last message");
        assert!(end.has(&[send]));
        assert_eq!(end.error, Some(QpError::Terminated(ErrorCode::CATASTROPHIC_STREAM.to_string())));
    }
}

/// An invalidation takes effect even while a segment for the region is arriving.
#[tokio::test]
async fn a_region_invalidated_during_a_segment_receives_no_more_of_it() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    let (mut raw, mut end) = with_raw(&iwarp, &request(b""), 1).await;
    let region = end.expose_for_write(50_000);
    let bytes = fpdu(tagged(Opcode::Write, region.stag.0, region.offset), &[9; 50_000]);
    let (first, rest) = bytes.split_at(20_000);
    let ready = fpdu(untagged(Opcode::Send, 0, 1, 0), b"x");
    beside(&mut end, async {
        raw.stream.write_all(&ready).await.unwrap();
        raw.stream.write_all(first).await.unwrap();
    })
    .await;
    let id = end.invalidate(region.stag);
    while !end.has(&[id]) {
        std::future::poll_fn(|cx| end.qp.poll_completions(cx, &mut end.done)).await.unwrap();
    }
    let terminate = beside(&mut end, async {
        raw.stream.write_all(rest).await.unwrap();
        raw.terminate().await
    })
    .await;
    //= rfc5041-8.3.1-7 rfc5040-8.1.1-7
    assert_eq!(terminate.error, ErrorCode::TAGGED_STAG);
}

#[tokio::test]
async fn a_connection_cut_during_a_message_is_a_network_error() {
    let iwarp = Iwarp::new(IwarpOptions::default());
    let bytes = fpdu(untagged(Opcode::Send, 0, 1, 0), b"some message");
    for cut in 1..bytes.len() {
        let (mut raw, mut end) = with_raw(&iwarp, &request(b""), 1).await;
        beside(&mut end, async {
            raw.stream.write_all(&bytes[..cut]).await.unwrap();
            raw.stream.shutdown().await.unwrap();
            while raw.read_fpdu().await.is_some() {}
        })
        .await;
        assert_eq!(end.error, Some(QpError::Io(io::ErrorKind::UnexpectedEof)), "cut at {cut}");
        //= rfc5044-6-4
        assert_eq!(end.statuses(), [(WorkId(1000), rdma::Status::Flushed)]);
    }
}

/// tshark finds no fault in the captured traffic. If it is not installed, the test prints that it was skipped.
#[tokio::test]
async fn wireshark_dissects_the_traffic() {
    for crc in [false, true] {
        let path = std::env::temp_dir().join(format!("slipway-iwarp-{}-{crc}.pcap", std::process::id()));
        let pcap = Pcap::create(&path).unwrap();
        // Only one end records, so that every packet appears once.
        let client = Iwarp::new(IwarpOptions { crc, pcap: Some(pcap.clone()), ..IwarpOptions::default() });
        all_kinds_of_messages(fabric(IwarpOptions::default()).connecting_by(client)).await;
        pcap.flush().unwrap();
        let tshark = std::process::Command::new("tshark")
            .arg("-r")
            .arg(&path)
            .args(["-V", "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"])
            .output();
        std::fs::remove_file(&path).unwrap();
        match tshark {
            Err(error) => println!("SKIPPED: tshark: {error}"),
            Ok(output) => check_dissection(&String::from_utf8_lossy(&output.stdout), crc),
        }
    }
}

fn check_dissection(text: &str, crc: bool) {
    for bad in ["Malformed", "Bad CRC", "etransmission", "incorrect", "Unreassembled", "previous segment"] {
        assert!(!text.contains(bad), "{bad}: {text}");
    }
    for opcode in ["Write (0x0)", "Read Request (0x1)", "Read Response (0x2)", "Send (0x3)", "(0x6)", "Terminate (0x7)"]
    {
        assert!(text.contains(opcode), "no {opcode}: {text}");
    }
    //= rfc5044-3-1 rfc5044-4.1-1 rfc5044-4.3-10 rfc5044-5.2-1 rfc5044-4.4-6 rfc5044-4.4-7 rfc5044-4.4-8 rfc5044-4.4-4
    assert_eq!(text.contains("Good CRC32"), crc);
    //= rfc5040-4.4-1 rfc5040-5.2.1-1 rfc5040-5.2.1-2 rfc5040-5.2.1-6 rfc5040-5.2.1-7
    assert!(text.contains("Error Types for RDMA layer: Remote Protection Error"));
}

async fn all_kinds_of_messages(fabric: Fabric) {
    let mut pair = fabric.pair_with(&QpOptions::default(), &QpOptions::default(), 3).await;
    let data = pattern(1, 200_000);
    let target = pair.client.expose_for_write(data.len());
    let source = pair.client.expose_for_read(&data);
    // The messages are long enough that Wireshark does not dissect them as another protocol over RDMA.
    pair.client.send(pattern(2, 100));
    let read = pair.server.read(data.len(), source.stag, source.offset);
    pair.server.write(data.clone(), target.stag, target.offset);
    pair.server.send_invalidate(pattern(3, 100), target.stag, true);
    pair.until(|pair| pair.server.has(&[read]) && pair.client.has(&[WorkId(1000)])).await;
    // A Terminate with all its headers.
    pair.server.read(10, Stag(0x9999), 0);
    pair.until_ended().await;
}
