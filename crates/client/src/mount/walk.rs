//! [`Walk`]: follows a path through directories and symbolic links. No I/O.
//!
//! A path starts at the mounted directory. `..` returns to the parent directory and stays at the root. An absolute link
//! starts at the root. So no path leaves the mount, and the server is never asked for `..`.
//!
//! A referral on the path leads to another server. Each object has a site, `S`, and `..` returns to the former site.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::model::{FileKind, Handle, Node};

/// The next step of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<S> {
    /// Look up `name` in `dir`; then call [`Walk::found`] or [`Walk::missing`].
    Lookup { site: S, dir: Handle, name: Bytes },
    /// Read the symbolic link; then call [`Walk::link_text`].
    ReadLink(S, Handle),
    /// The walk has ended.
    Done(End<S>),
}

/// The end of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End<S> {
    /// The path leads to this object.
    Object(S, Node),
    /// The path leads to a directory that has no such name.
    Missing { site: S, dir: Handle, name: Bytes },
}

#[derive(Debug)]
pub(crate) struct Walk<S> {
    /// The objects from the root to the current one, which is the last.
    nodes: Vec<(S, Node)>,
    /// The names still to look up, the next one last.
    names: Vec<Bytes>,
    /// Set if a symbolic link at the end of the path is followed.
    follow: bool,
    links: u32,
    missing: Option<Bytes>,
}

impl<S: Clone> Walk<S> {
    /// Starts at `root` of `site` with the components of `path`.
    pub fn new(site: S, root: Handle, path: &[u8], follow: bool) -> Self {
        let mut walk = Self {
            nodes: vec![(site, Node { handle: root, attr: None })],
            names: Vec::new(),
            // A slash after a name requires a directory, so a link is followed (POSIX, path resolution).
            follow: follow || path.ends_with(b"/"),
            links: 0,
            missing: None,
        };
        walk.push_path(path);
        walk
    }

    /// Returns the next step.
    ///
    /// # Errors
    /// The path has too many symbolic links, or `..` after a file.
    pub fn step(&mut self) -> Result<Step<S>, &'static str> {
        if let Some(name) = &self.missing {
            let (site, node) = self.current();
            let (site, dir, name) = (site.clone(), node.handle.clone(), name.clone());
            return Ok(Step::Done(End::Missing { site, dir, name }));
        }
        if self.current().1.is(FileKind::Lnk) && (self.follow || !self.names.is_empty()) {
            self.links += 1;
            if self.links > LINKS_MAX {
                return Err("too many levels of symbolic links");
            }
            let (site, link) = self.current();
            return Ok(Step::ReadLink(site.clone(), link.handle.clone()));
        }
        while self.names.last().is_some_and(|name| name == "..") {
            if self.current().1.attr.as_ref().is_some_and(|attr| attr.kind != FileKind::Dir) {
                return Err("the name before '..' is not a directory");
            }
            self.names.pop();
            if self.nodes.len() > 1 {
                self.nodes.pop();
            }
        }
        let (site, node) = self.current().clone();
        Ok(match self.names.last() {
            Some(name) => Step::Lookup { site, dir: node.handle, name: name.clone() },
            None => Step::Done(End::Object(site, node)),
        })
    }

    /// Continues at the object that [`Step::Lookup`] found, which belongs to `site`.
    pub fn found(&mut self, site: S, node: Node) {
        self.names.pop();
        self.nodes.push((site, node));
    }

    /// Continues after [`Step::Lookup`] found no object. Returns `true` if the missing name is the last one of the
    /// path.
    pub fn missing(&mut self) -> bool {
        self.missing = self.names.pop();
        self.names.is_empty()
    }

    /// Continues with the text of the link of [`Step::ReadLink`].
    pub fn link_text(&mut self, text: &[u8]) {
        self.nodes.pop();
        if text.starts_with(b"/") {
            self.nodes.truncate(1);
        }
        self.push_path(text);
    }

    fn push_path(&mut self, path: &[u8]) {
        let names = path.split(|&byte| byte == b'/').rev();
        let names = names.filter(|name| !name.is_empty() && *name != b".");
        self.names.extend(names.map(Bytes::copy_from_slice));
    }

    fn current(&self) -> &(S, Node) {
        self.nodes.last().expect("the root must remain")
    }
}

impl Node {
    fn is(&self, kind: FileKind) -> bool {
        self.attr.as_ref().is_some_and(|attr| attr.kind == kind)
    }
}

/// Splits a path into the path of the parent directory and the last name, for operations that create or remove a name.
///
/// # Errors
/// The path does not end in a name.
pub(crate) fn split_last(path: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    match &path[start..end] {
        b"" | b"." | b".." => Err("the path does not end in a name"),
        name => Ok((&path[..start], name)),
    }
}

/// Returns the names of a path without `..`, slash or `.` at its end, if it has at most [`NAMES_MAX`] names.
pub(crate) fn plain_names(path: &[u8]) -> Option<SmallVec<[&[u8]; NAMES_MAX]>> {
    let names: SmallVec<_> = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    let ends_in_name = path.split(|&byte| byte == b'/').next_back() == names.last().copied();
    (ends_in_name && names.len() <= NAMES_MAX && !names.contains(&&b".."[..])).then_some(names)
}

const LINKS_MAX: u32 = 40;
/// Maximum number of names that are looked up in one request, because servers limit the operations of a request.
const NAMES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::Attr;

    /// A tree by paths. A handle is the path; the value is the text of a link.
    struct Tree(HashMap<&'static str, Option<&'static str>>);

    impl Tree {
        fn sample() -> Self {
            let dirs = ["/a", "/a/b", "/a/b/file", "/d"].map(|path| (path, None));
            let links = [
                ("/a/up", "../d"),
                ("/a/abs", "/a/b"),
                ("/a/out", "../../../d"),
                ("/d/loop", "loop"),
                ("/d/dangling", "../a/new"),
                ("/d/twice", "../a/abs/file"),
            ];
            Self(dirs.into_iter().chain(links.map(|(path, text)| (path, Some(text)))).collect())
        }

        fn walk(&self, path: &str, follow: bool) -> Result<String, String> {
            let mut walk = Walk::new((), "".into(), path.as_bytes(), follow);
            loop {
                match walk.step()? {
                    Step::Lookup { dir, name, .. } => {
                        assert!(name != ".." && name != "." && !name.is_empty());
                        let dir = std::str::from_utf8(&dir).unwrap().to_owned();
                        let path = format!("{dir}/{}", std::str::from_utf8(&name).unwrap());
                        match self.0.get(path.as_str()) {
                            Some(text) => {
                                let ftype = match text {
                                    Some(_) => FileKind::Lnk,
                                    None if path.ends_with("file") => FileKind::Reg,
                                    None => FileKind::Dir,
                                };
                                walk.found((), Node { handle: path.as_str().into(), attr: Some(Attr::of(ftype)) });
                            }
                            None if walk.missing() => {}
                            None => return Err(format!("{path} on the way")),
                        }
                    }
                    Step::ReadLink((), link) => {
                        let text = self.0[std::str::from_utf8(&link).unwrap()].unwrap();
                        walk.link_text(text.as_bytes());
                    }
                    Step::Done(End::Object((), node)) => return Ok(String::from_utf8(node.handle.to_vec()).unwrap()),
                    Step::Done(End::Missing { dir, name, .. }) => return Ok(format!("no {name:?} in {dir:?}")),
                }
            }
        }
    }

    #[test]
    fn walk_resolves_paths() {
        let tree = Tree::sample();
        for (path, end) in [
            ("", ""),
            ("/", ""),
            ("a/b", "/a/b"),
            ("//a/./b//", "/a/b"),
            ("a/b/../b/file", "/a/b/file"),
            ("a/up", "/d"),
            ("a/abs/file", "/a/b/file"),
            ("d/twice", "/a/b/file"),
            ("../../a", "/a"),
            ("a/out", "/d"),
            ("a/none", "no b\"none\" in \"/a\""),
            ("d/dangling", "no b\"new\" in \"/a\""),
        ] {
            assert_eq!(tree.walk(path, true).as_deref(), Ok(end), "{path}");
        }
        assert_eq!(tree.walk("a/none/b", true), Err("/a/none on the way".to_owned()));
        assert!(tree.walk("a/b/file/../file", true).is_err());
        assert_eq!(tree.walk("d/loop", true), Err("too many levels of symbolic links".to_owned()));
    }

    #[test]
    fn link_at_the_end_is_followed_only_on_request() {
        let tree = Tree::sample();
        assert_eq!(tree.walk("a/up", false).as_deref(), Ok("/a/up"));
        assert_eq!(tree.walk("a/up/", false).as_deref(), Ok("/d"));
        assert_eq!(tree.walk("a/up/twice", false).as_deref(), Ok("/d/twice"));
    }

    #[test]
    fn plain_names_rejects_parent_and_directory_paths() {
        let plain = |path: &'static str| plain_names(path.as_bytes()).map(|names| names.join(&b"/"[..]));
        assert_eq!(plain("//a/./b").as_deref(), Some(&b"a/b"[..]));
        assert_eq!(plain("1/2/3/4/5/6/7/8").map(|names| names.len()), Some(15));
        for path in ["", "/", ".", "a/", "a/.", "a/../b", "..", "1/2/3/4/5/6/7/8/9"] {
            assert_eq!(plain(path), None, "{path}");
        }
    }

    #[test]
    fn split_last_returns_parent_and_name() {
        assert_eq!(split_last(b"a/b//"), Ok((&b"a/"[..], &b"b"[..])));
        assert_eq!(split_last(b"b"), Ok((&b""[..], &b"b"[..])));
        assert!(split_last(b"/").is_err() && split_last(b"").is_err() && split_last(b"a/..").is_err());
    }
}
