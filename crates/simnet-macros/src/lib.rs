//! The attribute of tests that run in a simulation. `simnet` re-exports it.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Makes an `async fn` without parameters a test that runs in a simulation. The seed is 0, or `SLIPWAY_SEED`.
///
/// ```
/// #[simnet::test]
/// async fn time_is_virtual() {
///     tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
/// }
/// ```
#[proc_macro_attribute]
pub fn test(options: TokenStream, function: TokenStream) -> TokenStream {
    expand(options, function).unwrap_or_else(|why| parse(&format!("::core::compile_error!({why:?});")))
}

fn expand(options: TokenStream, function: TokenStream) -> Result<TokenStream, &'static str> {
    if !options.is_empty() {
        return Err("#[simnet::test] has no options");
    }
    let mut tokens: Vec<TokenTree> = function.into_iter().collect();
    let body = match tokens.pop() {
        Some(TokenTree::Group(body)) if body.delimiter() == Delimiter::Brace => body,
        _ => return Err("#[simnet::test] is for functions"),
    };
    let is_async = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word.to_string() == "async");
    let at = tokens.iter().position(is_async).ok_or("a test in a simulation must be an async fn")?;
    tokens.remove(at);
    let mut arguments = parse("::simnet::seeds(1).start, || async");
    arguments.extend([TokenTree::Group(body)]);
    let mut call = parse("::simnet::simulate");
    call.extend([TokenTree::Group(Group::new(Delimiter::Parenthesis, arguments))]);
    let mut expanded = parse("#[::core::prelude::v1::test]");
    expanded.extend(tokens);
    expanded.extend([TokenTree::Group(Group::new(Delimiter::Brace, call))]);
    Ok(expanded)
}

fn parse(code: &str) -> TokenStream {
    code.parse().expect("code must be valid")
}
