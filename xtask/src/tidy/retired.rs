//! Retired terms: words and identifiers that the glossary has replaced, and that no text file may contain.

use super::File;

/// Each retired term and its replacement. A term with a space also matches a name that is spelled with underscores.
const RETIRED: &[(&str, &str)] = &[
    ("Anywhere", "MigrationRouter"),
    ("AsTold", "PlacementFromHeader"),
    ("Asking", "the name of the request"),
    ("Carrier", "TransportLimits"),
    ("Elsewhere", "Referrals"),
    ("Errand", "BackgroundTask"),
    ("Forgetful", "DelegationWatcher"),
    ("Genuine", "VerifiedReply"),
    ("Heir", "MigrationIdentity"),
    ("KeptAcl", "StoredAcl"),
    ("Outlook", "the name of the result"),
    ("Payer", "MemoryOwner"),
    ("Standing", "ClientState"),
    ("Told", "the name of the message or result"),
    ("conclude", "encode_result; end, complete"),
    ("crowd", "overload"),
    ("dozing", "sleeping"),
    ("doomed", "remove_on_close"),
    ("farewell", "unmount"),
    ("hand_up", "deliver"),
    ("heed", "handle_status_flags; follow, obey"),
    ("is_crowded", "is_overloaded"),
    ("look_anew", "revalidate"),
    ("look_around", "run_periodic"),
    ("mend_attribute", "repair_attribute"),
    ("rouse", "wake"),
    ("take_leave", "unmount"),
    ("at hand", "available without waiting"),
    ("believed", "cached; trusted"),
    ("came home", "returned to its pool or owner"),
    ("come home", "return to its pool or owner"),
    ("comes home", "returns to its pool or owner"),
    ("give back", "return, release"),
    ("gives back", "returns, releases"),
    ("gives way", "is evicted, is closed"),
    ("heard of", "learned of, was notified of"),
    ("hear of", "learn of, be notified of"),
    ("hears of", "learns of, is notified of"),
    ("hung up on", "disconnected"),
    ("lets go", "releases"),
    ("take leave", "unmount, log out"),
    ("takes leave", "unmounts, logs out"),
];

/// The file that names the terms in order to retire them.
const TABLE: &str = "xtask/src/tidy/retired.rs";

/// The lines that contain a retired term.
pub fn found(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path != TABLE) {
        for (number, line) in file.text.lines().enumerate() {
            for (term, replacement) in RETIRED.iter().filter(|(term, _)| contains(line, term)) {
                complaints.push(format!("{}:{}: \"{term}\" is retired: {replacement}", file.path, number + 1));
            }
        }
    }
    complaints
}

/// Reports whether `line` contains `term` as whole words. A lowercase term also matches with an uppercase first letter.
fn contains(line: &str, term: &str) -> bool {
    let spaced;
    let line = match term.contains(' ') && line.contains('_') {
        true => {
            spaced = line.replace('_', " ");
            spaced.as_str()
        }
        false => line,
    };
    let (first, rest) = term.split_at(1);
    let capital = first.to_uppercase() + rest;
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    [term, &capital].iter().flat_map(|form| line.match_indices(*form)).any(|(at, form)| {
        let before = line[..at].chars().next_back();
        let after = line[at + form.len()..].chars().next();
        !before.is_some_and(in_word) && !after.is_some_and(in_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> usize {
        found(&[File { path: path.into(), text: text.into() }]).len()
    }

    #[test]
    fn whole_words_match() {
        for line in ["struct Heir;", "fn x() { heed() }", "// Heed.", "heed"] {
            assert!(["Heir", "heed"].iter().any(|term| contains(line, term)), "{line}");
        }
        for line in ["Heirloom", "heeded", "un_heed", "heir"] {
            assert!(!["Heir", "heed"].iter().any(|term| contains(line, term)), "{line}");
        }
    }

    #[test]
    fn phrases_match_in_text_and_names() {
        assert!(contains("The memory comes home.", "comes home"));
        assert!(contains("fn everything_comes_home() {}", "comes home"));
        assert!(!contains("becomes homeless", "comes home"));
    }

    #[test]
    fn only_the_table_is_exempt() {
        assert_eq!(complaints(TABLE, "heed"), 0);
        assert_eq!(complaints("docs/glossary.md", "one\nheed\n"), 1);
    }
}
