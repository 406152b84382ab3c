//! The checks. Each examines one property of the machine and returns a finding. None changes anything.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    time::Duration,
};

use rdma::verbs::{self, DeviceReport, Unavailable};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    process::Resource,
    thread::CapabilitySet,
};

use super::{Finding, kernel::Kernel};
use crate::output;

/// Runs all checks, in the order of the output: identity, transports, ports, the kernel, limits.
pub fn all() -> Vec<Finding> {
    let mut findings = vec![identity(), capabilities(), containment()];
    findings.extend(transports());
    findings.push(adapters(Path::new("/sys/class/infiniband"), verbs::survey()));
    findings.push(kerberos());
    findings.push(checksum_instruction());
    findings.push(tcp_port("port 2049/tcp", 2049, "nfs"));
    findings.push(udp_port("port 2049/udp", 2049));
    findings.push(tcp_port("port 20049/tcp", 20049, "nfs over rdma"));
    findings.push(rpcbind());
    findings.extend(Kernel::running().findings());
    findings.push(kernel_tls(buf::ktls::available()));
    findings.push(mount_command());
    findings.push(passthrough());
    findings.push(congestion(&read_line("/proc/sys/net/ipv4/tcp_congestion_control")));
    findings.push(owner_domain(&rpc::users::default_domain()));
    findings.push(open_files());
    findings.push(locked_memory());
    findings
}

/// Checks the domain of the owner names that NFSv4 sends to principals.
fn owner_domain(domain: &str) -> Finding {
    let found = format!("owners are name@{domain} for callers by Kerberos, unless idmap_domain is set");
    match domain {
        "localdomain" => Finding::note(
            "owner names",
            found,
            "give this host a name with a domain (hostnamectl), or set idmap_domain in [server] to the Domain of the clients",
        ),
        _ => Finding::ok("owner names", found),
    }
}

fn identity() -> Finding {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return Finding::ok("identity", "root: each operation runs with its caller's user and groups");
    }
    Finding::note(
        "identity",
        format!("user {}: every client's operations run as this user", uid.as_raw()),
        "run `slipway serve` as root to run operations with the identity of their callers",
    )
}

/// Checks the capabilities that `slipway serve` needs as root. A container or a service manager may have taken them.
fn capabilities() -> Finding {
    const CHECK: &str = "capabilities";
    if !rustix::process::geteuid().is_root() {
        return Finding::ok(CHECK, "none needed: an ordinary user serves with its own rights");
    }
    let effective = match rustix::thread::capabilities(None) {
        Ok(sets) => sets.effective,
        Err(error) => return Finding::note(CHECK, format!("cannot be read: {error}"), "allow the capget system call"),
    };
    let missing: Vec<_> = NEEDED.iter().filter(|(capability, ..)| !effective.contains(*capability)).collect();
    if missing.is_empty() {
        return Finding::ok(CHECK, "all that `slipway serve` needs as root");
    }
    let found: Vec<_> = missing.iter().map(|(_, name, without)| format!("no {name}: {without}")).collect();
    let names: Vec<_> = missing.iter().map(|(_, name, _)| *name).collect();
    let fix = format!(
        "add {} to CapabilityBoundingSet of the unit, or to --cap-add of the container; or serve as an ordinary user",
        names.join(" ")
    );
    let serves = effective.contains(CapabilitySet::SETUID | CapabilitySet::SETGID);
    let finding = if serves { Finding::note } else { Finding::bad };
    finding(CHECK, found.join("; "), fix)
}

/// The capabilities that `slipway serve` uses as root, as in the shipped unit, and what happens without each.
const NEEDED: &[(CapabilitySet, &str, &str)] = &[
    (CapabilitySet::SETUID, "CAP_SETUID", "the server cannot act as its callers, and does not serve directories"),
    (CapabilitySet::SETGID, "CAP_SETGID", "the server cannot act as its callers, and does not serve directories"),
    (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "a caller that is root here has no more rights than others"),
    (
        CapabilitySet::DAC_READ_SEARCH,
        "CAP_DAC_READ_SEARCH",
        "files are found by the handle database instead of by handle",
    ),
    (CapabilitySet::CHOWN, "CAP_CHOWN", "a caller that is root here cannot change owners"),
    (CapabilitySet::FOWNER, "CAP_FOWNER", "a caller that is root here cannot change modes and times of others' files"),
    (CapabilitySet::FSETID, "CAP_FSETID", "a caller that is root here cannot set set-group-ID bits of other groups"),
    (CapabilitySet::MKNOD, "CAP_MKNOD", "a caller that is root here cannot make device nodes"),
    (CapabilitySet::NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE", "ports below 1024 cannot be used (--rpcbind builtin)"),
];

/// The posix back end confines paths to an export by `openat2` (Linux 5.6). Filters of containers sometimes deny it.
fn containment() -> Finding {
    let opened = rustix::fs::openat2(
        rustix::fs::CWD,
        ".",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
    );
    match opened {
        Ok(_) => Finding::ok("openat2", "works: paths cannot leave an exported directory"),
        Err(error) => Finding::bad(
            "openat2",
            format!("does not work ({error}): directories cannot be served"),
            "use Linux 5.6 or later; in a container, allow the openat2 system call",
        ),
    }
}

/// Kerberos needs MIT's library. Nothing else does.
fn kerberos() -> Finding {
    const CHECK: &str = "kerberos";
    match gss::kerberos::available() {
        Ok(()) => Finding::ok(CHECK, "the library is installed: `serve --keytab`, and sec=krb5, krb5i, krb5p in URLs"),
        Err(error) => Finding::note(
            CHECK,
            format!("{error}"),
            "to use Kerberos, install MIT's library, and write /etc/krb5.conf (docs/kerberos.md)",
        ),
    }
}

/// Checks whether the kernel can encrypt what connections of TLS send.
fn kernel_tls(available: io::Result<()>) -> Finding {
    const CHECK: &str = "kernel TLS";
    match available {
        Ok(()) => Finding::ok(CHECK, "the kernel encrypts what connections of TLS send (kTLS)"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Finding::note(
            CHECK,
            "not there: processes encrypt, and read file data into their memory for that",
            "to use it, load the kernel's module before Slipway starts: modprobe tls",
        ),
        Err(error) => Finding::note(CHECK, format!("cannot be examined: {error}"), "allow TCP connections on loopback"),
    }
}

fn transports() -> Vec<Finding> {
    let switch = transports::for_client();
    let names: Vec<_> = switch.names().collect();
    vec![
        Finding::ok("transports", names.join(", ")),
        Finding::ok(
            "rdma providers",
            "iwarp: RDMA in software over TCP, needs no adapter and no root; verbs: adapters; \
             shm: memory shared on one host",
        ),
        shared_memory(),
    ]
}

/// shm needs sealed memfds, and a directory for its sockets.
fn shared_memory() -> Finding {
    const CHECK: &str = "shared memory";
    let listening =
        transports::for_client().find("shm").expect("shm must be registered").listen((Ipv4Addr::LOCALHOST, 0).into());
    match listening {
        Ok(_) => Finding::ok(CHECK, "works: proto=shm reaches servers on this host, with one copy"),
        Err(error) => Finding::note(
            CHECK,
            format!("no directory for sockets ({error}): serve listens without shm"),
            "make /run/slipway (as root) or $XDG_RUNTIME_DIR writable, or set the path of a socket: shm://:2049?socket=/path",
        ),
    }
}

/// Reports the adapters of the kernel, those that the libraries find, and the reason if some cannot be used.
fn adapters(class: &Path, surveyed: Result<Vec<DeviceReport>, Unavailable>) -> Finding {
    const CHECK: &str = "rdma adapters";
    let packages = transports::VERBS_PACKAGES;
    let in_kernel: Vec<String> = devices(class).iter().map(|device| ports(class, device)).collect();
    let listed = in_kernel.join(", ");
    match surveyed {
        _ if in_kernel.is_empty() => Finding::note(
            CHECK,
            "none in /sys/class/infiniband; RDMA runs in software",
            "none needed. For the kernel's own software RDMA: modprobe siw (or rdma_rxe) and `rdma link add siw0 type siw \
             netdev eth0`",
        ),
        Err(why) => Finding::note(
            CHECK,
            format!("{listed}; not used: {why}"),
            format!("apt install {packages}, or dnf install rdma-core"),
        ),
        Ok(found) if found.len() < in_kernel.len() => {
            let usable: Vec<_> = found.into_iter().map(|device| device.name).collect();
            let usable = if usable.is_empty() { "none".to_owned() } else { usable.join(", ") };
            Finding::note(
                CHECK,
                format!("{listed}; usable by programs: {usable}"),
                format!(
                    "apt install {packages} (each kind of adapter has a library in ibverbs-providers); modprobe ib_uverbs; see \
                     that /dev/infiniband/uverbs* can be opened"
                ),
            )
        }
        Ok(_) if !Path::new("/dev/infiniband/rdma_cm").exists() => Finding::note(
            CHECK,
            format!("{listed}; not used: there is no /dev/infiniband/rdma_cm for connections"),
            "modprobe rdma_ucm (or apt install rdma-core, which does so)",
        ),
        Ok(found) => match found.iter().find(|device| !device.ports.iter().any(|port| port.active)) {
            Some(down) => Finding::note(
                CHECK,
                format!("{listed}; {} has no port that is up", down.name),
                "check its cable and switch, `ip link set … up` on its network interface, and the subnet manager on InfiniBand",
            ),
            None => Finding::ok(CHECK, format!("{listed}; used by the provider verbs")),
        },
    }
}

fn devices(class: &Path) -> Vec<String> {
    let entries = fs::read_dir(class).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Returns a device with its ports and their states, as the kernel reports them.
fn ports(class: &Path, device: &str) -> String {
    let directory = class.join(device);
    let kind = read_line(directory.join("node_type"));
    let mut ports: Vec<String> = fs::read_dir(directory.join("ports"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|port| {
            let state = read_line(port.path().join("state"));
            let layer = read_line(port.path().join("link_layer"));
            let state = state.split(": ").last().unwrap_or_default();
            format!("port {} {state} on {layer}", port.file_name().to_string_lossy())
        })
        .collect();
    ports.sort();
    format!("{device} ({}, {})", kind.trim_start_matches(|c: char| !c.is_alphabetic()), ports.join(", "))
}

fn checksum_instruction() -> Finding {
    #[cfg(target_arch = "x86_64")]
    let there = std::arch::is_x86_feature_detected!("sse4.2");
    #[cfg(target_arch = "aarch64")]
    let there = std::arch::is_aarch64_feature_detected!("crc");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let there = false;
    if there {
        Finding::ok("crc32c", "in hardware")
    } else {
        Finding::note(
            "crc32c",
            "no instruction for it: iWARP with CRC will be slow",
            "leave CRC off on trusted networks",
        )
    }
}

fn tcp_port(check: &'static str, port: u16, what: &str) -> Finding {
    let bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map(drop);
    port_finding(check, bound, &format!("--listen with another port, and give clients -o port=… ({what})"))
}

fn udp_port(check: &'static str, port: u16) -> Finding {
    let bound = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).map(drop);
    port_finding(check, bound, "--listen udp://… with another port")
}

fn port_finding(check: &'static str, bound: io::Result<()>, otherwise: &str) -> Finding {
    match bound {
        Ok(()) => Finding::ok(check, "free"),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Finding::note(
            check,
            "taken",
            format!(
                "find the process with `ss -lntup`; stop that server (systemctl stop nfs-server), or use {otherwise}"
            ),
        ),
        Err(error) => Finding::note(check, format!("cannot be used: {error}"), format!("use {otherwise}")),
    }
}

fn rpcbind() -> Finding {
    const CHECK: &str = "rpcbind";
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 111));
    if TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok() {
        return Finding::ok(CHECK, "a program answers at 127.0.0.1:111: `--rpcbind auto` registers there");
    }
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, 111)) {
        Ok(_) => Finding::ok(CHECK, "none runs, and port 111 is free for `--rpcbind builtin`"),
        Err(error) => Finding::note(
            CHECK,
            format!("none runs, and port 111 cannot be used ({error})"),
            "not needed: mount with -o port=…,mountport=… as `slipway serve` prints it. Else install and start rpcbind, or \
             run as root with --rpcbind builtin",
        ),
    }
}

fn mount_command() -> Finding {
    let found = ["/sbin/mount.nfs", "/usr/sbin/mount.nfs"].into_iter().find(|path| Path::new(path).exists());
    match found {
        Some(path) => Finding::ok("mount.nfs", path),
        None => Finding::note(
            "mount.nfs",
            "not installed: `mount -t nfs` will not work on this machine",
            "not needed to serve. To mount here: apt install nfs-common, or dnf install nfs-utils",
        ),
    }
}

/// Checks whether the kernel has FUSE_PASSTHROUGH, by the names of its functions.
fn passthrough() -> Finding {
    const CHECK: &str = "FUSE passthrough";
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let has = |name: &str| symbols.lines().any(|line| line.split_whitespace().nth(2) == Some(name));
    if has("fuse_passthrough_read_iter") {
        return Finding::ok(CHECK, "the kernel can read files of a server on this host: `slipway mount --passthrough`");
    }
    let fix = "none needed; it makes large reads of a server on this host faster (docs/mount.md)";
    if symbols.is_empty() {
        return Finding::note(CHECK, "unknown: /proc/kallsyms cannot be read", fix);
    }
    if !Path::new("/sys/module/fuse").exists() {
        return Finding::note(CHECK, "unknown: FUSE is not loaded", "modprobe fuse");
    }
    Finding::note(
        CHECK,
        "the kernel lacks it (Linux 6.9 and later, CONFIG_FUSE_PASSTHROUGH): --passthrough has no effect",
        fix,
    )
}

fn congestion(current: &str) -> Finding {
    const CHECK: &str = "congestion control";
    match current {
        "bbr" => Finding::note(
            CHECK,
            "bbr, which paces even on loopback and fast local networks",
            "give tcp and rdma the option congestion=cubic (`bench --congestion cubic`, `?congestion=cubic` in a URL), or \
             sysctl net.ipv4.tcp_congestion_control=cubic",
        ),
        "" => Finding::note(CHECK, "unknown", "mount /proc"),
        other => Finding::ok(CHECK, other),
    }
}

fn open_files() -> Finding {
    const CHECK: &str = "open files";
    let limit = rustix::process::getrlimit(Resource::Nofile);
    match limit.current {
        Some(current) if current < 4096 => Finding::note(
            CHECK,
            format!("at most {current}: few clients, and few files open at once"),
            "ulimit -n 65536, or LimitNOFILE=65536 in the systemd unit",
        ),
        Some(current) => Finding::ok(CHECK, format!("at most {current}")),
        None => Finding::ok(CHECK, "no limit"),
    }
}

fn locked_memory() -> Finding {
    const CHECK: &str = "locked memory";
    let limit = rustix::process::getrlimit(Resource::Memlock);
    match limit.current {
        Some(current) if current < 64 << 20 => Finding::note(
            CHECK,
            format!(
                "at most {}: enough for iwarp, which locks none, but an adapter would need more",
                output::size(current)
            ),
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit",
        ),
        Some(current) => Finding::ok(CHECK, format!("at most {}", output::size(current))),
        None => Finding::ok(CHECK, "no limit"),
    }
}

/// Returns the contents of a file of one line, or nothing if it cannot be read.
pub fn read_line(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::State;

    #[test]
    fn bbr_is_reported_with_a_fix() {
        assert_eq!(congestion("cubic").state, State::Ok);
        let finding = congestion("bbr");
        assert_eq!(finding.state, State::Note);
        assert!(finding.fix.unwrap().contains("congestion=cubic"));
    }

    #[test]
    fn a_kernel_without_tls_is_reported_with_its_module() {
        assert_eq!(kernel_tls(Ok(())).state, State::Ok);
        let missing = kernel_tls(Err(io::ErrorKind::NotFound.into()));
        assert_eq!(missing.state, State::Note);
        assert!(missing.fix.unwrap().contains("modprobe tls"));
        assert!(kernel_tls(Err(io::ErrorKind::AddrNotAvailable.into())).found.contains("cannot be examined"));
    }

    #[test]
    fn a_port_in_use_is_reported() {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(tcp_port("port", port, "test").found, "taken");
        assert_eq!(port_finding("port", Ok(()), "test").state, State::Ok);
    }

    #[test]
    fn adapters_are_listed_with_kind_state_and_problem() {
        let class = tempfile::tempdir().unwrap();
        let report = |active| DeviceReport {
            name: "siw0".into(),
            iwarp: true,
            windows: false,
            ports: vec![verbs::PortReport { active, ethernet: true }],
        };
        assert_eq!(adapters(class.path(), Ok(Vec::new())).state, State::Note);
        let port = class.path().join("siw0/ports/1");
        fs::create_dir_all(&port).unwrap();
        fs::write(class.path().join("siw0/node_type"), "4: RNIC\n").unwrap();
        fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
        fs::write(port.join("link_layer"), "Ethernet\n").unwrap();
        let missing = adapters(class.path(), Err(Unavailable::Library("libibverbs.so.1: not found".into())));
        assert!(
            missing.found.starts_with("siw0 (RNIC, port 1 ACTIVE on Ethernet); not used: lib"),
            "{}",
            missing.found
        );
        assert!(missing.fix.unwrap().contains("apt install libibverbs1 librdmacm1 ibverbs-providers"));
        let unusable = adapters(class.path(), Ok(Vec::new()));
        assert!(unusable.found.ends_with("usable by programs: none"), "{}", unusable.found);
        if Path::new("/dev/infiniband/rdma_cm").exists() {
            assert!(adapters(class.path(), Ok(vec![report(false)])).found.contains("siw0 has no port that is up"));
            assert_eq!(adapters(class.path(), Ok(vec![report(true)])).state, State::Ok);
        } else {
            assert!(adapters(class.path(), Ok(vec![report(true)])).fix.unwrap().contains("modprobe rdma_ucm"));
        }
    }
}
