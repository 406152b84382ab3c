//! Calls to a running rpcbind: registers programs on this host, and looks programs up on a server.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use xdr::{Decode, Encode, Text};

use super::{
    Binding, GETADDR, Mapping, Netid, PROGRAM, Rpcb, SET, STRING_MAX, UNSET, from_universal, reachable, to_universal,
};
use crate::{AcceptStat, CallOptions, Client, ClientError, ClientOptions, ReplyPlan, TransportKind};

/// The reason why a call to rpcbind failed.
#[derive(Debug)]
pub enum LookupError {
    /// No rpcbind answers, or it does not execute the call.
    Call(ClientError),
    /// The program is not registered on that transport.
    NotRegistered {
        /// The program number and version.
        program: (u32, u32),
        /// The transport and address family.
        netid: Netid,
    },
    /// The answer is not a valid address.
    BadAddress(String),
    /// rpcbind refused to register the binding.
    Refused(Binding),
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LookupError::Call(error) => write!(f, "rpcbind: {error}"),
            LookupError::NotRegistered { program: (program, version), netid } => {
                write!(f, "rpcbind has no program {program} version {version} on {netid}")
            }
            LookupError::BadAddress(address) => write!(f, "rpcbind returned '{address}', which is not an address"),
            LookupError::Refused(Binding { program, version, netid, .. }) => {
                write!(f, "rpcbind refuses to register program {program} version {version} on {netid}: ")?;
                write!(f, "it accepts registrations only from root, or from the program that registered it before")
            }
        }
    }
}

impl std::error::Error for LookupError {}

impl From<ClientError> for LookupError {
    fn from(error: ClientError) -> Self {
        LookupError::Call(error)
    }
}

/// Asks the `rpcbind` of a host (its port is [`PORT`](super::PORT)) over `kind` (tcp or udp) for the address of a
/// program.
///
/// # Errors
/// Fails with a [`LookupError`] if rpcbind does not answer, or does not know the program.
pub async fn lookup(
    kind: Arc<dyn TransportKind>,
    rpcbind: SocketAddr,
    program: u32,
    version: u32,
    netid: &Netid,
) -> Result<SocketAddr, LookupError> {
    let host = rpcbind.ip();
    let asked_at = to_universal(rpcbind);
    let rpcbind = connect(kind, rpcbind).await?;
    let unknown = || LookupError::NotRegistered { program: (program, version), netid: netid.clone() };
    if let Some(protocol) = netid.protocol() {
        // Every port mapper supports version 2.
        let mapping = Mapping { program, version, protocol, port: 0 };
        let port: u32 = call(&rpcbind, 2, GETADDR, &mapping).await?;
        return match u16::try_from(port) {
            Ok(0) => Err(unknown()),
            Ok(port) => Ok(SocketAddr::new(host, port)),
            Err(_) => Err(LookupError::BadAddress(port.to_string())),
        };
    }
    let rpcb = Rpcb { program, version, netid: Text(netid.0.clone()), address: Text(asked_at), owner: Text::default() };
    let Text(address): Text<STRING_MAX> = newest(&rpcbind, GETADDR, &rpcb).await?;
    if address.is_empty() {
        return Err(unknown());
    }
    let found = from_universal(&address).ok_or(LookupError::BadAddress(address))?;
    Ok(reachable(found, Some(host)))
}

/// Registers `bindings` with the `rpcbind` of this host. They replace earlier bindings of the same programs.
///
/// # Errors
/// No rpcbind answers, or it refuses a binding.
pub async fn register(
    kind: Arc<dyn TransportKind>,
    rpcbind: SocketAddr,
    bindings: &[Binding],
) -> Result<(), LookupError> {
    let rpcbind = connect(kind, rpcbind).await?;
    for binding in bindings {
        let rpcb = Rpcb::from(binding);
        let _: bool = newest(&rpcbind, UNSET, &rpcb).await?;
        if !newest::<bool>(&rpcbind, SET, &rpcb).await? {
            return Err(LookupError::Refused(binding.clone()));
        }
    }
    Ok(())
}

/// Removes `bindings` from the `rpcbind` of this host.
///
/// # Errors
/// No rpcbind answers.
pub async fn unregister(
    kind: Arc<dyn TransportKind>,
    rpcbind: SocketAddr,
    bindings: &[Binding],
) -> Result<(), LookupError> {
    let rpcbind = connect(kind, rpcbind).await?;
    for binding in bindings {
        let _: bool = newest(&rpcbind, UNSET, &Rpcb::from(binding)).await?;
    }
    Ok(())
}

async fn connect(kind: Arc<dyn TransportKind>, address: SocketAddr) -> Result<Client, LookupError> {
    let options = ClientOptions { deadline: DEADLINE, ..ClientOptions::new(PROGRAM, 2) };
    Ok(Client::connect(kind, address, options).await?)
}

/// Calls version 4, or version 3 if the server does not have version 4.
async fn newest<R: Decode>(rpcbind: &Client, procedure: u32, arguments: &Rpcb) -> Result<R, LookupError> {
    match call(rpcbind, 4, procedure, arguments).await {
        Err(ClientError::NotExecuted(AcceptStat::ProgMismatch { .. })) => {
            Ok(call(rpcbind, 3, procedure, arguments).await?)
        }
        done => Ok(done?),
    }
}

async fn call<R: Decode>(
    rpcbind: &Client,
    version: u32,
    procedure: u32,
    arguments: &impl Encode,
) -> Result<R, ClientError> {
    let client = rpcbind.with_program(PROGRAM, version);
    let answer = client.call(procedure, arguments, ReplyPlan::default(), CallOptions::default()).await?;
    Ok(answer.results)
}

const DEADLINE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::{super::*, *};
    use crate::{Drain, Hosts, Server, TcpKind, Transport, UdpKind};

    /// Serves an rpcbind on a free port of the loopback address.
    async fn serve(kind: &dyn TransportKind, registry: Registry) -> SocketAddr {
        let server = Server::builder().service(Rpcbind::new(registry)).build();
        let mut listener = kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr();
        tokio::spawn(async move {
            loop {
                let transport: Arc<dyn Transport> =
                    listener.accept().await.unwrap().set_up(Hosts::all()).await.unwrap();
                let server = server.clone();
                tokio::spawn(async move { server.serve(transport, Drain::never()).await });
            }
        });
        address
    }

    fn binding(version: u32, netid: &str, address: &str) -> Binding {
        Binding { program: 100_003, version, netid: Netid(netid.into()), address: address.parse().unwrap() }
    }

    #[tokio::test]
    async fn registered_programs_are_found_over_tcp_and_udp() {
        let kinds: [Arc<dyn TransportKind>; 2] = [Arc::new(TcpKind::default()), Arc::new(UdpKind::default())];
        for kind in kinds {
            let registry = Registry::default();
            let rpcbind = serve(&*kind, registry.clone()).await;
            let bindings = [binding(3, "tcp", "0.0.0.0:2049"), binding(3, "rdma", "0.0.0.0:20049")];
            register(kind.clone(), rpcbind, &bindings).await.unwrap();
            register(kind.clone(), rpcbind, &bindings)
                .await
                .expect("a restarted server must be able to register again");
            assert_eq!(registry.list(), bindings);
            for (netid, port) in [("tcp", 2049), ("rdma", 20049)] {
                let found = lookup(kind.clone(), rpcbind, 100_003, 3, &Netid(netid.into())).await.unwrap();
                assert_eq!(found, SocketAddr::from(([127, 0, 0, 1], port)));
            }
            let missing = lookup(kind.clone(), rpcbind, 100_003, 3, &Netid("udp".into())).await.unwrap_err();
            assert_eq!(missing.to_string(), "rpcbind has no program 100003 version 3 on udp");
            unregister(kind, rpcbind, &bindings).await.unwrap();
            assert_eq!(registry.list(), []);
        }
    }
}
