//! Tests that the layouts declared by `verbs` match the installed headers, as compiled by a C compiler.

use std::{fmt::Write as _, process::Command};

use rdma::verbs::ffi::LAYOUT;

#[test]
fn layouts_match_the_headers() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("layout.c"), directory.path().join("layout"));
    let mut text =
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n\
                    int main(void) {\n"
            .to_owned();
    for (expression, _) in LAYOUT {
        writeln!(text, "  printf(\"%zu\\n\", (size_t)({expression}));").unwrap();
    }
    std::fs::write(&source, text + "  return 0;\n}\n").unwrap();
    let headers = ["infiniband/verbs.h", "rdma/rdma_cma.h"];
    if !headers.iter().all(|header| std::path::Path::new("/usr/include").join(header).exists()) {
        println!("SKIPPED verbs: layout of the C structures: install libibverbs-dev and librdmacm-dev");
        return;
    }
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&program).output().expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&program).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let have: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(have.len(), LAYOUT.len());
    for ((expression, ours), theirs) in LAYOUT.iter().zip(have) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}
