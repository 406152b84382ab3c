//! `[tls]`, and the TLS of listeners.

use std::path::PathBuf;

use rpc::Ktls;
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::export::xprtsec::Level;

/// A `[tls]` table, or the `tls` of a `[[listen]]` table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// `certificate`: the file of the server's certificate and its intermediate issuers.
    pub certificate: PathBuf,
    /// `key`: the file of the server's private key.
    pub key: PathBuf,
    /// `client_ca`: the file of the issuers that may sign the certificates of clients. Without it, clients are not asked
    /// for a certificate.
    pub client_ca: Option<PathBuf>,
    /// `revoked`: the file of the lists of revoked certificates.
    pub revoked: Option<PathBuf>,
    /// `client_names`: the names of which a client's certificate must have one. The default is any.
    pub client_names: Option<Vec<String>>,
    /// `required`: the protection that every call needs.
    #[serde(default)]
    pub required: Level,
    /// `ktls`: whether the kernel encrypts what is sent.
    #[serde(default, deserialize_with = "ktls")]
    pub ktls: Ktls,
}

fn ktls<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ktls, D::Error> {
    Ktls::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl TlsConfig {
    /// Returns the options of the transport "tcp".
    ///
    /// # Errors
    /// Returns a message for the user if a path is not UTF-8.
    pub(super) fn into_options(self) -> Result<Vec<(String, String)>, String> {
        let text = |key: &str, path: PathBuf| {
            path.into_os_string().into_string().map_err(|path| format!("[tls] {key} = {path:?}: is not UTF-8"))
        };
        let mut options =
            vec![("tls_cert", text("certificate", self.certificate)?), ("tls_key", text("key", self.key)?)];
        if let Some(path) = self.client_ca {
            options.push(("tls_ca", text("client_ca", path)?));
        }
        if let Some(path) = self.revoked {
            options.push(("tls_crl", text("revoked", path)?));
        }
        if let Some(names) = self.client_names {
            options.push(("tls_names", names.join(",")));
        }
        match self.required {
            Level::None => {}
            Level::Tls => options.push(("tls_required", "tls".to_owned())),
            Level::Mtls => options.push(("tls_required", "mtls".to_owned())),
        }
        if self.ktls == Ktls::Off {
            options.push(("ktls", Ktls::Off.name().to_owned()));
        }
        Ok(options.into_iter().map(|(option, value)| (option.to_owned(), value)).collect())
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    #[test]
    fn tls_of_a_listener_replaces_the_common_one() {
        let text = r#"
            [tls]
            certificate = "/c.pem"
            key = "/c.key"
            client_ca = "/ca.pem"
            revoked = "/list.crl"
            client_names = ["a.example.com", "10.0.0.1"]
            required = "mtls"
            ktls = "off"
            [[listen]]
            transport = "tcp"
            address = "[::]:2049"
            [[listen]]
            transport = "tcp"
            address = "[::]:2050"
            tls = { certificate = "/d.pem", key = "/d.key" }
            [[listen]]
            transport = "rdma"
            address = "[::]:20049"
        "#;
        let mut config = Config::parse(text).unwrap();
        let common = config.tls.clone();
        config.listen.iter_mut().for_each(|listen| listen.add_tls(common.as_ref()).unwrap());
        let options = |at: usize| -> Vec<(&str, &str)> {
            config.listen[at].options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
        };
        let (ktls, names) = (("ktls", "off"), ("tls_names", "a.example.com,10.0.0.1"));
        let files = [("tls_ca", "/ca.pem"), ("tls_cert", "/c.pem"), ("tls_crl", "/list.crl"), ("tls_key", "/c.key")];
        assert_eq!(options(0), [&[ktls], &files[..], &[names, ("tls_required", "mtls")]].concat());
        assert_eq!(options(1), [("tls_cert", "/d.pem"), ("tls_key", "/d.key")]);
        assert_eq!(options(2), []);
    }

    #[test]
    fn invalid_tls_is_rejected_with_its_place() {
        let error = |text: &str| Config::parse(text).unwrap_err();
        let missing = error("[tls]\ncertificate = '/c.pem'");
        assert_eq!((missing.line, &missing.message[..]), (1, "missing field `key`"));
        assert!(
            error("[tls]\ncert = '/c.pem'").message.contains("unknown field `cert`, expected one of `certificate`")
        );
        let ktls = error("[tls]\ncertificate = '/c'\nkey = '/k'\nktls = 'on'");
        assert_eq!((ktls.line, &ktls.message[..]), (4, "'on' is neither auto nor off"));
        let empty = error("[[export]]\npath = '/a'\nxprtsec = []").message;
        assert!(empty.contains("no client could use the export"), "{empty}");
        assert!(
            error("[[export]]\npath = '/a'\nxprtsec = ['ssl']")
                .message
                .contains("expected one of `none`, `tls`, `mtls`")
        );
        let text = "[[listen]]\ntransport = 'udp'\naddress = '[::]:1'\ntls = { certificate = '/c', key = '/k' }";
        let problem = Config::parse(text).unwrap().listen[0].add_tls(None).unwrap_err();
        assert_eq!(problem, "tls of the listener udp://[::]:1: TLS is for tcp");
    }
}
