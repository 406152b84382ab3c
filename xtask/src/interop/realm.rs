//! [`Realm`]: a realm of Kerberos 5 with MIT's key distribution centre, for tests and measurements.
//!
//! It is in a directory of the caller, and ends with it. No configuration of the machine is changed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::lab::text;
use super::ports::Ports;
use crate::shell::{self, Daemon};

/// The Debian packages of this file and of `guest/kerberos.sh`.
pub const PACKAGES: [&str; 3] = ["krb5-kdc", "krb5-admin-server", "krb5-user"];

/// A realm with the users alice and bob, and a server's keytab.
pub struct Realm {
    /// Its files: `krb5.conf`, and the keytabs `server.keytab` (nfs/localhost, nfs/other) and `host.keytab`.
    pub directory: PathBuf,
    _kdc: Daemon,
}

impl Realm {
    /// Makes the realm's files in a new directory, and starts its key distribution centre.
    pub fn start(ports: &Ports, directory: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
        let (port, here) = (ports.take(), directory.display());
        let krb5 = format!(
            "[libdefaults]\ndefault_realm = {REALM}\nrdns = false\ndns_lookup_kdc = false\ndns_lookup_realm = false\n\
             dns_canonicalize_hostname = false\n[realms]\n{REALM} = {{\nkdc = 127.0.0.1:{port}\n}}\n\
             [domain_realm]\nlocalhost = {REALM}\n"
        );
        let kdc = format!(
            "[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n[realms]\n{REALM} = {{\n\
             database_name = {here}/principal\nkey_stash_file = {here}/stash\nacl_file = {here}/acl\n}}\n"
        );
        for (name, content) in [("krb5.conf", krb5), ("kdc.conf", kdc)] {
            std::fs::write(directory.join(name), content).map_err(|error| error.to_string())?;
        }
        shell::capture(in_realm("kdb5_util", directory).args(["create", "-s", "-P", "master", "-r", REALM]))?;
        for query in [
            "addprinc -pw alice alice",
            "addprinc -pw bob bob",
            "addprinc -randkey nfs/localhost",
            "addprinc -randkey nfs/other",
            "addprinc -randkey host/localhost",
            &format!("ktadd -k {here}/server.keytab nfs/localhost nfs/other"),
            &format!("ktadd -k {here}/host.keytab host/localhost"),
        ] {
            shell::capture(in_realm("kadmin.local", directory).args(["-q", query]))?;
        }
        let mut command = in_realm("krb5kdc", directory);
        let mut daemon = Daemon::start(command.arg("-n"), &directory.join("kdc.log"))?;
        // Its log is in the file, and a ticket proves that it answers.
        let up = shell::wait_until(Duration::from_secs(20), || {
            !daemon.is_running() || kinit(directory, "first", &[]).is_ok()
        });
        if !up || !daemon.is_running() {
            return Err(format!("krb5kdc does not come up: see {here}/kdc.log"));
        }
        Ok(Self { directory: directory.to_owned(), _kdc: daemon })
    }

    /// Gets a ticket for alice, in a new cache. Returns the name of the cache.
    pub fn ticket(&self, cache: &str, options: &[&str]) -> Result<String, String> {
        kinit(&self.directory, cache, options)
    }

    /// Gets a ticket for a principal, in the cache of a user of this machine.
    pub fn ticket_of_user(&self, principal: &str, uid: u32, options: &[&str]) -> Result<Cache, String> {
        let cache = Cache(PathBuf::from(format!("/tmp/krb5cc_{uid}")));
        let failed = |error: std::io::Error| format!("{}: {error}", cache.0.display());
        // Anybody could have created the file before.
        std::fs::File::create_new(&cache.0)
            .and_then(|file| std::os::unix::fs::fchown(file, Some(uid), None))
            .map_err(failed)?;
        let script = "echo \"$1\" | setpriv --reuid \"$2\" --clear-groups kinit -c \"FILE:$3\" \"${@:4}\" \"$1\"";
        let mut command = in_realm("bash", &self.directory);
        command.args(["-c", script, "kinit", principal, &uid.to_string(), &text(&cache.0)]).args(options);
        shell::capture(&mut command)?;
        Ok(cache)
    }
}

/// A credential cache, which is removed when this is dropped.
pub struct Cache(PathBuf);

impl Cache {
    /// Returns the name of the cache, as the programs of Kerberos take it.
    pub fn name(&self) -> String {
        format!("FILE:{}", self.0.display())
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns a command that uses the realm.
pub fn in_realm(program: &str, realm: &Path) -> Command {
    let mut command = Command::new(shell::find(program).unwrap_or_else(|| program.into()));
    command.env("KRB5_CONFIG", realm.join("krb5.conf")).env("KRB5_KDC_PROFILE", realm.join("kdc.conf"));
    command
}

fn kinit(realm: &Path, cache: &str, options: &[&str]) -> Result<String, String> {
    let cache = format!("FILE:{}", realm.join(cache).display());
    let script = "echo alice | kinit \"$@\" alice";
    shell::capture(in_realm("bash", realm).env("KRB5CCNAME", &cache).args(["-c", script, "kinit"]).args(options))?;
    Ok(cache)
}

/// The name of the realm.
pub const REALM: &str = "SLIPWAY.TEST";
