//! `#[derive(Encode, Decode)]` for XDR (RFC 4506).
//!
//! - A struct is encoded as its fields in order (§4.14).
//! - An enum whose variants have no fields is an XDR enum (§4.3). Every variant must have an explicit discriminant, `Ok
//!   = 0`.
//! - An enum whose variants have fields is a discriminated union (§4.15): the discriminant, then the fields of its arm.
//!   Each variant has its discriminant in an attribute, `#[xdr(3)]`. One tuple variant can be `#[xdr(default)]`: its
//!   first field, a `u32`, is the discriminant, for all values that are not listed, and its other fields follow.
//! - If the discriminant is itself an XDR enum, `#[xdr(tag = Status)]` on the union names that enum. Then arms have
//!   attributes such as `#[xdr(Status::Ok)]`, the first field of the default arm is a `Status`, and a number that
//!   `Status` does not have is an error.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::{
    Attribute, Data, DataEnum, DeriveInput, Error, Expr, Fields, Generics, Ident, Result, Type, Variant,
    parse_macro_input,
};

/// Derives `xdr::Encode`.
#[proc_macro_derive(Encode, attributes(xdr))]
pub fn derive_encode(input: TokenStream) -> TokenStream {
    expand(&parse_macro_input!(input as DeriveInput), Side::Encode)
}

/// Derives `xdr::Decode`.
#[proc_macro_derive(Decode, attributes(xdr))]
pub fn derive_decode(input: TokenStream) -> TokenStream {
    expand(&parse_macro_input!(input as DeriveInput), Side::Decode)
}

#[derive(Clone, Copy)]
enum Side {
    Encode,
    Decode,
}

fn expand(input: &DeriveInput, side: Side) -> TokenStream {
    let body = match (&input.data, side) {
        (Data::Struct(data), Side::Encode) => Ok(encode_fields(quote!(Self), &data.fields)),
        (Data::Struct(data), Side::Decode) => {
            let value = decode_fields(quote!(Self), &data.fields);
            Ok(quote!(Ok(#value)))
        }
        (Data::Enum(data), Side::Encode) => encode_enum(data),
        (Data::Enum(data), Side::Decode) => tag(&input.attrs).and_then(|tag| decode_enum(data, tag)),
        (Data::Union(_), _) => Err(Error::new_spanned(&input.ident, "XDR has only discriminated unions")),
    };
    // The code for a struct is as long as its fields, so it is inlined. The code for an enum contains that of all
    // variants.
    let inline = matches!(input.data, Data::Struct(_)).then(|| quote!(#[inline]));
    match body {
        Ok(body) => wrap(&input.ident, &input.generics, side, (inline, body)).into(),
        Err(error) => error.to_compile_error().into(),
    }
}

fn wrap(name: &Ident, generics: &Generics, side: Side, (inline, body): (Option<Tokens>, Tokens)) -> Tokens {
    let mut generics = generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(match side {
            Side::Encode => syn::parse_quote!(::xdr::Encode),
            Side::Decode => syn::parse_quote!(::xdr::Decode),
        });
    }
    let (parameters, arguments, clause) = generics.split_for_impl();
    match side {
        Side::Encode => quote! {
            impl #parameters ::xdr::Encode for #name #arguments #clause {
                #[allow(unused_variables)]
                #inline
                fn encode(&self, encoder: &mut ::xdr::Encoder) {
                    match self { #body }
                }
            }
        },
        Side::Decode => quote! {
            impl #parameters ::xdr::Decode for #name #arguments #clause {
                #[allow(unused_variables)]
                #inline
                fn decode(decoder: &mut ::xdr::Decoder<'_>) -> ::core::result::Result<Self, ::xdr::DecodeError> {
                    #body
                }
            }
        },
    }
}

/// Returns a match arm that binds the fields of `path` and encodes them in order.
fn encode_fields(path: Tokens, fields: &Fields) -> Tokens {
    let (pattern, names) = bind(path, fields);
    quote!(#pattern => { #(::xdr::Encode::encode(#names, encoder);)* })
}

/// Returns an expression that decodes the fields of `path` in order.
fn decode_fields(path: Tokens, fields: &Fields) -> Tokens {
    let value = quote!(::xdr::Decode::decode(decoder)?);
    match fields {
        Fields::Named(named) => {
            let names = named.named.iter().map(|field| &field.ident);
            quote!(#path { #(#names: #value),* })
        }
        Fields::Unnamed(unnamed) => {
            let values = unnamed.unnamed.iter().map(|_| &value);
            quote!(#path(#(#values),*))
        }
        Fields::Unit => path,
    }
}

fn bind(path: Tokens, fields: &Fields) -> (Tokens, Vec<Ident>) {
    match fields {
        Fields::Named(named) => {
            let names: Vec<_> =
                named.named.iter().map(|field| field.ident.clone().expect("a named field must have a name")).collect();
            (quote!(#path { #(#names),* }), names)
        }
        Fields::Unnamed(unnamed) => {
            let names: Vec<_> = (0..unnamed.unnamed.len()).map(|i| format_ident!("field{i}")).collect();
            (quote!(#path(#(#names),*)), names)
        }
        Fields::Unit => (path, Vec::new()),
    }
}

enum Arm {
    Value(Expr),
    Default,
}

fn arm(variant: &Variant) -> Result<Arm> {
    for attribute in &variant.attrs {
        if attribute.path().is_ident("xdr") {
            let expression: Expr = syn::parse2(match attribute.parse_args::<Tokens>()? {
                tokens if tokens.to_string() == "default" => return Ok(Arm::Default),
                tokens => tokens,
            })?;
            return Ok(Arm::Value(expression));
        }
    }
    match &variant.discriminant {
        Some((_, expression)) => Ok(Arm::Value(expression.clone())),
        None => Err(Error::new_spanned(
            variant,
            "the discriminant is missing: write `Name = 1`, or `#[xdr(1)]` on an arm of a union",
        )),
    }
}

/// Returns the type of the discriminant, from `#[xdr(tag = Type)]`.
fn tag(attributes: &[Attribute]) -> Result<Option<Type>> {
    let mut tag = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("xdr")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("tag") {
                return Err(meta.error("expected `tag = Type`"));
            }
            tag = Some(meta.value()?.parse()?);
            Ok(())
        })?;
    }
    Ok(tag)
}

fn encode_enum(data: &DataEnum) -> Result<Tokens> {
    let mut listed = Vec::new();
    for variant in &data.variants {
        if let Arm::Value(value) = arm(variant)? {
            listed.push(value);
        }
    }
    let mut arms = Tokens::new();
    for variant in &data.variants {
        let name = &variant.ident;
        arms.extend(match arm(variant)? {
            // The first field of the default arm is the discriminant itself.
            Arm::Default => {
                let (pattern, names) = bind(quote!(Self::#name), &variant.fields);
                let Some(discriminant) = names.first() else {
                    return Err(Error::new_spanned(variant, "the default arm must be a tuple: (discriminant, …)"));
                };
                quote!(#pattern => {
                    let listed = [#((#listed) as u32),*].contains(&(*#discriminant as u32));
                    assert!(!listed, "the default arm must not have a discriminant of another arm");
                    #(::xdr::Encode::encode(#names, encoder);)*
                })
            }
            Arm::Value(value) => {
                let (pattern, names) = bind(quote!(Self::#name), &variant.fields);
                quote!(#pattern => { encoder.u32((#value) as u32); #(::xdr::Encode::encode(#names, encoder);)* })
            }
        });
    }
    Ok(arms)
}

fn decode_enum(data: &DataEnum, tag: Option<Type>) -> Result<Tokens> {
    let (read, default_field) = match tag {
        Some(tag) => (
            quote! { let tag = <#tag as ::xdr::Decode>::decode(decoder)?; let discriminant = tag as u32; },
            quote!(tag),
        ),
        None => (quote! { let discriminant = decoder.u32()?; }, quote!(discriminant)),
    };
    let mut arms = Tokens::new();
    let mut default = quote! {
        Err(::xdr::DecodeError { kind: ::xdr::DecodeErrorKind::BadDiscriminant(discriminant), offset })
    };
    for variant in &data.variants {
        let name = &variant.ident;
        match arm(variant)? {
            Arm::Value(value) => {
                let fields = decode_fields(quote!(Self::#name), &variant.fields);
                arms.extend(quote!(if discriminant == (#value) as u32 { return Ok(#fields); }));
            }
            Arm::Default => {
                let Fields::Unnamed(fields) = &variant.fields else {
                    return Err(Error::new_spanned(variant, "the default arm must be a tuple: (discriminant, …)"));
                };
                let rest = fields.unnamed.iter().skip(1).map(|_| quote!(::xdr::Decode::decode(decoder)?));
                default = quote!(Ok(Self::#name(#default_field, #(#rest),*)));
            }
        }
    }
    Ok(quote! {
        let offset = decoder.position();
        #read
        #arms
        #default
    })
}
