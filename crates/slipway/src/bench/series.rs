//! [`Series`]: one configuration: a transport with options, and a back end. [`cross`] makes all combinations.
//!
//! Any option of a transport or of a mount can be an axis: `registration=per-io,fast` makes two series of each
//! transport with this option. Other transports keep one series.

use std::{collections::BTreeMap, str::FromStr, sync::Arc, time::Duration};

use client::{MountOptions, NfsUrl};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use rpc::{RawOptions, Switch, TransportKind};
use serde::Serialize;

use super::{
    load::{self, Costs},
    meter::Meter,
    point::{self, Operation, Point},
    runner::{Measured, Subject},
    sample::Tally,
    site::Site,
    workload::Work,
};
use crate::{exit::Failure, reach};

/// One configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The name in tables and plots.
    pub name: String,
    /// The transport, or the loop without NFS.
    pub transport: String,
    /// The options of the transport, at both ends.
    pub options: BTreeMap<String, String>,
    /// The options of the mount.
    pub mount: BTreeMap<String, String>,
    /// The back end of the server.
    pub backend: String,
}

/// An option, and its values.
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
        let (key, values) = text.split_once('=').ok_or("the format of an axis is OPTION=VALUE,VALUE…")?;
        let values: Vec<String> = values.split(',').map(str::to_owned).collect();
        if key.is_empty() || values.iter().any(String::is_empty) {
            return Err("the format of an axis is OPTION=VALUE,VALUE…".to_owned());
        }
        if key == "proto" {
            return Err("'proto' cannot be an axis; use --transport".to_owned());
        }
        Ok(Self { key: key.to_owned(), values })
    }
}

impl Axis {
    fn is_of_mount(&self) -> bool {
        MountOptions::KEYS.contains(&self.key.as_str())
    }
}

/// Returns all series of these transports, options and back ends. An option that only some transports have applies to
/// those. An option with several values makes a series for each.
///
/// # Errors
/// A transport does not exist, no transport has an option, or a transport has the option but rejects the value.
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

/// Returns each variant with each value of the axis. Otherwise returns the error, and `true` if the transport accepts
/// some of the values.
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

/// A series on running servers.
pub struct NfsSubject<'a> {
    /// The servers, between which each thread divides its outstanding operations.
    urls: Vec<NfsUrl>,
    site: Arc<Site>,
    /// The largest block of its transport.
    block_max: usize,
    /// The process IDs of the servers that this command started and whose CPU time counts.
    servers: Vec<u32>,
    /// The process IDs of data servers.
    data_servers: Vec<u32>,
    limit: Duration,
    meter: &'a Meter,
    driven: Arc<Mutex<bool>>,
}

impl<'a> NfsSubject<'a> {
    /// Creates a subject that uses the files of `site` at all of `urls`, which must exist.
    pub fn new(
        urls: Vec<NfsUrl>,
        site: Arc<Site>,
        block_max: usize,
        servers: Vec<u32>,
        limit: Duration,
        meter: &'a Meter,
    ) -> Self {
        Self { urls, site, block_max, servers, data_servers: Vec::new(), limit, meter, driven: Arc::default() }
    }

    /// Also counts the CPU time of data servers with these process IDs, by itself.
    pub fn with_data_servers(self, data_servers: Vec<u32>) -> Self {
        Self { data_servers, ..self }
    }

    /// Returns the lock that is held while the load runs, and not while mounts are made and closed.
    pub fn driven(&self) -> Arc<Mutex<bool>> {
        self.driven.clone()
    }
}

impl Subject for NfsSubject<'_> {
    fn measure(&mut self, point: &Point) -> Result<Measured, Failure> {
        if point.operation.moves_blocks() && point.block > self.block_max {
            return Ok(Measured::Unable(format!("takes at most {} at once", point::block(self.block_max))));
        }
        let mut urls = self.urls.clone();
        if point.operation == Operation::ReadAhead {
            for url in &mut urls {
                url.options.read_size = Some(point.block as u32);
                url.options.read_ahead = point.block * point.in_flight as usize;
            }
        }
        let share = Point { in_flight: point.in_flight.div_ceil(urls.len() as u32), ..*point };
        let connect = |thread| {
            let runtime = reach::runtime()?;
            let works = urls.iter().map(|url| runtime.block_on(Work::connect(url, &self.site, thread, &share)));
            let works: Vec<Arc<Work>> = works.collect::<Result<_, _>>()?;
            Ok((works, runtime))
        };
        let failed = |error: &client::Error| reach::failure(&urls[0], error);
        let drive = |(works, runtime): &(Vec<Arc<Work>>, tokio::runtime::Runtime), end| {
            *self.driven.lock() = true;
            let driven = runtime.block_on(try_join_all(works.iter().map(|work| work.drive(end))));
            *self.driven.lock() = false;
            let mut total = Tally::until(end);
            driven.map_err(|error| failed(&error))?.iter().for_each(|tally| total.add(tally));
            Ok(total)
        };
        let finish = |(works, runtime): (Vec<Arc<Work>>, tokio::runtime::Runtime)| {
            runtime.block_on(async {
                let removed = try_join_all(works.iter().map(|work| work.remove_files())).await;
                // No task drives these mounts later, and a version 4 server would wait for them.
                reach::unmount_all().await;
                removed.map(drop).map_err(|error| failed(&error))
            })
        };
        let costs = Costs { servers: &self.servers, data_servers: &self.data_servers, meter: self.meter };
        load::measure(point.threads, self.limit, &costs, connect, drive, finish).map(Measured::Sample)
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
    fn an_axis_multiplies_the_transports_with_the_option() {
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
    fn invalid_options_are_reported() {
        assert!(
            names(&["pigeon"], &[], &["memory"])
                .unwrap_err()
                .contains("there is no 'pigeon'; there are auto, rdma, shm")
        );
        assert!(
            names(&["tcp"], &["crc=on"], &["memory"]).unwrap_err().contains("'crc'"),
            "no transport has the option"
        );
        let error = names(&["tcp", "rdma"], &["crc=on,perhaps"], &["memory"]).unwrap_err();
        assert!(error.contains("transport rdma: option 'crc'"), "{error}");
        assert!(names(&["tcp"], &["rsize=1,2"], &["memory"]).unwrap_err().contains("rsize=1"));
        for text in ["crc", "=on", "crc=", "crc=on,", "proto=tcp"] {
            assert!(text.parse::<Axis>().is_err(), "{text}");
        }
    }
}
