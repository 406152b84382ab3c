//! [`Series`]: one way to the data, a transport with options to a backend; and [`cross`], which makes all that were
//! asked for.
//!
//! Any option of a transport or of a mount can be an axis: `registration=per-io,fast` makes two series of each transport
//! that takes it, and leaves the others one.

use std::{collections::BTreeMap, str::FromStr, sync::Arc, time::Duration};

use client::{MountOptions, NfsUrl};
use parking_lot::Mutex;
use rpc::{RawOptions, Switch, TransportKind};
use serde::Serialize;

use super::{
    load::{self, Costs},
    meter::Meter,
    point::{self, Operation, Point},
    runner::{Measured, Subject},
    site::Site,
    workload::Work,
};
use crate::{exit::Failure, reach};

/// One way to the data.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// What it is called in tables and plots.
    pub name: String,
    /// The transport, or the loop without NFS.
    pub transport: String,
    /// Options of the transport, at both ends.
    pub options: BTreeMap<String, String>,
    /// Options of the mount.
    pub mount: BTreeMap<String, String>,
    /// What the server serves.
    pub backend: String,
}

/// An option, and the values that it takes one after the other.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The option.
    pub key: String,
    /// Its values.
    pub values: Vec<String>,
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text.split_once('=').ok_or("an axis is written OPTION=VALUE,VALUE…")?;
        let values: Vec<String> = values.split(',').map(str::to_owned).collect();
        if key.is_empty() || values.iter().any(String::is_empty) {
            return Err("an axis has an option and values: OPTION=VALUE,VALUE…".to_owned());
        }
        if key == "proto" {
            return Err("'proto' is no axis; transports are named by --transport".to_owned());
        }
        Ok(Self { key: key.to_owned(), values })
    }
}

impl Axis {
    fn is_of_mount(&self) -> bool {
        MountOptions::KEYS.contains(&self.key.as_str())
    }
}

/// All series of these transports, options and backends. An option that only some of the transports take is given to
/// those; one with several values makes a series of each.
///
/// # Errors
/// There is no such transport, none takes an option, or one takes it but not the value.
pub fn cross(
    switch: &Switch,
    transports: &[String],
    axes: &[Axis],
    backends: &[String],
) -> Result<Vec<Series>, Failure> {
    let mut taken = vec![false; axes.len()];
    let mut all = Vec::new();
    let mut refused = None;
    for transport in transports {
        let kind = switch.find(transport).ok_or_else(|| {
            let names: Vec<_> = switch.names().collect();
            Failure::usage(format!("--transport: there is no '{transport}'; there are {}", names.join(", ")))
        })?;
        let mut variants = vec![Series {
            name: transport.clone(),
            transport: transport.clone(),
            options: BTreeMap::new(),
            mount: BTreeMap::new(),
            backend: String::new(),
        }];
        for (axis, taken) in axes.iter().zip(&mut taken) {
            match extend(&*kind, &variants, axis) {
                Ok(extended) => (variants, *taken) = (extended, true),
                Err((failure, true)) => return Err(failure),
                Err((failure, false)) => refused = Some(failure),
            }
        }
        all.extend(variants);
    }
    match refused {
        Some(failure) if taken.contains(&false) => return Err(failure),
        _ => {}
    }
    let with_backend = |series: &Series, backend: &String| {
        let name = if backends.len() > 1 { format!("{} {backend}", series.name) } else { series.name.clone() };
        Series { name, backend: backend.clone(), ..series.clone() }
    };
    Ok(backends.iter().flat_map(|backend| all.iter().map(move |series| with_backend(series, backend))).collect())
}

/// Each variant with each value of the axis; else why not, and whether the transport takes some of the values.
fn extend(kind: &dyn TransportKind, variants: &[Series], axis: &Axis) -> Result<Vec<Series>, (Failure, bool)> {
    let mut extended = Vec::new();
    let mut problem = None;
    for variant in variants {
        for value in &axis.values {
            let mut series = variant.clone();
            let options = if axis.is_of_mount() { &mut series.mount } else { &mut series.options };
            options.insert(axis.key.clone(), value.clone());
            if axis.values.len() > 1 {
                series.name = format!("{} {}={value}", series.name, axis.key);
            }
            let fits = if axis.is_of_mount() {
                let problem = MountOptions::default().set(&axis.key, value).err();
                problem.map_or(Ok(()), |problem| Err(format!("option '{}={value}': {problem}", axis.key)))
            } else {
                kind.with_options(&raw(&series.options)).map(drop).map_err(|error| error.to_string())
            };
            match fits {
                Ok(()) => extended.push(series),
                Err(why) => drop(problem.get_or_insert(Failure::usage(why))),
            }
        }
    }
    match problem {
        None => Ok(extended),
        Some(failure) => Err((failure, axis.is_of_mount() || !extended.is_empty())),
    }
}

fn raw(options: &BTreeMap<String, String>) -> RawOptions {
    options.clone()
}

/// A series over a running server.
pub struct NfsSubject<'a> {
    url: NfsUrl,
    site: Arc<Site>,
    /// The largest block that its transport takes.
    block_max: usize,
    /// The server's process, if it is ours.
    server: Option<u32>,
    limit: Duration,
    meter: &'a Meter,
    driven: Arc<Mutex<bool>>,
}

impl<'a> NfsSubject<'a> {
    /// The files of `site` at `url`, which have been made.
    pub fn new(
        url: NfsUrl,
        site: Arc<Site>,
        block_max: usize,
        server: Option<u32>,
        limit: Duration,
        meter: &'a Meter,
    ) -> Self {
        Self { url, site, block_max, server, limit, meter, driven: Arc::default() }
    }

    /// Whether its mounts are driven: what is done while this is locked comes neither while they are made nor while they are
    /// taken down.
    pub fn driven(&self) -> Arc<Mutex<bool>> {
        self.driven.clone()
    }
}

impl Subject for NfsSubject<'_> {
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
        if point.operation.moves_blocks() && point.block > self.block_max {
            return Ok(Measured::Unable(format!("takes at most {} at once", point::block(self.block_max))));
        }
        let mut url = self.url.clone();
        if point.operation == Operation::ReadAhead {
            url.options.read_size = Some(point.block as u32);
            url.options.read_ahead = point.block * point.in_flight as usize;
        }
        let connect = |thread| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
            let work: Arc<Work> = runtime.block_on(Work::connect(&url, &self.site, thread, point))?;
            Ok((work, runtime))
        };
        let drive = |(work, runtime): &(Arc<Work>, tokio::runtime::Runtime), end| {
            let driven = runtime.block_on(async {
                *self.driven.lock() = true;
                let driven = work.drive(end).await;
                *self.driven.lock() = false;
                // Nobody drives this mount from now on, which a server of version 4 would wait for.
                reach::leave().await;
                driven
            });
            driven.map_err(|error| reach::failure(&url, &error))
        };
        let costs = Costs { server: self.server, meter: self.meter };
        load::measure(point.threads, self.limit, &costs, connect, drive).map(Measured::Sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(transports: &[&str], axes: &[&str], backends: &[&str]) -> Result<Vec<String>, String> {
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let axes: Vec<Axis> = axes.iter().map(|axis| axis.parse().unwrap()).collect();
        cross(&transports::for_client(), &own(transports), &axes, &own(backends))
            .map(|series| series.into_iter().map(|series| series.name).collect())
            .map_err(|failure| failure.message)
    }

    #[test]
    fn an_axis_multiplies_the_transports_that_take_it() {
        assert_eq!(
            names(&["tcp", "rdma"], &["crc=on,off"], &["memory"]).unwrap(),
            ["tcp", "rdma crc=on", "rdma crc=off"]
        );
        assert_eq!(
            names(&["tcp", "rdma"], &["crc=on", "rsize=4K,8K"], &["memory"]).unwrap(),
            ["tcp rsize=4K", "tcp rsize=8K", "rdma rsize=4K", "rdma rsize=8K"]
        );
        assert_eq!(names(&["tcp"], &[], &["memory", "dir:/x"]).unwrap(), ["tcp memory", "tcp dir:/x"]);
    }

    #[test]
    fn what_cannot_be_is_named() {
        assert!(
            names(&["pigeon"], &[], &["memory"])
                .unwrap_err()
                .contains("there is no 'pigeon'; there are auto, rdma, shm")
        );
        assert!(names(&["tcp"], &["crc=on"], &["memory"]).unwrap_err().contains("'crc'"), "nobody takes it");
        let error = names(&["tcp", "rdma"], &["crc=on,perhaps"], &["memory"]).unwrap_err();
        assert!(error.contains("transport rdma: option 'crc'"), "{error}");
        assert!(names(&["tcp"], &["rsize=1,2"], &["memory"]).unwrap_err().contains("rsize=1"));
        for text in ["crc", "=on", "crc=", "crc=on,", "proto=tcp"] {
            assert!(text.parse::<Axis>().is_err(), "{text}");
        }
    }
}
