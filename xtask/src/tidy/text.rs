//! Rules on single lines of the project's files.

use super::File;

/// The crates that may hold unsafe code.
const UNSAFE_CRATES: [&str; 4] = ["crates/buf/", "crates/gss/src/kerberos/", "crates/rdma/", "crates/vfs/"];

/// Returns the lines with unsafe code, or permission for it, outside the crates that may have it.
pub fn unsafe_elsewhere(files: &[File]) -> Vec<String> {
    let word = concat!("uns", "afe");
    let code = ["{", "fn ", "impl ", "extern "].map(|next| format!("{word} {next}"));
    let leave = ["expect", "allow"].map(|lint| format!("{lint}({word}_code"));
    rust(files)
        .filter(|file| !UNSAFE_CRATES.iter().any(|home| file.path.starts_with(home)))
        .flat_map(|file| found(file, |line| code.iter().chain(&leave).any(|pattern| line.contains(pattern.as_str()))))
        .collect()
}

/// Returns the lines with stubs and with tests that do not run.
pub fn unfinished(files: &[File]) -> Vec<String> {
    let stubs = [concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("#[ig", "nore"), concat!("db", "g!(")];
    rust(files).flat_map(|file| found(file, |line| stubs.iter().any(|stub| line.contains(stub)))).collect()
}

/// Returns the lines that name directories of a developer's machine.
pub fn machine_names(files: &[File]) -> Vec<String> {
    let homes = [concat!("/wo", "rk"), concat!("/ro", "ot")];
    let part_of_a_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let mut complaints = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            // A name inside a longer path (`net/work`, `/workers`) is a different name.
            let named = homes.iter().flat_map(|home| line.match_indices(home)).any(|(at, home)| {
                let before = line[..at].chars().next_back();
                let after = line[at + home.len()..].chars().next();
                !before.is_some_and(|c| part_of_a_name(c) || c == '/' || c == '}') && !after.is_some_and(part_of_a_name)
            });
            if named {
                complaints.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
            }
        }
    }
    complaints
}

/// Returns the lines of lock files and of cargo's configuration that name a registry other than the public one.
pub fn registries(files: &[File]) -> Vec<String> {
    let public = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let locks = files.iter().filter(|file| file.path.ends_with("Cargo.lock"));
    let configurations = files.iter().filter(|file| file.path.contains(".cargo/"));
    locks
        .flat_map(|file| found(file, |line| line.starts_with("source = ") && line != public))
        .chain(configurations.flat_map(|file| found(file, |line| line.contains("://") || line.contains("registr"))))
        .collect()
}

/// Returns the docs of items that begin with a question word instead of a noun or a verb.
pub fn questions(files: &[File]) -> Vec<String> {
    let words = ["What", "Whether", "Who", "Whose", "Which", "How", "Where", "Why"];
    let mut complaints = Vec::new();
    for file in rust(files) {
        let mut in_doc = false;
        for (number, line) in file.text.lines().enumerate() {
            let doc = line.trim().strip_prefix("///");
            let first = doc.filter(|_| !in_doc).and_then(|doc| doc.split_whitespace().next());
            if first.is_some_and(|first| words.contains(&first)) {
                complaints.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
            }
            in_doc = doc.is_some();
        }
    }
    complaints
}

fn rust(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.path.ends_with(".rs"))
}

/// Returns the lines of `file` for which `wrong` returns `true`. Comments are not passed to it.
fn found(file: &File, wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        // "https://" is no comment: such a line is looked at whole.
        let code = if line.contains("://") { line } else { code };
        if wrong(code) {
            complaints.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Vec<File> {
        vec![File { path: path.into(), text: text.into() }]
    }

    #[test]
    fn unsafe_is_found_outside_its_crates_only() {
        let text = concat!("// uns", "afe { in a comment }\nlet x = uns", "afe { *p };\n");
        assert_eq!(unsafe_elsewhere(&file("crates/server/src/lib.rs", text)).len(), 1);
        assert!(unsafe_elsewhere(&file("crates/rdma/src/lib.rs", text)).is_empty());
    }

    #[test]
    fn stubs_are_found() {
        assert_eq!(unfinished(&file("a.rs", concat!("fn f() { to", "do!() }"))).len(), 1);
        assert!(unfinished(&file("a.rs", "// a comment")).is_empty());
    }

    #[test]
    fn questions_are_found_in_the_first_line_of_a_doc() {
        let doc = "/// Whether it is open.\nopen: bool,\n/// The state.\n/// What else it has is below.\nstate: State,\n// Why not.\n";
        assert_eq!(questions(&file("a.rs", doc)), ["a.rs:1: /// Whether it is open."]);
    }

    #[test]
    fn machines_are_found() {
        let named = concat!("cat /wo", "rk/main/x\n");
        assert_eq!(machine_names(&file("README.md", named)).len(), 1);
        assert!(machine_names(&file("README.md", concat!("net/wo", "rk/main"))).is_empty());
    }

    #[test]
    fn other_registries_are_found() {
        assert_eq!(registries(&file("Cargo.lock", "source = \"registry+https://mirror.example/index\"")).len(), 1);
        assert_eq!(registries(&file(".cargo/config.toml", "[registries]")).len(), 1);
    }
}
