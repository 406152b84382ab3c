//! The requirements, which are read from `docs/requirements/rfcN.toml`.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

/// The requirements of one RFC, in the order of its sections.
#[derive(Debug)]
pub struct Rfc {
    /// The number of the RFC.
    pub number: u32,
    /// The title of the RFC.
    pub title: String,
    /// The sentences that contain MUST, SHALL or REQUIRED.
    pub requirements: Vec<Requirement>,
}

/// A sentence of an RFC that requires something.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// `rfcN-SECTION-n`: the n-th sentence of the section.
    pub id: String,
    /// The party that the sentence binds.
    pub who: String,
    /// The sentence.
    pub text: String,
    /// The reason why there is no code or no test. In the file it can be a key of `reasons`.
    pub reason: Option<String>,
    /// The behaviour that replaces the required one, and the reason for it.
    pub deviation: Option<String>,
    /// A description of the missing test.
    pub gap: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    number: u32,
    title: String,
    /// The reasons that several requirements share, by their keys.
    #[serde(default)]
    reasons: BTreeMap<String, String>,
    requirement: Vec<Requirement>,
}

/// Reads the files of `docs/requirements`.
pub fn load() -> Result<Vec<Rfc>, String> {
    let entries = fs::read_dir(DIRECTORY).map_err(|error| format!("{DIRECTORY}: {error}"))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    let mut rfcs = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    rfcs.sort_by_key(|rfc| rfc.number);
    Ok(rfcs)
}

fn read(path: &Path) -> Result<Rfc, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|why| format!("{}: {why}", path.display()))
}

fn parse(text: &str) -> Result<Rfc, String> {
    let Contents { number, title, reasons, requirement: mut requirements } =
        toml::from_str(text).map_err(|error| error.to_string())?;
    for requirement in &mut requirements {
        let Requirement { id, text, reason, .. } = &mut *requirement;
        if !id.starts_with(&format!("rfc{number}-")) || id.split('-').count() != 3 {
            return Err(format!("{id} is not of the form rfc{number}-SECTION-n"));
        }
        if !["MUST", "SHALL", "REQUIRED"].iter().any(|word| text.contains(word)) {
            return Err(format!("{id} does not contain MUST, SHALL or REQUIRED"));
        }
        if let Some(shared) = reason.as_ref().and_then(|reason| reasons.get(reason)) {
            *reason = Some(shared.clone());
        } else if reason.as_ref().is_some_and(|reason| !reason.contains(' ')) {
            return Err(format!("{id}: its reason is not in `reasons`"));
        }
    }
    Ok(Rfc { number, title, requirements })
}

impl Requirement {
    /// Returns the section of the RFC.
    pub fn section(&self) -> &str {
        self.id.split('-').nth(1).unwrap_or_default()
    }
}

const DIRECTORY: &str = "docs/requirements";

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
        number = 1
        title = 'One'
        [reasons]
        hardware = 'The adapter does it.'
        [[requirement]]
        id = 'rfc1-2.3-4'
        who = 'both'
        text = 'An adapter MUST.'
        reason = 'hardware'
    ";

    #[test]
    fn shared_reasons_are_inserted() {
        let rfc = parse(FILE).unwrap();
        assert_eq!(rfc.requirements[0].reason.as_deref(), Some("The adapter does it."));
        assert_eq!(rfc.requirements[0].section(), "2.3");
    }

    #[test]
    fn invalid_files_are_rejected() {
        for (right, wrong) in [("rfc1-", "rfc2-"), ("MUST", "may"), ("= 'hardware'", "= 'hard'"), ("who", "whom")] {
            assert!(parse(&FILE.replace(right, wrong)).is_err(), "{wrong}");
        }
    }
}
