//! Tests of every command against a server, over every transport.

use crate::common;
use std::{
    fs,
    io::Read,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::Stdio,
};

use crate::common::{Server, TRANSPORTS, command, fails, lines, ok, run, stderr};

/// Makes a tree with everything that a copy must keep.
fn tree(dir: &Path) {
    fs::create_dir_all(dir.join("sub/deeper")).unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    fs::write(dir.join("sub/small"), "small").unwrap();
    fs::write(dir.join("sub/deeper/large"), (0..3_000_000u32).map(|i| (i * 7 % 251) as u8).collect::<Vec<_>>())
        .unwrap();
    fs::write(dir.join("sub/na\u{ef}ve name"), "x").unwrap();
    symlink("sub/small", dir.join("link")).unwrap();
    symlink("nowhere", dir.join("dangling")).unwrap();
    fs::hard_link(dir.join("sub/small"), dir.join("second name")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"middle", 10 << 20).unwrap();
    sparse.set_len(40 << 20).unwrap();
    fs::set_permissions(dir.join("sub/small"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(dir.join("sub/deeper"), fs::Permissions::from_mode(0o500)).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_500_000_000, 123_000_000);
    fs::File::open(dir.join("empty")).unwrap().set_modified(time).unwrap();
    fs::File::open(dir.join("sub")).unwrap().set_modified(time).unwrap();
}

/// Describes everything that a copy must keep, as lines.
fn describe(root: &Path) -> Vec<String> {
    fn walk(root: &Path, dir: &Path, into: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let kind = meta.file_type();
            let content = if kind.is_symlink() {
                fs::read_link(&path).unwrap().display().to_string()
            } else if kind.is_file() {
                let data = fs::read(&path).unwrap();
                format!(
                    "{} bytes, sum {}, links {}",
                    data.len(),
                    data.iter().map(|&b| u64::from(b)).sum::<u64>(),
                    meta.nlink()
                )
            } else {
                String::new()
            };
            // Not every system can set the time of a link. A directory's time is set last, so it is kept.
            let time = if kind.is_symlink() { 0 } else { meta.mtime() };
            let mode = if kind.is_symlink() { 0 } else { meta.mode() };
            into.push(format!("{} {mode:o} {time} {content}", path.strip_prefix(root).unwrap().display()));
            if kind.is_dir() {
                walk(root, &path, into);
            }
        }
    }
    let mut lines = Vec::new();
    walk(root, root, &mut lines);
    lines.sort();
    lines
}

#[test]
fn files_are_created_listed_read_and_removed_over_every_transport() {
    let dir = tempfile::tempdir().unwrap();
    let local = dir.path().join("file");
    let content: Vec<u8> = (0..700_000u32).map(|i| (i % 253) as u8).collect();
    fs::write(&local, &content).unwrap();
    let server = Server::memory();
    for transport in TRANSPORTS {
        let url = |path: &str| server.url(transport, path);
        ok(&["mkdir", "-p", &url("/a/b/c")]);
        ok(&["mkdir", "-p", &url("/a/b/c")]);
        ok(&["mkdir", "-m", "700", &url("/a/private")]);
        ok(&["cp", local.to_str().unwrap(), &url("/a")]);
        ok(&["cp", local.to_str().unwrap(), &url("/a/b/renamed")]);

        assert_eq!(ok(&["ls", &url("/a")]), "b\nfile\nprivate\n");
        let long = ok(&["ls", "-l", &url("/a")]);
        assert!(long.contains("drwx------") && long.contains("700000"), "{long}");
        let all = ok(&["ls", "-R", &url("/a")]);
        assert!(all.contains("/a/b:\nc\nrenamed\n") && all.contains("/a/b/c:\n"), "{all}");
        let json = lines(&ok(&["ls", "--json", "-R", &url("/a")]));
        let file = json.iter().find(|object| object["path"].as_str().unwrap().ends_with("/a/file")).unwrap();
        assert_eq!((&file["type"], &file["size"], &file["mode"]), (&"file".into(), &700_000.into(), &"0644".into()));

        let output = run(&["cat", &url("/a/file"), &url("/a/b/renamed")]);
        assert!(output.status.success() && output.stdout == [&content[..], &content[..]].concat());
        let stat = &lines(&ok(&["stat", "--json", &url("/a/b")]))[0];
        assert_eq!((&stat["type"], &stat["mode"]), (&"dir".into(), &"0755".into()));
        assert!(ok(&["stat", &url("/a/file")]).contains("Size: 700000 bytes"));
        let df = &lines(&ok(&["df", "--json", &url("")]))[0];
        assert_eq!(df["bytes_total"], 512 << 20);
        assert!(ok(&["df", &url("")]).contains("512 MiB") && ok(&["df", "-i", &url("")]).contains("Files"));
        assert_eq!(ok(&["showmount", &url("")]), "/memory  (everyone)\n");
        assert_eq!(lines(&ok(&["showmount", "--json", &url("")]))[0]["path"], "/memory");
        assert!(ok(&["showmount", "-a", &url("")]).contains("127.0.0.1"));

        assert!(fails(1, &["rm", &url("/a")]).contains("-r"));
        ok(&["rm", &url("/a/file")]);
        ok(&["rm", "-r", &url("/a")]);
        assert_eq!(ok(&["ls", &url("")]), "");
        ok(&["rm", "-f", &url("/a")]);
    }
    server.stop();
}

#[test]
fn tree_copies_are_identical_over_every_transport() {
    let dir = tempfile::tempdir().unwrap();
    let (source, served) = (dir.path().join("source"), dir.path().join("served"));
    tree(&source);
    fs::create_dir(&served).unwrap();
    let server = Server::dir(&served, &dir.path().join("state"));
    let other = Server::memory();
    for transport in TRANSPORTS {
        let back = dir.path().join(format!("back-{transport}"));
        let name = format!("/in-{transport}");
        ok(&["cp", "-a", source.to_str().unwrap(), &server.url(transport, &name)]);
        assert_eq!(describe(&served.join(&name[1..])), describe(&source), "in, {transport}");
        ok(&["cp", "-a", &server.url(transport, &name), back.to_str().unwrap()]);
        assert_eq!(describe(&back), describe(&source), "out, {transport}");
        for copy in [served.join(&name[1..]), back] {
            let sparse = copy.join("sparse").metadata().unwrap();
            assert!(sparse.blocks() * 512 < 1 << 20, "{}: holes must be kept, {transport}", copy.display());
        }
    }
    let second = dir.path().join("second");
    ok(&["cp", "-a", &server.url("tcp", "/in-udp"), &other.url("rdma", "/over")]);
    ok(&["cp", "-a", &other.url("tcp", "/over"), second.to_str().unwrap()]);
    assert_eq!(describe(&second), describe(&source), "the copy through two servers must be identical");
}

#[test]
fn a_copy_without_attributes_applies_the_umask_and_follows_source_links() {
    let dir = tempfile::tempdir().unwrap();
    let (source, back) = (dir.path().join("source"), dir.path().join("back"));
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/file"), "data").unwrap();
    fs::set_permissions(source.join("sub/file"), fs::Permissions::from_mode(0o777)).unwrap();
    symlink("sub/file", source.join("link")).unwrap();
    let server = Server::memory();
    let (url, to) = (|path: &str| server.url("tcp", path), |path: &Path| path.to_str().unwrap().to_owned());
    // Several sources need a directory. A link to one is followed.
    ok(&["mkdir", &url("/target")]);
    ok(&["cp", "-r", &to(&source.join("sub")), &to(&source.join("link")), &url("/target")]);
    let link = &lines(&ok(&["stat", "--json", &url("/target/link")]))[0];
    assert_eq!((&link["type"], &link["target"]), (&"symlink".into(), &"sub/file".into()));
    ok(&["cp", &to(&source.join("link")), &url("/target/followed")]);
    assert_eq!(lines(&ok(&["stat", "--json", &url("/target/followed")]))[0]["mode"], "0755");
    ok(&["cp", "-r", &url("/target"), &to(&back)]);
    assert_eq!(fs::read_to_string(back.join("link")).unwrap(), "data");
    // A second copy replaces files, and the root of an export is copied by its content.
    fs::write(source.join("sub/file"), "d").unwrap();
    ok(&["cp", "-r", &to(&source.join("sub")), &url("/target")]);
    assert_eq!(ok(&["cat", &url("/target/sub/file")]), "d");
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    ok(&["cp", "-r", &url(""), &to(&root)]);
    assert!(root.join("memory/target/sub/file").exists(), "the copy must use the name of the export");
}

#[test]
fn copying_onto_or_into_itself_is_rejected() {
    let server = Server::memory();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let url = |path: &str| server.url("tcp", path);
    ok(&["cp", file.to_str().unwrap(), &url("/file")]);
    assert!(fails(1, &["cp", &url("/file"), &url("/file")]).contains("the same"));
    assert_eq!(ok(&["cat", &url("/file")]), "precious");
    ok(&["mkdir", "-p", &url("/d/e")]);
    let said = fails(1, &["cp", "-r", &url("/d"), &url("/d/e")]);
    assert!(said.contains("skipped"), "{said}");
    assert!(fails(1, &["cp", file.to_str().unwrap(), file.to_str().unwrap()]).contains("the same"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn errors_name_the_path_and_the_rest_is_copied() {
    let server = Server::memory();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "a").unwrap();
    let local = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let url = |path: &str| server.url("tcp", path);

    ok(&["mkdir", &url("/d")]);
    let said = fails(1, &["cp", &local("missing"), &local("a"), &url("/d")]);
    assert!(said.contains("missing") && said.contains("No such file"), "{said}");
    let output = run(&["cat", &url("/d/missing"), &url("/d/a")]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b"a"[..]));
    assert!(stderr(&output).contains("/d/missing") && stderr(&output).contains("no such file"), "{}", stderr(&output));
    assert!(fails(1, &["cp", &url("/d"), &local("out")]).contains("-r"));
    assert!(fails(1, &["mkdir", &url("/d")]).contains("exists"));
    assert!(fails(1, &["mkdir", &url("/no/such")]).contains("no such file"));
    assert!(fails(1, &["rm", &url("/none")]).contains("no such file"));
    assert!(fails(1, &["ls", &url("/none"), &url("/d")]).contains("/none"));
    assert!(fails(1, &["stat", &url("/none")]).contains("/none"));

    // The command line is wrong.
    assert!(fails(2, &["ls", "http://host/x"]).contains("nfs://"));
    assert!(fails(2, &["ls", "nfs://host/x?vers=5"]).contains("allowed: 3"));
    assert!(fails(2, &["cp", &local("a")]).contains("TARGET"));
    assert!(fails(2, &["cp", &local("a"), &local("a"), &url("/new")]).contains("directory"));
    assert!(fails(2, &["mkdir", "-m", "888", &url("/x")]).contains("octal"));

    // No server, no export, no transport option.
    let port = server.port("tcp");
    let dead = "nfs://127.0.0.1:1/x?mountport=1&timeo=1s";
    assert!(fails(3, &["ls", dead]).contains("127.0.0.1:1"));
    assert!(fails(3, &["cp", &local("a"), dead]).contains("127.0.0.1:1"));
    for vers in ["3", "4.0", "4.2"] {
        let other = format!("nfs://127.0.0.1:{port}/other?mountport={port}&vers={vers}");
        assert!(fails(1, &["ls", &other]).contains("no such"), "{vers}");
    }
    fails(2, &["ls", &format!("{}&colour=red", url(""))]);
}

#[test]
fn a_port_with_another_protocol_is_an_immediate_error() {
    let server = Server::memory();
    // The deadline is longer than the timeout of the test.
    let wrong = |port: u16, proto: &str, vers: &str| {
        format!("nfs://127.0.0.1:{port}/memory?proto={proto}&vers={vers}&mountport={port}&timeo=1000s")
    };
    for vers in ["3", "4.2"] {
        let port = server.port("rdma");
        assert!(
            fails(3, &["ls", &wrong(port, "tcp", vers)]).contains(&port.to_string()),
            "the peer closes the connection"
        );
        assert!(fails(3, &["ls", &wrong(1, "tcp", vers)]).contains("refused"));
    }
    // The client cannot distinguish a lost datagram from a port without a receiver, so it tells the user that it waits.
    let said = fails(3, &["ls", "nfs://127.0.0.1:1/memory?proto=udp&mountport=1&timeo=1s"]);
    assert!(said.contains("no answer yet") && said.contains("no answer within 1s"), "{said}");
}

#[test]
fn a_closed_pipe_ends_the_command_without_an_error() {
    let server = Server::memory();
    let dir = tempfile::tempdir().unwrap();
    let big = dir.path().join("big");
    fs::write(&big, vec![1; 8 << 20]).unwrap();
    ok(&["cp", big.to_str().unwrap(), &server.url("tcp", "/big")]);
    let mut cat =
        command(&["cat", &server.url("tcp", "/big")]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut some = [0; 100];
    cat.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    drop(cat.stdout.take());
    let mut said = String::new();
    cat.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(common::wait(&mut cat).success() && said.is_empty(), "{said}");
}

#[test]
fn demo_compares_the_copies() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    tree(&source);
    // The demo copies files, directories and links. It cannot compare a pipe.
    fs::remove_file(source.join("pipe")).unwrap();
    let room = dir.path().join("room");
    fs::create_dir(&room).unwrap();
    let args = ["demo", "--size", "2M", "--dir", room.to_str().unwrap(), "--tree", source.to_str().unwrap()];
    let text = ok(&args);
    assert!(text.contains("SHA-256") && text.contains("rdma") && text.contains("large out"), "{text}");
    // The first table: READ and WRITE from memory over each transport.
    let (memory, copies) = text.split_once("Copies to and from").unwrap();
    for transport in ["tcp", "rdma", "shm"] {
        for operation in ["READ", "WRITE"] {
            let row = |line: &&str| line.split_whitespace().take(2).eq([transport, operation]);
            let row = memory.lines().find(row).unwrap_or_else(|| panic!("no {transport} {operation} in\n{memory}"));
            let rate: f64 = row.split_whitespace().nth(2).unwrap().parse().unwrap();
            assert!(rate > 0.0, "{row}");
        }
    }
    assert!(copies.contains(room.to_str().unwrap()) && !copies.contains("unknown file system"), "{copies}");
    assert_eq!(fs::read_dir(&room).unwrap().count(), 0, "the demo must remove its files");
}

#[test]
fn errors_name_read_only_exports_and_squashing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    let (path, state) = (dir.path().to_str().unwrap(), tempfile::tempdir().unwrap());
    let state = state.path().to_str().unwrap();
    let server = Server::everywhere(&["--ro", "--name", "/here", "--state-dir", state, path]);
    assert_eq!(server.ready["exports"][0], "/here");
    assert_eq!(ok(&["cat", &server.url("tcp", "/file")]), "x");
    assert!(fails(1, &["mkdir", &server.url("tcp", "/new")]).contains("read-only"));
    let nobody = Server::everywhere(&["--memory", "1M", "--clients", "10.99.0.0/16"]);
    assert!(fails(1, &["ls", &nobody.url("tcp", "")]).contains("does not export the path to this client"));
    assert_eq!(ok(&["showmount", &nobody.url("tcp", "")]), "/memory  10.99.0.0/16\n");
}
