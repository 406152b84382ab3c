//! The check that code of simulated crates takes random values, hash keys and the time of day only from the crate `entropy`.

use super::File;

/// The crates that run in simulations.
const SIMULATED: [&str; 7] = [
    "crates/rpc/src/",
    "crates/rpcrdma/src/",
    "crates/rdma/src/",
    "crates/vfs/src/",
    "crates/server/src/",
    "crates/client/src/",
    "crates/pnfs/src/",
];

/// The parts of these crates that need the operating system, so they do not run in simulations.
const REAL: [&str; 4] =
    ["crates/rdma/src/iwarp/", "crates/rdma/src/shm/", "crates/rdma/src/verbs/", "crates/vfs/src/posix/"];

/// Sources of values and orders that differ from run to run, and the items that replace them.
const SOURCES: [(&str, &str); 9] = [
    ("rand::random", "entropy::random"),
    ("rand::rng(", "entropy::random"),
    ("SystemTime::now(", "entropy::system_time"),
    ("hash_map::RandomState", "entropy::RandomState"),
    ("HashMap", "entropy::HashMap"),
    ("HashSet", "entropy::HashSet"),
    // It wakes tasks in a random order.
    ("watch::channel(", "rpc::Signal or Notify"),
    ("watch::Sender", "rpc::Signal or Notify"),
    ("watch::Receiver", "rpc::Signal or Notify"),
];

/// Returns the uses of sources whose values do not follow from the seed of a simulation.
pub fn unseeded(files: &[File]) -> Vec<String> {
    let simulated = files.iter().filter(|file| {
        let among = |folders: &[&str]| folders.iter().any(|folder| file.path.starts_with(folder));
        among(&SIMULATED) && !among(&REAL) && !file.path.contains("/tests")
    });
    simulated.flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<String> {
    let code = file.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines: Vec<&str> = code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let mut complaints = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let mut complain = |what: &str| complaints.push(format!("{}:{}: {what}", file.path, number + 1));
        for (source, instead) in SOURCES {
            // A table is the standard library's only if it is imported from `std::collections`.
            let is_table = source.starts_with("Hash");
            if line.contains(source) && (!is_table || line.contains("collections::")) {
                complain(&format!("{source}: use {instead}"));
            }
        }
        let next = lines.get(number + 1).copied().unwrap_or_default();
        if line.contains("select! {") && !line.contains("biased;") && !next.contains("biased;") {
            complain("select! without `biased;` polls its branches in random order");
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> usize {
        unseeded(&[File { path: path.into(), text: text.into() }]).len()
    }

    #[test]
    fn unseeded_sources_are_found() {
        let path = "crates/server/src/a.rs";
        assert_eq!(complaints(path, "let key = rand::random();"), 1);
        assert_eq!(complaints(path, "use std::{\n    collections::{HashMap, VecDeque},\n};"), 1);
        assert_eq!(complaints(path, "let (sender, receiver) = watch::channel(0);"), 1);
        assert_eq!(complaints(path, "tokio::select! {\n    () = one => {}\n}"), 1);
        assert_eq!(complaints(path, "tokio::select! {\n    biased;\n    () = one => {}\n}"), 0);
        assert_eq!(complaints(path, "use entropy::HashMap;\nlet key = entropy::random();"), 0);
    }

    #[test]
    fn unseeded_sources_are_allowed_in_tests_and_unsimulated_parts() {
        assert_eq!(complaints("crates/vfs/src/posix/a.rs", "SystemTime::now();"), 0);
        assert_eq!(complaints("crates/server/src/a.rs", "#[cfg(test)]\nmod tests {\n    rand::random();\n}"), 0);
    }
}
