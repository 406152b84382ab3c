//! The source port of connections that a client makes the server open.
//!
//! The client says to which port, or its rpcbind does. A service on the client's host may trust connections from ports below
//! 1024, which on the server only root can use, so these are not used where the peer decides.

use std::sync::Arc;

use rpc::{RawOptions, TransportKind};

/// The same transport, but its connections come from a port that any user can have. A transport without ports is left as it is.
pub(crate) fn unprivileged(kind: &Arc<dyn TransportKind>) -> Arc<dyn TransportKind> {
    let options = RawOptions::from([("resvport".to_owned(), "off".to_owned())]);
    kind.with_options(&options).unwrap_or_else(|_| kind.clone())
}

#[cfg(test)]
mod tests {
    use rpc::{TcpKind, UdpKind};

    use super::*;

    #[tokio::test]
    async fn a_connection_comes_from_an_unprivileged_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _connection = unprivileged(&(Arc::new(TcpKind::default()) as Arc<dyn TransportKind>))
            .connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        assert!(listener.accept().unwrap().1.port() >= 1024);
    }

    #[tokio::test]
    async fn a_datagram_comes_from_an_unprivileged_port() {
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
