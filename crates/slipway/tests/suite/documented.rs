//! The documentation explains every key of the configuration file.

use std::{collections::BTreeSet, fs, path::Path};

use crate::common::fails;

/// A table, and the text that comes before an unknown key of it.
const TABLES: [(&str, &str, &str); 13] = [
    ("the file", "", "configuration.md"),
    ("[server]", "[server]\n", "configuration.md"),
    ("[kerberos]", "[kerberos]\n", "configuration.md"),
    ("[identity]", "[identity]\n", "configuration.md"),
    ("[audit]", "[audit]\nfile = '/a'\n", "configuration.md"),
    ("[tls]", "[tls]\ncertificate = '/c'\nkey = '/k'\n", "configuration.md"),
    ("[[listen]]", "[[listen]]\ntransport = 'tcp'\naddress = '127.0.0.1:0'\n", "configuration.md"),
    ("[[export]]", "[[export]]\npath = '/tmp'\n", "configuration.md"),
    ("clients of [[export]]", "[[export]]\npath = '/tmp'\n[[export.clients]]\nhost = '*'\n", "configuration.md"),
    ("[[referral]]", "[[referral]]\nname = '/r'\nlocations = ['h:/r']\n", "configuration.md"),
    ("[[pnfs]]", "[[pnfs]]\nname = 'p'\n", "pnfs.md"),
    ("[[pnfs.server]]", "[[pnfs]]\nname = 'p'\n[[pnfs.server]]\nid = 1\nurl = 'nfs://h/d'\n", "pnfs.md"),
    (
        "address of [[pnfs.server]]",
        "[[pnfs]]\nname = 'p'\n[[pnfs.server]]\nid = 1\nurl = 'nfs://h/d'\n[[pnfs.server.address]]\n",
        "pnfs.md",
    ),
];

#[test]
fn every_key_of_every_table_is_documented() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("slipway.toml");
    let mut all = BTreeSet::new();
    for (table, text, page) in TABLES {
        fs::write(&config, format!("{text}zz = 1\n")).unwrap();
        // The error of an unknown key names all that are known.
        let error = fails(2, &["serve", "--config", config.to_str().unwrap()]);
        let (_, expected) =
            error.split_once("unknown field `zz`, expected ").unwrap_or_else(|| panic!("{table}: {error}"));
        let keys: Vec<_> = expected.split('`').skip(1).step_by(2).collect();
        assert!(keys.len() >= 2, "{table}: {error}");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
        let page = fs::read_to_string(path).unwrap();
        for key in &keys {
            let forms = [format!("`{key}`"), format!("\n{key} = "), format!("{{ {key} = "), format!("[{key}]")];
            let is_explained = forms.iter().any(|form| page.contains(form));
            assert!(is_explained, "{key} of {table} is not documented");
        }
        all.extend(keys.into_iter().map(str::to_owned));
    }
    for key in ["blocking_queue", "service", "machines", "on_full", "client_names", "xprtsec", "anongid"] {
        assert!(all.contains(key), "{key} must be a key");
    }
}
