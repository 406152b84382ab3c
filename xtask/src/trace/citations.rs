//! The citations of requirements in the sources: comments such as `//= rfc8166-3.4.5-1`, with one or more identifiers.

use std::{collections::BTreeMap, fs};

use crate::{functions, tidy};

/// A place that cites a requirement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Citation {
    /// The path of the file, relative to the root of the project.
    pub path: String,
    /// The innermost function around the comment.
    pub function: Option<String>,
    /// `true` if the place is a test.
    pub is_test: bool,
}

/// All citations, by the identifiers of the requirements.
#[derive(Debug, Default)]
pub struct Citations(BTreeMap<String, Vec<Citation>>);

/// Reads the sources of all crates.
pub fn load() -> Result<Citations, String> {
    let mut citations = Citations::default();
    for path in tidy::tracked_paths() {
        if path.starts_with("crates/") && path.ends_with(".rs") {
            let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
            citations.add(&path, &text)?;
        }
    }
    Ok(citations)
}

impl Citations {
    /// Returns the places that cite a requirement.
    pub fn of(&self, id: &str) -> &[Citation] {
        self.0.get(id).map_or(&[], Vec::as_slice)
    }

    /// Returns every identifier that is cited, with its places.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Citation])> {
        self.0.iter().map(|(id, places)| (id.as_str(), places.as_slice()))
    }

    fn add(&mut self, path: &str, text: &str) -> Result<(), String> {
        if !text.contains(MARK) {
            return Ok(());
        }
        let functions = functions::of(text).map_err(|why| format!("{path}: {why}"))?;
        let in_test_file = TEST_PATHS.iter().any(|part| path.contains(part));
        for (number, line) in text.lines().enumerate() {
            let Some(ids) = line.trim_start().strip_prefix(MARK) else { continue };
            let function = functions::around(&functions, number + 1);
            let place = Citation {
                path: path.to_owned(),
                function: function.map(|function| function.name.clone()),
                is_test: in_test_file || function.is_some_and(|function| function.is_test),
            };
            for id in ids.split_whitespace() {
                let places = self.0.entry(id.to_owned()).or_default();
                if !places.contains(&place) {
                    places.push(place.clone());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
impl<const N: usize> From<[(String, Vec<Citation>); N]> for Citations {
    fn from(citations: [(String, Vec<Citation>); N]) -> Self {
        Self(BTreeMap::from(citations))
    }
}

/// The characters with which a citation begins.
const MARK: &str = "//= ";

/// Parts of the paths of test files: integration tests, unit tests in separate files, and crates of tests.
const TEST_PATHS: [&str; 5] = ["/tests/", "/tests.rs", "crates/testkit/", "crates/conformance/", "crates/hostile/"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_record_their_function_and_kind() {
        let text = "
fn code() {
    //= rfc1-1-1 rfc1-1-2
}
#[cfg(test)]
mod tests {
    fn proof() {
        //= rfc1-1-1
    }
}
";
        let mut citations = Citations::default();
        citations.add("crates/a/src/lib.rs", text).unwrap();
        citations.add("crates/a/tests/suite/b.rs", "fn more() {\n    //= rfc1-1-1\n}").unwrap();
        let place = |path: &str, function: &str, is_test| Citation {
            path: path.to_owned(),
            function: Some(function.to_owned()),
            is_test,
        };
        let code = place("crates/a/src/lib.rs", "code", false);
        let tests = [place("crates/a/src/lib.rs", "proof", true), place("crates/a/tests/suite/b.rs", "more", true)];
        assert_eq!(citations.of("rfc1-1-1"), [vec![code.clone()], tests.to_vec()].concat());
        assert_eq!(citations.of("rfc1-1-2"), [code]);
    }
}
