//! [`Record`]: one line of the audit log.

use std::{fmt::Write, net::SocketAddr};

use rpc::{ConnectionTls, Identity};
use serde::Serialize;

/// One line of the audit log.
#[derive(Debug, Serialize)]
pub(crate) struct Record<'a> {
    time: String,
    client: String,
    transport: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<Vec<String>>,
    #[serde(flatten)]
    caller: Caller,
    #[serde(skip_serializing_if = "Option::is_none")]
    export: Option<String>,
    protocol: &'a str,
    operation: &'a str,
    #[serde(flatten)]
    object: Object,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Object>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<&'static str>,
    result: String,
}

/// The caller, as it was authenticated.
#[derive(Debug, Default, Serialize)]
struct Caller {
    sec: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
}

/// An object: its path in the export, or else the handle of the directory (or of the object) and the name in it. If the name
/// is not one of a file (it is empty, `.`, `..`, or has a slash), it is beside the path of the directory.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Object {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// The parts of a record that do not depend on the objects.
pub(crate) struct Event<'a> {
    pub(crate) peer: SocketAddr,
    pub(crate) transport: &'a str,
    pub(crate) tls: &'a ConnectionTls,
    pub(crate) caller: &'a Identity,
    pub(crate) sec: &'static str,
    pub(crate) protocol: &'a str,
    pub(crate) operation: &'a str,
    /// The access of an OPEN.
    pub(crate) access: Option<&'static str>,
    pub(crate) result: String,
}

impl Record<'_> {
    /// Creates the line of an event about an object of an export, and about a second one if the operation has two.
    pub(crate) fn line(event: Event<'_>, export: Option<&[u8]>, object: Object, to: Option<Object>) -> String {
        let (uid, gid, principal) = match event.caller {
            Identity::None => (None, None, None),
            Identity::Sys(sys) => (Some(sys.uid), Some(sys.gid), None),
            Identity::Principal(principal) => (None, None, Some(text(&principal.name))),
        };
        let (tls, certificate) = match event.tls {
            ConnectionTls::None => (None, None),
            ConnectionTls::Tls => (Some("tls"), None),
            ConnectionTls::Mtls { names } => {
                (Some("mtls"), Some(names.iter().map(|name| text(name.as_bytes())).collect()))
            }
        };
        let record = Record {
            time: now(),
            client: event.peer.to_string(),
            transport: event.transport,
            tls,
            certificate,
            caller: Caller { sec: event.sec, uid, gid, principal },
            export: export.map(text),
            protocol: event.protocol,
            operation: event.operation,
            object,
            to,
            access: event.access,
            result: event.result,
        };
        serde_json::to_string(&record).expect("a record must be valid JSON")
    }
}

impl Object {
    /// Describes `name` in the object with this handle, or the object itself. `path` is the path of that object from the root
    /// of its export, if it is known.
    pub(crate) fn new(handle: &[u8], path: Option<&[u8]>, name: Option<&[u8]>) -> Self {
        let Some(path) = path else {
            let handle = handle.iter().map(|byte| format!("{byte:02x}")).collect();
            return Self { path: None, handle: Some(handle), name: name.map(text) };
        };
        let mut whole = [b"/", path].concat();
        match name {
            // A path with such a name could be read as that of another object.
            Some(name) if name.contains(&b'/') || [&b""[..], b".", b".."].contains(&name) => {
                return Self { path: Some(text(&whole)), name: Some(text(name)), handle: None };
            }
            Some(name) => {
                if whole.len() > 1 {
                    whole.push(b'/');
                }
                whole.extend_from_slice(name);
            }
            None => {}
        }
        Self { path: Some(text(&whole)), ..Self::default() }
    }

    /// Describes an object by its path.
    pub(crate) fn of_path(path: &[u8]) -> Self {
        Self { path: Some(text(path)), ..Self::default() }
    }
}

/// Returns the line about records that were dropped.
pub(super) fn dropped(count: u64) -> String {
    format!("{}\n", serde_json::json!({ "time": now(), "dropped": count }))
}

fn now() -> String {
    humantime::format_rfc3339_micros(entropy::system_time()).to_string()
}

/// Converts bytes from a client to text that names exactly these bytes and cannot change how a line is read or shown. A
/// backslash is doubled; a byte that is not UTF-8 is `\xNN`; a control character, and one that is invisible or changes the
/// direction of text, is `\u{N}`.
fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() || is_invisible(c) => drop(write!(text, "\\u{{{:x}}}", u32::from(c))),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns `true` for characters that are not shown, or that change how others are shown: those of the category Cf (format),
/// the separators of lines and paragraphs, and those with the property Default_Ignorable_Code_Point (Unicode 16,
/// DerivedCoreProperties.txt); and the blank of Braille.
fn is_invisible(c: char) -> bool {
    INVISIBLE.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

const INVISIBLE: [(char, char); 26] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    // Zero width, and marks of direction.
    ('\u{200b}', '\u{200f}'),
    // Separators, and embeddings and overrides of direction.
    ('\u{2028}', '\u{202e}'),
    // Isolates of direction among them.
    ('\u{2060}', '\u{206f}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{3164}', '\u{3164}'),
    // Variation selectors.
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    // Tags, and further variation selectors.
    ('\u{e0000}', '\u{e0fff}'),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_names_are_escaped() {
        for (bytes, expected) in [
            (&b"plain \"name\""[..], "plain \"name\""),
            (b"a\nb\r\0\x1b[2J\x7f", "a\\u{a}b\\u{d}\\u{0}\\u{1b}[2J\\u{7f}"),
            (b"\xff\xfea\xc3", "\\xff\\xfea\\xc3"),
            (b"\\xff", "\\\\xff"),
            ("ä\u{202e}txt\u{2028}".as_bytes(), "ä\\u{202e}txt\\u{2028}"),
        ] {
            assert_eq!(text(bytes), expected);
        }
    }

    #[test]
    fn invisible_characters_are_escaped() {
        let ranges = [
            '\u{ad}'..='\u{ad}',
            '\u{34f}'..='\u{34f}',
            '\u{115f}'..='\u{1160}',
            '\u{180b}'..='\u{180f}',
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2060}'..='\u{206f}',
            '\u{3164}'..='\u{3164}',
            '\u{fe00}'..='\u{fe0f}',
            '\u{feff}'..='\u{feff}',
            '\u{ffa0}'..='\u{ffa0}',
            '\u{fff9}'..='\u{fffb}',
            '\u{e0000}'..='\u{e007f}',
            '\u{e0100}'..='\u{e01ef}',
        ];
        for c in ranges.into_iter().flatten() {
            assert_eq!(text(c.to_string().as_bytes()), format!("\\u{{{:x}}}", u32::from(c)));
        }
        for c in "aä한ᄀ字 \u{3000}é🙂\u{1f3fd}\u{301}".chars() {
            assert_eq!(text(c.to_string().as_bytes()), c.to_string());
        }
    }

    /// The name of a call can be one that no file has, and must then not become a part of the path.
    #[test]
    fn a_name_does_not_look_like_another_path() {
        for name in ["../b", "b/c", "/", "", ".", ".."] {
            let object = Object::new(b"h", Some(b"a"), Some(name.as_bytes()));
            assert_eq!((object.path.as_deref(), object.name.as_deref(), object.handle), (Some("/a"), Some(name), None));
        }
        for name in ["...", "..b", "b\\c"] {
            assert_eq!(Object::new(b"h", Some(b"a"), Some(name.as_bytes())).name, None);
        }
    }

    #[test]
    fn objects_have_a_path_or_a_handle() {
        assert_eq!(Object::new(b"\x01\xab", Some(b"a/b"), Some(b"c")).path.unwrap(), "/a/b/c");
        assert_eq!(Object::new(b"\x01\xab", Some(b""), Some(b"c")).path.unwrap(), "/c");
        assert_eq!(Object::new(b"\x01\xab", Some(b""), None).path.unwrap(), "/");
        let unknown = Object::new(b"\x01\xab", None, Some(b"c"));
        assert_eq!((unknown.path, unknown.handle, unknown.name), (None, Some("01ab".into()), Some("c".into())));
    }

    proptest! {
        #[test]
        fn a_record_is_one_line_of_json_and_names_differ(a: Vec<u8>, b: Vec<u8>) {
            let line = |name: &[u8]| {
                let event = Event {
                    peer: "192.0.2.1:700".parse().unwrap(),
                    transport: "tcp",
                    tls: &ConnectionTls::None,
                    caller: &Identity::None,
                    sec: "none",
                    protocol: "nfs3",
                    operation: "REMOVE",
                    access: None,
                    result: "OK".to_owned(),
                };
                Record::line(event, Some(name), Object::new(b"h", Some(b"d"), Some(name)), None)
            };
            let text = line(&a);
            prop_assert!(!text.contains(|c: char| c.is_control()));
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let name = value["path"].as_str().unwrap().strip_prefix("/d/").or(value["name"].as_str());
            prop_assert_eq!(name, Some(&self::text(&a)[..]));
            prop_assert_eq!(self::text(&a) == self::text(&b), a == b);
        }
    }
}
