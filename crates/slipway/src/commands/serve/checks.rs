//! Checks that the exports of a configuration can be used with what the server offers.

use rpc::Xprtsec;
use server::{
    Config, Sec,
    config::{ExportConfig, ListenConfig},
};

use crate::exit::Failure;

/// Checks that the server has every security flavour that its exports allow. Otherwise clients would try flavours that are
/// listed and then rejected.
pub fn check_flavors(config: &Config) -> Result<(), Failure> {
    if config.kerberos.is_some() {
        return Ok(());
    }
    for (export, sec) in config.export.iter().flat_map(|export| Sec::ALL.map(|sec| (export, sec))) {
        if sec.is_gss() && export.options.allows(sec) {
            let (name, sec) = (&export.name, sec.name());
            return Err(Failure::usage(format!(
                "export '{name}': sec has '{sec}', but the configuration has no table [kerberos]"
            )));
        }
    }
    Ok(())
}

/// Checks that each export and each entry of `clients` admits the connections of some listener. Otherwise these hosts could
/// not use the export. `[tls]` must have been added to the listeners; without listeners, the default ones are in clear.
pub fn check_protections(config: &Config) -> Result<(), Failure> {
    let offered: Vec<Xprtsec> = match config.listen.is_empty() {
        true => vec![Xprtsec::None],
        false => config.listen.iter().flat_map(protections).collect(),
    };
    for ExportConfig { name, options, .. } in &config.export {
        // TLS protects only tcp. An export that names another transport can be used over that one.
        let other = options.transports.iter().flatten().any(|transport| transport != "tcp");
        if other || options.protections().all(|wanted| offered.iter().any(|&tls| wanted.admit(tls))) {
            continue;
        }
        let lacks = match offered.iter().max() {
            Some(Xprtsec::Mtls) => "every listener of tcp requires TLS",
            Some(Xprtsec::Tls) => "no listener of tcp asks clients for a certificate (client_ca) or is in clear",
            _ => "no listener of tcp offers TLS: the configuration needs [tls]",
        };
        return Err(Failure::usage(format!(
            "export '{name}': xprtsec admits no connection that a listener can have: {lacks}"
        )));
    }
    Ok(())
}

/// Returns the kinds of protection that connections to a listener can have.
fn protections(listen: &ListenConfig) -> Vec<Xprtsec> {
    let option = |key: &str| listen.options.get(key).map(String::as_str);
    if listen.transport != "tcp" || option("tls_cert").is_none() {
        return vec![Xprtsec::None];
    }
    let most = if option("tls_ca").is_some() { Xprtsec::Mtls } else { Xprtsec::Tls };
    let least = match option("tls_required") {
        Some("tls" | "on" | "true") => Xprtsec::Tls,
        Some("mtls") => Xprtsec::Mtls,
        _ => Xprtsec::None,
    };
    [Xprtsec::None, Xprtsec::Tls, Xprtsec::Mtls].into_iter().filter(|tls| (least..=most).contains(tls)).collect()
}
