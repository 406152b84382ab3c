//! Tests of the layer over memory and directories, with data servers in memory.

mod backends;
mod computed;
mod devices;
mod drain;
mod failures;
mod files;
mod files_drain;
mod layouts;
mod objects;
mod orphans;
mod rebalance;
mod scan;
mod servers;
mod space;
mod stripes;
mod times;
mod truncation;
mod uncommitted;
mod world;
