//! Tests that simulated streams behave like TCP.

use std::{
    future::poll_fn,
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    net::{Shutdown, SocketAddr},
    time::Duration,
};

use simnet::{Cut, Network, NetworkOptions, Stream, StreamListener, assert_replays, seeds, simulate};
use tokio::time::{Instant, timeout};

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 2049);

fn network(seed: u64) -> Network {
    Network::new(NetworkOptions { seed, ..NetworkOptions::default() })
}

async fn pair(network: &Network) -> (Stream, Stream) {
    let mut listener = StreamListener::bind(network, SERVER).unwrap();
    let (client, server) = tokio::join!(Stream::connect(network, SERVER), listener.accept());
    (client.unwrap(), server.unwrap())
}

async fn read(stream: &Stream, most: usize) -> io::Result<Vec<u8>> {
    poll_fn(|cx| stream.poll_readable(cx)).await;
    let mut bytes = vec![0; most];
    let len = stream.read_vectored(&mut [IoSliceMut::new(&mut bytes)])?;
    bytes.truncate(len);
    Ok(bytes)
}

async fn read_all(stream: &Stream) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let bytes = read(stream, 10_000).await?;
        if bytes.is_empty() {
            return Ok(all);
        }
        all.extend(bytes);
    }
}

async fn write_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        poll_fn(|cx| stream.poll_writable(cx)).await;
        let half = bytes.len() / 2;
        let len = stream.write_vectored(&[IoSlice::new(&bytes[..half]), IoSlice::new(&bytes[half..])])?;
        bytes = &bytes[len..];
    }
    Ok(())
}

fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn bytes_arrive_in_order_and_runs_with_one_seed_are_equal() {
    for seed in seeds(20) {
        assert_replays(|| {
            simulate(seed, || async {
                let network = network(seed);
                let (client, server) = pair(&network).await;
                let sent = pattern(300_000);
                let (written, received) = tokio::join!(
                    async {
                        write_all(&client, &sent).await.unwrap();
                        client.shutdown(Shutdown::Write);
                    },
                    read_all(&server)
                );
                let () = written;
                assert!(received.unwrap() == sent);
                // The other direction is still open.
                write_all(&server, b"thanks").await.unwrap();
                server.shutdown(Shutdown::Write);
                assert_eq!(read_all(&client).await.unwrap(), b"thanks");
                network.trace()
            })
        });
    }
}

#[test]
fn write_is_limited_by_the_window() {
    simulate(1, || async {
        let (client, server) = pair(&network(1)).await;
        let block = vec![1; 1 << 20];
        let mut taken = 0;
        let refused = loop {
            match client.write_vectored(&[IoSlice::new(&block)]) {
                Ok(len) => taken += len,
                Err(error) => break error.kind(),
            }
        };
        assert_eq!(refused, ErrorKind::WouldBlock);
        let waiting = timeout(Duration::from_secs(10), poll_fn(|cx| client.poll_writable(cx)));
        assert!(waiting.await.is_err(), "a full window must block the writer until the peer reads");
        let mut received = 0;
        while received < taken {
            received += read(&server, 1 << 20).await.unwrap().len();
        }
        poll_fn(|cx| client.poll_writable(cx)).await;
    });
}

#[test]
fn cut_resets_both_ends_and_discards_bytes_in_transit() {
    for cut in [Cut::Before, Cut::After] {
        simulate(1, || async move {
            let network = network(1);
            let (client, server) = pair(&network).await;
            network.cut_at(0, cut);
            write_all(&client, b"lost").await.unwrap();
            assert_eq!(read(&server, 10).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert_eq!(read(&client, 10).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert_eq!(client.write_vectored(&[IoSlice::new(b"x")]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert_eq!(network.connections(), 0);
        });
    }
}

#[test]
fn dropped_stream_resets_its_peer_only_if_it_has_unread_bytes() {
    simulate(1, || async {
        let (client, server) = pair(&network(1)).await;
        write_all(&client, b"last bytes").await.unwrap();
        drop(client);
        assert_eq!(read_all(&server).await.unwrap(), b"last bytes");

        let (client, server) = pair(&network(2)).await;
        write_all(&client, b"unread").await.unwrap();
        drop(server);
        assert_eq!(read(&client, 10).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn crashed_host_refuses_connections_until_it_listens_again() {
    simulate(1, || async {
        let network = network(1);
        let (client, _server) = pair(&network).await;
        network.crash(SERVER);
        assert_eq!(read(&client, 10).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let refused = Stream::connect(&network, SERVER).await.err().expect("connection must be refused");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        pair(&network).await;
    });
}

#[test]
fn stalled_network_delays_messages() {
    simulate(1, || async {
        let network = network(1);
        let (client, server) = pair(&network).await;
        network.stall(Duration::from_secs(7));
        let start = Instant::now();
        write_all(&client, b"x").await.unwrap();
        read(&server, 10).await.unwrap();
        assert!(start.elapsed() >= Duration::from_secs(7));
    });
}

/// Connections do not wait for each other: of two messages on two connections, the one that is sent later can arrive first.
#[test]
fn messages_of_different_connections_overtake_each_other() {
    let overtaken = (0..50).filter(|&seed| {
        simulate(seed, || async move {
            let network = network(seed);
            let mut listener = StreamListener::bind(&network, SERVER).unwrap();
            let one = Stream::connect(&network, SERVER).await.unwrap();
            let other = Stream::connect(&network, SERVER).await.unwrap();
            let (at_one, at_other) = (listener.accept().await.unwrap(), listener.accept().await.unwrap());
            write_all(&one, b"1").await.unwrap();
            write_all(&other, b"2").await.unwrap();
            let (first, second) = tokio::join!(arrival(&at_one), arrival(&at_other));
            second < first
        })
    });
    assert!((5..45).contains(&overtaken.count()));
}

async fn arrival(stream: &Stream) -> Instant {
    read(stream, 1).await.unwrap();
    Instant::now()
}

#[simnet::test]
async fn time_in_a_test_is_virtual() {
    assert!(simnet::is_simulated());
    let before = Instant::now();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(before.elapsed(), Duration::from_secs(3600));
}
