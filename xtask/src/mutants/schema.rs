//! Puts all mutants of a file into one program. A number selects one of them at run time, and zero the original.
//!
//! A mutated expression becomes a `match` on that number. A function with mutated results begins with a conditional `return`. So the
//! program is compiled once, and not once for each mutant.

use std::ops::Range;

use serde::Deserialize;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A mutant as cargo-mutants lists it.
#[derive(Debug, Clone, Deserialize)]
pub struct Mutant {
    pub name: String,
    pub file: String,
    genre: Genre,
    span: Span,
    replacement: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Deserialize)]
struct Span {
    start: Position,
    end: Position,
}

/// A line and a character of it, counted from 1.
#[derive(Debug, Clone, Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

/// A file that contains mutants.
#[derive(Debug, Default)]
pub struct Rewritten {
    pub text: String,
    /// The bytes of `text` that each mutant alone uses.
    pub places: Vec<(u32, Range<usize>)>,
    /// The mutants that cannot be selected at run time: those of constants, struct fields and `impl Trait` results.
    pub left_out: Vec<u32>,
}

/// Rewrites a file. Each mutant has a number above zero.
///
/// # Errors
/// The text is not Rust.
pub fn rewrite(text: &str, mutants: &[(u32, &Mutant)]) -> Result<Rewritten, String> {
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let mut found = Found::default();
    found.visit_file(&file);
    let mut sites: Vec<Site> = Vec::new();
    let mut rewritten = Rewritten::default();
    for &(number, mutant) in mutants {
        let span = offset(text, &mutant.span.start)..offset(text, &mutant.span.end);
        let Some((range, kind)) = found.site(mutant.genre, &span) else {
            rewritten.left_out.push(number);
            continue;
        };
        let replaced = [&text[range.start..span.start.max(range.start)], &mutant.replacement];
        let rest = if kind == Kind::Choice { &text[span.end..range.end] } else { "" };
        let change = (number, replaced.concat() + rest);
        match sites.iter_mut().find(|site| site.range == range && site.kind == kind) {
            Some(site) => site.changes.push(change),
            None => sites.push(Site { range, kind, changes: vec![change] }),
        }
    }
    // Outer sites precede those inside them. Insertions precede what follows them.
    sites.sort_by_key(|site| (site.range.start, !site.range.is_empty(), std::cmp::Reverse(site.range.end)));
    rewritten.emit(text, 0..text.len(), &sites);
    Ok(rewritten)
}

/// A place of the source that depends on the number.
struct Site {
    range: Range<usize>,
    kind: Kind,
    /// The number and the text of each mutant.
    changes: Vec<(u32, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An expression; each mutant is another one.
    Choice,
    /// The start of a function; each mutant is a value to return.
    Return,
    /// The end of a pattern; the mutant removes its arm.
    Arm,
}

impl Rewritten {
    /// Appends the source in this range, with the sites in it.
    fn emit(&mut self, text: &str, range: Range<usize>, mut sites: &[Site]) {
        let mut at = range.start;
        while let Some((site, others)) = sites.split_first() {
            self.text.push_str(&text[at..site.range.start]);
            let inside = others.iter().take_while(|other| other.range.end <= site.range.end).count();
            let (inside, after) = others.split_at(if site.kind == Kind::Choice { inside } else { 0 });
            self.emit_site(text, site, inside);
            (at, sites) = (site.range.end, after);
        }
        self.text.push_str(&text[at..range.end]);
    }

    fn emit_site(&mut self, text: &str, site: &Site, inside: &[Site]) {
        match site.kind {
            Kind::Return => {
                for (number, value) in &site.changes {
                    self.emit_change(*number, &format!("if {SELECTED} == {number} {{ return {value}; }} "));
                }
            }
            Kind::Arm => {
                let (number, _) = site.changes[0];
                self.emit_change(number, &format!(" if {SELECTED} != {number}"));
            }
            // The original is the first arm and determines the type, so that an error is in a mutant.
            Kind::Choice => {
                let is_original: Vec<String> =
                    site.changes.iter().map(|(number, _)| format!("selected_mutant != {number}")).collect();
                self.text += &format!("(match {SELECTED} {{ selected_mutant if {} => (", is_original.join(" && "));
                self.emit(text, site.range.clone(), inside);
                self.text.push(')');
                for (index, (number, changed)) in site.changes.iter().enumerate() {
                    let last = index + 1 == site.changes.len();
                    let pattern = if last { "_".to_owned() } else { number.to_string() };
                    self.text += &format!(", {pattern} => ");
                    self.emit_change(*number, &format!("({changed})"));
                }
                self.text.push_str(" })");
            }
        }
    }

    fn emit_change(&mut self, number: u32, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        self.places.push((number, start..self.text.len()));
    }
}

/// The sites of a file that can depend on a number.
#[derive(Default)]
struct Found {
    /// The position of each operator, and the outermost expression of operators around it.
    operators: Vec<(usize, Range<usize>)>,
    guards: Vec<Range<usize>>,
    /// The start of each arm, and the end of its pattern.
    arms: Vec<(usize, usize)>,
    /// The starts of function bodies.
    bodies: Vec<usize>,
    /// The expression of operators that is being visited.
    around: Option<Range<usize>>,
}

impl Found {
    fn site(&self, genre: Genre, span: &Range<usize>) -> Option<(Range<usize>, Kind)> {
        match genre {
            Genre::BinaryOperator | Genre::UnaryOperator => {
                let (_, range) = self.operators.iter().find(|(at, _)| *at == span.start)?;
                Some((range.clone(), Kind::Choice))
            }
            Genre::MatchArmGuard => self.guards.contains(span).then(|| (span.clone(), Kind::Choice)),
            Genre::MatchArm => {
                let (_, end) = self.arms.iter().find(|(start, _)| *start == span.start)?;
                Some((*end..*end, Kind::Arm))
            }
            Genre::FnValue => self.bodies.contains(&span.start).then_some((span.start..span.start, Kind::Return)),
            Genre::Other => None,
        }
    }

    /// Visits a function unless it is evaluated by the compiler.
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        if signature.constness.is_some() {
            return;
        }
        // Another result of an `impl Trait` has another type.
        let mut output = HasImpl(false);
        output.visit_return_type(&signature.output);
        if let Some(first) = block.stmts.first().filter(|_| !output.0) {
            self.bodies.push(first.span().byte_range().start);
        }
        self.visit_block(block);
    }

    /// Visits an operand. Operators in it belong to `around` unless something else is between.
    fn operand(&mut self, expression: &syn::Expr, around: Option<Range<usize>>) {
        let is_operator = matches!(expression, syn::Expr::Binary(_) | syn::Expr::Unary(_));
        self.around = around.filter(|_| is_operator);
        self.visit_expr(expression);
        self.around = None;
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
    }

    // The compiler evaluates constants, so their values cannot depend on a number.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let around = self.around.take();
        // `let` has no operator but `&&` beside it.
        let around = (!has_let(&binary.left) && !has_let(&binary.right))
            .then(|| around.unwrap_or_else(|| binary.span().byte_range()));
        if let Some(around) = &around {
            self.operators.push((binary.op.span().byte_range().start, around.clone()));
        }
        self.operand(&binary.left, around.clone());
        self.operand(&binary.right, around);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let around = self.around.take().unwrap_or_else(|| unary.span().byte_range());
        if !matches!(unary.op, syn::UnOp::Deref(_)) {
            self.operators.push((unary.op.span().byte_range().start, around.clone()));
        }
        self.operand(&unary.expr, Some(around));
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        // Without another arm for its values, an arm cannot be removed.
        if expression.arms.iter().any(|arm| matches!(arm.pat, syn::Pat::Wild(_)) && arm.guard.is_none()) {
            let arms = expression.arms.iter();
            self.arms.extend(arms.map(|arm| (arm.span().byte_range().start, arm.pat.span().byte_range().end)));
        }
        visit::visit_expr_match(self, expression);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.guards.push(guard.span().byte_range());
        }
        visit::visit_arm(self, arm);
    }
}

struct HasImpl(bool);

impl<'ast> Visit<'ast> for HasImpl {
    fn visit_type_impl_trait(&mut self, _: &'ast syn::TypeImplTrait) {
        self.0 = true;
    }
}

fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Returns the byte at which a position is.
fn offset(text: &str, position: &Position) -> usize {
    let before: usize = text.split_inclusive('\n').take(position.line - 1).map(str::len).sum();
    let characters = text[before..].char_indices().nth(position.column - 1);
    before + characters.map_or(0, |(at, _)| at)
}

/// Adds the function that the mutants call to the root of a crate.
pub fn with_selector(root: &str) -> String {
    format!("#![allow(warnings, unused_must_use)]\n{root}\n{SELECTOR}")
}

const SELECTED: &str = "crate::selected_mutant()";
/// The environment variable with the number of the mutant.
pub const VARIABLE: &str = "SLIPWAY_MUTANT";
const SELECTOR: &str = r#"
#[doc(hidden)]
pub fn selected_mutant() -> u32 {
    static SELECTED: std::sync::LazyLock<u32> =
        std::sync::LazyLock::new(|| std::env::var("SLIPWAY_MUTANT").map_or(0, |number| number.parse().unwrap()));
    *SELECTED
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    /// Rewrites a text with mutants of these genres, which replace the first occurrence of a text by another.
    fn rewritten(text: &str, mutants: &[(&str, &str, &str)]) -> Rewritten {
        let position = |at: usize| {
            let line = text[..at].matches('\n').count() + 1;
            let column = at - text[..at].rfind('\n').map_or(0, |end| end + 1) + 1;
            serde_json::json!({ "line": line, "column": column })
        };
        let mutants = mutants.iter().map(|(genre, replaced, replacement)| {
            let at = text.find(replaced).unwrap();
            let span = serde_json::json!({ "start": position(at), "end": position(at + replaced.len()) });
            let mutant =
                serde_json::json!({ "name": "", "file": "", "genre": genre, "span": span, "replacement": replacement });
            serde_json::from_value(mutant).unwrap()
        });
        let mutants: Vec<Mutant> = mutants.collect();
        rewrite(text, &(1..).zip(&mutants).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn operators_of_an_expression_are_replaced_in_the_whole_expression() {
        let changed = rewritten(
            "fn f(a: u8) -> bool {\n    a + a * 2 < 7\n}",
            &[("FnValue", "a + a * 2 < 7", "true"), ("BinaryOperator", "+", "*"), ("BinaryOperator", "<", ">")],
        );
        let selected = "crate::selected_mutant()";
        let expected = format!(
            "fn f(a: u8) -> bool {{\n    if {selected} == 1 {{ return true; }} (match {selected} {{ selected_mutant if \
             selected_mutant != 2 && selected_mutant != 3 => (a + a * 2 < 7), 2 => (a * a * 2 < 7), _ => (a + a * 2 > 7) }})\n}}"
        );
        assert_eq!(changed.text, expected);
        let alone: Vec<&str> = changed.places.iter().map(|(_, place)| &changed.text[place.clone()]).collect();
        assert_eq!(alone[1..], ["(a * a * 2 < 7)", "(a + a * 2 > 7)"]);
    }

    #[test]
    fn expressions_inside_others_are_replaced_in_the_original() {
        let changed =
            rewritten("fn f() { g(|x| !x, 1) && h }", &[("UnaryOperator", "!", ""), ("BinaryOperator", "&&", "||")]);
        let inner = "(match crate::selected_mutant() { selected_mutant if selected_mutant != 1 => (!x), _ => (x) })";
        assert!(
            changed.text.contains(&format!("(g(|x| {inner}, 1) && h), _ => (g(|x| !x, 1) || h)")),
            "{}",
            changed.text
        );
    }

    #[test]
    fn removed_arm_has_a_guard_and_guards_are_replaced() {
        let text = "fn f() { match x { Some(0) => 1, Some(n) if n > y => 2, _ => 3 } }";
        let changed = rewritten(text, &[("MatchArm", "Some(0) => 1,", ""), ("MatchArmGuard", "n > y", "false")]);
        assert!(changed.text.contains("Some(0) if crate::selected_mutant() != 1 => 1"), "{}", changed.text);
        assert!(changed.text.contains("selected_mutant != 2 => (n > y), _ => (false) }) => 2"), "{}", changed.text);
        let exhaustive = text.replace("_ =>", "_ if z =>");
        assert_eq!(rewritten(&exhaustive, &[("MatchArm", "Some(0) => 1,", "")]).left_out, [1]);
    }

    #[test]
    fn what_the_compiler_evaluates_is_left_out() {
        let plus = ("BinaryOperator", "+", "-");
        for text in ["const A: u8 = B + 1;", "fn f() { let a = [0; B + 1]; }", "const fn f() -> u8 { B + 1 }"] {
            let changed = rewritten(text, &[plus]);
            assert_eq!((changed.text.as_str(), changed.left_out), (text, vec![1]));
        }
        let changed = rewritten("fn f() { if let A = b && c == d { } }", &[("BinaryOperator", "&&", "||")]);
        assert_eq!(changed.left_out, [1], "`let` cannot be beside another operator");
        let changed = rewritten("fn f() -> impl Iterator { x }", &[("FnValue", "x }", "y")]);
        assert_eq!(changed.left_out, [1]);
    }
}
