//! Links in Markdown: every relative one leads to a file or directory of the project, and every anchor to a heading.

use std::path::{Component, Path, PathBuf};

use super::File;

/// Returns the links whose target does not exist.
pub fn dangling(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (number, target) in links(&file.text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let directory = Path::new(&file.path).parent().unwrap_or(Path::new(""));
            let leads_to = if path.is_empty() { PathBuf::from(&file.path) } else { normal(&directory.join(path)) };
            if !leads_to.exists() {
                complaints.push(format!("{}:{number}: {target} does not exist", file.path));
            } else if !anchor.is_empty() && leads_to.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(&leads_to).unwrap_or_default();
                if !anchors(&text).any(|heading| heading == anchor) {
                    complaints.push(format!("{}:{number}: {target}: no such heading", file.path));
                }
            }
        }
    }
    complaints
}

/// Returns the targets of inline links `[text](target)` outside code, with their line numbers.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let in_code = line[..at].matches('`').count() % 2 == 1;
            if let Some(end) = line[at..].find(')').filter(|_| !in_code) {
                found.push((number + 1, line[at + 2..at + end].split(' ').next().unwrap_or_default()));
            }
        }
    }
    found
}

/// Returns the anchors of the headings, in the form that common renderers use.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_code() {
        let text = "see [a](a.md) and [b](b.md#part \"title\"), not `[c](c.md)`\n```\n[d](d.md)\n```\n";
        assert_eq!(links(text), [(1, "a.md"), (1, "b.md#part")]);
    }

    #[test]
    fn dangling_links_are_reported() {
        let file = |text: &str| vec![File { path: "README.md".into(), text: text.into() }];
        assert_eq!(dangling(&file("[x](no/such/file.md)")).len(), 1);
        assert!(dangling(&file("[x](https://example.org/)")).is_empty());
    }

    #[test]
    fn anchors_are_those_of_headings() {
        let made: Vec<String> = anchors("# The `buf` crate: why\ntext\n## Two words").collect();
        assert_eq!(made, ["the-buf-crate-why", "two-words"]);
    }
}
