//! The decision whether a caller may use an export. MNT, every procedure of NFSv3 and NFS_ACL, every operation of
//! NFSv4, and NLM use only [`Export::decide`]. So do the lists of flavours that clients get from MNT, SECINFO and
//! SECINFO_NO_NAME ([`Export::flavors`]): a list never names a flavour that is refused afterwards.
//!
//! A condition on the caller has two parts: a field of [`Requester`], and a test in [`Export::decide`].

use std::net::SocketAddr;

use rpc::Xprtsec;
use vfs::VfsError;

use super::{Export, client::Client, sec::Sec};

/// The properties of a caller that the rules of exports use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) peer: SocketAddr,
    /// The name of the transport that delivered the call.
    pub(crate) transport: &'static str,
    /// The security flavour of the call; `None` if no export can allow it.
    pub(crate) sec: Option<Sec>,
    /// The protection of the connection that carries the call. A session of NFSv4 can have connections of several kinds.
    pub(crate) tls: Xprtsec,
}

/// The purpose for which a caller uses an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Operations on files.
    Files,
    /// Operations of NFSv4 that release state, which the server allows with the machine credential of a client (RFC 8881
    /// §2.10.8.3): the export's `sec` does not apply, because the credential of the user may have expired.
    Release,
    /// NLM. It uses TCP or UDP even if NFS uses another transport, so the export's `transports` do not apply.
    Locks,
    /// MNT. As for NLM, `transports` do not apply. The export's `sec` and `xprtsec` do not apply either: a client learns
    /// from MNT which flavours it can use (RFC 1813 appendix I), and Linux's client always calls it in clear and with
    /// AUTH_SYS. The handle that it gets is of use only to a caller that is admitted for files.
    Mount,
}

/// The reason why a caller may not use an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no such export.
    Stale,
    /// The host, the port or the transport is not admitted.
    Access,
    /// The host is admitted, but with other security flavours.
    WrongSec,
}

impl Export {
    /// Decides whether a caller may use the export for `purpose`.
    ///
    /// # Errors
    /// Returns `Access` if the host, the port, the transport or the protection of the connection is not admitted, and
    /// otherwise `WrongSec` if the caller's security flavour is not.
    pub(crate) fn decide(&self, requester: &Requester, purpose: Purpose) -> Result<(), Refusal> {
        let Requester { peer, transport, sec, tls } = *requester;
        let options = self.options();
        let client = self.client(requester).ok_or(Refusal::Access)?;
        let port = options.insecure || peer.port() < PORT_PRIVILEGED;
        let named = options.transports.as_ref().map(|names| names.iter().any(|name| name == transport));
        let xprtsec = client.xprtsec().unwrap_or(&options.xprtsec);
        // TLS protects only TCP. An export that names another transport trusts its network.
        let protected = purpose == Purpose::Mount || xprtsec.admit(tls) || (transport != TCP && named == Some(true));
        let transport = match purpose {
            Purpose::Locks | Purpose::Mount => true,
            Purpose::Files | Purpose::Release => named.unwrap_or(true),
        };
        // RFC 9289 defines no flavour that SECINFO could return for TLS, so WrongSec would send clients into a loop.
        if !port || !transport || !protected {
            return Err(Refusal::Access);
        }
        let flavors = client.sec().unwrap_or(&options.sec);
        let any = matches!(purpose, Purpose::Mount | Purpose::Release);
        if any || sec.is_some_and(|sec| flavors.contains(sec)) { Ok(()) } else { Err(Refusal::WrongSec) }
    }

    /// Returns `true` if data for this caller must be protected on their way: the flavour of the call protects them, or the export
    /// demands it of the connections of this host.
    pub(crate) fn protects(&self, requester: &Requester) -> bool {
        let by_connection = |client: &Client| !client.xprtsec().unwrap_or(&self.options().xprtsec).admit(Xprtsec::None);
        let by_call = matches!(requester.sec, None | Some(Sec::Krb5i | Sec::Krb5p));
        by_call || self.client(requester).is_none_or(by_connection)
    }

    /// Returns `true` if data servers of pNFS may have the data of files for this caller. They know clients by AUTH_SYS and in clear
    /// (RFC 8435 §2.2), so the export must admit that for this host, and the caller must not have asked for more.
    pub(crate) fn permits_layouts(&self, requester: &Requester) -> bool {
        let admits_sys = |client: &Client| {
            let flavors = client.sec().unwrap_or(&self.options().sec);
            flavors.contains(Sec::Sys) || flavors.contains(Sec::None)
        };
        self.client(requester).is_some_and(admits_sys) && !self.protects(requester)
    }

    /// Returns the security flavours with which this host can use files of the export, in the order of the
    /// configuration. They are those with which [`decide`](Self::decide) admits the caller for `purpose`.
    pub(crate) fn flavors(&self, requester: &Requester, purpose: Purpose) -> Vec<Sec> {
        let listed = self.client(requester).map(|client| client.sec().unwrap_or(&self.options().sec));
        let admitted = |sec: &Sec| self.decide(&Requester { sec: Some(*sec), ..*requester }, purpose).is_ok();
        listed.into_iter().flat_map(|listed| listed.iter()).filter(admitted).collect()
    }

    /// Returns the entry of `clients` that applies to a caller: the first one that has its host.
    fn client(&self, requester: &Requester) -> Option<&Client> {
        self.options().clients.iter().find(|client| client.matches(requester.peer.ip()))
    }
}

impl From<Refusal> for VfsError {
    /// Converts a refusal for protocols that have no status for a wrong security flavour.
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Stale => VfsError::Stale,
            Refusal::Access | Refusal::WrongSec => VfsError::Access,
        }
    }
}

/// Ports below this one are privileged.
pub(crate) const PORT_PRIVILEGED: u16 = 1024;
/// The transport that TLS protects.
const TCP: &str = "tcp";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vfs::memory::{Memory, MemoryOptions};

    use super::*;
    use crate::{
        ExportId, ExportOptions,
        export::{sec::SecFlavors, xprtsec::Protections},
        identity::users::Resolved,
    };

    fn export(sec: &[Sec], clients: Vec<Client>) -> Export {
        let sec = SecFlavors::new(sec.to_vec()).unwrap();
        let options = ExportOptions { clients, sec, ..ExportOptions::default() };
        Export::new("/m", ExportId::unique(), Arc::new(Memory::new(MemoryOptions::default())), options).unwrap()
    }

    fn requester(peer: &str, sec: Option<Sec>) -> Requester {
        Requester { peer: peer.parse().unwrap(), transport: "tcp", sec, tls: Xprtsec::None }
    }

    #[test]
    fn the_first_entry_of_a_host_has_its_squash() {
        let text = "clients = [{ host = '10.1.0.1', squash = 'none' }, '10.0.0.0/8', { host = '*', squash = 'all' }]";
        let entries: std::collections::HashMap<String, Vec<Client>> = toml::from_str(text).unwrap();
        let export = export(&[Sec::Sys], entries["clients"].clone());
        let sys = |uid| {
            rpc::Identity::Sys(rpc::AuthSys {
                stamp: 0,
                machine: Default::default(),
                uid,
                gid: uid,
                gids: Default::default(),
            })
        };
        let acts = |host: &str, uid| export.identity(host.parse().unwrap(), &sys(uid), &Resolved::AsClaimed).uid;
        let nobody = export.anonymous().uid;
        assert_eq!((acts("10.1.0.1", 0), acts("::ffff:10.1.0.1", 7)), (0, 7));
        assert_eq!((acts("10.1.0.2", 0), acts("10.1.0.2", 7)), (nobody, 7));
        assert_eq!((acts("192.0.2.1", 0), acts("192.0.2.1", 7)), (nobody, nobody));
    }

    #[test]
    fn the_first_entry_of_a_host_has_its_flavours() {
        let krb5p: Client = "10.1.0.0/16".parse::<Client>().unwrap().with_sec(Sec::Krb5p.into());
        let export = export(&[Sec::Krb5i, Sec::Sys], vec![krb5p, "10.0.0.0/8".parse().unwrap()]);
        for (peer, allowed) in [("10.1.2.3:700", &[Sec::Krb5p][..]), ("10.2.2.3:700", &[Sec::Krb5i, Sec::Sys])] {
            for sec in Sec::ALL.map(Some).into_iter().chain([None]) {
                let expected = match sec {
                    Some(sec) if allowed.contains(&sec) => Ok(()),
                    _ => Err(Refusal::WrongSec),
                };
                for purpose in [Purpose::Files, Purpose::Locks] {
                    assert_eq!(export.decide(&requester(peer, sec), purpose), expected, "{peer} {sec:?}");
                }
                assert_eq!(export.decide(&requester(peer, sec), Purpose::Mount), Ok(()));
                for purpose in [Purpose::Locks, Purpose::Mount] {
                    assert_eq!(export.flavors(&requester(peer, sec), purpose), allowed);
                }
            }
        }
        let stranger = requester("192.0.2.1:700", Some(Sec::Krb5p));
        assert_eq!(export.decide(&stranger, Purpose::Mount), Err(Refusal::Access));
        assert_eq!(export.flavors(&stranger, Purpose::Mount), []);
    }

    #[test]
    fn the_first_entry_of_a_host_has_its_protection_by_tls() {
        let tls: Client = "10.1.0.0/16".parse().unwrap();
        let tls = tls.with_xprtsec(Protections::new(vec![Xprtsec::Tls, Xprtsec::Mtls]).unwrap());
        let export = export(&[Sec::Sys], vec![tls, "10.0.0.0/8".parse().unwrap()]);
        for (peer, level, admitted) in [
            ("10.1.2.3:700", Xprtsec::None, false),
            ("10.1.2.3:700", Xprtsec::Tls, true),
            ("10.1.2.3:700", Xprtsec::Mtls, true),
            ("10.2.2.3:700", Xprtsec::None, true),
        ] {
            let requester = Requester { tls: level, ..requester(peer, Some(Sec::Sys)) };
            let expected = if admitted { Ok(()) } else { Err(Refusal::Access) };
            for purpose in [Purpose::Files, Purpose::Release, Purpose::Locks] {
                assert_eq!(export.decide(&requester, purpose), expected, "{peer} {level:?} {purpose:?}");
            }
            assert_eq!(export.decide(&requester, Purpose::Mount), Ok(()));
        }
    }

    #[test]
    fn layouts_are_permitted_where_auth_sys_in_clear_is_admitted() {
        let permits = |flavors: &[Sec], sec| {
            let export = export(flavors, vec![Client::any()]);
            export.permits_layouts(&requester("10.0.0.1:700", Some(sec)))
        };
        assert!(permits(&[Sec::Sys, Sec::Krb5], Sec::Sys) && permits(&[Sec::Sys, Sec::Krb5], Sec::Krb5));
        assert!(!permits(&[Sec::Sys, Sec::Krb5i], Sec::Krb5i), "the caller wants integrity");
        assert!(!permits(&[Sec::Krb5], Sec::Krb5), "AUTH_SYS is not admitted");
        let tls = Client::any().with_xprtsec(Protections::new(vec![Xprtsec::Tls]).unwrap());
        let over_tls = Requester { tls: Xprtsec::Tls, ..requester("10.0.0.1:700", Some(Sec::Sys)) };
        assert!(!export(&[Sec::Sys], vec![tls]).permits_layouts(&over_tls));
    }

    #[test]
    fn data_are_protected_if_the_call_or_the_export_says_so() {
        use Xprtsec::{Mtls, None as Clear, Tls};
        let vfs = Arc::new(Memory::new(MemoryOptions::default()));
        let protects = |xprtsec: &[Xprtsec], client: &str, sec| {
            let options = ExportOptions {
                clients: vec![client.parse().unwrap()],
                xprtsec: Protections::new(xprtsec.to_vec()).unwrap(),
                transports: Some(vec!["shm".to_owned()]),
                ..ExportOptions::default()
            };
            let export = Export::new("/e", ExportId::of(&[b"e"]), vfs.clone(), options).unwrap();
            export.protects(&Requester { transport: "shm", ..requester("10.0.0.1:1", sec) })
        };
        let all = [Clear, Tls, Mtls];
        for (sec, expected) in
            [(Sec::Sys, false), (Sec::None, false), (Sec::Krb5, false), (Sec::Krb5i, true), (Sec::Krb5p, true)]
        {
            assert_eq!(protects(&all, "10.0.0.0/8", Some(sec)), expected, "{sec:?}");
        }
        assert!(protects(&[Tls, Mtls], "10.0.0.0/8", Some(Sec::Sys)), "although the export names the transport");
        assert!(protects(&all, "10.0.0.0/8", None) && protects(&all, "192.0.2.0/24", Some(Sec::Sys)));
    }

    #[test]
    fn connection_must_have_one_of_the_kinds_of_protection() {
        use Xprtsec::{Mtls, None as Clear, Tls};
        let admitted = |xprtsec: &[Xprtsec], transports: Option<&[&str]>, transport, tls, purpose| {
            let transports = transports.map(|names| names.iter().map(|&name| name.to_owned()).collect());
            let options = ExportOptions {
                xprtsec: Protections::new(xprtsec.to_vec()).unwrap(),
                transports,
                ..ExportOptions::default()
            };
            let vfs = Arc::new(Memory::new(MemoryOptions::default()));
            let export = Export::new("/e", ExportId::of(&[b"e"]), vfs, options).unwrap();
            let requester = Requester { peer: ([10, 0, 0, 1], 1000).into(), transport, sec: Some(Sec::Sys), tls };
            export.decide(&requester, purpose).is_ok()
        };
        let files =
            |xprtsec: &[Xprtsec]| [Clear, Tls, Mtls].map(|tls| admitted(xprtsec, None, "tcp", tls, Purpose::Files));
        assert_eq!(files(&[Clear, Tls, Mtls]), [true, true, true]);
        assert_eq!(files(&[Tls]), [false, true, true]);
        assert_eq!(files(&[Tls, Mtls]), [false, true, true]);
        assert_eq!(files(&[Mtls]), [false, false, true]);
        assert_eq!(files(&[Clear]), [true, false, false]);
        for transport in ["rdma", "shm", "udp"] {
            assert!(admitted(&[Tls], None, transport, Clear, Purpose::Mount));
            for purpose in [Purpose::Files, Purpose::Locks] {
                assert!(!admitted(&[Tls], None, transport, Clear, purpose), "{transport} is not protected");
                assert!(admitted(&[Tls], Some(&["tcp", transport]), transport, Clear, purpose), "{transport} is named");
                assert!(admitted(&[Clear, Tls], None, transport, Clear, purpose));
            }
            assert!(!admitted(&[Tls], Some(&["tcp", transport]), "tcp", Clear, Purpose::Files));
        }
    }
}
