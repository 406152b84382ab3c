//! Tests of `slipway bench`: its measurements and reports, not the speed.

use std::{fs, path::Path};

use crate::common::{Server, TRANSPORTS, fails, ok};
use serde_json::Value;

/// Arguments for short runs over little data.
const TINY: [&str; 6] = ["--seconds", "0.005", "--rounds", "2", "--file-size", "1M"];

fn report(what: &str, args: &[&str]) -> Value {
    serde_json::from_str(&ok(&[&["bench", what, "--json"], &TINY[..], args].concat())).unwrap()
}

fn rows(report: &Value) -> &[Value] {
    report["results"].as_array().unwrap()
}

fn names(report: &Value) -> Vec<&str> {
    report["series"].as_array().unwrap().iter().map(|series| series["name"].as_str().unwrap()).collect()
}

#[test]
fn every_operation_is_measured() {
    for what in ["read", "write", "getattr", "create"] {
        let data = matches!(what, "read" | "write");
        let block: &[&str] = if data { &["--block", "32K"] } else { &[] };
        let report = report(what, &[&["--transport", "tcp,udp,rdma,shm", "--threads", "2"], block].concat());
        assert_eq!((&report["benchmark"], names(&report)), (&what.into(), TRANSPORTS.to_vec()));
        assert!(report["machine"]["cpu"].is_string() && report["memory_bandwidth"].is_string());
        assert_eq!(rows(&report).len(), TRANSPORTS.len());
        for row in rows(&report) {
            assert_eq!((&row["operation"], &row["threads"], &row["rounds"]), (&what.into(), &2.into(), &2.into()));
            assert!(row["operations"].as_u64().unwrap() > 0 && row["latency_us"]["p50"].as_f64().unwrap() > 0.0);
            let rate = |of: &str| row["iops"][of].as_f64().unwrap();
            assert!(rate("low") <= rate("median") && rate("median") <= rate("high"));
            assert_eq!(row.get("gb_per_s").is_some(), data, "{row}");
            assert!(row["server_cpu"]["us_per_operation"]["median"].is_number());
        }
    }
}

#[test]
fn every_plan_measures_all_its_points() {
    for (what, points) in [("sweep", 144), ("threads", 12), ("iops", 13), ("mixed", 5), ("baseline", 4)] {
        let report = report(what, &["--transport", "tcp"]);
        let loops = if what == "baseline" { 4 } else { 0 };
        assert_eq!(rows(&report).len(), points * (1 + loops), "{what}");
        assert!(report["unable"].as_array().unwrap().is_empty(), "{what}");
        for row in rows(&report) {
            assert!(row["operations"].as_u64().unwrap() > 0, "{row}");
            let local = matches!(row["series"].as_str().unwrap(), "pread" | "memcpy");
            assert_eq!(row.get("server_cpu").is_none(), local, "{row}");
        }
    }
}

#[test]
fn axes_and_back_ends_multiply_and_limits_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let backends = format!("memory,dir:{}", dir.path().display());
    let axes = ["--transport", "tcp,rdma", "--axis", "crc=on,off", "--axis", "rsize=64K", "--backend", &backends];
    let report = report("read", &[&axes[..], &["--block", "64K", "--beside", "sendfile"]].concat());
    let mut expected: Vec<String> = Vec::new();
    for backend in backends.split(',') {
        expected.extend(["tcp", "rdma crc=on", "rdma crc=off"].map(|name| format!("{name} {backend}")));
    }
    expected.push("sendfile".to_owned());
    assert_eq!(names(&report), expected);
    assert_eq!(rows(&report).len(), 7);
    assert_eq!(report["series"][1]["options"]["crc"], "on");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the command must remove its files");

    let too_large = ["bench", "read", "--block", "128K", "--transport", "tcp,udp"];
    let text = ok(&[&too_large[..], &TINY].concat());
    assert!(text.contains("Not measured: udp, READ 128 KiB × 8: takes at most"), "{text}");
}

#[test]
fn clusters_are_measured_and_their_data_servers_are_limited() {
    let room = tempfile::tempdir().unwrap();
    let (dir, page) = (room.path().join("clusters"), room.path().join("page.html"));
    fs::create_dir(&dir).unwrap();
    let (dir, path) = (dir.to_str().unwrap(), page.to_str().unwrap());
    let load = [
        "--limit",
        "5M",
        "--block",
        "64K",
        "--in-flight",
        "4",
        "--seconds",
        "0.25",
        "--rounds",
        "1",
        "--file-size",
        "1M",
    ];
    let wanted = ["bench", "pnfs", "--json", "--servers", "1,2", "--clients", "1,2", "--dir", dir, "--html", path];
    let report: Value = serde_json::from_str(&ok(&[&wanted[..], &load].concat())).unwrap();
    let series = ["1 data server", "2 data servers", "1 data server, unlimited", "2 data servers, unlimited"];
    assert_eq!(names(&report), series);
    let loads: Vec<_> = rows(&report)
        .iter()
        .filter(|row| row["series"] == "1 data server")
        .map(|row| ["threads", "in_flight"].map(|of| row[of].as_u64().unwrap()))
        .collect();
    assert_eq!(loads, [[1, 4], [2, 2], [1, 4], [2, 2], [1, 4], [1, 4]], "the clients must share the operations");
    let zipf: Vec<_> = rows(&report).iter().filter(|row| row["zipf"] == true).collect();
    assert_eq!(zipf.len(), 2 * series.len());
    for row in rows(&report) {
        assert!(row["operations"].as_u64().unwrap() > 0, "{row}");
        let most = match row["series"].as_str().unwrap() {
            "1 data server" => 0.008,
            "2 data servers" => 0.016,
            _ => f64::INFINITY,
        };
        assert!(row["gb_per_s"]["median"].as_f64() < Some(most), "the data servers must be limited: {row}");
    }
    let used: f64 = rows(&report).iter().map(|row| row["data_server_cpu"]["seconds"].as_f64().unwrap()).sum();
    assert!(used > 0.0, "the CPU time of the data servers must be counted: {report}");
    let [scaling, ceiling] = &report["comparisons"].as_array().unwrap()[..] else { panic!("{report}") };
    let wanted = [("1 data server", "1 data server", 1.0), ("2 data servers", "1 data server", 2.0)];
    for (one, (series, to, times)) in scaling["results"].as_array().unwrap().iter().zip(wanted.iter().cycle()) {
        assert_eq!((&one["series"], &one["to"], &one["times"]), (&(*series).into(), &(*to).into(), &(*times).into()));
    }
    for one in ceiling["results"].as_array().unwrap() {
        let servers = if one["series"] == "1 data server, unlimited" { 1.0 } else { 2.0 };
        let share = servers * f64::from(5 << 20) / 1e9 / one["value"].as_f64().unwrap();
        let ratio = one["ratio"]["median"].as_f64().unwrap();
        assert!((ratio / share - 1.0).abs() < 1e-9, "{one}");
        assert_eq!((&one["aim"]["at_most"], &one["met"]), (&0.6.into(), &(ratio <= 0.6).into()));
    }
    assert_eq!([scaling, ceiling].map(|table| table["results"].as_array().unwrap().len()), [12; 2]);
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("<svg") && html.contains("2 data servers over 2 × 1 data server, GB/s"), "{html}");
    assert!(
        html.contains(&format!("<h2>{}</h2>", ceiling["title"].as_str().unwrap()))
            && html.contains("<li>Aim: at most 0.6.")
    );
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "the command must remove its files");
    assert!(fails(2, &["bench", "pnfs", "--file-size", "64K"]).contains("--file-size"));
    for (pattern, option) in [("btio", "--clients=2"), ("create", "--transport=shm"), ("direct", "--block=32K,64K")] {
        let problem = fails(2, &["bench", "pnfs", "--pattern", pattern, option]);
        assert!(problem.contains(&option[..option.find('=').unwrap()]), "{problem}");
    }
    assert!(fails(2, &["bench", "pnfs", "--pattern", "btio", "--seconds", "1"]).contains("--dumps"));
}

#[test]
fn limited_data_servers_are_reached_over_several_transports() {
    let room = tempfile::tempdir().unwrap();
    let (dir, page) = (room.path().join("clusters"), room.path().join("page.html"));
    fs::create_dir(&dir).unwrap();
    let wanted = ["bench", "pnfs", "--json", "--servers", "1,2", "--clients", "1", "--transport", "rdma,shm"];
    let load = ["--limit", "20M", "--block", "64K", "--in-flight", "4", "--seconds", "0.05", "--rounds", "1"];
    let files = ["--file-size", "1M", "--dir", dir.to_str().unwrap(), "--html", page.to_str().unwrap()];
    let found: Value = serde_json::from_str(&ok(&[&wanted[..], &load, &files].concat())).unwrap();
    let of = ["1 data server", "2 data servers", "1 data server, unlimited", "2 data servers, unlimited"];
    let series: Vec<_> =
        ["rdma", "shm"].into_iter().flat_map(|over| of.map(|of| format!("{of} over {over}"))).collect();
    assert_eq!(names(&found), series);
    assert_eq!(rows(&found).len(), 4 * series.len(), "READ and WRITE, also by Zipf's law");
    for row in rows(&found) {
        let calls = row["data_server_calls"].as_u64().unwrap();
        assert!(calls >= row["operations"].as_u64().unwrap(), "the data must be at the data servers: {row}");
    }
    let html = fs::read_to_string(page).unwrap();
    assert!(
        html.contains("2 data servers, unlimited over shm over 2 data servers, unlimited over rdma, GB/s"),
        "{html}"
    );
}

#[test]
fn files_are_created_by_several_clients_with_both_kinds_of_data_servers() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let page = Path::new(dir).join("create.html");
    let wanted = ["bench", "pnfs", "--pattern", "create", "--servers", "1,2", "--clients", "1,4", "--rounds", "1"];
    let others = ["--seconds", "0.05", "--dir", dir, "--json", "--html", page.to_str().unwrap()];
    let found = ok(&[&wanted[..], &others].concat());
    let found: Value = serde_json::from_str(&found).unwrap();
    let kinds = [
        "1 data server, nfs3",
        "2 data servers, nfs3",
        "1 data server, slipway",
        "2 data servers, 1 for a file, slipway",
        "2 data servers, slipway",
    ];
    assert_eq!(names(&found), kinds);
    let loads = |series: &str| {
        let of = rows(&found).iter().filter(|row| row["series"] == series);
        let load = |row: &Value| (row["operation"].clone(), row["block"].clone(), row["threads"].clone());
        of.map(load).collect::<Vec<_>>()
    };
    let wanted = [("new-layout", 1), ("new-file", 4096), ("new-file", 131_072)];
    let wanted = wanted.map(|(what, block)| [1, 4].map(|threads| (what.into(), block.into(), threads.into())));
    assert!(kinds.iter().all(|kind| loads(kind) == wanted.concat()), "{found}");
    for row in rows(&found) {
        let of = |name: &str| row[name].as_u64().unwrap();
        assert!(of("operations") >= of("threads"), "{row}");
        let has_data = row["operation"] == "new-file";
        assert_eq!(of("data_server_calls") > 0, has_data, "only files with data must use the data servers: {row}");
    }
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("2 data servers, slipway over 1 data server, slipway, operations/s"), "{html}");
    assert!(!html.contains("slipway over 1 data server, nfs3"), "only clusters of one kind are compared");
    assert!(html.contains("<li>Aim: at least 0.9."), "{html}");
}

#[test]
fn layouts_are_measured_beside_servers_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("direct.html");
    let wanted =
        ["bench", "pnfs", "--pattern", "direct", "--json", "--seconds", "0.05", "--rounds", "2", "--file-size", "1M"];
    let files = ["--dir", dir.path().to_str().unwrap(), "--html", page.to_str().unwrap()];
    let found: Value = serde_json::from_str(&ok(&[&wanted[..], &files].concat())).unwrap();
    let of = ["one server directly", "2 servers directly", "2 data servers"];
    let series: Vec<_> = ["", " over shm"].into_iter().flat_map(|over| of.map(|of| format!("{of}{over}"))).collect();
    assert_eq!(names(&found), series);
    assert_eq!(rows(&found).len(), 3 * series.len());
    for row in rows(&found) {
        assert_eq!(
            row.get("data_server_calls").is_some(),
            row["series"].as_str().unwrap().contains("data servers"),
            "{row}"
        );
        assert!(
            row["data_server_calls"].as_u64().is_none_or(|calls| calls >= row["operations"].as_u64().unwrap()),
            "{row}"
        );
    }
    let results = found["comparisons"][0]["results"].as_array().unwrap();
    assert_eq!(results.len(), 3 * 4);
    for one in results {
        let over = if one["series"].as_str().unwrap().ends_with(" over shm") { " over shm" } else { "" };
        assert_eq!(one["to"], format!("one server directly{over}"));
        let has_aim = one["series"].as_str().unwrap().contains("data servers") && one["random"] == false;
        assert_eq!(
            (one["aim"]["at_least"].as_f64(), one["met"].is_boolean()),
            (has_aim.then_some(0.9), has_aim),
            "{one}"
        );
    }
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("2 data servers over shm over one server directly over shm, GB/s"), "{html}");
    assert!(html.contains("<li>Aim: at least 0.9."), "{html}");
}

/// The data of small files are on data servers, too.
#[test]
fn new_files_have_objects_from_the_first_byte_on() {
    let dir = tempfile::tempdir().unwrap();
    let wanted = ["bench", "pnfs", "--pattern", "create", "--servers", "2", "--clients", "2", "--rounds", "1"];
    let found = ok(&[&wanted[..], &["--seconds", "0.05", "--json", "--dir", dir.path().to_str().unwrap()]].concat());
    let found: Value = serde_json::from_str(&found).unwrap();
    let mut series: Vec<_> = rows(&found).iter().map(|row| row["series"].as_str().unwrap()).collect();
    series.dedup();
    let wanted = ["2 data servers, nfs3", "2 data servers, 1 for a file, slipway", "2 data servers, slipway"];
    assert_eq!(series[..3], wanted);
    let with_data: Vec<_> = rows(&found).iter().filter(|row| row["operation"] == "new-file").collect();
    assert_eq!(with_data.len(), 2 * wanted.len());
    for row in with_data {
        let count = |of: &str| row[of].as_u64().unwrap();
        assert!(count("data_server_calls") >= count("operations"), "each file has a WRITE at a data server: {row}");
    }
}

#[test]
fn operations_on_layouts_of_several_sizes_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("latency.html");
    let wanted = ["bench", "pnfs", "--pattern", "latency", "--transport", "rdma,shm", "--seconds", "0.01"];
    let others = ["--rounds", "1", "--json", "--dir", dir.path().to_str().unwrap(), "--html", page.to_str().unwrap()];
    let found = ok(&[&wanted[..], &others].concat());
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(rows(&found).len(), 2 * (13 + 6));
    let is_rdma = |row: &Value| row["series"] == "1 data server, metadata over rdma";
    let of_layouts = rows(&found).iter().filter(|row| row.get("objects").is_some() && is_rdma(row));
    let of_layouts: Vec<_> =
        of_layouts.map(|row| (row["operation"].as_str().unwrap(), row["objects"].as_u64().unwrap())).collect();
    let others = [("get-device-info", 1), ("layout-commit", 1), ("layout-return", 1)];
    assert_eq!(of_layouts[..3], [1, 8, 64].map(|objects| ("layout-get", objects)));
    assert_eq!(of_layouts[3..], others);
    for row in rows(&found) {
        assert!(row["operations"].as_u64().unwrap() > 0 && row["latency_us"]["p50"].as_f64().unwrap() > 0.0, "{row}");
    }
    let title = found["title"].as_str().unwrap();
    for name in ["a layout of one object has", "a layout of 64 objects has", "a device over rdma has"] {
        assert!(title.contains(name), "{title}");
    }
    let html = fs::read_to_string(page).unwrap();
    let compared = "1 data server, metadata over shm over 1 data server, metadata over rdma, latency p50, µs";
    assert!(html.contains(compared) && html.contains("<h2>Layouts</h2>"), "{html}");
}

#[test]
fn dumps_of_btio_are_written_by_all_writers_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("btio.html");
    let (dir, path) = (dir.path().to_str().unwrap(), page.to_str().unwrap());
    let wanted =
        ["bench", "pnfs", "--pattern", "btio", "--json", "--servers", "2", "--dumps", "1", "--transport", "rdma"];
    let found = ok(&[&wanted[..], &["--dir", dir, "--html", path]].concat());
    let found: Value = serde_json::from_str(&found).unwrap();
    let rows = found["results"].as_array().unwrap();
    // Each point moves the whole dump: in one record for each writer, or in a record for each row of each cell.
    let moved: Vec<_> = rows.iter().map(|row| row["operations"].as_u64().unwrap()).collect();
    assert_eq!(moved, [1, 1, 4, 4, 16, 16, 4096, 4096, 8192, 8192, 16_384, 16_384]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("FULL: large contiguous records") && page.contains("BTIO SIMPLE, READ"));
}

#[test]
fn designs_are_compared() {
    let axes = ["--axis", "allow_read_read=on", "--axis", "design=read-write,read-read"];
    let report = report("read", &[&["--transport", "tcp,rdma", "--block", "32K"], &axes[..]].concat());
    assert_eq!(names(&report), ["tcp", "rdma design=read-write", "rdma design=read-read"]);
    for row in rows(&report) {
        assert!(row["operations"].as_u64().unwrap() > 0, "{row}");
    }
}

#[test]
fn a_remote_server_is_measured_and_cleaned_up() {
    let server = Server::memory();
    let url = server.url("rdma", "");
    let text = ok(&[&["bench", "read", "--block", "4K", "--random", "--url", &url], &TINY[..]].concat());
    assert!(text.contains("rdma") && !text.contains("tcp "), "{text}");
    ok(&[&["bench", "mixed", "--url", &url], &TINY[..]].concat());
    assert_eq!(ok(&["ls", &server.url("tcp", "")]), "", "the command must remove its files");
}

#[test]
fn html_writes_a_page_in_addition_to_the_text() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    let text = ok(&[&["bench", "threads", "--html", page.to_str().unwrap()], &TINY[..]].concat());
    let html = fs::read_to_string(&page).unwrap();
    assert!(text.contains("READ 128 KiB × 1, 32 threads"), "{text}");
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    let data = html.split("id=\"results\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(rows(&data).len(), 36, "there must be twelve points over three transports");
    for row in rows(&data) {
        assert!(html.contains(&format!("<td>{}</td>", row["series"].as_str().unwrap())));
    }
    assert!(html.contains("Noronha"), "the page must show the published result");
}

#[test]
fn invalid_options_are_rejected_before_the_measurement() {
    let refused = |args: &[&str], why: &str| {
        let said = fails(2, &[&["bench"], args].concat());
        assert!(said.contains(why), "{args:?}: {said}");
    };
    refused(&["read", "--block", "0"], "--file-size must hold");
    refused(&["read", "--block", "8M"], "takes at most");
    refused(&["read", "--block", "8M", "--file-size", "1M"], "8 MiB");
    refused(&["read", "--seconds", "0"], "--seconds");
    refused(&["read", "--rounds", "0"], "--rounds");
    refused(&["read", "--file-size", "900T"], "select a smaller --file-size");
    refused(&["read", "--transport", "pigeon"], "there is no 'pigeon'");
    refused(&["read", "--axis", "crc"], "OPTION=VALUE");
    refused(&["read", "--transport", "rdma", "--axis", "crc=on,perhaps"], "'perhaps'");
    refused(&["read", "--transport", "tcp", "--axis", "crc=on"], "option 'crc'");
    refused(&["read", "--backend", "tape"], "memory, or dir:PATH");
    refused(&["read", "--html", "/no/such/directory/x"], "--html");
    refused(&["read", "--beside", "scp"], "sendfile");
    refused(&["write", "--beside", "pread", "--url", "tcp://x"], "nfs://");
    refused(&["mixed", "--block", "1K"], "--block");
}

#[test]
fn idle_connections_are_counted_while_others_are_active() {
    let steps = ["--idle", "1,100,150", "--active", "3", "--beside", "20", "--seconds", "0.05", "--rounds", "1"];
    let found: Value = serde_json::from_str(&ok(&[&["bench", "connections", "--json"], &steps[..]].concat())).unwrap();
    for (found, transport) in found.as_array().unwrap().iter().zip(["tcp", "rdma"]) {
        assert_eq!(found["transport"], transport);
        let memory = found["memory"].as_array().unwrap();
        let counts: Vec<_> = memory.iter().map(|at| at["connections"].as_u64().unwrap()).collect();
        assert_eq!(counts, [1, 100, 150]);
        assert!(memory.iter().all(|at| at["bytes"].as_u64().unwrap() > 1 << 20) && found["bytes_each"].is_number());
        assert!(found["goodput"]["alone"].as_f64().unwrap() > 0.0);
        assert!(found["goodput"]["beside_idle"].as_f64().unwrap() > 0.0);
    }
    let problem = fails(2, &["bench", "connections", "--idle", "1000000000000"]);
    assert!(problem.contains("file descriptors") && problem.contains("ulimit -Hn"), "{problem}");
}

#[test]
fn sessions_slots_and_states_are_counted() {
    let few = ["--sessions", "3", "--requests", "1", "--states", "20"];
    let found: Value = serde_json::from_str(&ok(&[&["bench", "sessions", "--json"], &few[..]].concat())).unwrap();
    for (found, transport) in found.as_array().unwrap().iter().zip(["tcp", "rdma"]) {
        assert_eq!((&found["transport"], &found["sessions"]), (&transport.into(), &3.into()));
        assert_eq!(found["requests"], 3 * found["slots"].as_u64().unwrap());
        assert_eq!(found["client_each"].is_u64(), transport == "tcp", "later clients use freed memory: {found}");
        assert!(found["states"]["files"] == 20 && found["peak"].as_u64() >= found["idle"].as_u64());
    }
}

#[test]
fn a_session_continues_while_its_connections_are_cut() {
    let fast = ["--every", "20", "--seconds", "0.3", "--rounds", "1"];
    let found: Value = serde_json::from_str(&ok(&[&["bench", "failover", "--json"], &fast[..]].concat())).unwrap();
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), 12, "READ and WRITE must be measured for six sessions");
    for one in found {
        assert!(one["operations"].as_u64().unwrap() > 0 && one["gb_per_s"]["median"].as_f64().unwrap() > 0.0);
        let is_cut = one["series"].as_str().unwrap().contains("cut");
        assert!(is_cut || one["cuts"] == 0, "{one}");
    }
    assert!(found.iter().any(|one| one["cuts"].as_u64() > Some(0)));
}
