//! The audit log: which operations it records, with which path, user and result.

use crate::common::v4::*;
use crate::common::*;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use testkit::{disk::Disk, paper::Paper};

use nfs::mount::{Dirpath, MountProc3, MountRes, Mountstat3};
use nfs::v3::*;
use nfs::v4::{
    Argop4, LookupArgs as Lookup4, Nfsstat4, OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_DENY_BOTH, ReadArgs as ReadArgs4,
    RenameArgs as Rename4, Stateid4,
};
use parking_lot::Mutex;
use rpc::{ConnectionTls, Identity, security::Principal};
use serde_json::{Value, json};
use server::{
    AuditOptions, Export, ExportId, ExportOptions, HandleKey, NfsServer, OnFull, Sec, SecFlavors, Squash,
    config::Settings, recovery::Recovery,
};
use vfs::{
    Caller, Vfs,
    interpose::{Interpose, Interposed, Operation},
};

struct World {
    server: NfsServer,
    file: PathBuf,
    _dir: tempfile::TempDir,
}

impl World {
    fn new(reads: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("audit.json");
        let audit = AuditOptions { file: file.clone(), reads, queue: 1 << 20, on_full: OnFull::Drop };
        Self { server: server(audit), file, _dir: dir }
    }

    /// Closes the log and returns its records without the time.
    fn records(self) -> Vec<Value> {
        assert_eq!(self.server.close(), 0);
        records(&self.file)
    }
}

fn server(audit: AuditOptions) -> NfsServer {
    let sec = SecFlavors::new(Sec::ALL.to_vec()).unwrap();
    let options = ExportOptions { squash: Squash::None, sec, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), memory(), options).unwrap();
    let settings = Settings { audit: Some(audit), ..Settings::default() };
    NfsServer::recovering(export, HandleKey::random(), Recovery::in_memory(), settings).unwrap()
}

fn records(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    let record = |line: &str| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        let time = record.as_object_mut().unwrap().remove("time").unwrap();
        assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
        record
    };
    text.lines().map(record).collect()
}

/// Returns the operation, the object and the result of each record.
fn summary(records: &[Value]) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    records.iter().map(|record| (text(&record["operation"]), text(&record["path"]), text(&record["result"]))).collect()
}

fn expected(records: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    let text = |text: &str| text.to_owned();
    records.iter().map(|(operation, path, result)| (text(operation), text(path), text(result))).collect()
}

#[test]
fn changes_of_version_3_are_recorded_with_their_paths() {
    let world = World::new(false);
    let rig = Rig::calling(&world.server);
    let root = rig.root();
    let dir = rig.dir(&root, "dir");
    let inner = rig.dir(&dir, "in\nner\u{202e}");
    let file = rig.file(&inner, "f", b"data");
    for _ in 0..3 {
        rig.call::<Write>(write_args(&file, 0, b"x")).into_result().unwrap();
        rig.call::<Read>(ReadArgs { file: file.clone(), offset: 0, count: 1 }).into_result().unwrap();
    }
    rig.set_mode(&inner, 0o700);
    let bad = Diropargs3 { dir: inner.clone(), name: bytes::Bytes::from_static(b"\xff\\").into() };
    let _ = rig.as_user(7, 8).call::<Remove>(RemoveArgs { object: bad });
    let (from, to) = (name_in(&inner, "f"), name_in(&dir, "g"));
    rig.call::<Rename>(RenameArgs { from, to }).into_result().unwrap();
    let records = world.records();
    let inner = "/dir/in\\u{a}ner\\u{202e}";
    let wanted = [
        ("MNT", "/m", "OK"),
        ("MKDIR", "/dir", "OK"),
        ("MKDIR", inner, "OK"),
        ("CREATE", &format!("{inner}/f"), "OK"),
        ("WRITE", "", "OK"),
        ("SETATTR", inner, "OK"),
        ("REMOVE", &format!("{inner}/\\xff\\\\"), "ACCES"),
        ("RENAME", &format!("{inner}/f"), "OK"),
    ];
    assert_eq!(summary(&records), expected(&wanted));
    assert!(records[4]["handle"].as_str().is_some_and(|handle| !handle.is_empty()), "a file in memory has no path");
    let wanted = json!({
        "client": "192.0.2.1:700", "transport": "tcp", "sec": "sys", "uid": 7, "gid": 8, "export": "/m",
        "protocol": "nfs3", "operation": "REMOVE", "path": format!("{inner}/\\xff\\\\"), "result": "ACCES",
    });
    assert_eq!(records[6], wanted);
    assert_eq!(records[7]["to"], json!({ "path": "/dir/g" }));
}

#[test]
fn opens_of_version_4_are_recorded_once() {
    for reads in [false, true] {
        let world = World::new(reads);
        let mut client = Client4::new(&world.server, "c", 2);
        let principal = Principal { name: "alice@REALM".into(), pseudo_flavor: 390_005 };
        client.ok([at("m"), vec![mkdir("dir")]].concat());
        client.file("m/dir", "f", b"data");
        let reading = Open { access: OPEN4_SHARE_ACCESS_READ, create: false, ..Open::default() };
        let (stateid, handle) = client.open("m/dir", "f", reading).unwrap();
        for _ in 0..3 {
            client.ok([putfh(&handle), read(stateid, 0, 4)]);
            client.ok([putfh(&handle), read(Stateid4::ANONYMOUS, 0, 4)]);
            let read_plus = |stateid| Argop4::ReadPlus(ReadArgs4 { stateid, offset: 0, count: 4 });
            client.ok([putfh(&handle), read_plus(stateid)]);
            client.ok([putfh(&handle), read_plus(Stateid4::ANONYMOUS)]);
        }
        client.ok([putfh(&handle), close(stateid)]);
        client.caller = Identity::Principal(principal);
        assert_eq!(client.status([at("m/dir"), vec![remove("f")]].concat()), Nfsstat4::Access);
        client.caller = user(0, 0);
        let rename = Argop4::Rename(Rename4 { oldname: "f".into(), newname: "g".into() });
        let lookup = Argop4::Lookup(Lookup4 { objname: "dir".into() });
        client.ok([at("m/dir"), vec![Argop4::SaveFh], at("m"), vec![rename]].concat());
        assert_eq!(client.status([at("m"), vec![remove("dir"), lookup]].concat()), Nfsstat4::NoEnt);
        let records = world.records();
        let mut wanted = vec![("CREATE", "/dir", "OK"), ("OPEN", "/dir/f", "OK")];
        if reads {
            wanted.extend([("OPEN", "/dir/f", "OK"), ("READ", "", "OK"), ("READ_PLUS", "", "OK")]);
        }
        wanted.extend([("REMOVE", "/dir/f", "ACCESS"), ("RENAME", "/dir/f", "OK"), ("REMOVE", "/dir", "OK")]);
        assert_eq!(summary(&records), expected(&wanted), "reads = {reads}");
        let removal = &records[records.len() - 3];
        assert_eq!((&removal["principal"], &removal["sec"]), (&json!("alice@REALM"), &json!("krb5p")));
        assert_eq!(records[1]["access"], "both");
        assert_eq!(records[1]["protocol"], "nfs4.2");
        assert_eq!(records[records.len() - 2]["to"], json!({ "path": "/g" }));
    }
}

#[test]
fn records_have_the_protection_of_the_connection_and_the_names_of_the_certificate() {
    let world = World::new(false);
    let mut client = Client4::new(&world.server, "c", 1);
    let names = ["a.example.com".to_owned(), "evil\u{202e}.example.com".to_owned()].into();
    for (name, tls) in
        [("clear", ConnectionTls::None), ("tls", ConnectionTls::Tls), ("mtls", ConnectionTls::Mtls { names })]
    {
        client.paper = Paper::with_tls("tcp", 4 << 20, tls);
        client.ok([at("m"), vec![mkdir(name)]].concat());
    }
    let records = world.records();
    let of = |record: &Value| (record["tls"].clone(), record["certificate"].clone());
    let mtls = (json!("mtls"), json!(["a.example.com", "evil\\u{202e}.example.com"]));
    let expected = [(Value::Null, Value::Null), (json!("tls"), Value::Null), mtls];
    assert_eq!(records.iter().map(of).collect::<Vec<_>>(), expected);
}

#[test]
fn a_retransmission_of_version_4_is_recorded_once() {
    let world = World::new(false);
    let mut client = Client4::new(&world.server, "c", 1);
    client.cachethis = true;
    for _ in 0..3 {
        client.ok([at("m"), vec![mkdir("dir")]].concat());
        client.sequence -= 1;
    }
    assert_eq!(summary(&world.records()), expected(&[("CREATE", "/dir", "OK")]));
}

/// A queue without room delays changes, which then have no effect, and nothing else.
#[test]
fn a_full_queue_delays_changes_if_configured() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.json");
    let server = server(AuditOptions { file: file.clone(), reads: false, queue: 0, on_full: OnFull::Delay });
    let rig = Rig::calling(&server);
    let refused: MountRes = rig.mount(MountProc3::Mnt, Dirpath::from("/m"));
    assert_eq!(refused, MountRes::Fail(Mountstat3::ServerFault), "MNT has no status for \"try again later\"");
    let mut client = Client4::stranger(&server, 2);
    client.introduce("c", channel());
    assert_eq!(client.status([at("m"), vec![mkdir("dir")]].concat()), Nfsstat4::Delay);
    let root: NfsFh3 = bytes::Bytes::copy_from_slice(&client.walk("m")).into();
    assert_eq!(create(&rig, &root, "f"), Err(Nfsstat3::Jukebox));
    let found = rig.call::<Lookup>(nfs::v3::LookupArgs { what: name_in(&root, "f") }).into_result();
    assert_eq!(found.unwrap_err().0, Nfsstat3::NoEnt, "a delayed operation must have no effect");
    assert_eq!(server.close(), 0);
    assert_eq!(records(&file), [json!(null); 0], "a delayed operation must not be recorded");
}

/// The queue of one byte is full while the record before waits.
#[test]
fn delayed_changes_are_executed_and_recorded_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.json");
    let server = server(AuditOptions { file: file.clone(), reads: false, queue: 1, on_full: OnFull::Delay });
    let rig = Rig::calling(&server);
    let root = rig.root();
    for number in 0..20 {
        while let Err(status) = create(&rig, &root, &format!("f{number}")) {
            assert_eq!(status, Nfsstat3::Jukebox);
            std::thread::yield_now();
        }
    }
    assert_eq!(server.close(), 0, "no record must be dropped");
    let creates: Vec<_> = (0..20).map(|number| format!("/f{number}")).collect();
    let mut wanted = vec![("MNT", "/m", "OK")];
    wanted.extend(creates.iter().map(|path| ("CREATE", &path[..], "OK")));
    assert_eq!(summary(&records(&file)), expected(&wanted));
}

fn create(rig: &Rig, dir: &NfsFh3, name: &str) -> Result<(), Nfsstat3> {
    let how = CreateHow3::Guarded(Sattr3::default());
    rig.call::<Create>(CreateArgs { what: name_in(dir, name), how })
        .into_result()
        .map(drop)
        .map_err(|(status, _)| status)
}

#[test]
fn records_of_hosts_that_no_export_admits_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.json");
    let clients = vec!["192.0.2.0/24".parse().unwrap()];
    let export = Export::new("/m", ExportId::unique(), memory(), ExportOptions { clients, ..Default::default() });
    // An eighth of this queue is shorter than a record.
    let audit = AuditOptions { file: file.clone(), reads: false, queue: 1 << 10, on_full: OnFull::Delay };
    let settings = Settings { audit: Some(audit), ..Settings::default() };
    let server = NfsServer::recovering(export.unwrap(), HandleKey::random(), Recovery::in_memory(), settings).unwrap();
    let rig = Rig::calling(&server);
    let stranger = rig.from("198.51.100.1:700");
    let refused: MountRes = stranger.mount(MountProc3::Mnt, Dirpath::from("/m"));
    assert_eq!(refused, MountRes::Fail(Mountstat3::Acces));
    rig.root();
    assert_eq!(server.close(), 1, "the record of the stranger must be dropped");
    let (dropped, records): (Vec<_>, Vec<_>) =
        records(&file).into_iter().partition(|record| record.get("dropped").is_some());
    assert_eq!(summary(&records), expected(&[("MNT", "/m", "OK")]));
    assert_eq!(dropped, [json!({ "dropped": 1 })]);
}

/// A layer that calls a function once, after it has created a file.
struct AfterCreate(Arc<dyn Vfs>, Arc<Mutex<Option<Hook>>>);

type Hook = Box<dyn FnOnce() + Send>;

impl Interpose for AfterCreate {
    fn inner(&self) -> &dyn Vfs {
        &*self.0
    }

    fn operation<T: Clone + Send + 'static>(
        &self,
        caller: &Caller<'_>,
        operation: Operation,
        run: &mut dyn FnMut(&Caller<'_>) -> vfs::Result<T>,
    ) -> vfs::Result<T> {
        let result = run(caller);
        let hook = if operation.name == "create" { self.1.lock().take() } else { None };
        if let Some(hook) = hook {
            hook();
        }
        result
    }
}

/// The recovery database fails after the file was created, so no state is granted.
#[simnet::test]
async fn an_open_that_creates_a_file_and_is_then_delayed_is_recorded() {
    let (dir, disk, hook) = (tempfile::tempdir().unwrap(), Disk::default(), Arc::new(Mutex::new(None)));
    let file = dir.path().join("audit.json");
    let tree = Arc::new(Interposed(AfterCreate(plain_memory(), hook.clone())));
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), tree, options).unwrap();
    let audit = AuditOptions { file: file.clone(), reads: false, queue: 1 << 20, on_full: OnFull::Drop };
    let lease = Duration::from_secs(2);
    let settings = on_one_thread(Settings { audit: Some(audit), lease, ..Settings::default() });
    let recovery = Recovery::on(disk.open()).unwrap();
    let server = NfsServer::recovering(export, HandleKey::random(), recovery, settings).unwrap();
    let alone = Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() };
    Client4::new(&server, "holder", 1).open("m", "held", alone).unwrap();
    let (mut client, mut other) = (Client4::new(&server, "client", 1), Client4::new(&server, "other", 1));
    for client in [&mut client, &mut other] {
        // These clients are stored before the disk is full.
        client.open("m", "f", Open::default()).unwrap();
    }
    disk.set_full(true);
    tokio::time::sleep(lease * 2).await;
    *hook.lock() = Some(Box::new(move || {
        // The loss of the holder's state cannot be stored.
        assert_eq!(other.open("m", "held", Open::default()).unwrap_err(), Nfsstat4::Delay);
    }));
    assert_eq!(client.open("m", "new", Open::default()).unwrap_err(), Nfsstat4::Delay);
    client.ok(at("m/new"));
    assert_eq!(client.open("m", "never", Open::default()).unwrap_err(), Nfsstat4::Delay);
    assert_eq!(client.status(at("m/never")), Nfsstat4::NoEnt);
    server.close();
    // The layer does not know paths.
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let records: Vec<_> =
        records(&file).iter().map(|record| (text(&record["name"]), text(&record["result"]))).collect();
    let wanted = [("held", "OK"), ("f", "OK"), ("f", "OK"), ("new", "DELAY")];
    assert_eq!(records, wanted.map(|(name, result)| (name.to_owned(), result.to_owned())));
}
