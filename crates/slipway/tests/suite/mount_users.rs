//! Tests of `slipway mount --allow-other`: several users on one mount.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output},
};

use crate::common::{fails, mounted::World};

/// Two users of the tests, which need no entries in the databases of users and groups.
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;
/// A group.
const TEAM: u32 = 62_000;

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

/// Runs a shell command as a user with these supplementary groups, and returns its output.
fn run_as(uid: u32, groups: &str, at: &Path, script: &str) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &uid.to_string(), "--regid", &uid.to_string()]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.args(["--groups", groups]),
    };
    command.args(["sh", "-c", &format!("umask 022; {script}")]).current_dir(at);
    command.arg0("setpriv").output().unwrap()
}

/// Runs a shell command as a user, and requires success. Returns what it prints.
fn allowed(uid: u32, at: &Path, script: &str) -> String {
    let done = run_as(uid, "", at, script);
    assert!(done.status.success(), "{uid}: {script}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Runs a shell command as a user, and requires that it fails because of a permission.
fn denied(uid: u32, groups: &str, at: &Path, script: &str) {
    let done = run_as(uid, groups, at, script);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let refused = said.contains("ermission denied") || said.contains("not permitted");
    assert!(!done.status.success() && refused, "{uid}: {script}: {said}{}", String::from_utf8_lossy(&done.stdout));
}

/// Mounts a directory that all users can write, for all users, and calls `test` with the mount point.
fn with_users(test: &str, versions: &[&str], args: &[&str], check: impl Fn(&World, &Path, &str)) {
    for version in versions {
        let Some(world) = World::new(test, "tcp", "") else { return };
        let mounted = world.for_all_users(version, args);
        check(&world, &mounted.at, version);
        mounted.end();
    }
}

#[test]
fn files_belong_to_their_creators_and_the_server_checks_each_user() {
    with_users(
        "files_belong_to_their_creators_and_the_server_checks_each_user",
        &VERSIONS,
        &[],
        |world, at, version| {
            allowed(
                ALICE,
                at,
                "echo hers > hers; chmod 600 hers; mkdir closed; echo deep > closed/deep; chmod 700 closed",
            );
            allowed(BOB, at, "echo his > his; ln -s his link; mkfifo pipe; ln his second");
            for (name, owner) in [("hers", ALICE), ("closed", ALICE), ("his", BOB), ("link", BOB), ("pipe", BOB)] {
                let meta = world.served.join(name).symlink_metadata().unwrap();
                assert_eq!((meta.uid(), meta.gid()), (owner, owner), "{name} over {version}");
            }
            assert_eq!(allowed(ALICE, at, "cat his hers closed/deep"), "his\nhers\ndeep\n");
            // The names and pages are in the kernel's cache now.
            for script in [
                "cat hers",
                "echo x >> hers",
                "cat closed/deep",
                "ls closed",
                "env -C closed true",
                "chmod 777 hers",
                "rm -f hers",
                "mv hers mine",
                "touch closed/new",
                "truncate -s 0 hers",
                "chown 61002 hers",
                "stat closed/deep",
            ] {
                denied(BOB, "", at, script);
            }
            assert_eq!(
                allowed(BOB, at, "test -r hers && echo r; test -w hers && echo w; test -w his && echo own"),
                "own\n"
            );
            assert_eq!(fs::read_to_string(world.served.join("hers")).unwrap(), "hers\n");
            // A mode of this mount takes effect for the other user at once.
            allowed(ALICE, at, "chmod 644 hers");
            assert_eq!(allowed(BOB, at, "cat hers"), "hers\n");
            allowed(ALICE, at, "chmod 600 hers");
            denied(BOB, "", at, "cat hers");
        },
    );
}

#[test]
fn supplementary_groups_of_the_caller_count() {
    with_users("supplementary_groups_of_the_caller_count", &["3", "4.2"], &[], |world, at, _| {
        fs::write(world.served.join("team"), "team\n").unwrap();
        chown(world.served.join("team"), Some(ALICE), Some(TEAM)).unwrap();
        fs::set_permissions(world.served.join("team"), fs::Permissions::from_mode(0o660)).unwrap();
        let member = run_as(BOB, &TEAM.to_string(), at, "cat team && echo more >> team && chgrp 62000 .");
        assert_eq!(String::from_utf8_lossy(&member.stdout), "team\n", "{}", String::from_utf8_lossy(&member.stderr));
        denied(BOB, "", at, "cat team");
        denied(BOB, "62001,62002", at, "cat team");
        assert_eq!(fs::read_to_string(world.served.join("team")).unwrap(), "team\nmore\n");
    });
}

#[test]
fn open_file_keeps_the_rights_of_the_user_that_opened_it() {
    with_users("open_file_keeps_the_rights_of_the_user_that_opened_it", &VERSIONS, &[], |world, at, version| {
        allowed(ALICE, at, "echo private > kept; chmod 600 kept; echo locked > lock; chmod 600 lock");
        // root's descriptors of Alice's file, which Bob's process inherits: the server squashes nobody here.
        let script = format!(
            "exec 3<kept 4>>kept; exec setpriv --reuid {BOB} --regid {BOB} --clear-groups sh -c \
             'cat <&3 && echo appended >&4 && ! cat kept 2>/dev/null'"
        );
        let done = Command::new("sh").args(["-c", &script]).current_dir(at).output().unwrap();
        assert!(done.status.success(), "over {version}: {}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(fs::read_to_string(world.served.join("kept")).unwrap(), "private\nappended\n");
        // Locks of different users conflict, and both have the file open.
        allowed(ALICE, at, "chmod 666 lock; flock -x lock true");
        allowed(ALICE, at, "flock -x lock setpriv true; flock -s lock cat lock");
        allowed(BOB, at, "flock -x lock sh -c 'echo bob > lock'");
        assert_eq!(fs::read_to_string(world.served.join("lock")).unwrap(), "bob\n");
    });
}

#[test]
fn two_users_write_at_the_same_time() {
    with_users("two_users_write_at_the_same_time", &VERSIONS, &[], |world, at, version| {
        allowed(ALICE, at, "echo > both; chmod 666 both");
        let script =
            "for i in $(seq 60); do echo $i > f$0-$i && cat f$0-$i both >/dev/null && echo $i >> both || exit 1; done";
        std::thread::scope(|scope| {
            for user in [ALICE, BOB] {
                scope.spawn(move || {
                    let own = script.replace("$0", &user.to_string());
                    allowed(user, at, &own)
                });
            }
        });
        for user in [ALICE, BOB] {
            for number in [1, 60] {
                let meta = world.served.join(format!("f{user}-{number}")).metadata().unwrap();
                assert_eq!(meta.uid(), user, "over {version}");
            }
        }
    });
}

#[test]
fn opens_of_several_users_survive_a_restart_of_the_server() {
    for version in ["4.0", "4.1"] {
        let Some(mut world) = World::new("opens_of_several_users_survive_a_restart_of_the_server", "tcp", "") else {
            return;
        };
        let mounted = world.for_all_users(version, &[]);
        // Each user holds an open file with a lock during the restart, and writes after it.
        let hold = |user: u32| {
            let script = format!(
                "umask 077; exec 3>>f{user}; flock -x 3; echo before >&3; echo held; read go; echo after >&3; exec 3>&-"
            );
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &user.to_string(), "--regid", &user.to_string(), "--clear-groups"]);
            command.args(["sh", "-c", &script]).current_dir(&mounted.at);
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut line = [0; 5];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
            assert_eq!(&line, b"held\n");
            child
        };
        let mut holders: Vec<_> = [ALICE, BOB].map(hold).into();
        world.restart(&[]);
        for holder in &mut holders {
            std::io::Write::write_all(holder.stdin.as_mut().unwrap(), b"go\n").unwrap();
            assert!(holder.wait().unwrap().success(), "over {version}");
        }
        for user in [ALICE, BOB] {
            let file = world.served.join(format!("f{user}"));
            assert_eq!(fs::read_to_string(&file).unwrap(), "before\nafter\n");
            assert_eq!((file.metadata().unwrap().uid(), file.metadata().unwrap().mode() & 0o777), (user, 0o600));
        }
        mounted.end();
    }
}

#[test]
fn user_of_the_url_excludes_other_users() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    for query in ["uid=5", "gid=5", "gids=5,6"] {
        let said = fails(2, &["mount", "--allow-other", &format!("nfs://127.0.0.1/x?{query}"), at]);
        assert!(said.contains("acts as its caller"), "{said}");
    }
}
