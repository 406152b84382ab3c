//! Whole mounts with RPCSEC_GSS over the simulated network, in virtual time. The mechanism is [`testkit::toy`], so no Kerberos is
//! needed.

#[path = "../../../../server/tests/suite/common/back.rs"]
mod back;
mod callbacks;
mod locks;
mod mounts;

use std::time::Duration;

use server::{Sec, SecFlavors, config::Settings};
use testkit::world::Setup;

/// The flavours with which clients mount.
const FLAVORS: [&str; 3] = ["krb5", "krb5i", "krb5p"];

/// Returns the options of a world whose export allows only these flavours.
fn setup(seed: u64, sec: &[Sec]) -> Setup {
    let sec = SecFlavors::new(sec.to_vec()).expect("there must be a flavour");
    let settings = Settings { grace: GRACE, lease: LEASE, ..Settings::default() };
    Setup { sec, settings, ..Setup::new(seed) }
}

/// The flavours that need Kerberos.
const KERBEROS: [Sec; 3] = [Sec::Krb5, Sec::Krb5i, Sec::Krb5p];
const GRACE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(60);
