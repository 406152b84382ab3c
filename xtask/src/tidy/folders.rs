//! The folders of a crate and the folders that each may use (ARCHITECTURE.md), and circles of files inside a folder.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, imports};

/// A folder or a file directly below `src`, and the others that it may use. `*` is all.
type Folders = &'static [(&'static str, &'static [&'static str])];

/// The crates whose folders are checked, from the bottom up.
const CRATES: [(&str, Folders); 2] = [("crates/server/src/", SERVER), ("crates/client/src/", CLIENT)];

/// The core, and then the protocols on top of it.
const SERVER: Folders = &[
    ("audit", &[]),
    ("callback_port", &[]),
    ("clock", &[]),
    ("hash", &[]),
    ("identity", &[]),
    ("recovery", &["clock"]),
    ("handle", &["recovery"]),
    ("data_handle", &["handle"]),
    ("export", &["handle", "identity"]),
    ("blocking", &["export", "handle"]),
    ("sharing", &["clock", "handle", "hash", "recovery"]),
    ("call", &["audit", "blocking", "clock", "export", "handle", "identity", "recovery", "sharing"]),
    ("config", &["audit", "blocking", "export", "handle", "identity", "recovery"]),
    ("v3", &["audit", "call", "export", "sharing"]),
    ("nfsacl", &["audit", "call", "v3"]),
    ("mount", &["audit", "call", "export"]),
    ("nlm", &["call", "callback_port", "export", "handle", "recovery", "sharing"]),
    ("nsm", &["call", "export", "nlm"]),
    ("passthrough", &["audit", "call", "sharing"]),
    (
        "v4",
        &[
            "audit",
            "blocking",
            "call",
            "callback_port",
            "clock",
            "config",
            "data_handle",
            "export",
            "handle",
            "hash",
            "identity",
            "recovery",
            "sharing",
        ],
    ),
    ("admin", &["call", "export", "handle", "nlm", "sharing", "v4"]),
    ("server", &["*"]),
    ("lib", &["*"]),
];

/// The session core, the versions above it, and mounts on top.
const CLIENT: Folders = &[
    ("model", &[]),
    ("call", &["model"]),
    ("session", &["call", "model"]),
    ("v3", &["call", "model"]),
    ("v4", &["call", "model", "session", "v3"]),
    ("mount", &["call", "model", "v3", "v4"]),
    ("blocking", &["model", "mount"]),
    ("harness", &["session", "v4"]),
    ("lib", &["*"]),
];

/// The maximum number of files in one folder that import each other in a circle.
const CIRCLE_MAX: usize = 6;

/// Returns the imports that the table does not allow, and the circles with too many files.
pub fn broken(files: &[File]) -> Vec<String> {
    CRATES.iter().flat_map(|(src, folders)| of_crate(files, src, folders)).collect()
}

fn of_crate(files: &[File], src: &str, folders: Folders) -> Vec<String> {
    let modules: BTreeMap<Vec<String>, &File> = files
        .iter()
        .filter_map(|file| Some((module_of(file.path.strip_prefix(src)?.strip_suffix(".rs")?), file)))
        .filter(|(module, _)| !module.iter().any(|name| name == "tests"))
        .collect();
    let mut complaints = BTreeSet::new();
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, file) in &modules {
        let paths = match imports::of(&file.text, module) {
            Ok(paths) => paths,
            Err(why) => {
                complaints.insert(format!("{}: {why}", file.path));
                continue;
            }
        };
        let folder = folder_of(module);
        let Some((_, allowed)) = folders.iter().find(|(of, _)| *of == folder) else {
            complaints.insert(format!("{src}{folder} has no line in xtask/src/tidy/folders.rs"));
            continue;
        };
        for path in paths {
            let Some(used) = file_of(&modules, &path) else { continue };
            let on = folder_of(used);
            if on == folder {
                let used = modules[used].path.as_str();
                if used != file.path {
                    uses.entry(&file.path).or_default().insert(used);
                }
            } else if !allowed.contains(&on) && !allowed.contains(&"*") {
                complaints.insert(format!("{}: {folder} -> {on}: there is no such arrow", file.path));
            }
        }
    }
    complaints.into_iter().chain(circles(&uses)).collect()
}

/// Returns the module of a path: `a/b` and `a/b/mod` are `a::b`; `lib` is the root.
fn module_of(path: &str) -> Vec<String> {
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
}

fn folder_of(module: &[String]) -> &str {
    module.first().map_or("lib", String::as_str)
}

/// Returns the module with its own file that contains a path.
fn file_of<'m>(modules: &'m BTreeMap<Vec<String>, &File>, path: &[String]) -> Option<&'m Vec<String>> {
    (0..=path.len()).rev().find_map(|len| modules.get_key_value(&path[..len])).map(|(module, _)| module)
}

/// Returns the circles of files with more than [`CIRCLE_MAX`] files: each file reaches each other one by imports.
fn circles(uses: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = uses.keys().map(|file| (*file, reachable(uses, file))).collect();
    let mut circles = BTreeSet::new();
    for (file, all) in &reached {
        let circle: BTreeSet<&str> = all.iter().copied().filter(|other| reached[other].contains(file)).collect();
        if circle.len() > CIRCLE_MAX {
            circles.insert(circle);
        }
    }
    let complaint = |circle: BTreeSet<&str>| {
        let names: Vec<&str> = circle.into_iter().collect();
        format!("{} files import each other in a circle, at most {CIRCLE_MAX}: {}", names.len(), names.join(" "))
    };
    circles.into_iter().map(complaint).collect()
}

fn reachable<'f>(uses: &BTreeMap<&'f str, BTreeSet<&'f str>>, from: &str) -> BTreeSet<&'f str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = uses.get(from).into_iter().flatten().copied().collect();
    while let Some(file) = open.pop() {
        if found.insert(file) {
            open.extend(uses.get(file).into_iter().flatten());
        }
    }
    // A file without imports is in no circle.
    found.retain(|file| uses.contains_key(file));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: format!("src/{path}"), text: text.to_owned() }
    }

    const FOLDERS: Folders = &[("low", &[]), ("high", &["low"]), ("lib", &["*"])];

    #[test]
    fn imports_outside_the_table_are_reported() {
        let files = [
            file("lib.rs", "mod low; mod high; pub use high::A;"),
            file("low/mod.rs", "mod inner;"),
            file("low/inner.rs", "use crate::high::A;"),
            file("high.rs", "use crate::low::inner::B; pub struct A;"),
        ];
        assert_eq!(of_crate(&files, "src/", FOLDERS), ["src/low/inner.rs: low -> high: there is no such arrow"]);
        let files = [file("low.rs", "use super::Public;"), file("lib.rs", "")];
        assert_eq!(of_crate(&files, "src/", FOLDERS), ["src/low.rs: low -> lib: there is no such arrow"]);
        let files = [file("new.rs", "")];
        assert!(of_crate(&files, "src/", FOLDERS)[0].contains("src/new has no line"));
    }

    #[test]
    fn circles_of_more_than_six_files_are_reported() {
        let ring = |len: usize| -> Vec<File> {
            (0..len)
                .map(|i| file(&format!("low/f{i}.rs"), &format!("use super::f{}::X;", (i + 1) % len)))
                .chain([file("low/mod.rs", "use self::f0::X;")])
                .collect()
        };
        assert_eq!(of_crate(&ring(6), "src/", FOLDERS), Vec::<String>::new());
        assert!(of_crate(&ring(7), "src/", FOLDERS)[0].starts_with("7 files import each other"));
    }
}
