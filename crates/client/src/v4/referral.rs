//! Where a file system is that a server names and does not have (RFC 8881 §11.4, §11.16; RFC 7530 §8).

use bytes::Bytes;
use nfs::v4::{Argop4, GetAttrArgs, Opnum4, attr::Attr4};

use super::{
    V4, attr,
    compound::{Compound, component, value},
};
use crate::{Handle, Result};

/// A place where a file system is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Location {
    /// As the server calls it: a name, an address, or nothing for itself.
    pub server: Bytes,
    /// The file system's root there.
    pub path: Bytes,
}

impl V4 {
    /// The places of the file system that a name stands for, in the server's order.
    ///
    /// # Errors
    /// The server does not say.
    pub(crate) async fn locations(&self, dir: &Handle, name: &[u8]) -> Result<Vec<Location>> {
        // Of what is not here, this alone is to be had.
        let attr_request = [Attr4::FsLocations as u32].into_iter().collect();
        let args = Argop4::GetAttr(GetAttrArgs { attr_request });
        let compound = Compound::on("LOOKUP", dir).lookup(component(name)?).op(args, LOCATIONS_MAX);
        let mut results = self.run(&compound).await?;
        results.skip(&[Opnum4::PutFh, Opnum4::Lookup])?;
        let attrs = attr::values(&value!(results, GetAttr)?)?;
        let told = attrs.fs_locations.unwrap_or_default();
        let places = told.locations.into_iter().flat_map(|location| {
            let names = location.rootpath.iter().flat_map(|name| [b"/", &name[..]]);
            let path = Bytes::from(names.collect::<Vec<_>>().concat());
            location.server.into_iter().map(move |server| Location { server: server.0, path: path.clone() })
        });
        Ok(places.take(PLACES_MAX).collect())
    }
}

/// Bytes of an answer that names places.
const LOCATIONS_MAX: usize = 64 << 10;
/// Places that are tried.
const PLACES_MAX: usize = 64;
