//! The checks of the kernel's NFS client: its modules, and the limits of its pNFS, where they matter on this machine.
//!
//! The limits are those of the sources of Linux 6.1 and 6.12, except for stripes. The client loads a layout driver when a server names
//! its type of layouts, and `nfsv3` when a layout has a data server of NFSv3. Without them, the data pass through the metadata server.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Finding,
    checks::read_line,
    modules::{Modules, Obstacle},
};

/// The kernel of this machine.
pub struct Kernel {
    /// The root of the file system.
    root: PathBuf,
    release: String,
    modules: Modules,
}

impl Kernel {
    /// Returns the running kernel.
    pub fn running() -> Self {
        Self::new(Path::new("/"), &rustix::system::uname().release().to_string_lossy())
    }

    /// Returns a kernel with this release. Its `/etc`, `/lib`, `/proc` and `/sys` are below `root`.
    fn new(root: &Path, release: &str) -> Self {
        Self { root: root.to_owned(), release: release.to_owned(), modules: Modules::new(root, release) }
    }

    /// Runs all checks.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.client()];
        if self.has_client() {
            findings.push(self.drivers());
            findings.extend(DRIVERS.into_iter().filter_map(|driver| self.timeout(driver)));
            let stats = fs::read_to_string(self.root.join("proc/self/mountstats")).unwrap_or_default();
            findings.extend(mounts(&stats).iter().flat_map(|mount| self.limits(mount)));
        }
        findings
    }

    fn has_client(&self) -> bool {
        let filesystems = fs::read_to_string(self.root.join("proc/filesystems")).unwrap_or_default();
        filesystems.lines().any(|line| line.ends_with("\tnfs")) || self.modules.has("nfsv3")
    }

    /// Reports whether the kernel can mount from a server of this program.
    fn client(&self) -> Finding {
        const CHECK: &str = "kernel NFS client";
        let release = &self.release;
        if !self.has_client() {
            return Finding::note(
                CHECK,
                format!("Linux {release} has no NFS modules: this machine can serve, but not mount"),
                "not needed to serve, nor for `slipway ls`, `cp` and `cat`. To mount here, install the distribution's full kernel \
                 package",
            );
        }
        if self.modules.has("rpcrdma") {
            let device = if self.modules.has("siw") { "siw" } else { "an adapter" };
            return Finding::ok(CHECK, format!("Linux {release} mounts NFS over tcp, and over rdma with {device}"));
        }
        Finding::note(
            CHECK,
            format!(
                "Linux {release} mounts NFS over tcp; there is no module rpcrdma for mounts and data servers of pNFS over rdma"
            ),
            "install the distribution's full kernel package (linux-modules-extra-…) and modprobe siw rpcrdma",
        )
    }

    /// Checks the modules without which the client uses no data servers.
    fn drivers(&self) -> Finding {
        const CHECK: &str = "kernel pNFS";
        let release = &self.release;
        let needed = DRIVERS.into_iter().chain([("nfsv3", "version 3")]);
        let obstacles: Vec<_> =
            needed.filter_map(|(module, of)| Some((module, of, self.modules.obstacle(module)?))).collect();
        if let Some((module, _, first)) = obstacles.first() {
            let unused: Vec<_> = obstacles.iter().map(|(module, of, why)| format!("{of} ({module} {why})")).collect();
            let unused = unused.join(", ");
            let fix = match first {
                Obstacle::Missing => {
                    "install the distribution's full kernel package (linux-modules-extra-…)".to_owned()
                }
                Obstacle::Forbidden(path) => format!("remove the line with {module} from {}", path.display()),
                Obstacle::Sealed => format!("load {module} before modules are disabled: /etc/modules-load.d"),
            };
            let found = format!(
                "Linux {release} sends data through the metadata server instead of to data servers of {unused}"
            );
            return Finding::note(CHECK, found, fix);
        }
        let striped = if self.is_before(STRIPED_SINCE) { " without stripes" } else { "" };
        Finding::ok(
            CHECK,
            format!("Linux {release} uses data servers of flexible files{striped}, and of files layouts"),
        )
    }

    /// Reports for how long a driver that is loaded waits for a data server.
    fn timeout(&self, (module, layouts): (&str, &str)) -> Option<Finding> {
        const CHECK: &str = "data server timeout";
        let parameters = Path::new("/sys/module").join(module).join("parameters");
        let parameter = |name: &str| {
            let path = parameters.join(name);
            read_line(self.root.join(path.strip_prefix("/").ok()?)).parse::<u64>().ok()
        };
        let (timeo, retrans) = (parameter("dataserver_timeo")?, parameter("dataserver_retrans")?);
        // In tenths of a second, where 0 is the default of TCP.
        let once = if timeo == 0 { TIMEO_DEFAULT } else { timeo };
        let seconds = (once.saturating_mul(retrans.saturating_add(1)) / 10).min(TIMEOUT_MAX_S);
        let found = format!(
            "Linux waits {seconds} s for a silent data server of {layouts} (dataserver_timeo = {timeo}, dataserver_retrans = {retrans})"
        );
        if seconds < TIMEOUT_LONG_S {
            return Some(Finding::ok(CHECK, found));
        }
        let parameters = parameters.display();
        Some(Finding::note(
            CHECK,
            found,
            format!(
                "for 10 s: `options {module} dataserver_timeo=100 dataserver_retrans=0` in /etc/modprobe.d/nfs.conf, and the same values now in \
                 {parameters}, before data servers are used"
            ),
        ))
    }

    /// Reports the limits that matter to a mount.
    fn limits(&self, mount: &PnfsMount<'_>) -> Vec<Finding> {
        let note = |found: &str, fix: &str| Finding::note(format!("pNFS mount {}", mount.directory), found, fix);
        let mut findings = Vec::new();
        if mount.option("noresvport").is_some() {
            findings.push(note(
                "noresvport: it calls data servers from ports above 1023, too, which some reject",
                "let data servers accept such ports (`insecure` in exports(5), the default of slipway serve), or mount without noresvport",
            ));
        }
        let old = self.is_before(CHANGED_BY);
        if old && self.modules.is_there("rpcrdma") && mount.option("nconnect").is_some_and(|count| count != "1") {
            findings.push(note(
                "nconnect: before Linux 6.12, a data server over rdma has one connection only",
                "none needed; for several connections over rdma, Linux 6.12",
            ));
        }
        if old && mount.layouts == FLEXIBLE {
            findings.push(note(
                "before Linux 6.12, it does not report after a restart of the metadata server which data servers had failed (RFC 9737)",
                "none needed: `slipway serve` compares the copies of files that were being written",
            ));
        }
        if findings.is_empty() {
            let found = format!("it uses data servers ({})", mount.layouts);
            findings.push(Finding::ok(format!("pNFS mount {}", mount.directory), found));
        }
        findings
    }

    fn is_before(&self, version: (u32, u32)) -> bool {
        let mut numbers = self.release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
        numbers.next().zip(numbers.next()).is_some_and(|release| release < version)
    }
}

/// A mount whose server grants layouts.
#[derive(Debug, PartialEq, Eq)]
struct PnfsMount<'a> {
    directory: &'a str,
    /// The name of the layout driver.
    layouts: &'a str,
    /// The mount options, as the kernel has them.
    options: &'a str,
}

impl<'a> PnfsMount<'a> {
    /// Returns the value of a mount option, or an empty text if it has none.
    fn option(&self, name: &str) -> Option<&'a str> {
        let mut options = self.options.split(',').map(|option| option.split_once('=').unwrap_or((option, "")));
        options.find_map(|(key, value)| (key == name).then_some(value))
    }
}

/// Returns the mounts whose server grants layouts, from the contents of `/proc/self/mountstats`.
fn mounts(stats: &str) -> Vec<PnfsMount<'_>> {
    let mut mounts = Vec::new();
    let (mut directory, mut options) = ("", "");
    for line in stats.lines() {
        if let Some((_, rest)) = line.strip_prefix("device ").and_then(|device| device.split_once(" mounted on ")) {
            (directory, options) = (rest.split(" with fstype ").next().unwrap_or(rest), "");
        } else if let Some(listed) = line.trim_start().strip_prefix("opts:") {
            options = listed.trim();
        } else if let Some((_, rest)) = line.split_once(",pnfs=LAYOUT_") {
            let layouts = rest.split(',').next().unwrap_or(rest);
            mounts.push(PnfsMount { directory, layouts, options });
        }
    }
    mounts
}

/// The layout drivers: the module, and the layouts that it uses.
const DRIVERS: [(&str, &str); 2] =
    [("nfs_layout_flexfiles", "flexible files"), ("nfs_layout_nfsv41_files", "files layouts")];
/// The name of the driver of flexible files in `/proc/self/mountstats`, without `LAYOUT_`.
const FLEXIBLE: &str = "FLEX_FILES";
/// The first version of Linux whose client accepts striped mirrors of flexible files.
pub const STRIPED_SINCE: (u32, u32) = (6, 18);
/// A version of Linux without the other limits. Linux 6.1 has them, and the versions in between were not examined.
const CHANGED_BY: (u32, u32) = (6, 12);
/// The default of TCP, and the bound of all timeouts.
const TIMEO_DEFAULT: u64 = 600;
const TIMEOUT_MAX_S: u64 = 600;
/// The timeout from which a shorter one is proposed.
const TIMEOUT_LONG_S: u64 = 60;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::State;

    const STATS: &str = "device rootfs mounted on / with fstype rootfs\n\
        device 10.0.0.1:/srv/data mounted on /mnt/a b with fstype nfs4 statvers=1.1\n\
        \topts:\trw,vers=4.2,rsize=1048576,noresvport,proto=tcp,nconnect=4,sec=sys\n\tage:\t7\n\
        \tnfsv4:\tbm0=0xfdffbfff,acl=0x0,sessions,pnfs=LAYOUT_FLEX_FILES,lease_time=90,lease_expired=0\n\
        device 10.0.0.2:/plain mounted on /plain with fstype nfs4 statvers=1.1\n\topts:\trw,vers=4.2,proto=tcp\n\
        \tnfsv4:\tbm0=0xfdffbfff,acl=0x0,sessions,pnfs=not configured,lease_time=90\n\
        device 10.0.0.3:/wide mounted on /wide with fstype nfs4 statvers=1.1\n\topts:\trw,vers=4.1,proto=rdma\n\
        \tnfsv4:\tbm0=0xfdffbfff,sessions,pnfs=LAYOUT_NFSV4_1_FILES,lease_time=90\n";

    /// A root directory with a kernel that has all modules.
    struct Root(tempfile::TempDir);

    impl Root {
        fn new(release: &str) -> Self {
            let root = Self(tempfile::tempdir().unwrap());
            let modules = ["nfsv3", "nfs_layout_flexfiles", "nfs_layout_nfsv41_files", "rpcrdma", "siw"];
            let list: String = modules.iter().map(|module| format!("kernel/{module}.ko.xz:\n")).collect();
            root.write(&format!("lib/modules/{release}/modules.dep"), &list);
            root.write("proc/filesystems", "nodev\tnfs\n");
            root
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Returns the findings with this name.
        fn find(&self, release: &str, check: &str) -> Vec<Finding> {
            let all = Kernel::new(self.0.path(), release).findings();
            all.into_iter().filter(|finding| finding.check.starts_with(check)).collect()
        }
    }

    #[test]
    fn a_kernel_without_a_layout_driver_is_named() {
        for (release, stripes) in [("6.1.0-41-amd64", true), ("6.17.9", true), ("6.18-rc1", false), ("7.0.0", false)] {
            let found = Root::new(release).find(release, "kernel pNFS");
            let [Finding { state: State::Ok, found, .. }] = &found[..] else { panic!("{found:?}") };
            assert_eq!(found.contains("flexible files without stripes"), stripes, "{found}");
        }
        let root = Root::new("6.1");
        root.write("etc/modprobe.d/a.conf", "blacklist nfs_layout_flexfiles\n");
        let found = root.find("6.1", "kernel pNFS");
        let [Finding { state: State::Note, found, fix: Some(fix), .. }] = &found[..] else { panic!("{found:?}") };
        assert!(
            found.contains("flexible files (nfs_layout_flexfiles is forbidden by") && !found.contains("files layouts"),
            "{found}"
        );
        assert!(fix.starts_with("remove the line with nfs_layout_flexfiles from"), "{fix}");
        root.write(
            "lib/modules/6.1/modules.dep",
            "kernel/nfs_layout_flexfiles.ko:\nkernel/nfs_layout_nfsv41_files.ko:\n",
        );
        root.write("etc/modprobe.d/a.conf", "");
        let found = root.find("6.1", "kernel pNFS");
        assert!(found[0].found.ends_with("data servers of version 3 (nfsv3 is not installed)"), "{found:?}");
        assert_eq!(root.find("6.1", "kernel NFS client")[0].state, State::Note, "there is no rpcrdma any more");
        root.write("proc/filesystems", "nodev\ttmpfs\n");
        assert!(root.find("6.1", "kernel pNFS").is_empty(), "it cannot mount at all");
    }

    #[test]
    fn timeouts_of_loaded_drivers_are_shown() {
        let root = Root::new("6.1");
        assert!(root.find("6.1", "data server timeout").is_empty(), "no driver is loaded");
        let set = |module: &str, timeo: &str, retrans: &str| {
            root.write(&format!("sys/module/{module}/parameters/dataserver_timeo"), timeo);
            root.write(&format!("sys/module/{module}/parameters/dataserver_retrans"), retrans);
        };
        set("nfs_layout_flexfiles", "100\n", "1\n");
        set("nfs_layout_nfsv41_files", "600\n", "5\n");
        let found = root.find("6.1", "data server timeout");
        let [short, long] = &found[..] else { panic!("{found:?}") };
        assert_eq!((short.state, long.state), (State::Ok, State::Note));
        assert!(short.found.starts_with("Linux waits 20 s for a silent data server of flexible files"), "{short:?}");
        assert!(
            long.found.contains("360 s") && long.found.contains("of files layouts (dataserver_timeo = 600"),
            "{long:?}"
        );
        set("nfs_layout_nfsv41_files", "6000\n", "5\n");
        assert!(root.find("6.1", "data server timeout")[1].found.contains(" 600 s "), "the bound of the kernel");
        set("nfs_layout_flexfiles", "0\n", "0\n");
        let [default, _] = &root.find("6.1", "data server timeout")[..] else { panic!("two drivers are loaded") };
        assert!(default.state == State::Note && default.found.contains(" 60 s "), "{default:?}");
        assert!(
            default.fix.as_ref().unwrap().contains("options nfs_layout_flexfiles dataserver_timeo=100"),
            "{default:?}"
        );
    }

    #[test]
    fn limits_are_reported_for_mounts_to_which_they_matter() {
        let root = Root::new("6.1");
        assert!(root.find("6.1", "pNFS mount").is_empty());
        root.write("proc/self/mountstats", STATS);
        let found = |release: &str, directory: &str| {
            let check = format!("pNFS mount {directory}");
            let found = root.find(release, &check);
            found.iter().map(|finding| (finding.state, finding.found.clone())).collect::<Vec<_>>()
        };
        let [(State::Note, port), (State::Note, restart)] = &found("6.1.0", "/mnt/a b")[..] else {
            panic!("two limits")
        };
        assert!(port.starts_with("noresvport") && restart.contains("RFC 9737"), "{port} {restart}");
        assert!(matches!(&found("6.12.1", "/mnt/a b")[..], [(State::Note, port)] if port.starts_with("noresvport")));
        assert_eq!(found("6.1.0", "/wide"), [(State::Ok, "it uses data servers (NFSV4_1_FILES)".to_owned())]);
        assert_eq!(found("6.1.0", "/plain"), []);
        fs::create_dir_all(root.0.path().join("sys/module/rpcrdma")).unwrap();
        let connections = |release| found(release, "/mnt/a b").iter().any(|(_, found)| found.starts_with("nconnect"));
        assert_eq!([connections("6.1.0"), connections("6.12.1")], [true, false]);
        root.write("proc/self/mountstats", &STATS.replace("nconnect=4", "nconnect=1"));
        assert!(!connections("6.1.0"), "it has one connection anyway");
        assert!(!found("6.1.0", "/wide").iter().any(|(_, found)| found.starts_with("nconnect")));
    }
}
