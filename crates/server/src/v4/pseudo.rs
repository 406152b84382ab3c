//! [`Pseudo`]: the directories that lead from the root to the exports (RFC 8881 §7.3).
//!
//! They depend only on the names of the exports. Their file handles contain a hash of the path and therefore stay valid
//! after a restart. An export below another export appears in a directory of the upper export, if the upper export has
//! that directory.

use bytes::Bytes;
use nfs::v4::{
    Component4, Fsid4,
    location::{FsLocation4, FsLocations4},
};
use vfs::{Attr, Device, FsCaps, Handle, Kind, Time};

use crate::{
    call::{context::Context, core::ServiceState, object::Object},
    export::{
        Exports, components,
        policy::{Purpose, Refusal},
        referral::{Location, Referral},
        sec::Sec,
    },
    handle::ExportId,
    v4::status::Fault4,
};

/// The directories from the root to the exports and referrals, and nodes for the exports and referrals.
#[derive(Debug)]
pub(super) struct Pseudo {
    id: ExportId,
    /// The first node is the root.
    nodes: Vec<Node>,
    caps: FsCaps,
    /// The time of the server's start, when exports may have changed.
    started: Time,
}

/// The index of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId(usize);

impl NodeId {
    pub(super) const ROOT: Self = Self(0);
}

#[derive(Debug)]
struct Node {
    name: Bytes,
    parent: NodeId,
    children: Vec<NodeId>,
    /// A number that is derived from the path.
    fileid: u64,
    export: Option<ExportId>,
    referral: Option<Referral>,
}

impl Node {
    /// Returns `true` if an export or a referral is mounted on this node.
    fn is_mounted(&self) -> bool {
        self.export.is_some() || self.referral.is_some()
    }
}

impl Pseudo {
    pub(super) fn new(exports: &Exports, started: Time) -> Self {
        let root = Node {
            name: Bytes::new(),
            parent: NodeId::ROOT,
            children: Vec::new(),
            fileid: ExportId::of(&[b"/"]).number(),
            export: None,
            referral: None,
        };
        let caps = FsCaps {
            links: false,
            symlinks: false,
            link_max: u32::MAX,
            name_max: 255,
            file_size_max: 0,
            time_resolution_ns: 1,
            counts_changes: true,
            chown_restricted: true,
            blocks: false,
            completes_later: false,
            acls: false,
            xattrs: false,
            clone_block: 0,
        };
        let mut pseudo = Self { id: ExportId::of(&[b"", b"pseudo"]), nodes: vec![root], caps, started };
        for export in exports.iter() {
            let node = pseudo.add(export.name());
            pseudo.nodes[node.0].export = Some(export.id());
        }
        for referral in exports.referrals() {
            let node = pseudo.add(referral.name());
            pseudo.nodes[node.0].referral = Some(referral.clone());
        }
        pseudo
    }

    fn add(&mut self, path_of: &[u8]) -> NodeId {
        let mut at = NodeId::ROOT;
        let mut path = Vec::new();
        for name in path_of.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            path.push(b'/');
            path.extend_from_slice(name);
            at = self.child(at, name).unwrap_or_else(|| {
                let child = NodeId(self.nodes.len());
                let fileid = ExportId::of(&[&path]).number();
                let name = Bytes::copy_from_slice(name);
                self.nodes.push(Node { name, parent: at, children: Vec::new(), fileid, export: None, referral: None });
                self.nodes[at.0].children.push(child);
                child
            });
        }
        at
    }

    /// Returns the export ID that file handles of these directories contain.
    pub(super) fn id(&self) -> ExportId {
        self.id
    }

    pub(super) fn handle(&self, node: NodeId) -> Handle {
        Handle::new(&self.nodes[node.0].fileid.to_be_bytes())
    }

    pub(super) fn find(&self, handle: &[u8]) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.fileid.to_be_bytes() == handle).map(NodeId)
    }

    pub(super) fn caps(&self) -> &FsCaps {
        &self.caps
    }

    pub(super) fn child(&self, node: NodeId, name: &[u8]) -> Option<NodeId> {
        self.nodes[node.0].children.iter().copied().find(|child| self.nodes[child.0].name == name)
    }

    pub(super) fn name(&self, node: NodeId) -> &Bytes {
        &self.nodes[node.0].name
    }

    /// Returns the node above; `None` for the root.
    pub(super) fn parent(&self, node: NodeId) -> Option<NodeId> {
        (node != NodeId::ROOT).then(|| self.nodes[node.0].parent)
    }

    /// Returns the export that is mounted on a node. Its root hides the node from clients.
    pub(super) fn export(&self, node: NodeId) -> Option<ExportId> {
        self.nodes[node.0].export
    }

    /// Returns the referral that is mounted on a node.
    pub(super) fn referral(&self, node: NodeId) -> Option<&Referral> {
        self.nodes[node.0].referral.as_ref()
    }

    /// Returns the fsid of a node. A referral has an fsid of its own (§11.4.1).
    pub(super) fn fsid(&self, node: NodeId) -> Fsid4 {
        match self.referral(node) {
            Some(referral) => Fsid4 { major: ExportId::of(&[referral.name(), b"referral"]).number(), minor: 0 },
            None => Fsid4::default(),
        }
    }

    /// Returns the path of a node.
    pub(super) fn path(&self, node: NodeId) -> Vec<Component4> {
        let mut path = Vec::new();
        let mut at = node;
        while let Some(parent) = self.parent(at) {
            path.push(self.name(at).clone().into());
            at = parent;
        }
        path.reverse();
        path
    }

    /// Returns the node on which an export is mounted.
    pub(super) fn node_of(&self, export: ExportId) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.export == Some(export)).map(NodeId)
    }

    pub(super) fn fileid(&self, node: NodeId) -> u64 {
        self.nodes[node.0].fileid
    }

    /// Returns the children that a caller can see: those that lead to an export that admits it.
    pub(super) fn visible<'a>(
        &'a self,
        cx: &'a Context<'_, impl ServiceState>,
        node: NodeId,
    ) -> impl Iterator<Item = NodeId> + 'a {
        self.nodes[node.0].children.iter().copied().filter(|child| self.is_visible(cx, *child))
    }

    pub(super) fn is_visible(&self, cx: &Context<'_, impl ServiceState>, node: NodeId) -> bool {
        let node = &self.nodes[node.0];
        let admits = |id| matches!(cx.export(id, Purpose::Files), Ok(_) | Err(Refusal::WrongSec));
        node.export.is_some_and(admits)
            || node.referral.as_ref().is_some_and(|referral| referral.admits(cx.peer))
            || node.children.iter().any(|child| self.is_visible(cx, *child))
    }

    /// Returns the security flavours of the exports at and below a node, each once. Without such an export, returns the
    /// flavours that need no mechanism.
    pub(super) fn flavors(&self, cx: &Context<'_, impl ServiceState>, node: NodeId) -> Vec<Sec> {
        let (mut nodes, mut found) = (vec![node], Vec::new());
        while let Some(node) = nodes.pop() {
            let node = &self.nodes[node.0];
            let export = node.export.and_then(|id| cx.core.exports.find(id));
            for sec in export.map_or(Vec::new(), |export| export.flavors(&cx.requester(), Purpose::Locks)) {
                if !found.contains(&sec) {
                    found.push(sec);
                }
            }
            nodes.extend(node.children.iter().rev());
        }
        if found.is_empty() { vec![Sec::Sys, Sec::None] } else { found }
    }

    pub(super) fn attr(&self, node: NodeId) -> Attr {
        let directories = self.nodes[node.0].children.len() as u32;
        Attr {
            kind: Kind::Dir,
            mode: 0o555,
            nlink: 2 + directories,
            uid: 0,
            gid: 0,
            size: 4096,
            used: 0,
            device: Device::default(),
            fsid: 0,
            fileid: self.fileid(node),
            atime: self.started,
            mtime: self.started,
            ctime: self.started,
            change: self.started.as_nanoseconds(),
        }
    }

    /// Returns `true` if other exports or referrals are mounted below an export.
    pub(super) fn has_junctions(&self, export: ExportId) -> bool {
        self.node_of(export).is_some_and(|node| !self.nodes[node.0].children.is_empty())
    }

    /// Returns the node that is mounted on `name` in a directory of another export.
    pub(super) fn junction(&self, dir: &Object<'_>, name: &[u8]) -> Result<Option<NodeId>, Fault4> {
        let Some(top) = self.node_of(dir.export.id()) else { return Ok(None) };
        let mut below = self.nodes[top.0].children.clone();
        while let Some(node) = below.pop() {
            let there = &self.nodes[node.0];
            if !there.is_mounted() {
                below.extend(&there.children);
            } else if there.name == name && self.mount_point(dir, top, node)?.as_ref() == Some(&dir.handle) {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    /// Returns the directory of the export at `top` in which `node` is mounted. `within` is any object of that export.
    /// Returns `None` if the export does not have the directory or the caller may not search the path to it.
    pub(super) fn mount_point(&self, within: &Object<'_>, top: NodeId, node: NodeId) -> Result<Option<Handle>, Fault4> {
        let mut path = Vec::new();
        let mut at = self.nodes[node.0].parent;
        while at != top {
            path.push(at);
            at = self.nodes[at.0].parent;
        }
        let mut handle = within.export.root().clone();
        for step in path.into_iter().rev() {
            let name = vfs::Name::new(&self.nodes[step.0].name)?;
            handle = match within.vfs().lookup(&within.caller(), &handle, name) {
                Ok((next, _)) => next,
                Err(vfs::VfsError::WouldBlock) => return Err(Fault4::WouldBlock),
                Err(_) => return Ok(None),
            };
        }
        Ok(Some(handle))
    }

    /// Returns the nearest export above a node, and the node on which it is mounted.
    pub(super) fn enclosing(&self, node: NodeId) -> Option<(NodeId, ExportId)> {
        let mut at = node;
        while let Some(parent) = self.parent(at) {
            if let Some(export) = self.export(parent) {
                return Some((parent, export));
            }
            at = parent;
        }
        None
    }
}

/// Returns the attribute fs_locations of a referral (RFC 8881 §11.16).
pub(super) fn fs_locations(referral: &Referral) -> FsLocations4 {
    let location = |location: &Location| FsLocation4 {
        server: vec![location.server().into()],
        rootpath: pathname(location.path().as_bytes()),
    };
    FsLocations4 { fs_root: pathname(referral.name()), locations: referral.locations().iter().map(location).collect() }
}

fn pathname(path: &[u8]) -> Vec<Component4> {
    components(path).map(|name| Bytes::copy_from_slice(name).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::client::Client;

    #[test]
    fn fs_locations_has_the_local_path_and_the_remote_paths() {
        let locations = vec!["nas:/srv//data/".parse().unwrap(), "[::1]:/".parse().unwrap()];
        let found = fs_locations(&Referral::new("/far/away", locations, vec![Client::any()]).unwrap());
        assert_eq!(found.fs_root, ["far".into(), "away".into()]);
        let [nas, other] = &found.locations[..] else { panic!("there must be two locations") };
        assert_eq!((&nas.server[..], &nas.rootpath[..]), (&["nas".into()][..], &["srv".into(), "data".into()][..]));
        assert_eq!((&other.server[..], other.rootpath.len()), (&["::1".into()][..], 0));
    }
}
