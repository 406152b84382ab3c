//! Credentials and verifiers on the wire, the flavours AUTH_NONE and AUTH_SYS, and the reasons for rejecting a caller.
//!
//! Read RFC 5531 §8.2, §9 (`auth_stat`) and appendix A. A malformed credential is rejected with AUTH_BADCRED, a
//! malformed verifier with AUTH_BADVERF. Other flavours: see [`security`](crate::security).

use std::fmt;

use bytes::Bytes;
use smallvec::SmallVec;
use xdr::{Decode, DecodeError, Decoder, Encode, Encoder, Message};

use crate::{Identity, PeerUser};

/// A flavour and its body, not yet interpreted (RFC 5531 §8.2, `opaque_auth`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpaqueAuth {
    /// The number of the flavour.
    pub flavor: u32,
    /// The body; at most 400 bytes.
    pub body: Bytes,
}

impl OpaqueAuth {
    /// AUTH_NONE with an empty body.
    pub const NONE: OpaqueAuth = OpaqueAuth { flavor: AUTH_NONE, body: Bytes::new() };
}

impl Encode for OpaqueAuth {
    fn encode(&self, encoder: &mut Encoder) {
        assert!(
            self.body.len() <= AUTH_BODY_MAX,
            "authentication body has {} bytes, but the maximum is 400",
            self.body.len()
        );
        encoder.u32(self.flavor);
        encoder.opaque(&self.body);
    }
}

impl Decode for OpaqueAuth {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { flavor: decoder.u32()?, body: decoder.opaque(AUTH_BODY_MAX)? })
    }
}

/// The reason why a caller is rejected (RFC 5531 §9, `auth_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum AuthStat {
    /// No error.
    #[xdr(0)]
    Ok,
    /// The credential is malformed.
    #[xdr(1)]
    BadCred,
    /// The caller must begin a new session.
    #[xdr(2)]
    RejectedCred,
    /// The verifier is malformed.
    #[xdr(3)]
    BadVerf,
    /// The verifier has expired or was replayed.
    #[xdr(4)]
    RejectedVerf,
    /// The server rejects the caller for security reasons, for example because the flavour is too weak.
    #[xdr(5)]
    TooWeak,
    /// The response's verifier is wrong.
    #[xdr(6)]
    InvalidResp,
    /// The reason is unknown.
    #[xdr(7)]
    Failed,
    /// Kerberos: a generic error.
    #[xdr(8)]
    KerbGeneric,
    /// Kerberos: the credential has expired.
    #[xdr(9)]
    TimeExpire,
    /// Kerberos: a problem with the ticket file.
    #[xdr(10)]
    TktFile,
    /// Kerberos: the authenticator cannot be decoded.
    #[xdr(11)]
    Decode,
    /// Kerberos: the ticket is for another address.
    #[xdr(12)]
    NetAddr,
    /// RPCSEC_GSS: no credentials for the user.
    #[xdr(13)]
    GssCredProblem,
    /// RPCSEC_GSS: a problem with the context.
    #[xdr(14)]
    GssCtxProblem,
    /// A value that RFC 5531 does not define.
    #[xdr(default)]
    Other(u32),
}

impl fmt::Display for AuthStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AuthStat::Ok => "AUTH_OK",
            AuthStat::BadCred => "AUTH_BADCRED: the credential is malformed",
            AuthStat::RejectedCred => "AUTH_REJECTEDCRED: the credential is not accepted",
            AuthStat::BadVerf => "AUTH_BADVERF: the verifier is malformed",
            AuthStat::RejectedVerf => "AUTH_REJECTEDVERF: the verifier has expired or was replayed",
            AuthStat::TooWeak => "AUTH_TOOWEAK: the server wants a stronger flavour, or a port below 1024",
            AuthStat::InvalidResp => "AUTH_INVALIDRESP: the response's verifier is wrong",
            AuthStat::Failed => "AUTH_FAILED",
            AuthStat::KerbGeneric => "AUTH_KERB_GENERIC",
            AuthStat::TimeExpire => "AUTH_TIMEEXPIRE",
            AuthStat::TktFile => "AUTH_TKT_FILE",
            AuthStat::Decode => "AUTH_DECODE",
            AuthStat::NetAddr => "AUTH_NET_ADDR",
            AuthStat::GssCredProblem => "RPCSEC_GSS_CREDPROBLEM",
            AuthStat::GssCtxProblem => "RPCSEC_GSS_CTXPROBLEM",
            AuthStat::Other(value) => return write!(f, "auth_stat {value}"),
        })
    }
}

/// The parameters of AUTH_SYS (RFC 5531 appendix A).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthSys {
    /// An arbitrary number that the caller chooses.
    pub stamp: u32,
    /// The caller's host name.
    pub machine: Bytes,
    /// The effective user ID.
    pub uid: u32,
    /// The effective group ID.
    pub gid: u32,
    /// The supplementary group IDs; at most 16.
    pub gids: SmallVec<[u32; 16]>,
}

impl AuthSys {
    /// Encodes the parameters as the credential of a call header.
    pub fn to_opaque(&self) -> OpaqueAuth {
        OpaqueAuth { flavor: AUTH_SYS, body: Message::encode(self).stream }
    }
}

impl Identity {
    /// Returns the caller for a credential of AUTH_NONE or AUTH_SYS and its verifier.
    ///
    /// # Errors
    /// Returns the `auth_stat` for the caller if the flavour is another one, or if the bytes are malformed.
    pub fn plain(credential: &OpaqueAuth, verifier: &OpaqueAuth) -> Result<Self, AuthStat> {
        let caller = match credential.flavor {
            AUTH_NONE => Identity::None,
            AUTH_SYS => {
                let mut body = Decoder::from(&credential.body);
                let sys = AuthSys::decode(&mut body).and_then(|sys| body.finish().map(|()| sys));
                Identity::Sys(sys.map_err(|_| AuthStat::BadCred)?)
            }
            _ => return Err(AuthStat::RejectedCred),
        };
        // RFC 5531 appendix A: the verifier of both flavours is AUTH_NONE.
        if verifier.flavor != AUTH_NONE || !verifier.body.is_empty() {
            return Err(AuthStat::BadVerf);
        }
        Ok(caller)
    }
}

impl PeerUser {
    /// Reduces AUTH_SYS to the rights of this user. AUTH_SYS proves nothing; if the kernel knows the caller, only root
    /// can act for other users. A claim to be another user becomes AUTH_NONE; groups that the user does not belong to
    /// are removed.
    pub fn confine(&self, caller: Identity) -> Identity {
        let Identity::Sys(mut sys) = caller else { return caller };
        if self.uid == 0 {
            return Identity::Sys(sys);
        }
        if sys.uid != self.uid {
            tracing::debug!(claimed = sys.uid, user = self.uid, "AUTH_SYS claims to be another user");
            return Identity::None;
        }
        let is_member = |gid: u32| gid == self.gid || self.groups.contains(&gid);
        if !is_member(sys.gid) {
            sys.gid = self.gid;
        }
        sys.gids.retain(|gid| is_member(*gid));
        Identity::Sys(sys)
    }
}

impl AuthSys {
    /// Returns the user and groups of this process, and the name of this host.
    pub fn of_process() -> Self {
        let own = rustix::process::getgroups().unwrap_or_default();
        let gids = own.into_iter().map(rustix::process::Gid::as_raw).take(GIDS_MAX).collect();
        let name = rustix::system::uname();
        let machine = name.nodename().to_bytes();
        Self {
            stamp: 0,
            machine: Bytes::copy_from_slice(&machine[..machine.len().min(MACHINE_MAX)]),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            gids,
        }
    }
}

impl Encode for AuthSys {
    fn encode(&self, encoder: &mut Encoder) {
        assert!(
            self.machine.len() <= MACHINE_MAX,
            "machine name has {} bytes, but the maximum is 255",
            self.machine.len()
        );
        assert!(self.gids.len() <= GIDS_MAX, "AUTH_SYS has {} groups, but the maximum is 16", self.gids.len());
        encoder.u32(self.stamp);
        encoder.opaque(&self.machine);
        encoder.u32(self.uid);
        encoder.u32(self.gid);
        encoder.length(self.gids.len());
        self.gids.iter().for_each(|&gid| encoder.u32(gid));
    }
}

impl Decode for AuthSys {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (stamp, machine) = (decoder.u32()?, decoder.opaque(MACHINE_MAX)?);
        let (uid, gid) = (decoder.u32()?, decoder.u32()?);
        let mut gids = SmallVec::new();
        for _ in 0..decoder.length(GIDS_MAX)? {
            gids.push(decoder.u32()?);
        }
        Ok(Self { stamp, machine, uid, gid, gids })
    }
}

pub(crate) const AUTH_NONE: u32 = 0;
pub(crate) const AUTH_SYS: u32 = 1;
/// Maximum bytes of a credential or verifier (RFC 5531 §8.2).
pub(crate) const AUTH_BODY_MAX: usize = 400;
const MACHINE_MAX: usize = 255;
const GIDS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn sys() -> AuthSys {
        let gids = (0..16).collect();
        AuthSys { stamp: 7, machine: Bytes::from_static(b"mars"), uid: 1000, gid: 100, gids }
    }

    #[test]
    fn auth_sys_round_trips() {
        assert_eq!(Identity::plain(&sys().to_opaque(), &OpaqueAuth::NONE), Ok(Identity::Sys(sys())));
        assert_eq!(Identity::plain(&OpaqueAuth::NONE, &OpaqueAuth::NONE), Ok(Identity::None));
    }

    #[test]
    fn user_known_to_kernel_cannot_claim_another_identity_unless_root() {
        let user = |uid| PeerUser { uid, gid: 100, groups: vec![3, 200] };
        let claim = Identity::Sys(sys());
        assert_eq!(user(0).confine(claim.clone()), claim);
        assert_eq!(user(1001).confine(claim.clone()), Identity::None);
        assert_eq!(user(1000).confine(Identity::None), Identity::None);
        let Identity::Sys(own) = user(1000).confine(claim) else {
            panic!("a user's claim to be itself must be accepted")
        };
        assert_eq!((own.uid, own.gid, &own.gids[..]), (1000, 100, &[3][..]));
        let Identity::Sys(other) = user(1000).confine(Identity::Sys(AuthSys { gid: 0, ..sys() })) else { panic!() };
        assert_eq!(other.gid, 100, "a group that the user does not belong to must be replaced");
    }

    #[test]
    fn malformed_or_unknown_credential_is_rejected_with_its_reason() {
        let good = sys().to_opaque();
        for len in 0..good.body.len() {
            let cut = OpaqueAuth { flavor: AUTH_SYS, body: good.body.slice(..len) };
            assert_eq!(Identity::plain(&cut, &OpaqueAuth::NONE), Err(AuthStat::BadCred), "{len} bytes");
        }
        let gss = OpaqueAuth { flavor: 6, body: Bytes::new() };
        assert_eq!(Identity::plain(&gss, &OpaqueAuth::NONE), Err(AuthStat::RejectedCred));
        let verifier = OpaqueAuth { flavor: AUTH_NONE, body: Bytes::from_static(&[0; 4]) };
        assert_eq!(Identity::plain(&good, &verifier), Err(AuthStat::BadVerf));
    }

    #[test]
    fn seventeen_groups_and_a_long_machine_name_are_rejected() {
        let mut encoder = Encoder::default();
        [0, 0, 0, 0, 17].into_iter().chain(0..17).for_each(|word| encoder.u32(word));
        let groups = OpaqueAuth { flavor: AUTH_SYS, body: encoder.finish().stream };
        assert_eq!(Identity::plain(&groups, &OpaqueAuth::NONE), Err(AuthStat::BadCred));
        let mut encoder = Encoder::default();
        encoder.u32(0);
        encoder.opaque(&[b'm'; 256]);
        [0, 0, 0].into_iter().for_each(|word| encoder.u32(word));
        let name = OpaqueAuth { flavor: AUTH_SYS, body: encoder.finish().stream };
        assert_eq!(Identity::plain(&name, &OpaqueAuth::NONE), Err(AuthStat::BadCred));
    }

    #[test]
    fn every_auth_stat_round_trips() {
        for value in 0..20u32 {
            let stat: AuthStat = Message::from(Bytes::copy_from_slice(&value.to_be_bytes())).decode().unwrap();
            assert_eq!(matches!(stat, AuthStat::Other(_)), value > 14);
            assert_eq!(&Message::encode(&stat).stream[..], value.to_be_bytes());
        }
    }
}
