//! The source port of connections that the server opens at the request of a client.
//!
//! The client, or its rpcbind, chooses the destination port. A service on the client's host may trust connections from
//! ports below 1024, which only root can use on the server. So such connections never come from a port below 1024.

use std::sync::Arc;

use rpc::{RawOptions, TransportKind};

/// Returns the same transport with connections that come from an unprivileged port. Returns a transport without ports
/// unchanged.
pub(crate) fn unprivileged(kind: &Arc<dyn TransportKind>) -> Arc<dyn TransportKind> {
    let options = RawOptions::from([("resvport".to_owned(), "off".to_owned())]);
    kind.with_options(&options).unwrap_or_else(|_| kind.clone())
}

#[cfg(test)]
mod tests {
    use rpc::{TcpKind, UdpKind};

    use super::*;

    #[tokio::test]
    async fn tcp_connection_comes_from_unprivileged_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _connection = unprivileged(&(Arc::new(TcpKind::default()) as Arc<dyn TransportKind>))
            .connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        assert!(listener.accept().unwrap().1.port() >= 1024);
    }

    #[tokio::test]
    async fn datagram_comes_from_unprivileged_port() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let kind = unprivileged(&(Arc::new(UdpKind::default()) as Arc<dyn TransportKind>));
        let options =
            rpc::ClientOptions { deadline: std::time::Duration::from_secs(120), ..rpc::ClientOptions::new(1, 1) };
        let client = rpc::Client::connect(kind, socket.local_addr().unwrap(), options).await.unwrap();
        let call =
            tokio::spawn(async move { client.call::<()>(0, &(), Default::default(), Default::default()).await.ok() });
        let received = tokio::task::spawn_blocking(move || socket.recv_from(&mut [0; 512]).unwrap()).await.unwrap();
        call.abort();
        assert!(received.1.port() >= 1024);
    }
}
