//! The dependencies between crates (ARCHITECTURE.md, "Arrows"), read from the manifests.

use serde_json::Value;

use super::File;
use crate::shell;

/// Each crate, and the crates of ours that it may depend on. `buf` and `entropy` are below everything and
/// may be used by everybody; `simnet` is used by features for tests.
const ARROWS: [(&str, &[&str]); 21] = [
    ("buf", &[]),
    ("entropy", &[]),
    ("simnet", &["simnet-macros"]),
    ("simnet-macros", &[]),
    ("xdr-derive", &[]),
    ("xdr", &["xdr-derive"]),
    ("rdma", &["simnet"]),
    ("vfs", &[]),
    ("rpc", &["simnet", "xdr"]),
    ("nfs", &["xdr"]),
    ("gss", &["rpc", "xdr"]),
    ("rpcrdma", &["rpc", "rdma", "xdr"]),
    ("server", &["rpc", "nfs", "vfs", "xdr"]),
    ("client", &["rpc", "nfs", "gss", "xdr"]),
    ("pnfs", &["vfs"]),
    ("conformance", &["rdma", "vfs"]),
    ("transports", &["rpc", "rdma", "rpcrdma", "nfs"]),
    ("testkit", &["simnet", "xdr", "rpc", "rdma", "rpcrdma", "nfs", "gss", "vfs", "server", "client", "pnfs"]),
    ("slipway", &["xdr", "rpc", "rdma", "nfs", "gss", "vfs", "server", "client", "transports", "pnfs"]),
    ("hostile", &[]),
    ("xtask", &[]),
];

/// Returns the dependencies that are not allowed. Dependencies of tests (`dev-dependencies`) are not checked.
pub fn broken() -> Vec<String> {
    let metadata = match packages() {
        Ok(packages) => packages,
        Err(why) => return vec![why],
    };
    let mut complaints = Vec::new();
    for package in &metadata {
        let name = directory_of(package["name"].as_str().unwrap_or_default());
        let Some((_, allowed)) = ARROWS.iter().find(|(of, _)| *of == name) else {
            complaints.push(format!("crate {name} has no line in xtask/src/tidy/arrows.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if dependency["path"].is_null() || dependency["kind"] == "dev" {
                continue;
            }
            let on = directory_of(dependency["name"].as_str().unwrap_or_default());
            if !["buf", "entropy"].contains(&on) && !allowed.contains(&on) {
                complaints.push(format!("{name} -> {on}: ARCHITECTURE.md has no such arrow"));
            }
        }
    }
    complaints
}

/// Returns the crates whose directory ARCHITECTURE.md does not mention.
pub fn unmentioned(files: &[File]) -> Vec<String> {
    let Some(map) = files.iter().find(|file| file.path == "ARCHITECTURE.md") else {
        return vec!["there is no ARCHITECTURE.md".into()];
    };
    let mut crates: Vec<&str> = files
        .iter()
        .filter_map(|file| file.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
        .filter(|name| !name.contains('/'))
        .collect();
    crates.retain(|name| !map.text.contains(&format!("crates/{name}`")));
    crates.into_iter().map(|name| format!("ARCHITECTURE.md does not mention `crates/{name}`")).collect()
}

fn packages() -> Result<Vec<Value>, String> {
    let json = shell::capture(&mut shell::cargo(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&json).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(metadata["packages"].as_array().cloned().unwrap_or_default())
}

/// Packages are named `slipway-NAME` and are in `crates/NAME`.
fn directory_of(package: &str) -> &str {
    package.strip_prefix("slipway-").unwrap_or(package)
}
