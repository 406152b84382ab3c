//! Queries for the locations of a file system that a server refers to, or that has moved (RFC 8881 §11.4, §11.16; RFC
//! 7530 §8).

use bytes::Bytes;
use nfs::v4::{
    Argop4, ClientIdArgs, Clientid4, GetAttrArgs, Nfsstat4, Opnum4, Res4, Resop4,
    attr::{Attr4, Attrs},
    location::FsLocations4,
};

use super::{
    attr,
    location::{AbsentFs, Location},
    protocol::V4,
    request::Target,
};
use crate::{
    call::Deadline,
    model::{Handle, Result},
    session::compound::{Compound, component, failure, value},
};

impl V4 {
    /// Returns the locations of the file system to which a name refers, in the server's order.
    ///
    /// # Errors
    /// The server does not return the locations.
    pub(crate) async fn locations(&self, dir: &Handle, name: &[u8]) -> Result<Vec<Location>> {
        // For an absent file system, only this attribute can be requested.
        let make = |target: &mut Target| {
            Ok(locations_request(
                Compound::on("LOOKUP", target.handle()).lookup(component(name)?),
                &[Attr4::FsLocations],
            ))
        };
        let (_, mut results) = self.request("LOOKUP", dir).may_cross().run(make).await?;
        results.skip(&[Opnum4::PutFh, Opnum4::Lookup])?;
        let attrs = attr::values(&value!(results, GetAttr)?)?;
        Ok(places(&attrs.fs_locations.unwrap_or_default()))
    }

    /// Returns the locations of the file system of an object, if it is absent from this server. The caller need not be
    /// sure of that.
    ///
    /// # Errors
    /// `Absent` if the server does not even return this attribute, and the errors of any call.
    pub(super) async fn absent_fs(&self, object: &Handle, deadline: &Deadline) -> Result<Option<AbsentFs>> {
        // RFC 8881 §11.4.1: an object of an absent file system has no type.
        let attrs = match self.attributes_of(object, &[Attr4::Type, Attr4::Fsid, Attr4::FsLocations], deadline).await {
            Err(error) if error.status4() == Some(Nfsstat4::Moved) => {
                self.attributes_of(object, &[Attr4::Fsid, Attr4::FsLocations], deadline).await?
            }
            result => result?,
        };
        let known = self.server.opens.names.lock().id(object).map(|id| id.fsid);
        let Some(fsid) = attrs.fsid.map(attr::fsid).or(known).filter(|_| attrs.object_type.is_none()) else {
            return Ok(None);
        };
        let locations = attrs.fs_locations.unwrap_or_default();
        let root = locations.fs_root.iter().map(|name| Bytes::copy_from_slice(name)).collect();
        Ok(Some(AbsentFs { fsid, root, places: places(&locations) }))
    }

    async fn attributes_of(&self, object: &Handle, attributes: &[Attr4], deadline: &Deadline) -> Result<Attrs> {
        let mut compound = locations_request(Compound::on("GETATTR", object), attributes);
        if self.server.client.minor() == 0 {
            // RENEW tells the server which client has been informed (RFC 7931).
            compound = compound.op(Argop4::Renew(ClientIdArgs { clientid: Clientid4(0) }), 0);
        }
        let res = self.server.client.run_once(&compound, deadline).await?;
        let attrs = res.resarray.iter().find_map(|result| match result {
            Resop4::GetAttr(Res4::Ok(attrs)) => Some(attrs),
            _ => None,
        });
        match attrs {
            Some(attrs) => attr::values(attrs),
            None => Err(failure(res.status, "GETATTR").on(self.program().server())),
        }
    }
}

fn locations_request(compound: Compound, attributes: &[Attr4]) -> Compound {
    let attr_request = attributes.iter().map(|&attribute| attribute as u32).collect();
    compound.op(Argop4::GetAttr(GetAttrArgs { attr_request }), LOCATIONS_MAX)
}

fn places(locations: &FsLocations4) -> Vec<Location> {
    let places = locations.locations.iter().flat_map(|location| {
        let names = location.rootpath.iter().flat_map(|name| [b"/", &name[..]]);
        let path = Bytes::from(names.collect::<Vec<_>>().concat());
        location.server.iter().map(move |server| Location { server: server.0.clone(), path: path.clone() })
    });
    places.take(PLACES_MAX).collect()
}

/// Maximum bytes of a reply with locations.
const LOCATIONS_MAX: usize = 64 << 10;
/// Maximum number of locations that are tried.
const PLACES_MAX: usize = 64;
