//! Data servers are used at the same time. In these tests, no data server replies before all of them have a request, so a client that
//! waits for one before it asks the next one does not finish.

use std::time::Duration;

use buf::{Buffer, Rope};
use client::{File, Mount, StableHow};
use nfs::v4::{Opnum4, layout::stripe::Packing};
use simnet::Network;
use tokio::time::timeout;

use crate::common::{
    cluster::{Cluster, Form, MIRRORED},
    pattern,
    sim::simulate,
    work::{ways, written},
};

const STRIPED: Form = Form { mirrors: 1, stripes: 3, unit: UNIT as u64, ..MIRRORED };
const MIRRORED_STRIPES: Form = Form { mirrors: 2, stripes: 2, ..STRIPED };
const FILES: Form = Form { files: Some(Packing::Sparse), ..STRIPED };
const UNIT: usize = 16 << 10;

/// Runs a test with a large file for each of these forms and each version of data servers. The file has a data server for each stripe of
/// each mirror.
fn with(forms: &[Form], test: impl AsyncFn(&Cluster, &Mount, &File, &Form)) {
    for (form, version) in forms.iter().flat_map(|form| [(3, 0), (4, 1), (4, 2)].map(|version| (form, version))) {
        simulate(|network: Network| async {
            let cluster = Cluster::new(network, form.mirrors * form.stripes, *form).await;
            cluster.mds.state.lock().version = Some(version);
            let minor = if version == (4, 1) { 1 } else { 2 };
            let mount = cluster.mount(1, &format!("&vers=4.{minor}")).await;
            let file = written(&mount, "f", 1_000_003).await;
            test(&cluster, &mount, &file, form).await;
            assert_eq!(ways(&mount).server, Default::default());
            assert!(cluster.mds.state.lock().reports.is_empty(), "no data server may fail");
        });
    }
}

/// Waits for work that sends an operation to so many data servers. The time is virtual, and shorter than that after which the client takes
/// a data server as failed.
async fn together<T>(cluster: &Cluster, operation: Opnum4, servers: usize, work: impl Future<Output = T>) -> T {
    cluster.meeting.expect(operation, servers);
    let done = timeout(Duration::from_secs(1), work).await;
    let arrived = cluster.meeting.arrived();
    assert_eq!(arrived.len(), servers, "{operation:?} must be sent to all data servers at the same time: {arrived:?}");
    done.expect("all data servers reply")
}

async fn write(mount: &Mount, file: &File, len: usize) {
    let data = Rope::from(pattern(len));
    let written = mount.protocol().write(file.handle(), 0, data, StableHow::Unstable).await.unwrap();
    assert_eq!(written.count as usize, len);
}

#[test]
fn stripes_are_read_at_the_same_time() {
    with(&[STRIPED, MIRRORED_STRIPES, FILES], async |cluster, _, file, form| {
        let len = UNIT * form.stripes;
        let read = file.read_at(0, Buffer::zeroed(len));
        let (read, buffer) = together(cluster, Opnum4::Read, form.stripes, read).await;
        assert!(read.unwrap() == len && buffer[..] == pattern(len));
    });
}

#[test]
fn mirrors_and_stripes_are_written_at_the_same_time() {
    with(&[MIRRORED, STRIPED, MIRRORED_STRIPES, FILES], async |cluster, mount, file, form| {
        let write = write(mount, file, UNIT * form.stripes);
        together(cluster, Opnum4::Write, form.mirrors * form.stripes, write).await;
    });
}

#[test]
fn mirrors_and_stripes_are_committed_at_the_same_time() {
    with(&[MIRRORED, STRIPED, MIRRORED_STRIPES, FILES], async |cluster, mount, file, form| {
        write(mount, file, UNIT * form.stripes).await;
        together(cluster, Opnum4::Commit, form.mirrors * form.stripes, file.commit()).await.unwrap();
    });
}
