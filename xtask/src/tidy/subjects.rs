//! The check of the subjects of commits. Their form is `area: verb …`, with the verb in the imperative.

use crate::shell;

/// Returns the subjects of commits since [`BASE`] that have another form. Returns none if the history does not contain
/// [`BASE`].
pub fn malformed() -> Vec<String> {
    let range = format!("{BASE}..HEAD");
    let Ok(log) = shell::output("git", ["log", "--no-merges", "--format=%h %s", &range]) else { return Vec::new() };
    log.lines().filter_map(|line| line.split_once(' ')).filter_map(|(hash, subject)| complaint(hash, subject)).collect()
}

fn complaint(hash: &str, subject: &str) -> Option<String> {
    let fault = fault(subject)?;
    Some(format!("commit {hash} \"{subject}\": {fault}"))
}

fn fault(subject: &str) -> Option<&'static str> {
    let Some((areas, rest)) = subject.split_once(": ") else { return Some("has no area: \"area: verb …\"") };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-/., ".contains(c);
    if areas.is_empty() || !areas.chars().all(plain) {
        return Some("its area must consist of lower-case words");
    }
    let verb = rest.split([' ', ',', ':']).next().unwrap_or_default();
    if !verb.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Some("has no lower-case verb after its area");
    }
    let inflected = verb.ends_with("ed") || verb.ends_with("ing") || verb.ends_with('s') && !verb.ends_with("ss");
    let imperative = !inflected && !NO_VERBS.contains(&verb) || IMPERATIVE.contains(&verb);
    if !imperative {
        return Some("does not begin with a verb in the imperative");
    }
    let joined = rest.split(" and ").skip(1).filter_map(|part| part.split(' ').next());
    if rest.contains(", and ") || rest.contains("; ") || joined.into_iter().any(|word| JOINED.contains(&word)) {
        return Some("has more than one action");
    }
    (subject.chars().count() > LEN_MAX).then_some("is longer than 72 characters")
}

/// The last commit before the form was required.
const BASE: &str = "6c8a261a492183fc1a67a96ca7a446431fd83394";

/// Maximum length of a subject in characters.
const LEN_MAX: usize = 72;

/// Imperatives that end like another form of a verb.
const IMPERATIVE: [&str; 14] = [
    "bring", "ping", "ring", "string", "swing", "need", "feed", "embed", "seed", "shed", "speed", "exceed", "focus",
    "alias",
];

/// Verbs that begin a second action after "and". Words that are also nouns are not in the list.
const JOINED: [&str; 30] = [
    "add",
    "answer",
    "begin",
    "compare",
    "correct",
    "decode",
    "delete",
    "describe",
    "encode",
    "explain",
    "fail",
    "follow",
    "gather",
    "give",
    "keep",
    "let",
    "make",
    "measure",
    "mend",
    "move",
    "rebalance",
    "record",
    "reject",
    "remember",
    "remove",
    "rename",
    "replace",
    "send",
    "skip",
    "write",
];

/// Words that are often written in the place of the verb.
const NO_VERBS: [&str; 10] = ["a", "an", "the", "no", "new", "more", "it", "what", "who", "when"];

#[cfg(test)]
mod tests {
    use super::fault;

    #[test]
    fn area_and_imperative_are_accepted() {
        for subject in [
            "server: move cursors into their own file",
            "xtask, docs: check lengths",
            "rdma/iwarp: process a Terminate once",
            "buf: feed the pool",
            "docs: compare reads and writes",
            "server: count the requests that a client has sent since it was mounted",
        ] {
            assert_eq!(fault(subject), None, "{subject}");
        }
    }

    #[test]
    fn other_forms_are_rejected() {
        for subject in [
            "Move cursors",
            "server: cursors are moved",
            "server: Moved cursors",
            "server: moved cursors",
            "server: moving cursors",
            "server: moves cursors",
            "server: the cursors move",
            "The server: move cursors",
            "server:",
            "server: zero deallocated ranges, and compare copies",
            "server: name types by what they are; docs: follow",
            "slipway: add data servers and rebalance copies",
            "server: count the requests that a client has sent since it connected last",
        ] {
            assert!(fault(subject).is_some(), "{subject}");
        }
    }
}
