//! The search for objects at data servers that no file has, for an administrator. It can take long, so it runs in a thread of its own.

use std::{collections::HashSet, fs, io, path::PathBuf};

use pnfs::{DataServers, Orphans, Service, record::Object};
use tokio::runtime;
use vfs::VfsError;

use super::{
    clusters::{Answer, Member, NO_CLUSTER, by_cluster, choose, failed},
    records::{OrphanRecord, label},
    servers::name,
};

/// Searches for orphans of a cluster, or of all clusters, and passes each to `each`. With `remove`, they are added to the queue of
/// removals.
///
/// The files of all trees of this server count, because trees can have the same data servers.
///
/// # Errors
/// Returns a message about a tree that cannot be read, or, after all orphans, about data servers that were not examined.
pub fn search(
    members: &[Member],
    (cluster, remove): (Option<&str>, bool),
    each: &mut impl FnMut(OrphanRecord) -> io::Result<()>,
) -> Answer<()> {
    let chosen = match cluster {
        Some(_) => vec![choose(members, cluster)?],
        None if members.is_empty() => return Err(NO_CLUSTER.to_owned()),
        None => by_cluster(members),
    };
    if remove {
        check_databases(members)?;
    }
    let runtime = runtime::Builder::new_current_thread().build().map_err(|error| error.to_string())?;
    let mut unexamined = Vec::new();
    for cluster in chosen {
        runtime.block_on(search_cluster(members, cluster[0], remove, &mut unexamined, each))?;
    }
    if unexamined.is_empty() { Ok(()) } else { Err(unexamined.join("; ")) }
}

/// Searches at the data servers of one cluster, for which `member` is one tree.
async fn search_cluster(
    members: &[Member],
    member: &Member,
    remove: bool,
    unexamined: &mut Vec<String>,
    each: &mut impl FnMut(OrphanRecord) -> io::Result<()>,
) -> Answer<()> {
    let mut listed = Vec::new();
    for server in member.servers.servers() {
        // A data server that is lost is not contacted.
        if member.pnfs.service(server) == Service::Lost {
            continue;
        }
        match member.pnfs.objects_on(server).await {
            Ok(objects) => listed.extend(objects.into_iter().map(|id| Object { server, id })),
            Err(error) => {
                let label = label(server.0, member.servers.name(server).as_deref());
                let cluster = &member.cluster;
                unexamined.push(format!("data server {label} of cluster '{cluster}' was not examined: {error}"));
            }
        }
    }
    let mut orphans = Orphans::new(listed);
    for tree in members {
        tree.pnfs.exclude_used(&mut orphans).map_err(|error| unknown(tree, error))?;
    }
    let orphans = orphans.objects();
    // The records follow in any case, so that an administrator learns what is removed.
    let mut attrs = Vec::with_capacity(orphans.len());
    for part in orphans.chunks(SIZES) {
        attrs.extend(futures_util::future::join_all(part.iter().map(|object| member.pnfs.object_attr(*object))).await);
    }
    if remove {
        member.pnfs.remove_orphans(&orphans).map_err(|error| failed(member, error))?;
    }
    for (Object { server, id }, attr) in orphans.into_iter().zip(attrs) {
        let record = OrphanRecord {
            cluster: member.cluster.clone(),
            server: server.0,
            server_name: member.servers.name(server),
            url: member.url(server),
            object: name(id),
            bytes: attr.ok().map(|attr| attr.size),
            removed: remove,
        };
        each(record).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Checks that this server has all exports whose databases are in its state directories. An export that was removed from the
/// configuration for a while still has files, and their objects are no orphans.
fn check_databases(members: &[Member]) -> Answer<()> {
    let open: HashSet<_> = members.iter().map(|member| member.database.clone()).collect();
    let directories: HashSet<_> = open.iter().filter_map(|path| path.parent()).map(PathBuf::from).collect();
    for directory in directories {
        let located = |error: io::Error| format!("{}: {error}", directory.display());
        for entry in fs::read_dir(&directory).map_err(located)? {
            let path = entry.map_err(located)?.path();
            let text = path.file_name().unwrap_or_default().to_string_lossy();
            if text.starts_with("pnfs-") && text.ends_with(".redb") && !open.contains(&path) {
                return Err(format!(
                    "{}: this is the database of an export that this server does not have now, whose objects would be taken for orphans: serve \
                     this export, too, or remove the file if the export is gone for ever",
                    path.display()
                ));
            }
        }
    }
    Ok(())
}

/// Returns the reason why it is not known which objects the files of a tree have.
fn unknown(tree: &Member, error: VfsError) -> String {
    let reason = match error {
        VfsError::Delay => "names were changed all the time: try again later".to_owned(),
        VfsError::Io => {
            "a file or the database cannot be read; the log names a file whose layout is damaged".to_owned()
        }
        error => error.to_string(),
    };
    format!("it is not known which objects the files in {} have: {reason}", tree.directory().display())
}

/// The number of objects whose sizes are asked for at the same time.
const SIZES: usize = 16;
