//! Numbers of bytes in the configuration file.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

/// A number of bytes, written as `1048576`, `"64 MiB"` or `"2 GB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(
    /// The number of bytes.
    pub u64,
);

impl std::str::FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(format!("'{text}': a size is a number and a unit such as KiB, MiB, GiB, MB or GB")),
        };
        let number: u64 = text[..digits].parse().map_err(|_| format!("'{text}': no number before the unit"))?;
        number.checked_mul(unit).map(Self).ok_or(format!("'{text}': more than 64 bits"))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or a string such as \"64 MiB\"")
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes).map(ByteSize).map_err(|_| E::custom("a size is not negative"))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_units() {
        let size = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
        assert_eq!(size("5"), Ok(5));
        assert_eq!(size("2 KiB"), Ok(2048));
        assert_eq!(size("3G"), Ok(3 << 30));
        assert_eq!(size("4MB"), Ok(4_000_000));
        assert!(size("MiB").is_err() && size("1 parsec").is_err() && size("99999999 TiB").is_err());
    }
}
