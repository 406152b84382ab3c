//! The client records of NFSv4.0: SETCLIENTID creates them, and SETCLIENTID_CONFIRM confirms them.
//!
//! Read RFC 7530 §9.1.1 and §16.33–16.35. They are in the same table as those of later versions, under the same owners.
//! A client that returns with a later or an earlier version has restarted (RFC 8881 §2.4.1).

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use nfs::v4::*;
use rpc::{Xprtsec, rpcbind::from_universal};

use super::{Client, Clients, EvictionContext, Origin, Plan, PlanAction};
use crate::v4::state::ids::Principal;

/// The state that only clients of 4.0 have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Legacy {
    /// The verifier that confirms this state.
    pub confirm: Verifier4,
    /// The client's callback program and address.
    pub callback: CbClient4,
    /// The number that the client assigned to its callbacks.
    pub callback_ident: u32,
    /// The callback address, if the server may connect to it.
    pub address: Option<SocketAddr>,
    /// The pseudo flavour of callbacks, if they have RPCSEC_GSS: that of SETCLIENTID.
    pub flavor: Option<u32>,
    /// The result of the last probe of the callback address.
    pub(in crate::v4::state) reach: Reach,
}

/// The result of probing the callback address of a client of 4.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::v4::state) enum Reach {
    /// The address was not probed.
    Unknown,
    /// A probe is in progress.
    Probing,
    /// The client answered CB_NULL.
    Reached,
}

/// Returns the callback address of a client that calls from `peer`. Only an address of the client's own host is
/// accepted, because otherwise a client could make the server connect to any address. All clients support TCP, so only
/// TCP is used.
pub(in crate::v4::state) fn callback_address_of(location: &Netaddr4, peer: IpAddr) -> Option<SocketAddr> {
    let known = [&b"tcp"[..], b"tcp6"].contains(&&location.netid.0[..]);
    let address = from_universal(std::str::from_utf8(&location.addr.0).ok()?)?;
    let same = address.ip().to_canonical() == peer.to_canonical();
    (known && same && address.port() != 0).then_some(address)
}

impl<R: Clone, F> Clients<R, F> {
    /// Plans a SETCLIENTID. `confirm` must not have been used before.
    ///
    /// # Errors
    /// CLID_INUSE if the owner belongs to another principal that has state and a valid lease, to a client with state
    /// protection and the call has no integrity, or if the caller's connection is too weak to replace its record; DELAY if
    /// there are too many clients.
    pub(in crate::v4::state) fn plan_set_clientid(
        &self,
        args: &SetClientIdArgs,
        confirm: Verifier4,
        origin: Origin<'_>,
        context: &EvictionContext<'_>,
    ) -> Result<Plan<R, F>, Nfsstat4> {
        // RFC 7530 §3.3.3: callbacks to a client of RPCSEC_GSS need it too.
        let address = match origin.principal {
            Principal::Gss(_) if origin.callback_flavor.is_none() => None,
            _ => callback_address_of(&args.callback.cb_location, origin.peer),
        };
        let Netaddr4 { netid, addr } = &args.callback.cb_location;
        let cb_location = Netaddr4 { netid: netid.detached(), addr: addr.detached() };
        let (callback, callback_ident) = (CbClient4 { cb_location, ..args.callback }, args.callback_ident);
        let (flavor, reach) = (origin.callback_flavor, Reach::Unknown);
        let legacy = Legacy { confirm, callback, callback_ident, address, flavor, reach };
        let records = self.by_owner.get(&args.client.id.0).copied().unwrap_or_default();
        if let Some((id, client)) = records.confirmed.and_then(|id| Some((id, self.find(id)?))) {
            if client.principal != *origin.principal {
                if (context.holds)(id) && !self.is_expired(id, context.now) {
                    return Err(Nfsstat4::ClidInuse);
                }
            } else if client.refuses(origin.has_integrity) {
                return Err(Nfsstat4::ClidInuse);
            } else if client.legacy.is_some()
                && client.owner.verifier == args.client.verifier
                && !client.is_guarded_from(origin)
            {
                // The same incarnation: its callback address may have changed. The change takes effect after
                // confirmation.
                let action = PlanAction::Callback(id, Box::new(legacy));
                return Ok(Plan { ended: records.unconfirmed.into_iter().collect(), action });
            }
        }
        self.check_protection(records, origin, context.now)?;
        let owner = ClientOwner4 { verifier: args.client.verifier, ownerid: args.client.id.clone() };
        // The confirmed record stays until the new one is confirmed. Its state ends with it.
        let new = Client::new(0, &owner, origin, context.now);
        self.plan_new(Client { legacy: Some(legacy), ..new }, None, context)
    }

    /// Returns the callback address of the client of an owner, or an empty one. Nothing else is known about where that
    /// client is.
    pub fn callback_address(&self, name: &Bytes) -> Netaddr4 {
        let confirmed = self.by_owner.get(name).and_then(|records| records.confirmed);
        let legacy = confirmed.and_then(|id| self.find(id)).and_then(|client| client.legacy.as_ref());
        legacy.map_or_else(Netaddr4::default, |legacy| legacy.callback.cb_location.clone())
    }

    /// Executes SETCLIENTID_CONFIRM without its consequences. Returns `true` if the client itself is not confirmed yet.
    ///
    /// # Errors
    /// STALE_CLIENTID if the verifier does not match; CLID_INUSE if the client belongs to another principal, or has introduced
    /// itself with more protection.
    pub(in crate::v4::state) fn confirm_callback(
        &mut self,
        args: &SetClientIdConfirmArgs,
        (principal, tls): (&Principal, Xprtsec),
    ) -> Result<bool, Nfsstat4> {
        let client = self.by_id.get_mut(&args.clientid).ok_or(Nfsstat4::StaleClientid)?;
        let is_owner = client.is_owner(principal, tls);
        let wanted = args.setclientid_confirm;
        let Some(legacy) = &mut client.legacy else { return Err(Nfsstat4::StaleClientid) };
        let is_update = client.update.as_ref().is_some_and(|update| update.confirm == wanted);
        if !is_update && legacy.confirm != wanted || client.evicted {
            return Err(Nfsstat4::StaleClientid);
        }
        if !is_owner {
            return Err(Nfsstat4::ClidInuse);
        }
        if let Some(update) = client.update.take_if(|_| is_update) {
            // The probe of the old address, if it is in progress, will detect the change.
            let reach = if legacy.reach == Reach::Probing { Reach::Probing } else { Reach::Unknown };
            *legacy = Legacy { reach, ..update };
        }
        Ok(!client.confirmed)
    }
}

impl<R, F> Client<R, F> {
    /// Sets the callback state that takes effect with the next SETCLIENTID_CONFIRM.
    pub(in crate::v4::state) fn set_update(&mut self, update: Legacy) {
        self.update = Some(update);
    }
}
