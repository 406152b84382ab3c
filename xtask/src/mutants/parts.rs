//! The code that is mutated, and the tests that judge it.

/// Code whose mutants have one score.
pub struct Part {
    pub name: &'static str,
    pub package: &'static str,
    /// The root of the crate.
    pub lib: &'static str,
    /// Patterns of files below `root`.
    pub root: &'static str,
    pub files: &'static [&'static str],
    /// Fast tests for all mutants, then more tests for those that are missed.
    pub stages: &'static [Stage],
}

/// Tests.
pub struct Stage {
    /// The arguments of cargo that select test programs.
    pub targets: &'static [&'static str],
    /// The arguments of the test programs that select tests.
    pub filters: &'static [&'static str],
}

pub const PARTS: [Part; 5] = [
    Part {
        name: "rpcrdma",
        package: "slipway-rpcrdma",
        lib: "crates/rpcrdma/src/lib.rs",
        root: "crates/rpcrdma/src",
        files: &[
            "call_memory.rs",
            "chunk.rs",
            "connection.rs",
            "credits.rs",
            "expose.rs",
            "fetch.rs",
            "fit.rs",
            "header.rs",
            "link.rs",
            "message.rs",
            "outgoing.rs",
            "private_data.rs",
            "pull.rs",
            "requester.rs",
            "responder.rs",
            "table.rs",
        ],
        stages: &[
            Stage {
                targets: &["--lib", "--test=suite"],
                // Function calls are the wire of these tests, except for those of the transport.
                filters: &[
                    "tests::",
                    "requester::",
                    "responder::",
                    "read_read::",
                    "regions::",
                    "reverse::",
                    "--skip=transport",
                ],
            },
            Stage { targets: &["--test=suite"], filters: &[] },
        ],
    },
    Part {
        name: "iwarp",
        package: "slipway-rdma",
        lib: "crates/rdma/src/lib.rs",
        root: "crates/rdma/src/iwarp",
        files: &["ddp.rs", "mpa.rs", "rdmap.rs", "receiver.rs", "receiver/forecast.rs", "sender.rs"],
        stages: &[
            Stage {
                targets: &["--lib", "--test=iwarp"],
                filters: &[
                    "--skip=shm::",
                    "--skip=verbs::",
                    "--skip=sim::",
                    "--skip=wireshark",
                    "--skip=every_error",
                    "--skip=messages_before_a_reset",
                ],
            },
            Stage { targets: &["--test=iwarp"], filters: &["every_error", "messages_before_a_reset"] },
            Stage {
                targets: &["--test=conformance"],
                filters: &["iwarp::", "iwarp_with_crc::", "iwarp_in_small_fpdus::"],
            },
        ],
    },
    Part {
        name: "v4-state",
        package: "slipway-server",
        lib: "crates/server/src/lib.rs",
        root: "crates/server/src/v4/state",
        files: &["*.rs", "client/**", "transitions/**"],
        stages: &[
            Stage { targets: &["--lib"], filters: &["v4::state::", "--skip=model::"] },
            Stage { targets: &["--lib"], filters: &["v4::state::tests::model::"] },
            // The protocol, in virtual time.
            Stage { targets: &["--test=suite"], filters: &["v40", "v4_", "locks", "callbacks", "admin", "restart"] },
        ],
    },
    Part {
        name: "gss",
        package: "slipway-gss",
        lib: "crates/gss/src/lib.rs",
        root: "crates/gss/src",
        files: &["queue.rs", "shares.rs", "table.rs", "window.rs", "wire.rs"],
        stages: &[Stage { targets: &["--lib"], filters: &[] }],
    },
    Part {
        name: "client-session",
        package: "slipway-client",
        lib: "crates/client/src/lib.rs",
        root: "crates/client/src/session",
        files: &["**"],
        stages: &[
            Stage { targets: &["--lib", "--test=suite"], filters: &["session", "requester::", "v40::"] },
            Stage {
                targets: &["--test=suite"],
                filters: &["faults::", "restart::", "waiting::", "hostile::", "migration::", "opening::"],
            },
        ],
    },
];
