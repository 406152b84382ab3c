//! [`Modules`]: which modules the kernel has, and the reason why it cannot load one.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// The modules of a kernel.
pub struct Modules {
    /// The root of the file system.
    root: PathBuf,
    /// The list of installed modules, one path on each line.
    installed: String,
    /// The list of modules that are part of the kernel.
    builtin: String,
}

/// The reason why a module cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It is not installed.
    Missing,
    /// A file of modprobe.d(5) forbids it.
    Forbidden(PathBuf),
    /// The kernel loads no more modules until its next start.
    Sealed,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is not installed"),
            Self::Forbidden(path) => write!(f, "is forbidden by {}", path.display()),
            Self::Sealed => f.write_str("is not loaded, and kernel.modules_disabled = 1"),
        }
    }
}

impl Modules {
    /// Returns the modules of the kernel with this release. Its `/etc`, `/lib`, `/proc` and `/sys` are below `root`.
    pub fn new(root: &Path, release: &str) -> Self {
        let directory = root.join("lib/modules").join(release);
        let list = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        Self { root: root.to_owned(), installed: list("modules.dep"), builtin: list("modules.builtin") }
    }

    /// Reports whether a module is loaded or installed.
    pub fn has(&self, module: &str) -> bool {
        self.is_there(module) || is_listed(&self.installed, module)
    }

    /// Reports whether a module that has parameters or a version is loaded, or is part of the kernel.
    pub fn is_there(&self, module: &str) -> bool {
        self.root.join("sys/module").join(module).exists() || is_listed(&self.builtin, module)
    }

    /// Returns the reason why the kernel cannot use a module that it loads by an alias, if there is one.
    pub fn obstacle(&self, module: &str) -> Option<Obstacle> {
        if self.is_there(module) {
            return None;
        }
        if !is_listed(&self.installed, module) {
            return Some(Obstacle::Missing);
        }
        if super::checks::read_line(self.root.join("proc/sys/kernel/modules_disabled")) == "1" {
            return Some(Obstacle::Sealed);
        }
        self.forbidding(module).map(Obstacle::Forbidden)
    }

    /// Returns the file that forbids to load a module by an alias, or replaces it by a command (modprobe.d(5)).
    fn forbidding(&self, module: &str) -> Option<PathBuf> {
        let files = MODPROBE.iter().flat_map(|directory| fs::read_dir(self.root.join(directory)).into_iter().flatten());
        let mut files: Vec<_> = files.flatten().map(|file| file.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
        files.sort();
        let forbids = |line: &str| {
            let mut words = line.split_whitespace();
            let command = words.next();
            // Names of modules have both characters in either form.
            let names = words.next().is_some_and(|name| name.replace('-', "_") == module);
            names && (command == Some("blacklist") || command == Some("install"))
        };
        files.into_iter().find(|path| fs::read_to_string(path).unwrap_or_default().lines().any(forbids))
    }
}

/// Returns `true` if a list of modules, one path on each line, contains this one, compressed or not.
fn is_listed(list: &str, module: &str) -> bool {
    list.lines().any(|line| {
        let path = line.split(':').next().unwrap_or(line);
        let file = path.rsplit('/').next().unwrap_or(path);
        file.split('.').next().is_some_and(|name| name.replace('-', "_") == module)
    })
}

/// The directories of modprobe.d(5).
const MODPROBE: [&str; 4] = ["etc/modprobe.d", "run/modprobe.d", "usr/local/lib/modprobe.d", "lib/modprobe.d"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_match_by_their_whole_name() {
        let list = "kernel/fs/nfs/nfsv3.ko.xz: kernel/fs/nfs/nfs.ko.xz\nkernel/drivers/infiniband/sw/siw/siw.ko: a/b.ko\nc/a-b.ko:\n";
        assert!(is_listed(list, "nfsv3") && is_listed(list, "siw") && is_listed(list, "a_b"));
        assert!(!is_listed(list, "nfsv4") && !is_listed(list, "nfs"));
    }

    #[test]
    fn obstacles_of_a_module_are_named() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let obstacle = || Modules::new(root.path(), "6.1").obstacle("nfs_layout_x");
        assert_eq!(obstacle(), Some(Obstacle::Missing));
        write("lib/modules/6.1/modules.dep", "kernel/nfs_layout_x.ko.xz: kernel/nfs.ko.xz\n");
        assert_eq!(obstacle(), None);
        write("etc/modprobe.d/a.conf", "# blacklist nfs_layout_x\nblacklist nfs_layout_y\noptions nfs_layout_x a=1\n");
        write("lib/modprobe.d/note", "blacklist nfs_layout_x\n");
        assert_eq!(obstacle(), None, "other lines and other files forbid nothing");
        for line in ["blacklist nfs-layout-x", "  install nfs_layout_x /bin/true"] {
            write("lib/modprobe.d/b.conf", line);
            assert_eq!(obstacle(), Some(Obstacle::Forbidden(root.path().join("lib/modprobe.d/b.conf"))), "{line}");
        }
        write("proc/sys/kernel/modules_disabled", "1\n");
        assert_eq!(obstacle(), Some(Obstacle::Sealed));
        fs::create_dir_all(root.path().join("sys/module/nfs_layout_x")).unwrap();
        assert_eq!(obstacle(), None, "it is loaded");
        fs::remove_dir(root.path().join("sys/module/nfs_layout_x")).unwrap();
        write("lib/modules/6.1/modules.builtin", "kernel/nfs_layout_x.ko\n");
        assert_eq!(obstacle(), None, "it is part of the kernel");
    }
}
