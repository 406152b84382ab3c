//! `[[pnfs]]` of the configuration file: groups of data servers for exports with `backend = "pnfs"`.
//!
//! This crate only reads these tables. The back end interprets them.

use std::{net::SocketAddr, num::NonZeroU32, path::PathBuf};

use serde::{
    Deserialize, Deserializer,
    de::{self, IntoDeserializer},
};

use super::size::ByteSize;

/// A `[[pnfs]]` table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PnfsConfig {
    /// `name`: the name by which exports refer to this table.
    pub name: String,
    /// `[[pnfs.server]]`: the data servers.
    #[serde(default)]
    pub server: Vec<DataServerConfig>,
    /// `mirrors`: the number of copies of new files, from 1 to 16. Each is on another data server. The default is 2.
    #[serde(default = "mirrors")]
    pub mirrors: u16,
    /// `stripes`: the number of objects of each copy of new files, from 1 to 16. Each object of a copy is on another data server.
    /// The default is 1.
    #[serde(default = "stripes", deserialize_with = "checked_stripes")]
    pub stripes: u16,
    /// `stripe_unit`: the bytes of a file that follow each other in one object, if there are several: a multiple of 4 KiB from
    /// 64 KiB to 1 GiB. The default is 1 MiB.
    #[serde(default = "stripe_unit", deserialize_with = "checked_stripe_unit")]
    pub stripe_unit: u64,
    /// `threshold`: the size in bytes up to which the data of a file stay on this server. The default is 64 KiB.
    #[serde(default = "threshold", deserialize_with = "bytes")]
    pub threshold: u64,
    /// `timeout_s`: the seconds for which an operation waits for a data server, from 1 to 600. The default is 10.
    #[serde(default = "timeout_s", deserialize_with = "timeout")]
    pub timeout_s: u64,
    /// `layouts`: the layouts that clients get. The default is `flexible`.
    #[serde(default)]
    pub layouts: LayoutsMode,
    /// `key_file`: the file with the key of the cluster, which data servers of kind `slipway` have, too.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

impl Default for PnfsConfig {
    /// Returns a table without a name and without data servers.
    fn default() -> Self {
        Self {
            name: String::new(),
            server: Vec::new(),
            mirrors: mirrors(),
            stripes: stripes(),
            stripe_unit: stripe_unit(),
            threshold: threshold(),
            timeout_s: timeout_s(),
            layouts: LayoutsMode::default(),
            key_file: None,
        }
    }
}

impl PnfsConfig {
    /// Replaces an option by that of an export with this table: `mirrors`, `stripes`, `stripe_unit`, `threshold` or `layouts`.
    ///
    /// # Errors
    /// Returns a message for the user if exports have no such option, or if the value is wrong.
    pub fn replace(&mut self, option: &str, value: &str) -> Result<(), String> {
        let size = || value.parse().map(|ByteSize(bytes)| bytes).map_err(|error| format!("{option}: {error}"));
        match option {
            "mirrors" => self.mirrors = count(option, value)?,
            "stripes" => self.stripes = count(option, value)?,
            "stripe_unit" => self.stripe_unit = size().and_then(unit)?,
            "threshold" => self.threshold = size()?,
            "layouts" => {
                let mode = LayoutsMode::deserialize(value.into_deserializer());
                self.layouts = mode.map_err(|error: de::value::Error| format!("{option}: {error}"))?;
            }
            _ => return Err(format!("option '{option}': {EXPORT_OPTIONS}")),
        }
        Ok(())
    }
}

/// The layouts of a `[[pnfs]]` table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutsMode {
    /// Clients of NFSv4.1 and later use the data servers directly (flexible files, RFC 8435).
    #[default]
    Flexible,
    /// Clients of NFSv4.1 and later use the data servers directly (files layout, RFC 8881 §13). Files have one copy, and all data
    /// servers are `slipway serve` with `data_server = true`.
    Files,
    /// All data pass through this server.
    None,
}

/// A `[[pnfs.server]]` table: a data server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataServerConfig {
    /// `id`: the number by which files refer to the data server. It must never change, and never be used again.
    pub id: NonZeroU32,
    /// `name`: the name by which administrators refer to the data server, beside its number. It can change. The default is none.
    #[serde(default, deserialize_with = "checked_name")]
    pub name: Option<String>,
    /// `url`: the directory of the data, such as `nfs://ds1/data`. This server uses it by NFSv3.
    pub url: String,
    /// `address`: the addresses by which clients use the data server. The default is the address and the port of the URL.
    #[serde(default)]
    pub address: Vec<DataAddressConfig>,
    /// `kind`: how objects are created and fenced. The default is `nfs3`. It must not change while the data server has objects.
    #[serde(default)]
    pub kind: DataKindConfig,
    /// `version`: the version of NFS by which clients use the data server. The default is `3`.
    #[serde(default)]
    pub version: DataVersionConfig,
}

/// The kind of a data server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataKindConfig {
    /// Any server of NFSv3. This server creates objects by CREATE, and fences clients by new owners.
    #[default]
    Nfs3,
    /// `slipway serve` with `backend = "objects"`. This server computes the handles of objects, and fences clients by epochs.
    Slipway,
}

/// The version of NFS between clients and a data server. This server uses NFSv3 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum DataVersionConfig {
    /// NFSv3.
    #[default]
    #[serde(rename = "3")]
    V3,
    /// NFSv4.1. The data server must tell its clients that it is one (RFC 8881 §13.1).
    #[serde(rename = "4.1")]
    V4_1,
    /// NFSv4.2, as NFSv4.1.
    #[serde(rename = "4.2")]
    V4_2,
}

/// `address` of a `[[pnfs.server]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataAddressConfig {
    /// `transport`: `tcp`, `rdma` or `shm`.
    pub transport: DataTransportConfig,
    /// `address`: the IP address and port, such as `192.0.2.1:2049`.
    pub address: SocketAddr,
}

/// A transport between clients and data servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataTransportConfig {
    /// TCP.
    Tcp,
    /// RDMA.
    Rdma,
    /// Shared memory, for clients on the same host that have mounted over it.
    Shm,
}

fn mirrors() -> u16 {
    2
}

fn stripes() -> u16 {
    1
}

fn stripe_unit() -> u64 {
    1 << 20
}

fn threshold() -> u64 {
    64 << 10
}

fn timeout_s() -> u64 {
    10
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    ByteSize::deserialize(deserializer).map(|ByteSize(bytes)| bytes)
}

fn checked_stripes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    count("stripes", &i64::deserialize(deserializer)?.to_string()).map_err(de::Error::custom)
}

fn checked_stripe_unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let ByteSize(bytes) = ByteSize::deserialize(deserializer)?;
    unit(bytes).map_err(de::Error::custom)
}

fn checked_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_word = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(valid);
    // A name of digits could be taken for a number.
    if is_word && name.len() <= NAME_MAX && !name.chars().all(|c| c.is_ascii_digit()) {
        return Ok(Some(name));
    }
    Err(de::Error::custom(format!(
        "name = '{name}': it must begin with a letter or a digit, have only letters, digits, '.', '_' and '-', at most {NAME_MAX}, and not only digits"
    )))
}

/// Returns a number of copies or stripes.
fn count(option: &str, value: &str) -> Result<u16, String> {
    let count = value.parse().ok().filter(|count| (1..=16).contains(count));
    count.ok_or_else(|| format!("{option} = {value}: it must be from 1 to 16"))
}

/// Returns the bytes of a stripe unit.
fn unit(bytes: u64) -> Result<u64, String> {
    if (64 << 10..=1 << 30).contains(&bytes) && bytes.is_multiple_of(4 << 10) {
        return Ok(bytes);
    }
    Err(format!("stripe_unit: {bytes} bytes are no multiple of 4 KiB from 64 KiB to 1 GiB"))
}

fn timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let seconds = i64::deserialize(deserializer)?;
    match u64::try_from(seconds).ok().filter(|seconds| (1..=600).contains(seconds)) {
        Some(seconds) => Ok(seconds),
        None => Err(de::Error::custom(format!("timeout_s = {seconds}: it must be from 1 to 600"))),
    }
}

const EXPORT_OPTIONS: &str = "`backend = \"pnfs\"` has `cluster`, the name of a [[pnfs]] table, and `mirrors`, `stripes`, `stripe_unit`, `threshold` \
                              and `layouts`, which replace those of the table";
/// Maximum characters of the name of a data server.
const NAME_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn keys_of_pnfs_have_an_effect_and_defaults() {
        let text = r#"
            [[pnfs]]
            name = "fast"
            mirrors = 3
            stripes = 4
            stripe_unit = "64 KiB"
            layouts = "none"
            threshold = 0
            timeout_s = 5
            key_file = "/etc/slipway/cluster.key"
            [[pnfs.server]]
            id = 1
            url = "nfs://ds1/data"
            address = [{ transport = "rdma", address = "192.0.2.1:20049" }]
            [[pnfs.server]]
            id = 2
            name = "rack-2.example_b"
            url = "nfs://ds2/data"
            version = "4.1"
            kind = "slipway"
            [[pnfs.server]]
            id = 3
            url = "nfs://ds3/data"
            version = "4.2"
            [[pnfs]]
            name = "plain"
            [[pnfs]]
            name = "striped"
            layouts = "files"
        "#;
        let config = Config::parse(text).unwrap();
        let [fast, plain, striped] = &config.pnfs[..] else { panic!("there must be three tables") };
        assert_eq!((fast.name.as_str(), fast.mirrors, fast.layouts), ("fast", 3, LayoutsMode::None));
        assert_eq!((fast.threshold, fast.timeout_s), (0, 5));
        assert_eq!((fast.stripes, fast.stripe_unit), (4, 64 << 10));
        assert_eq!((fast.server[0].id.get(), fast.server[0].url.as_str()), (1, "nfs://ds1/data"));
        assert_eq!(fast.key_file.as_deref(), Some("/etc/slipway/cluster.key".as_ref()));
        let kinds: Vec<_> = fast.server.iter().map(|server| server.kind).collect();
        assert_eq!(kinds, [DataKindConfig::Nfs3, DataKindConfig::Slipway, DataKindConfig::Nfs3]);
        let names: Vec<_> = fast.server.iter().map(|server| server.name.as_deref()).collect();
        assert_eq!(names, [None, Some("rack-2.example_b"), None]);
        let address = "192.0.2.1:20049".parse().unwrap();
        assert_eq!(fast.server[0].address, [DataAddressConfig { transport: DataTransportConfig::Rdma, address }]);
        let versions: Vec<_> = fast.server.iter().map(|server| server.version).collect();
        assert_eq!(versions, [DataVersionConfig::V3, DataVersionConfig::V4_1, DataVersionConfig::V4_2]);
        assert_eq!((plain.mirrors, plain.layouts), (2, LayoutsMode::Flexible));
        assert_eq!(striped.layouts, LayoutsMode::Files);
        assert_eq!((plain.stripes, plain.stripe_unit), (1, 1 << 20));
        assert_eq!((plain.threshold, plain.timeout_s, plain.server.len()), (64 << 10, 10, 0));
        assert_eq!(*plain, PnfsConfig { name: "plain".to_owned(), ..PnfsConfig::default() });
    }

    #[test]
    fn options_of_an_export_replace_those_of_its_table() {
        let mut table = PnfsConfig::default();
        let options = [
            ("mirrors", "3"),
            ("stripes", "4"),
            ("stripe_unit", "128 KiB"),
            ("threshold", "1 MiB"),
            ("layouts", "none"),
        ];
        options.iter().for_each(|(option, value)| table.replace(option, value).unwrap());
        assert_eq!((table.mirrors, table.stripes, table.stripe_unit), (3, 4, 128 << 10));
        assert_eq!((table.threshold, table.layouts), (1 << 20, LayoutsMode::None));
        let former = table.clone();
        for (option, value, message) in [
            ("mirrors", "0", "mirrors = 0: it must be from 1 to 16"),
            ("mirrors", "two", "mirrors = two: it must be from 1 to 16"),
            ("stripes", "17", "stripes = 17: it must be from 1 to 16"),
            ("stripe_unit", "60 KiB", "stripe_unit: 61440 bytes are no multiple of 4 KiB from 64 KiB to 1 GiB"),
            ("stripe_unit", "wide", "stripe_unit: 'wide': a size is a number and a unit"),
            ("threshold", "-1", "threshold: '-1': a size is a number and a unit"),
            ("layouts", "blocks", "layouts: unknown variant `blocks`, expected one of `flexible`, `files`, `none`"),
            ("timeout_s", "5", "option 'timeout_s': `backend = \"pnfs\"` has `cluster`"),
        ] {
            let error = table.replace(option, value).unwrap_err();
            assert!(error.starts_with(message), "{option} = {value}: {error}");
        }
        assert_eq!(table, former);
    }

    #[test]
    fn names_of_data_servers_are_words_and_no_numbers() {
        let parse = |name: &str| {
            let text = format!("[[pnfs]]\nname = 'a'\n[[pnfs.server]]\nid = 1\nurl = 'nfs://a/b'\nname = '{name}'");
            Config::parse(&text).map(|config| config.pnfs[0].server[0].name.clone())
        };
        let longest = "a".repeat(64);
        for name in ["ds1", "7of9", "a", "10.0.0.2", &longest] {
            assert_eq!(parse(name).unwrap().as_deref(), Some(name));
        }
        for name in ["", "12", "-a", ".a", "a b", "a/b", "ä", &"a".repeat(65)] {
            let error = parse(name).unwrap_err();
            assert!(error.message.starts_with(&format!("name = '{name}': it must begin with")), "{}", error.message);
            assert_eq!(error.line, 6, "{name}");
        }
    }

    #[test]
    fn wrong_values_are_refused() {
        let cases = [
            ("layouts = 'blocks'", "unknown variant `blocks`, expected one of `flexible`, `files`, `none`"),
            ("stripes = 0", "stripes = 0: it must be from 1 to 16"),
            ("stripes = 17", "stripes = 17: it must be from 1 to 16"),
            ("stripe_unit = '60 KiB'", "stripe_unit: 61440 bytes are no multiple of 4 KiB from 64 KiB to 1 GiB"),
            ("stripe_unit = 100000", "stripe_unit: 100000 bytes are no multiple of 4 KiB from 64 KiB to 1 GiB"),
            ("stripe_unit = '2 GiB'", "stripe_unit: 2147483648 bytes are no multiple of 4 KiB from 64 KiB to 1 GiB"),
            ("timeout_s = 0", "timeout_s = 0: it must be from 1 to 600"),
            (
                "[[pnfs.server]]\nid = 1\nurl = 'nfs://a/b'\nkind = 'nfs4'",
                "unknown variant `nfs4`, expected `nfs3` or `slipway`",
            ),
            ("copies = 2", "unknown field `copies`"),
            ("[[pnfs.server]]\nid = 0\nurl = 'nfs://a/b'", "nonzero"),
            ("[[pnfs.server]]\nid = 1", "missing field `url`"),
            (
                "[[pnfs.server]]\nid = 1\nurl = 'nfs://a/b'\nversion = '4.0'",
                "unknown variant `4.0`, expected one of `3`, `4.1`, `4.2`",
            ),
        ];
        for (line, message) in cases {
            let error = Config::parse(&format!("[[pnfs]]\nname = 'a'\n{line}")).unwrap_err();
            assert!(error.message.contains(message), "{line}: {}", error.message);
        }
    }
}
