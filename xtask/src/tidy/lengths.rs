//! Lengths of files and functions, and widths of comments.

use super::File;
use crate::functions;

/// Returns the files that are longer than [`LONGEST_FILE`].
pub fn files(files: &[File]) -> Vec<String> {
    files
        .iter()
        .filter(|file| [".rs", ".sh", ".c"].iter().any(|end| file.path.ends_with(end)))
        .map(|file| (file, file.text.lines().count()))
        .filter(|(_, lines)| *lines > LONGEST_FILE)
        .map(|(file, lines)| format!("{}: {lines} lines, at most {LONGEST_FILE}", file.path))
        .collect()
}

/// Returns the functions that are longer than [`LONGEST_FUNCTION`] and have no comment `// Long: REASON`.
pub fn functions(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let lines: Vec<&str> = file.text.lines().collect();
        let functions = match functions::of(&file.text) {
            Ok(functions) => functions,
            Err(why) => {
                complaints.push(format!("{}: {why}", file.path));
                continue;
            }
        };
        for function in functions {
            let body = &lines[function.first - 1..function.last];
            let has_reason = body.iter().any(|line| line.trim_start().starts_with(REASON));
            if body.len() > LONGEST_FUNCTION && !has_reason {
                let (path, first, name) = (&file.path, function.first, &function.name);
                let len = body.len();
                complaints.push(format!("{path}:{first}: {name} has {len} lines, at most {LONGEST_FUNCTION}"));
            }
        }
    }
    complaints
}

/// Returns the comments of Rust sources that are wider than [`WIDEST_LINE`]. rustfmt limits the width of code, but not of
/// comments. Comments with a link can have any width.
pub fn comments(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        for (number, line) in file.text.lines().enumerate() {
            let width = line.chars().count();
            if width > WIDEST_LINE && line.trim_start().starts_with("//") && !line.contains("](") {
                complaints.push(format!("{}:{}: {width} columns, at most {WIDEST_LINE}", file.path, number + 1));
            }
        }
    }
    complaints
}

const LONGEST_FILE: usize = 900;
const LONGEST_FUNCTION: usize = 75;
const WIDEST_LINE: usize = 150;
const REASON: &str = "// Long: ";

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Vec<File> {
        vec![File { path: path.into(), text: text.into() }]
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(files(&file("a.rs", &"\n".repeat(901))).len(), 1);
        assert!(files(&file("a.rs", &"\n".repeat(900))).is_empty());
    }

    #[test]
    fn long_functions_are_found_unless_they_give_a_reason() {
        let of = |first: &str, lines: usize| format!("fn f() {{\n{first}{}}}\n", "    1;\n".repeat(lines));
        assert!(functions(&file("a.rs", &of("", 73))).is_empty());
        assert_eq!(functions(&file("a.rs", &of("", 74))).len(), 1);
        assert!(functions(&file("a.rs", &of("    // Long: one arm for each operation.\n", 100))).is_empty());
        assert_eq!(functions(&file("a.rs", "fn (")).len(), 1, "no Rust");
    }

    #[test]
    fn wide_comments_are_found_but_not_links() {
        let wide = "x ".repeat(76);
        assert_eq!(comments(&file("a.rs", &format!("    /// {wide}"))).len(), 1);
        assert!(comments(&file("a.rs", &format!("f(\"{wide}\")\n// [a](b) {wide}"))).is_empty());
    }
}
