//! Tests of the lists, and of the container's profile, which has the same list.

use std::{collections::BTreeSet, fs, path::Path};

use super::*;

fn names<'a>(calls: impl Iterator<Item = &'a calls::Call>) -> BTreeSet<&'static str> {
    calls.map(|call| call.0.strip_prefix("SYS_").unwrap()).collect()
}

#[test]
fn no_call_is_both_allowed_and_forbidden() {
    let (allowed, forbidden) = (names(calls::allowed()), names(calls::FORBIDDEN.iter()));
    assert_eq!(allowed.intersection(&forbidden).collect::<Vec<_>>(), [&""; 0]);
    assert_eq!(allowed.len(), calls::allowed().count(), "a call is listed twice");
}

#[test]
fn filters_compile_and_fit() {
    // BPF_MAXINSNS of linux/bpf_common.h.
    for rules in [allow_rules(), forbid_rules()] {
        let program = filter(rules, SeccompAction::Log, SeccompAction::Allow).unwrap();
        assert!((100..4096).contains(&program.len()), "{}", program.len());
    }
}

/// A container's filter is in force before its program is executed. Then the server adds its own, which is stricter.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_container_profile_has_the_calls_of_the_filter_and_of_the_start() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/container/seccomp.json");
    let profile: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    assert_eq!(profile["defaultErrnoRet"], libc::ENOSYS);
    let mut listed = BTreeSet::new();
    for rule in profile["syscalls"].as_array().unwrap() {
        assert_eq!(rule["action"], "SCMP_ACT_ALLOW");
        listed.extend(rule["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()));
    }
    let conditional = ["clone", "ioctl", "socket", "tgkill"];
    // The runtime executes the program, and changes the user and capabilities before that.
    let start = ["capset", "execve", "setgid", "setresgid", "setresuid", "setuid"];
    let expected: BTreeSet<_> = names(calls::allowed()).into_iter().chain(conditional).chain(start).collect();
    assert_eq!(listed, expected);
}

/// In a process of its own, because the filter stays for the rest of a process.
#[test]
fn forbidden_calls_fail_and_others_work() {
    const CHILD: &str = "SLIPWAY_SECCOMP_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return under_the_filter();
    }
    let name = "commands::serve::seccomp::tests::forbidden_calls_fail_and_others_work";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("filtered"), "{said}");
}

fn under_the_filter() {
    use rustix::{io::Errno, mount, net, process as own, thread};
    // This thread exists before the filter, and is subject to it.
    let (ask, asked) = std::sync::mpsc::channel();
    let early = std::thread::spawn(move || {
        asked.recv().unwrap();
        own::chroot("/").unwrap_err()
    });
    let program = std::env::current_exe().unwrap();
    let socket = |family| net::socket(family, net::SocketType::DGRAM, None).map(drop);
    install(SeccompMode::On).unwrap();
    ask.send(()).unwrap();
    assert_eq!(early.join().unwrap(), Errno::PERM);
    // Without the filter, the first three and the last one succeed for every user.
    let executed = std::process::Command::new(program).arg("--list").status();
    assert_eq!(executed.unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(own::test_kill_process(own::getpid()), Err(Errno::PERM));
    assert_eq!(own::pidfd_open(own::getpid(), own::PidfdFlags::empty()).err(), Some(Errno::PERM));
    assert_eq!(own::chroot("/"), Err(Errno::PERM));
    assert_eq!(mount::unmount("/nowhere", mount::UnmountFlags::empty()), Err(Errno::PERM));
    assert_eq!(mount::mount("none", "/nowhere", "tmpfs", mount::MountFlags::empty(), None), Err(Errno::PERM));
    assert_eq!(thread::set_thread_uid(own::getuid()), Err(Errno::PERM));
    for family in [net::AddressFamily::PACKET, net::AddressFamily::VSOCK] {
        assert_eq!(socket(family), Err(Errno::PERM));
    }
    // A call that is in no list does not exist.
    assert_eq!(own::setsid(), Err(Errno::NOSYS));
    // What a server goes on doing.
    for family in [net::AddressFamily::UNIX, net::AddressFamily::INET, net::AddressFamily::NETLINK] {
        socket(family).unwrap();
    }
    std::thread::spawn(|| fs::read_to_string("/proc/self/status").unwrap()).join().unwrap();
    use std::net::ToSocketAddrs;
    ("localhost", 0).to_socket_addrs().unwrap();
    eprintln!("filtered");
}
