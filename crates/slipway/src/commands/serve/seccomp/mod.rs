//! The filter of system calls (seccomp(2)) of a server.
//!
//! Two filters make one policy. The first lists what is allowed ([`calls::allowed`], and the calls below of which only some arguments are). All
//! other calls fail with ENOSYS, so a library that tries a newer call continues without it, as on an older kernel. The second makes the calls that
//! an attacker wants fail with EPERM. If both filters reject a call, the kernel returns the error of the one that was installed last (seccomp(2),
//! "the first-seen action value of highest precedence").
//!
//! A rejected call fails and does not end the process. A library that makes an unexpected call then reports an error to one caller, and an
//! attacker gains nothing. Ending the process would end the service of all clients.
//!
//! The filter cannot be removed, and new threads inherit it. The server installs it when it has opened its listeners and devices, and before it
//! accepts a connection.

mod calls;

use std::{collections::BTreeMap, env::consts::ARCH, process};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};
use server::config::SeccompMode;

use crate::exit::Failure;

/// Installs the filter in all threads of the process.
///
/// # Errors
/// The filter is required (`"on"`, `"log"`) and cannot be installed.
pub fn install(mode: SeccompMode) -> Result<(), Failure> {
    let installed = match mode {
        SeccompMode::Off => {
            tracing::info!("there is no filter of system calls");
            return Ok(());
        }
        SeccompMode::Log => {
            filter(allow_rules(), SeccompAction::Log, SeccompAction::Allow).and_then(|filter| apply(&filter))
        }
        SeccompMode::Auto | SeccompMode::On => enforce(),
    };
    match installed {
        Ok(()) => Ok(()),
        Err(error) if mode == SeccompMode::Auto => {
            tracing::warn!(
                error,
                "continuing without the filter of system calls; seccomp = \"on\" makes this an error"
            );
            Ok(())
        }
        Err(error) => Err(Failure::failed(format!(
            "[server] seccomp: the filter of system calls cannot be installed: {error}; use a kernel with CONFIG_SECCOMP_FILTER, or \
             seccomp = \"off\""
        ))),
    }
}

fn enforce() -> Result<(), String> {
    let not_there = SeccompAction::Errno(libc::ENOSYS as u32);
    let not_permitted = SeccompAction::Errno(libc::EPERM as u32);
    // Compile both first: with only one of them, the process would have neither policy.
    let allow = filter(allow_rules(), not_there, SeccompAction::Allow)?;
    let forbid = filter(forbid_rules(), SeccompAction::Allow, not_permitted)?;
    apply(&allow)?;
    apply(&forbid)
}

/// The rules of a filter: for each call, the alternatives, or none if it matches with all arguments.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn allow_rules() -> Rules {
    let mut rules: Rules = calls::allowed().map(|&(_, number)| (number, Vec::new())).collect();
    // Threads, but no processes and no namespaces. The flags of `clone3` are in memory, which a filter cannot read. It is in no list, and the C
    // library uses `clone` instead.
    let thread = (libc::CLONE_THREAD | NAMESPACES) as u32;
    rules.insert(libc::SYS_clone, vec![rule(&[(0, Op::MaskedEq(thread.into()), libc::CLONE_THREAD as u32)])]);
    let socket = FAMILIES.map(|family| rule(&[(0, Op::Eq, family as u32)]));
    rules.insert(libc::SYS_socket, socket.into());
    // The RDMA devices need ioctl. These two type on a terminal.
    rules.insert(libc::SYS_ioctl, vec![rule(&TERMINAL.map(|request| (1, Op::Ne, request)))]);
    // The C library ends a process by a signal to itself (abort(3)).
    rules.insert(libc::SYS_tgkill, vec![rule(&[(0, Op::Eq, process::id())])]);
    rules
}

fn forbid_rules() -> Rules {
    let mut rules: Rules = calls::FORBIDDEN.iter().map(|&(_, number)| (number, Vec::new())).collect();
    let each = |flag: i32| rule(&[(0, Op::MaskedEq(flag as u32 as u64), flag as u32)]);
    let namespaces = (0..32).map(|bit| 1_i32 << bit).filter(|flag| NAMESPACES & flag != 0).map(each);
    let process = rule(&[(0, Op::MaskedEq(libc::CLONE_THREAD as u64), 0)]);
    rules.insert(libc::SYS_clone, namespaces.chain([process]).collect());
    rules.insert(libc::SYS_socket, vec![rule(&FAMILIES.map(|family| (0, Op::Ne, family as u32)))]);
    rules.insert(libc::SYS_ioctl, TERMINAL.map(|request| rule(&[(1, Op::Eq, request)])).into());
    rules.insert(libc::SYS_tgkill, vec![rule(&[(0, Op::Ne, process::id())])]);
    rules
}

/// Returns a rule that matches if all conditions do: the index of an argument of 32 bits, the comparison, and the value.
fn rule(conditions: &[(u8, Op, u32)]) -> SeccompRule {
    let condition = |(index, op, value): &(u8, Op, u32)| {
        SeccompCondition::new(*index, Dword, op.clone(), (*value).into())
            .expect("calls must have at most six arguments")
    };
    SeccompRule::new(conditions.iter().map(condition).collect()).expect("rules must have conditions")
}

fn filter(rules: Rules, mismatch: SeccompAction, matched: SeccompAction) -> Result<BpfProgram, String> {
    let target = TargetArch::try_from(ARCH).map_err(|error| error.to_string())?;
    let filter = SeccompFilter::new(rules, mismatch, matched, target).map_err(|error| error.to_string())?;
    filter.try_into().map_err(|error: seccompiler::BackendError| error.to_string())
}

fn apply(program: &BpfProgram) -> Result<(), String> {
    apply_filter_all_threads(program).map_err(|error| error.to_string())
}

/// The families of sockets: those of the transports and of name services, and netlink, by which libraries list interfaces and RDMA devices.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

const TERMINAL: [u32; 2] = [libc::TIOCSTI as u32, libc::TIOCLINUX as u32];

const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

#[cfg(test)]
mod tests;
