//! Test programs of file systems, and ordinary programs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::Place;
use crate::interop::{acls::ACLS, lab::text};

/// Runs pjdfstest, which checks names, attributes and permissions of POSIX as three users.
pub fn pjdfstest(place: &mut Place) -> Result<(), String> {
    let expected: Vec<&str> = EXPECTED_FAILURES
        .iter()
        .filter(|(version, ..)| place.version.starts_with(version))
        .map(|(_, name, _)| *name)
        .collect();
    let configuration = place.logs.join("pjdfstest.toml");
    let another_file_system = text(&place.logs);
    let features = ["posix_fallocate", "rename_ctime", "stat_st_birthtime", "utime_now", "utimensat"];
    let features = features.map(|feature| format!("{feature} = {{}}\n")).concat();
    let settings = format!(
        "[features]\nsecondary_fs = \"{another_file_system}\"\n{features}\n\
         [settings]\nnaptime = 0.02\nexpected_failures = {expected:?}\n\n\
         [dummy_auth]\nentries = [[\"daemon\", \"daemon\"], [\"bin\", \"bin\"]]\n"
    );
    std::fs::write(&configuration, settings).map_err(|error| error.to_string())?;
    let ran = place.program(&place.tools.pjdfstest, &["-c", &text(&configuration), "-p", "."]);
    let output = std::fs::read_to_string(place.logs.join("pjdfstest.log")).map_err(|error| error.to_string())?;
    let failed: BTreeSet<&str> = output
        .lines()
        .filter(|line| line.ends_with("FAILED") || line.ends_with("PASSED UNEXPECTEDLY"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    ran.map(drop).map_err(|why| if failed.is_empty() { why } else { format!("these tests fail: {failed:?}") })
}

/// The tests that cannot pass: the versions, the test, and the reason.
const EXPECTED_FAILURES: [(&str, &str, &str); 2] = [
    (
        "",
        "unlink::open_file_not_freed",
        "a file that is removed while it is open is renamed, as by the kernel's client",
    ),
    ("3", "utimensat::y2038", "NFSv3 has no times after 2106"),
];

/// Runs fsx, which reads and writes a file at random places by system calls and by memory maps, and checks all data.
pub fn fsx(place: &mut Place) -> Result<(), String> {
    fsx_with(place, "sendfile = 2\n")
}

/// Runs fsx on a file that is open for reading, so that the server has passed it, and all opens by fsx use it. Not all kernels have
/// sendfile from an open for writing of a passed file.
pub fn fsx_passed(place: &mut Place) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    std::fs::write(place.served.join("file"), vec![7; LARGE]).map_err(failed)?;
    let mut reader = File::open(place.at.join("file")).map_err(failed)?;
    fsx_with(place, "")?;
    let mut here = Vec::new();
    reader.read_to_end(&mut here).map_err(failed)?;
    let there = std::fs::read(place.served.join("file")).map_err(failed)?;
    if here == there { Ok(()) } else { Err("the reader sees other data than the server has".into()) }
}

/// More bytes than those of a file that is read by one call.
const LARGE: usize = 1 << 20;

fn fsx_with(place: &mut Place, weights: &str) -> Result<(), String> {
    // Only NFSv4.2 has operations that allocate space and punch holes.
    let space = if place.version == "4.2" { "posix_fallocate = 1\npunch_hole = 2\ncopy_file_range = 2\n" } else { "" };
    let settings = place.logs.join("fsx.toml");
    let all = "[weights]\nclose_open = 1\ninvalidate = 1\ntruncate = 3\nfsync = 1\nfdatasync = 1\nposix_fadvise = 1\n";
    std::fs::write(&settings, [all, weights, space].concat()).map_err(|error| error.to_string())?;
    // The seed reproduces a failure.
    let (settings, artifacts) = (text(&settings), text(&place.logs));
    let arguments = ["-f", &settings, "-P", &artifacts, "-N", FSX_OPERATIONS, "-S", "7", "file"];
    place.program(&place.tools.fsx, &arguments)?;
    let len = |path: &Path| path.metadata().map(|file| file.len()).map_err(|error| error.to_string());
    let (here, there) = (len(&place.at.join("file"))?, len(&place.served.join("file"))?);
    if here == there { Ok(()) } else { Err(format!("the file has {here} bytes, and at the server {there}")) }
}

const FSX_OPERATIONS: &str = "1000";

/// Runs stressors of stress-ng that verify names and data, all at once.
pub fn stress(place: &mut Place) -> Result<(), String> {
    let stressors = STRESSORS.iter().flat_map(|(name, operations)| {
        [format!("--{name}"), "1".into(), format!("--{name}-ops"), operations.to_string()]
    });
    let arguments: Vec<String> = stressors.collect();
    let fixed = ["--temp-path", ".", "--verify", "--metrics-brief", "--hdd-bytes", "8M", "--seek-size", "8M"];
    let all: Vec<&str> = fixed.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let output = place.program(Path::new("stress-ng"), &all)?;
    if !output.contains("successful run completed") || output.contains("aborted early") {
        return Err("stress-ng has not run all stressors".into());
    }
    let left: Vec<_> = place.served.read_dir().map_err(|error| error.to_string())?.flatten().collect();
    if left.is_empty() { Ok(()) } else { Err(format!("stress-ng's files are left at the server: {left:?}")) }
}

/// The stressors, and the number of their operations.
const STRESSORS: [(&str, u32); 9] = [
    ("dir", 100),
    ("rename", 200),
    ("chmod", 5),
    ("utime", 100),
    ("hdd", 200),
    ("seek", 100),
    ("lockf", 50),
    ("dentry", 500),
    ("open", 100),
];

/// Two processes write a database of SQLite with a write-ahead log, whose index is a shared memory map. A third is
/// killed: all that it had committed must be there.
pub fn sqlite(place: &mut Place) -> Result<(), String> {
    place.script(SQLITE, &[&text(&place.logs)]).map(drop)
}

/// Does the same with a database that another program has open for reading, so that the server has passed it.
pub fn sqlite_passed(place: &mut Place) -> Result<(), String> {
    place.script(&format!("{PASSED_DATABASE}{SQLITE}"), &[&text(&place.logs)]).map(drop)
}

const PASSED_DATABASE: &str = "
sqlite3 db 'CREATE TABLE large AS SELECT randomblob(1000000) AS value;'
exec 3<db
";

const SQLITE: &str = r#"
test "$(sqlite3 db 'PRAGMA journal_mode = WAL; CREATE TABLE t (writer, number);')" = wal
inserts() { for number in $(seq "$2"); do echo "INSERT INTO t VALUES ('$1', $number); SELECT $number;"; done; }
write() { sqlite3 -bail -cmd '.timeout 120000' db; }
inserts one 150 | write >/dev/null & one=$!
inserts two 150 | write >/dev/null & two=$!
inserts killed 20000 >"$1/inserts"
stdbuf -oL sqlite3 -bail -cmd '.timeout 120000' db <"$1/inserts" >"$1/committed" & killed=$!
until test "$(wc -l <"$1/committed")" -ge 50; do kill -0 $killed; sleep 0.05; done
kill -KILL $killed
wait $killed && exit 1
wait $one
wait $two
query() { sqlite3 -cmd '.timeout 120000' db "$1"; }
test "$(query 'PRAGMA integrity_check;')" = ok
test "$(query "SELECT count(*) FROM t WHERE writer <> 'killed';")" = 300
committed=$(grep -c . "$1/committed")
found=$(query "SELECT count(*) FROM t WHERE writer = 'killed';")
echo "committed $committed, found $found"
test "$found" -ge "$committed"
"#;

/// The life cycle of a repository: commits, branches, a merge, a clone, a garbage collection, and git's own check.
pub fn git(place: &mut Place) -> Result<(), String> {
    let arguments = [&place.bench.fixture.archive, &place.logs, &place.served].map(|path| text(path));
    place.script(GIT, &arguments.each_ref().map(String::as_str)).map(drop)
}

const GIT: &str = r#"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example
some=(acpi asm-generic crypto drm)
mkdir "$2/expected"
tar -xf "$1" -C "$2/expected" "${some[@]}"
git init --quiet --initial-branch=main made
tar -xf "$1" -C made "${some[@]}"
cd made
git add .
git commit --quiet -m all
test -z "$(git status --porcelain)"
git checkout --quiet -b other
for file in $(git ls-files | sed -n 1,20p); do echo changed >>"$file"; done
git commit --quiet -a -m changed
git checkout --quiet main
echo new >new
git add new
git commit --quiet -m new
git merge --quiet --no-edit other
test "$(git diff --name-only HEAD~1 HEAD | wc -l)" = 20
git gc --quiet
git fsck --strict --no-progress
cd ..
git clone --quiet --no-local made clone
cd clone
git checkout --quiet origin/main~1
test -z "$(git status --porcelain)"
git revert --no-edit HEAD >/dev/null
rm -rf .git
cd ..
diff -r "$2/expected" "$3/clone"
"#;

/// Sets and reads POSIX ACLs, which are those of the server's file system.
pub fn acls(place: &mut Place) -> Result<(), String> {
    let server = "server() { (cd \"$1\" && effective .); }\n";
    place.script(&format!("{server}{ACLS}"), &[&text(&place.served)]).map(drop)
}
