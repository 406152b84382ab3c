//! The functions of a Rust source file, with their first and last lines.
//!
//! The file is read as tokens, so functions inside macro calls (`proptest! { … }`) are found too.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A function with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name, without its module.
    pub name: String,
    /// The line of its name, counted from 1.
    pub first: usize,
    /// The line of its closing brace.
    pub last: usize,
    /// `true` if the function is inside a `#[cfg(test)]` module.
    pub is_test: bool,
}

/// Returns every function of the file, outer functions before the functions inside them.
///
/// # Errors
/// The text cannot be split into tokens.
pub fn of(text: &str) -> Result<Vec<Function>, String> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("cannot be parsed as Rust: {error}"))?;
    let mut found = Vec::new();
    visit(tokens, false, &mut found);
    Ok(found)
}

/// Returns the innermost function around a line.
pub fn around(functions: &[Function], line: usize) -> Option<&Function> {
    functions.iter().rev().find(|function| (function.first..=function.last).contains(&line))
}

fn visit(tokens: TokenStream, is_test: bool, found: &mut Vec<Function>) {
    let mut tokens = tokens.into_iter().peekable();
    // The function whose body follows, and `true` if the next braces are those of a test module.
    let (mut open, mut test_module) = (None, false);
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(word) if word == "fn" => {
                if let Some(TokenTree::Ident(name)) = tokens.peek() {
                    open = Some((name.to_string(), name.span().start().line));
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => (open, test_module) = (None, false),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                if let Some((name, first)) = open.take() {
                    let last = group.span_close().end().line;
                    found.push(Function { name, first, last, is_test: is_test || test_module });
                }
                visit(group.stream(), is_test || test_module, found);
                test_module = false;
            }
            TokenTree::Group(group) => {
                test_module |= group.delimiter() == Delimiter::Bracket && group.to_string() == "[cfg (test)]";
                visit(group.stream(), is_test, found);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
fn outer(f: fn(u8)) {
    fn inner() {
    }
}
trait T { fn without_body(&self); }
proptest! {
    fn in_a_macro(x in 0..3) { 1; }
}
#[cfg(test)]
mod tests {
    fn in_test_module() {}
}
fn after_test_module() {}
";

    #[test]
    fn functions_are_found_with_their_lines() {
        let found: Vec<_> = of(TEXT).unwrap().into_iter().map(|f| (f.name, f.first, f.last, f.is_test)).collect();
        let expected = [
            ("outer", 2, 5, false),
            ("inner", 3, 4, false),
            ("in_a_macro", 8, 8, false),
            ("in_test_module", 12, 12, true),
            ("after_test_module", 14, 14, false),
        ];
        assert_eq!(found, expected.map(|(name, first, last, is_test)| (name.to_owned(), first, last, is_test)));
    }

    #[test]
    fn innermost_function_around_a_line_is_found() {
        let functions = of(TEXT).unwrap();
        assert_eq!(around(&functions, 4).unwrap().name, "inner");
        assert_eq!(around(&functions, 5).unwrap().name, "outer");
        assert_eq!(around(&functions, 6), None);
    }
}
