//! Traceability: links each requirement of the RFCs to the code that fulfils it and to a test that proves it.
//!
//! `docs/requirements/` has one file for each RFC, with the sentences that contain MUST, SHALL or REQUIRED
//! (`requirements.rs`). A comment `//= rfc8166-3.4.5-1` in code or in a test cites a requirement (`citations.rs`).
//! `docs/traceability.md` is the report (`page.rs`).

mod citations;
mod page;
mod requirements;

use std::{collections::BTreeMap, fs};

use crate::report::{Outcome, Report};
use citations::{Citation, Citations};
use requirements::{Requirement, Rfc};

/// Checks that the citations are valid and that the report is current.
pub fn check(report: &mut Report) {
    report.step("traceability", || match load() {
        Err(why) => Outcome::Failed(why),
        Ok((rfcs, citations)) => {
            let mut complaints = complaints(&rfcs, &citations);
            if fs::read_to_string(REPORT).unwrap_or_default() != page::render(&rfcs, &citations) {
                complaints.push(format!("{REPORT} is stale: run `cargo xtask trace`"));
            }
            outcome(&rfcs, &complaints)
        }
    });
}

/// Writes the report, and checks the citations.
pub fn write(report: &mut Report) {
    report.step("traceability", || match load() {
        Err(why) => Outcome::Failed(why),
        Ok((rfcs, citations)) => match fs::write(REPORT, page::render(&rfcs, &citations)) {
            Err(error) => Outcome::Failed(format!("{REPORT}: {error}")),
            Ok(()) => outcome(&rfcs, &complaints(&rfcs, &citations)),
        },
    });
}

fn load() -> Result<(Vec<Rfc>, Citations), String> {
    Ok((requirements::load()?, citations::load()?))
}

fn outcome(rfcs: &[Rfc], complaints: &[String]) -> Outcome {
    for complaint in complaints {
        eprintln!("{complaint}");
    }
    match complaints {
        [] => Outcome::Passed { tests: rfcs.iter().map(|rfc| rfc.requirements.len() as u64).sum() },
        [first, ..] => Outcome::Failed(format!("{} complaints, the first: {first}", complaints.len())),
    }
}

/// Returns the faults of the requirements, the citations of unknown requirements, and a message for each gap.
fn complaints(rfcs: &[Rfc], citations: &Citations) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut known = BTreeMap::new();
    for requirement in rfcs.iter().flat_map(|rfc| &rfc.requirements) {
        if known.insert(requirement.id.as_str(), ()).is_some() {
            complaints.push(format!("{}: two requirements have this identifier", requirement.id));
        }
        complaints.extend(complaint(requirement, citations.of(&requirement.id)));
    }
    for (id, cited) in citations.iter().filter(|(id, _)| !known.contains_key(id)) {
        complaints.push(format!("{}: {id} is not a requirement of docs/requirements", cited[0].path));
    }
    let gaps = rfcs.iter().flat_map(|rfc| &rfc.requirements).filter(|requirement| requirement.gap.is_some());
    complaints.extend(gaps.map(|requirement| format!("{} has a gap: write the test", requirement.id)));
    complaints
}

/// Returns the fault of a requirement, if it has one.
fn complaint(requirement: &Requirement, cited: &[Citation]) -> Option<String> {
    let (tests, code): (Vec<_>, Vec<_>) = cited.iter().partition(|citation| citation.is_test);
    let explanations = [&requirement.reason, &requirement.deviation, &requirement.gap];
    let explained = explanations.iter().any(|text| text.is_some());
    let fault = match (code.is_empty(), tests.is_empty()) {
        (false, false) if requirement.gap.is_some() => "is cited at code and at a test: remove the gap",
        (false, false) if requirement.reason.is_some() => "is cited at code and at a test: remove the reason",
        _ if explanations.iter().filter(|text| text.is_some()).count() > 1 => {
            "has more than one of reason, deviation and gap"
        }
        (true, true) if !explained => "is not cited and has no reason",
        (true, false) if !explained => "is cited at a test but not at code and has no reason",
        (false, true) if !explained => "is cited at code but not at a test and has no reason",
        _ => return None,
    };
    Some(format!("{} {fault}", requirement.id))
}

const REPORT: &str = "docs/traceability.md";

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(reason: Option<&str>, gap: Option<&str>) -> Requirement {
        Requirement {
            id: "rfc1-2-3".into(),
            who: "client".into(),
            text: "A client MUST.".into(),
            reason: reason.map(str::to_owned),
            gap: gap.map(str::to_owned),
            deviation: None,
        }
    }

    fn cited(is_test: bool) -> Citation {
        Citation { path: "a.rs".into(), function: None, is_test }
    }

    #[test]
    fn requirement_without_code_or_test_needs_a_reason() {
        let plain = requirement(None, None);
        assert_eq!(complaint(&plain, &[cited(true), cited(false)]), None);
        for citations in [&[][..], &[cited(true)], &[cited(false)]] {
            assert!(complaint(&plain, citations).is_some());
            assert_eq!(complaint(&requirement(Some("hardware"), None), citations), None);
            assert_eq!(complaint(&requirement(None, Some("no test")), citations), None);
        }
    }

    #[test]
    fn reason_or_gap_of_a_fully_cited_requirement_is_reported() {
        let both = [cited(true), cited(false)];
        assert!(complaint(&requirement(Some("hardware"), None), &both).is_some());
        assert!(complaint(&requirement(None, Some("no test")), &both).is_some());
        assert!(complaint(&requirement(Some("hardware"), Some("no test")), &[]).is_some());
        let deviation = Requirement { deviation: Some("closes instead".into()), ..requirement(None, None) };
        assert_eq!(complaint(&deviation, &both), None, "the citations show what is done instead");
    }

    #[test]
    fn unknown_citations_and_gaps_are_reported() {
        let rfc = |requirements| vec![Rfc { number: 1, title: "One".into(), requirements }];
        let found = complaints(&rfc(vec![]), &Citations::from([("rfc9-1-1".to_owned(), vec![cited(true)])]));
        assert!(found.iter().any(|complaint| complaint.contains("rfc9-1-1 is not a requirement")), "{found:?}");
        let found = complaints(&rfc(vec![requirement(None, Some("no test"))]), &Citations::from([]));
        assert_eq!(found, ["rfc1-2-3 has a gap: write the test"]);
    }
}
