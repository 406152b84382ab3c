//! The checksums that `gss` computes beside those of MIT's library, for each encryption type.

use std::path::Path;

use super::{REALM, Suite, in_realm, text};
use crate::shell;

/// Encryption types with their numbers. The last one is left to the library.
const ENCTYPES: [(&str, u8); 5] = [
    ("aes128-cts-hmac-sha1-96", 17),
    ("aes256-cts-hmac-sha1-96", 18),
    ("aes128-cts-hmac-sha256-128", 19),
    ("aes256-cts-hmac-sha384-192", 20),
    ("camellia256-cts-cmac", 26),
];
/// The tests of `gss` that need a realm.
const TESTS: [&str; 3] = [
    "keys_and_library_make_and_verify_the_same_tokens",
    "tokens_of_a_hostile_peer_are_refused_as_the_library_refuses_them",
    "a_context_gets_keys_only_if_they_make_the_tokens_of_the_library",
];

/// Runs the tests of `gss` with contexts of each encryption type.
pub fn equal_those_of_the_library(suite: &Suite) -> Result<(), String> {
    let program = suite.bench.test_program("gss", "gss")?;
    // By default, sessions have the encryption types of which the ticket-granting service has a key.
    let all = ENCTYPES.map(|(name, _)| name).join(" ");
    query(suite, &format!("setstr krbtgt/{REALM} session_enctypes \"{all}\""))?;
    for (name, number) in ENCTYPES {
        let realm = suite.directory.join(name);
        let service = prepare(suite, &realm, name)?;
        let mut command = in_realm("timeout", &realm);
        command.env("KRB5CCNAME", format!("FILE:{}", realm.join("cache").display()));
        command.env("KRB5_KTNAME", format!("FILE:{}", realm.join("keytab").display()));
        command.env("SLIPWAY_SERVICE", service).env("SLIPWAY_ENCTYPE", number.to_string());
        command.arg("120").arg(&program).args(["--nocapture", "--exact"]);
        command.args(TESTS.map(|test| format!("kerberos::tests::realm::{test}")));
        let output = shell::capture(&mut command).map_err(|why| format!("{name}: {why}"))?;
        if !output.contains(&format!("{} passed", TESTS.len())) || output.contains("SKIPPED") {
            return Err(format!("{name}: not all tests were run: {output}"));
        }
    }
    Ok(())
}

/// Makes a service and a user with keys of one encryption type only, and gets a ticket of the user. Returns the principal of the service.
fn prepare(suite: &Suite, realm: &Path, enctype: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", realm.display());
    std::fs::create_dir_all(realm).map_err(failed)?;
    let configuration = std::fs::read_to_string(suite.realm.directory.join("krb5.conf")).map_err(failed)?;
    let only = format!("[libdefaults]\npermitted_enctypes = {enctype}\n");
    std::fs::write(realm.join("krb5.conf"), configuration.replace("[libdefaults]\n", &only)).map_err(failed)?;
    let (service, user, keytab) = (format!("nfs/{enctype}"), format!("user/{enctype}"), realm.join("keytab"));
    for principal in [&service, &user] {
        for query in [
            format!("addprinc -randkey -e {enctype}:normal {principal}"),
            format!("ktadd -k {} -e {enctype}:normal {principal}", keytab.display()),
        ] {
            self::query(suite, &query)?;
        }
    }
    let mut kinit = in_realm("kinit", realm);
    kinit.args(["-k", "-t", &text(&keytab), "-c", &text(&realm.join("cache")), &user]);
    shell::capture(&mut kinit)?;
    Ok(format!("{service}@{REALM}"))
}

fn query(suite: &Suite, query: &str) -> Result<(), String> {
    shell::capture(in_realm("kadmin.local", &suite.realm.directory).args(["-q", query])).map(drop)
}
