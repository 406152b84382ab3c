//! [`Cluster`]: a metadata server and data servers in processes of their own on 127.0.0.1, for `demo` and `bench`.
//!
//! It needs no root. A data server of kind `nfs3` must let the metadata server give objects to other users, which the kernel permits
//! only root to do with files. So these data servers keep their objects in their own memory. Those of kind `slipway` have temporary
//! directories, as the metadata server has.

use std::{
    ffi::OsString,
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use client::{NfsUrl, Version};
use tempfile::TempDir;

use crate::{
    administrator,
    child::{Listen, Server},
    counters::Traffic,
    exit::Failure,
    pnfs::records::{DataServerRecord, LayoutRecord, RepairRecord, Request, ServerRef, Service},
};

/// The shape of a cluster.
pub struct Shape {
    /// The number of data servers.
    pub servers: usize,
    /// The number of copies of each file.
    pub mirrors: usize,
    /// The number of data servers over which each copy is distributed.
    pub stripes: usize,
    /// `true` if the metadata server has a second export, [`ONE_STRIPE`], whose files have one stripe.
    pub one_stripe: bool,
    /// The stripe unit in bytes, if it is not the default.
    pub stripe_unit: Option<u64>,
    /// The bytes of a file up to which its data stay at the metadata server, if that is not the default.
    pub threshold: Option<u64>,
    /// The kind of the data servers.
    pub kind: Kind,
    /// Maximum bytes per second of each data server.
    pub limit: Option<u64>,
    /// The transports of the metadata server.
    pub transports: Vec<String>,
    /// The transport by which clients use data servers, if it is not tcp. The metadata server uses tcp.
    pub data_transport: Option<String>,
    /// The directory for temporary directories.
    pub dir: PathBuf,
}

/// The kind of data servers.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// They have objects of this many bytes at most in memory.
    Nfs3(u64),
    /// They have objects in directories, with handles that the metadata server computes.
    Slipway,
}

/// A running cluster. Dropping it ends the servers and removes their directories.
pub struct Cluster {
    metadata: Server,
    data: Vec<DataServer>,
    kind: Kind,
    limit: Option<u64>,
    dir: TempDir,
}

struct DataServer {
    /// The addresses: that of tcp is the first.
    listen: Vec<Listen>,
    /// `None` while it is killed.
    server: Option<Server>,
}

impl Cluster {
    /// Starts the servers.
    ///
    /// # Errors
    /// A directory cannot be made, or a server does not start.
    pub fn start(shape: &Shape) -> Result<Self, Failure> {
        let located = |error: std::io::Error| Failure::failed(format!("{}: {error}", shape.dir.display()));
        let dir = tempfile::Builder::new().prefix("slipway-pnfs-").tempdir_in(&shape.dir).map_err(located)?;
        for (export, ..) in exports(shape) {
            fs::create_dir(dir.path().join(export)).map_err(located)?;
        }
        if let Kind::Slipway = shape.kind {
            let key: String = entropy::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect();
            vfs::private::replace(&dir.path().join(KEY), key.as_bytes()).map_err(located)?;
        }
        let mut data = Vec::new();
        for number in 1..=shape.servers {
            let others = shape.data_transport.iter().filter(|name| *name != "tcp");
            let names = std::iter::once("tcp").chain(others.map(String::as_str));
            let mut listen: Vec<_> = names.map(|name| Listen::on(name, Default::default())).collect();
            let server = start_data_server(dir.path(), number, &listen, (shape.kind, shape.limit))?;
            listen.iter_mut().enumerate().for_each(|(at, listen)| listen.port = server.port(at));
            data.push(DataServer { listen, server: Some(server) });
        }
        let config = dir.path().join("slipway.toml");
        fs::write(&config, configuration(shape, dir.path(), &data)).map_err(located)?;
        let listen: Vec<_> = shape.transports.iter().map(|name| Listen::on(name, Default::default())).collect();
        let metadata = Server::start_with(&listen, &["--config".into(), config.into()], QUIET)?;
        Ok(Self { metadata, data, kind: shape.kind, limit: shape.limit, dir })
    }

    /// Returns the URL of the export of the metadata server over the transport with this index, for a version of NFS.
    pub fn url(&self, transport: usize, version: Version) -> NfsUrl {
        let mut url = self.metadata.url(transport);
        url.options.version = version;
        url
    }

    /// Returns the URL of the objects of the data server with this number, from 1 on. It is killed if there is none.
    pub fn objects(&self, number: u32) -> Option<NfsUrl> {
        let mut url = self.data[number as usize - 1].server.as_ref()?.url(0);
        url.options.version = Version::V3;
        (url.options.uid, url.options.gid) = (Some(0), Some(0));
        Some(url)
    }

    /// Kills the data server with this number by SIGKILL. Its objects are lost, because they were in its memory.
    ///
    /// # Errors
    /// It has ended before.
    pub fn kill(&mut self, number: u32) -> Result<(), Failure> {
        self.data[number as usize - 1].server.take().map_or(Ok(()), Server::kill)
    }

    /// Starts the data server with this number again at its address, without objects.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&mut self, number: u32) -> Result<(), Failure> {
        let at = number as usize - 1;
        let listen = &self.data[at].listen;
        let server = start_data_server(self.dir.path(), at + 1, listen, (self.kind, self.limit))?;
        self.data[at].server = Some(server);
        Ok(())
    }

    /// Sets the state of a data server at the metadata server, as `slipway ds` does.
    ///
    /// # Errors
    /// The metadata server refuses that.
    pub fn set(&self, server: u32, service: Service) -> Result<(), Failure> {
        let server = ServerRef::Id(NonZeroU32::new(server).expect("data servers are counted from 1"));
        let request = Request::SetService { cluster: None, server, service };
        self.ask::<DataServerRecord>(&request).map(drop)
    }

    /// Returns the states of the data servers.
    ///
    /// # Errors
    /// The metadata server does not answer.
    pub fn data_servers(&self) -> Result<Vec<DataServerRecord>, Failure> {
        self.ask(&Request::DataServers {})
    }

    /// Returns what is left to repair.
    ///
    /// # Errors
    /// The metadata server does not answer.
    pub fn repairs(&self) -> Result<RepairRecord, Failure> {
        let mut repairs = self.ask(&Request::Repairs {})?;
        repairs.pop().ok_or_else(|| Failure::failed("the metadata server has no cluster"))
    }

    /// Waits until the objects of removed files are removed.
    ///
    /// # Errors
    /// The metadata server does not answer, or the objects are not removed within [`REMOVALS_WAIT`].
    pub fn await_removals(&self) -> Result<(), Failure> {
        let until = Instant::now() + REMOVALS_WAIT;
        loop {
            match self.repairs()?.removals {
                0 => return Ok(()),
                left if Instant::now() > until => {
                    let message = format!("{left} objects of removed files were not removed in {REMOVALS_WAIT:?}");
                    return Err(Failure::failed(message));
                }
                _ => thread::sleep(REMOVALS_PAUSE),
            }
        }
    }

    /// Returns where the data of a file are.
    ///
    /// # Errors
    /// There is no such file.
    pub fn layout(&self, name: &str) -> Result<LayoutRecord, Failure> {
        let path = self.dir.path().join(EXPORT).join(name).display().to_string();
        let mut layout = self.ask(&Request::Layout { path })?;
        layout.pop().ok_or_else(|| Failure::failed(format!("{name}: the metadata server has no layout")))
    }

    /// Returns the traffic of the metadata server since its start.
    ///
    /// # Errors
    /// It does not answer.
    pub fn metadata_traffic(&self) -> Result<Traffic, Failure> {
        Traffic::of(&state_dir(self.dir.path(), 0))
    }

    /// Returns the traffic of each data server since its start, and nothing for one that is killed.
    ///
    /// # Errors
    /// One that runs does not answer.
    pub fn data_traffic(&self) -> Result<Vec<Traffic>, Failure> {
        let of = |(at, data): (usize, &DataServer)| match data.server {
            Some(_) => Traffic::of(&state_dir(self.dir.path(), at + 1)),
            None => Ok(Traffic::default()),
        };
        self.data.iter().enumerate().map(of).collect()
    }

    /// Returns the process ID of the metadata server.
    pub fn metadata_pid(&self) -> u32 {
        self.metadata.pid()
    }

    /// Returns the process IDs of all data servers that run.
    pub fn data_server_pids(&self) -> impl Iterator<Item = u32> {
        self.data.iter().filter_map(|data| data.server.as_ref()).map(Server::pid)
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, request: &Request) -> Result<Vec<T>, Failure> {
        administrator::ask_at(&state_dir(self.dir.path(), 0), request)?.collect()
    }
}

/// Returns the state directory of a data server, or of the metadata server with number 0.
fn state_dir(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("state{number}"))
}

fn start_data_server(
    dir: &Path,
    number: usize,
    listen: &[Listen],
    (kind, limit): (Kind, Option<u64>),
) -> Result<Server, Failure> {
    let mut arguments: Vec<OsString> = match kind {
        Kind::Nfs3(memory) => vec!["--memory".into(), memory.to_string().into()],
        Kind::Slipway => {
            let objects = dir.join(format!("objects{number}"));
            fs::create_dir_all(&objects).map_err(|error| Failure::failed(format!("{}: {error}", objects.display())))?;
            vec!["--cluster-key".into(), dir.join(KEY).into(), objects.into()]
        }
    };
    arguments.extend(["--squash".into(), "none".into(), "--workers".into(), "1".into()]);
    arguments.extend(["--state-dir".into(), state_dir(dir, number).into()]);
    if let Some(limit) = limit {
        arguments.extend(["--limit".into(), limit.to_string().into()]);
    }
    Server::start_with(listen, &arguments, QUIET)
}

/// Returns the exports of the metadata server: the directory, the name, and the options that replace those of the cluster.
fn exports(shape: &Shape) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let second = shape.one_stripe.then_some(("one-stripe", ONE_STRIPE, ", stripes = 1"));
    std::iter::once((EXPORT, "/pnfs", "")).chain(second)
}

/// Returns the configuration file of the metadata server.
fn configuration(shape: &Shape, dir: &Path, data: &[DataServer]) -> String {
    let Shape { mirrors, stripes, .. } = shape;
    // TOML's basic strings have the escapes of JSON.
    let path = |path: PathBuf| serde_json::json!(path.display().to_string());
    let (key, kind) = match shape.kind {
        Kind::Nfs3(_) => (String::new(), ""),
        Kind::Slipway => (format!("key_file = {}\n", path(dir.join(KEY))), "kind = \"slipway\"\n"),
    };
    let server = |(at, data): (usize, &DataServer)| {
        let server = data.server.as_ref().expect("every data server must run");
        let url = server.url(0);
        let url = serde_json::json!(format!("{url}?mountport={}", server.port(0)));
        let address = |listen: &Listen| {
            format!("{{ transport = \"{}\", address = \"127.0.0.1:{}\" }}", listen.transport, listen.port)
        };
        let addresses: Vec<_> = data.listen.iter().map(address).collect();
        format!("[[pnfs.server]]\nid = {}\n{kind}url = {url}\naddress = [{}]\n", at + 1, addresses.join(", "))
    };
    let servers: String = data.iter().enumerate().map(server).collect();
    let export = |(directory, name, options)| {
        let path = path(dir.join(directory));
        format!(
            "[[export]]\npath = {path}\nname = \"{name}\"\nsquash = \"none\"\nbackend = \"pnfs\"\n\
             options = {{ cluster = \"demo\"{options} }}\n"
        )
    };
    let exports: String = exports(shape).map(export).collect();
    let bytes = |name: &str, value: Option<u64>| value.map_or(String::new(), |bytes| format!("{name} = {bytes}\n"));
    let sizes = bytes("stripe_unit", shape.stripe_unit) + &bytes("threshold", shape.threshold);
    format!(
        "[server]\nstate_dir = {}\n{exports}[[pnfs]]\nname = \"demo\"\nmirrors = {mirrors}\nstripes = {stripes}\n\
         timeout_s = 1\n{sizes}{key}{servers}",
        path(state_dir(dir, 0)),
    )
}

/// Servers of a cluster log only errors: the failures of others are expected.
const QUIET: &[(&str, &str)] = &[("RUST_LOG", "error")];
/// The longest wait for the removal of objects, and the time between two looks.
const REMOVALS_WAIT: Duration = Duration::from_secs(300);
const REMOVALS_PAUSE: Duration = Duration::from_millis(20);
/// The file with the key of the cluster.
const KEY: &str = "cluster.key";
/// The directory of the metadata server's export.
const EXPORT: &str = "export";
/// The name of the second export.
pub const ONE_STRIPE: &str = "/one-stripe";
