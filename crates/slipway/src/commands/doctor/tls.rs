//! The checks of TLS: the files of each listener of a configuration.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use rpc::TlsSurvey;
use server::{Config, config::ListenConfig};

use super::Finding;
use crate::{commands::serve, exit::Failure};

/// Examines the listeners of a configuration at the time `now`. `names` are those that clients mount.
///
/// # Errors
/// The tables of TLS are invalid.
pub fn of(mut config: Config, names: &[String], now: SystemTime) -> Result<Vec<Finding>, Failure> {
    serve::add_tls(&mut config)?;
    let tcp = config.listen.iter().filter(|listen| listen.transport == "tcp");
    let findings: Vec<Finding> = tcp.flat_map(|listen| listener(listen, names, now)).collect();
    Ok(match findings.is_empty() {
        true => vec![Finding::ok(CHECK, "no listener has certificates: all connections are in clear")],
        false => findings,
    })
}

fn listener(listen: &ListenConfig, names: &[String], now: SystemTime) -> Vec<Finding> {
    let options = listen.options.iter().filter(|(key, _)| key.starts_with("tls_"));
    let options = options.map(|(key, value)| (key.clone(), value.clone())).collect();
    let at = &listen.address;
    match TlsSurvey::of(&options) {
        Ok(None) => Vec::new(),
        Ok(Some(survey)) => survey_of(&survey, at, names, now),
        Err(problem) => {
            let fix = "correct the file or the key of the configuration: the server does not start with it";
            vec![Finding::bad(CHECK, format!("{at}: {problem}"), fix)]
        }
    }
}

fn survey_of(survey: &TlsSurvey, at: &SocketAddr, names: &[String], now: SystemTime) -> Vec<Finding> {
    let file = survey.certificate.display();
    let mut findings = Vec::new();
    let mut bad = |found: String, fix: &str| findings.push(Finding::bad(CHECK, format!("{at}: {found}"), fix));
    if survey.names.is_empty() {
        bad(format!("{file} has no name (SAN), so every client refuses it"), NEW_CERTIFICATE);
    }
    for name in names.iter().filter(|name| !survey.is_for(name)) {
        let found = format!("{file} is not for '{name}': it has {}", survey.names.join(", "));
        bad(found, NEW_CERTIFICATE);
    }
    if now < survey.valid.start {
        let wait = days(survey.valid.start.duration_since(now));
        bad(format!("{file} is valid only in {wait}"), "correct the clock of this host, or replace the certificate");
    }
    if now >= survey.valid.end {
        bad(format!("{file} expired {} ago", days(now.duration_since(survey.valid.end))), RENEW);
    } else if let Ok(left) = survey.valid.end.duration_since(now)
        && left < SOON
    {
        findings.push(Finding::note(CHECK, format!("{at}: {file} expires in {}", days(Ok(left))), RENEW));
    }
    if let Some((list, end)) = &survey.revoked {
        let left = end.duration_since(now).unwrap_or_default();
        if left < LIST_SOON {
            let found = format!("{at}: the revocation list {} expires in {}", list.display(), days(Ok(left)));
            findings.push(Finding::note(CHECK, found, "replace the list before that, and send SIGHUP to the server"));
        }
    }
    if findings.is_empty() {
        let (names, left) = (survey.names.join(", "), days(survey.valid.end.duration_since(now)));
        findings.push(Finding::ok(CHECK, format!("{at}: {file} is for {names}, and valid for {left}")));
    }
    findings
}

fn days(time: Result<Duration, std::time::SystemTimeError>) -> String {
    let seconds = time.unwrap_or_default().as_secs();
    match seconds / DAY {
        0 => format!("{} hours", seconds / 3600),
        days => format!("{days} days"),
    }
}

const CHECK: &str = "tls";
const NEW_CERTIFICATE: &str = "get a certificate with the names that clients mount as DNS names or addresses (SAN)";
const RENEW: &str = "replace the certificate, and send SIGHUP to the server";
const DAY: u64 = 86_400;
/// The time before the end of a certificate at which it should be renewed.
const SOON: Duration = Duration::from_secs(30 * DAY);
/// The time before the end of a revocation list at which it should be replaced.
const LIST_SOON: Duration = Duration::from_secs(2 * DAY);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::super::State;
    use super::*;

    /// Writes a certificate that ends on a day of 2030, and its key.
    fn issue(dir: &Path, names: &[&str], day: u8) {
        use std::os::unix::fs::PermissionsExt;
        let mut params = CertificateParams::new(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2030, 1, day));
        let key = KeyPair::generate().unwrap();
        std::fs::write(dir.join("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(dir.join("key.pem"), key.serialize_pem()).unwrap();
        std::fs::set_permissions(dir.join("key.pem"), std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Returns the findings on a day that is so many days after the first one of 2030.
    fn findings(dir: &Path, names: &[&str], after: i64) -> Vec<(State, String)> {
        let text = format!(
            "[tls]\ncertificate = \"{0}/cert.pem\"\nkey = \"{0}/key.pem\"\n\
             [[listen]]\ntransport = \"tcp\"\naddress = \"[::]:2049\"\n\
             [[listen]]\ntransport = \"rdma\"\naddress = \"[::]:20049\"\n\
             [[export]]\nname = \"/export\"\nbackend = \"memory\"\n",
            dir.display()
        );
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let now = SystemTime::from(date_time_ymd(2030, 1, 1));
        let now = match after {
            ..0 => now - Duration::from_secs(DAY * after.unsigned_abs()),
            _ => now + Duration::from_secs(DAY * after.unsigned_abs()),
        };
        let found = of(Config::parse(&text).unwrap(), &names, now).unwrap();
        assert!(
            found.iter().all(|finding| finding.check == "tls" && finding.fix.is_some() != (finding.state == State::Ok))
        );
        found.into_iter().map(|finding| (finding.state, finding.found)).collect()
    }

    #[test]
    fn certificates_of_a_configuration_are_judged() {
        let dir = tempfile::tempdir().unwrap();
        issue(dir.path(), &["nfs.example.com", "10.0.0.1"], 20);
        let at = |text: &str| format!("[::]:2049: {}/cert.pem {text}", dir.path().display());
        let good = at("is for nfs.example.com, 10.0.0.1, and valid for 119 days");
        assert_eq!(findings(dir.path(), &["10.0.0.1"], -100), [(State::Ok, good)]);
        let soon = at("expires in 9 days");
        assert_eq!(findings(dir.path(), &["nfs.example.com"], 10), [(State::Note, soon)]);
        let wrong = at("is not for 'other': it has nfs.example.com, 10.0.0.1");
        let ended = at("expired 6 days ago");
        assert_eq!(findings(dir.path(), &["other"], 25), [(State::Bad, wrong), (State::Bad, ended)]);
        let early = findings(dir.path(), &[], -4000);
        assert!(early.len() == 1 && early[0].1.contains("is valid only in "), "{early:?}");
        issue(dir.path(), &[], 20);
        let nameless = at("has no name (SAN), so every client refuses it");
        assert_eq!(findings(dir.path(), &[], -100), [(State::Bad, nameless)]);
        std::fs::remove_file(dir.path().join("key.pem")).unwrap();
        let [(State::Bad, missing)] = &findings(dir.path(), &[], 0)[..] else { panic!("one problem") };
        assert!(missing.contains("key.pem: No such file"), "{missing}");
    }

    #[test]
    fn a_configuration_without_tls_is_said_to_have_none() {
        let config = Config::parse("[[export]]\nname = \"/export\"\nbackend = \"memory\"\n").unwrap();
        let found = of(config, &[], SystemTime::now()).unwrap();
        assert!(found.len() == 1 && found[0].found.contains("in clear"), "{found:?}");
    }
}
