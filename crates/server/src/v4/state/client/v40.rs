//! The records of NFSv4.0: SETCLIENTID makes them, and SETCLIENTID_CONFIRM confirms them.
//!
//! Read RFC 7530 §9.1.1 and §16.33–16.35. They are in the same table as those of later versions, by the same names: a
//! client that comes back with a later version, or an earlier one, has restarted (RFC 8881 §2.4.1).

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use nfs::v4::*;
use rpc::rpcbind::from_universal;

use super::{Client, Clients, Origin, Outlook, Plan, Then};
use crate::v4::state::ids::Principal;

/// What only a client of 4.0 has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Legacy {
    /// What confirms this.
    pub confirm: Verifier4,
    /// Where its callbacks go.
    pub callback: CbClient4,
    /// And with which number.
    pub callback_ident: u32,
    /// The same as an address, if it is one that it can be called at.
    pub address: Option<SocketAddr>,
    /// How far it is known that it can.
    pub(in crate::v4::state) reach: Reach,
}

/// Whether a client of 4.0 answers where it wants to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::v4::state) enum Reach {
    /// Nobody has tried.
    Unknown,
    /// It is being tried.
    Trying,
    /// It has answered CB_NULL.
    Reached,
}

/// Where a client that calls from `peer` can be called. A server that called others on a client's word could be made to knock at
/// any door; so it is the client's own host, or none. TCP is what all clients have.
pub(in crate::v4::state) fn listens_at(location: &Netaddr4, peer: IpAddr) -> Option<SocketAddr> {
    let known = [&b"tcp"[..], b"tcp6"].contains(&&location.netid.0[..]);
    let address = from_universal(std::str::from_utf8(&location.addr.0).ok()?)?;
    let same = address.ip().to_canonical() == peer.to_canonical();
    (known && same && address.port() != 0).then_some(address)
}

impl<R: Clone, F> Clients<R, F> {
    /// What SETCLIENTID comes to. `confirm` has not been used before.
    ///
    /// # Errors
    /// CLID_INUSE if the name is another's, who has state and a lease; DELAY if there are too many clients.
    pub(in crate::v4::state) fn plan_set_clientid(
        &self,
        args: &SetClientIdArgs,
        confirm: Verifier4,
        origin: Origin<'_>,
        outlook: &Outlook<'_>,
    ) -> Result<Plan<R, F>, Nfsstat4> {
        let address = listens_at(&args.callback.cb_location, origin.peer);
        let Netaddr4 { netid, addr } = &args.callback.cb_location;
        let cb_location = Netaddr4 { netid: netid.detached(), addr: addr.detached() };
        let (callback, callback_ident) = (CbClient4 { cb_location, ..args.callback }, args.callback_ident);
        let legacy = Legacy { confirm, callback, callback_ident, address, reach: Reach::Unknown };
        let records = self.by_owner.get(&args.client.id.0).copied().unwrap_or_default();
        if let Some((id, client)) = records.confirmed.and_then(|id| Some((id, self.find(id)?))) {
            if client.principal != *origin.principal {
                if (outlook.holds)(id) && !self.is_expired(id, outlook.now) {
                    return Err(Nfsstat4::ClidInuse);
                }
            } else if client.legacy.is_some() && client.owner.verifier == args.client.verifier {
                // The same incarnation: it may have moved its callbacks, which count once they are confirmed.
                let then = Then::Callback(id, Box::new(legacy));
                return Ok(Plan { ended: records.unconfirmed.into_iter().collect(), then });
            }
        }
        let owner = ClientOwner4 { verifier: args.client.verifier, ownerid: args.client.id.clone() };
        // What was confirmed before stays until this is, and takes its state along.
        let new = Client::new(0, &owner, origin, outlook.now);
        self.plan_new(Client { legacy: Some(legacy), ..new }, None, outlook)
    }

    /// Where the callbacks of the client of a name go, which is all that is known of where it is; empty if it has none.
    pub fn callback_address(&self, name: &Bytes) -> Netaddr4 {
        let confirmed = self.by_owner.get(name).and_then(|records| records.confirmed);
        let legacy = confirmed.and_then(|id| self.find(id)).and_then(|client| client.legacy.as_ref());
        legacy.map_or_else(Netaddr4::default, |legacy| legacy.callback.cb_location.clone())
    }

    /// SETCLIENTID_CONFIRM, but for what follows from it: says whether the client is still to be confirmed.
    ///
    /// # Errors
    /// STALE_CLIENTID if nothing is to be confirmed by this, or was; CLID_INUSE if it is another's.
    pub(in crate::v4::state) fn confirm_callback(
        &mut self,
        args: &SetClientIdConfirmArgs,
        principal: &Principal,
    ) -> Result<bool, Nfsstat4> {
        let client = self.by_id.get_mut(&args.clientid).ok_or(Nfsstat4::StaleClientid)?;
        let wanted = args.setclientid_confirm;
        let Some(legacy) = &mut client.legacy else { return Err(Nfsstat4::StaleClientid) };
        let is_update = client.update.as_ref().is_some_and(|update| update.confirm == wanted);
        if !is_update && legacy.confirm != wanted || client.evicted {
            return Err(Nfsstat4::StaleClientid);
        }
        if client.principal != *principal {
            return Err(Nfsstat4::ClidInuse);
        }
        if let Some(update) = client.update.take_if(|_| is_update) {
            // Who is trying the former address will find that it is another.
            let reach = if legacy.reach == Reach::Trying { Reach::Trying } else { Reach::Unknown };
            *legacy = Legacy { reach, ..update };
        }
        Ok(!client.confirmed)
    }
}

impl<R, F> Client<R, F> {
    /// It says where it can be called from the next SETCLIENTID_CONFIRM on.
    pub(in crate::v4::state) fn set_update(&mut self, update: Legacy) {
        self.update = Some(update);
    }
}
