//! The modules that a source file names, read from its syntax tree.

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, ItemMod, ItemUse, Macro, Path, UseTree, Visibility,
    visit::{self, Visit},
};

/// A path of module names and then items, from the root of the crate.
pub type Absolute = Vec<String>;

/// The paths that a file names, as if each led into its own crate; tests do not count. `module` is the file's own. A path to
/// something else resolves to no other module.
///
/// # Errors
/// The file is not Rust.
pub fn of(text: &str, module: &[String]) -> Result<Vec<Absolute>, String> {
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let mut found = Imports { module: module.to_vec(), paths: Vec::new() };
    found.visit_file(&file);
    Ok(found.paths)
}

struct Imports {
    /// The module that is being visited.
    module: Vec<String>,
    paths: Vec<Absolute>,
}

impl Imports {
    /// Notes a path. One that begins with a name may be that of a module inside this one, or of something else.
    fn note(&mut self, path: &[String]) {
        let mut absolute = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            _ => self.module.clone(),
        };
        for name in path {
            match name.as_str() {
                "crate" | "self" => {}
                "super" => drop(absolute.pop()),
                name => absolute.push(name.to_owned()),
            }
        }
        if path.len() > 1 && !absolute.is_empty() {
            self.paths.push(absolute);
        }
    }

    fn use_tree(&mut self, prefix: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.use_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.note(&with(&name.ident)),
            UseTree::Rename(rename) => self.note(&with(&rename.ident)),
            UseTree::Glob(_) => self.note(prefix),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.use_tree(prefix, tree)),
        }
    }

    /// Paths in the tokens of a macro's call or definition, where there is no syntax tree.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if path.is_empty() || colons == 2 => {
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => colons += 1,
                token => {
                    self.note(&std::mem::take(&mut path));
                    colons = 0;
                    match token {
                        TokenTree::Group(group) => self.tokens(group.stream()),
                        TokenTree::Ident(name) => path.push(name.to_string()),
                        _ => {}
                    }
                }
            }
        }
        self.note(&path);
    }
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.attrs.iter().any(is_test) {
            return;
        }
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !item.attrs.iter().any(is_test) {
            self.use_tree(&[], &item.tree);
        }
    }

    // `pub(in crate::a)` uses nothing of `a`.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(&names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.tokens(call.tokens.clone());
    }
}

/// `#[cfg(test)]`.
fn is_test(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg") && attribute.parse_args::<Path>().is_ok_and(|path| path.is_ident("test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_every_form_are_found() {
        let text = "
            use crate::{a::{B, c::d}, e as f};
            use super::{g, super::h::I};
            use std::fmt;
            use w::X;
            pub(in crate::z) fn k(x: crate::l::M) -> Vec<self::n::O> { crate::p::q(x); m!(crate::r::S, 1) }
            macro_rules! t { ($x:ident) => { $crate::u::V::$x } }
            #[cfg(test)] mod tests { use crate::not::This; }
        ";
        let module = ["x".to_owned(), "y".to_owned()];
        let mut found: Vec<String> = of(text, &module).unwrap().iter().map(|path| path.join("::")).collect();
        found.sort();
        let expected = [
            "a::B",
            "a::c::d",
            "e",
            "h::I",
            "l::M",
            "p::q",
            "r::S",
            "u::V",
            "x::g",
            "x::y::n::O",
            "x::y::std::fmt",
            "x::y::w::X",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn invalid_rust_is_an_error() {
        assert!(of("fn (", &[]).is_err());
    }
}
