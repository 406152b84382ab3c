//! Tests of the switch with all features.

use rdma::verbs::{Verbs, VerbsOptions};
use rpc::{Hosts, OptionError, RawOptions, TransportKind};

use super::*;

fn rdma(options: &[(&str, &str)]) -> Result<Arc<dyn TransportKind>, OptionError> {
    let raw = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    for_client().find("rdma").unwrap().with_options(&raw)
}

#[test]
fn switch_has_all_transports() {
    assert_eq!(for_client().names().collect::<Vec<_>>(), ["auto", "rdma", "shm", "tcp", "udp"]);
}

#[test]
fn rdma_accepts_options_of_protocol_and_provider() {
    assert!(rdma(&[("credits", "32"), ("crc", "on"), ("congestion", "cubic"), ("mpa", "1")]).is_ok());
    let error = rdma(&[("colour", "red")]).err().unwrap().to_string();
    assert!(error.contains("credits") && error.contains("crc"), "{error}");
    assert!(rdma(&[("provider", "carrier-pigeon")]).err().unwrap().problem.contains("iwarp"));
    assert!(rdma(&[("crc", "maybe")]).is_err() && rdma(&[("mpa", "3")]).is_err());
}

#[test]
fn shm_accepts_options_of_protocol_and_provider() {
    let shm = |name: &str, value: &str| {
        let raw = RawOptions::from([(name.to_owned(), value.to_owned())]);
        for_client().find("shm").unwrap().with_options(&raw)
    };
    assert!(shm("socket", "/run/x.sock").is_ok() && shm("spin", "0").is_ok() && shm("credits", "4").is_ok());
    let error = shm("crc", "on").err().unwrap();
    assert_eq!(error.transport, "shm");
    assert!(error.problem.contains("credits") && error.problem.contains("socket"), "{error}");
}

#[test]
fn iwarp_options_are_rejected_for_adapters() {
    assert!(["auto", "iwarp", "verbs"].into_iter().all(|name| rdma(&[("provider", name)]).is_ok()));
    let error = rdma(&[("provider", "verbs"), ("crc", "on")]).err().unwrap();
    assert_eq!(error.option, "crc");
}

#[tokio::test]
async fn without_adapters_auto_uses_iwarp_and_verbs_names_the_packages() {
    if Verbs::open(VerbsOptions::default()).is_ok() {
        println!("SKIPPED transports: behaviour without adapters: this machine has one");
        return;
    }
    let local = "127.0.0.1:0".parse().unwrap();
    let mut listener = rdma(&[]).unwrap().listen(local).unwrap();
    let at = listener.local_addr();
    let kind = rdma(&[]).unwrap();
    let (connected, accepted) =
        tokio::join!(kind.connect(at), async { listener.accept().await.unwrap().set_up(Hosts::all()).await });
    assert!(connected.is_ok() && accepted.is_ok());
    let verbs = rdma(&[("provider", "verbs")]).unwrap();
    let error = verbs.listen(local).err().unwrap();
    assert!(error.to_string().contains("apt install libibverbs1"), "{error}");
    assert!(verbs.connect(at).await.is_err());
}

#[tokio::test]
async fn peer_is_known_before_connection_setup() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket").to_str().unwrap().to_owned();
    let options = RawOptions::from([("socket".to_owned(), socket)]);
    let shm = for_client().find("shm").unwrap().with_options(&options).unwrap();
    let user = rustix::process::geteuid().as_raw();
    for (kind, user) in [(shm, Some(user)), (rdma(&[("provider", "iwarp")]).unwrap(), None)] {
        let mut listener = kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = listener.local_addr();
        let incoming = tokio::select! {
            incoming = listener.accept() => incoming.unwrap(),
            connected = kind.connect(at) => panic!("connected before it was set up: {:?}", connected.map(drop)),
        };
        let peer = incoming.peer().unwrap();
        assert_eq!((peer.user, peer.address.is_loopback()), (user, true));
    }
}

#[test]
fn every_option_is_documented() {
    let pages = ["configuration.md", "security.md"].map(|page| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
        std::fs::read_to_string(path).unwrap()
    });
    let switch = for_client();
    for (transport, count) in [("tcp", 20), ("udp", 4), ("rdma", 25), ("shm", 20)] {
        // The error of an unknown option names all that are known.
        let raw = RawOptions::from([("zz".to_owned(), String::new())]);
        let problem = switch.find(transport).unwrap().with_options(&raw).err().unwrap().problem;
        let names =
            problem.strip_prefix("no such option; the options are ").unwrap().replace(" (and of the provider: ", ", ");
        let names: Vec<_> = names.trim_end_matches(')').split(", ").collect();
        assert!(names.len() >= count, "{transport}: {names:?}");
        for name in names {
            assert!(
                pages.iter().any(|page| page.contains(&format!("`{name}`"))),
                "{transport}: {name} is not documented"
            );
        }
    }
}
