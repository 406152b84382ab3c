//! The Network Status Monitor, version 1 (X/Open XNFS chapter 11): notices of restarts of hosts.

use xdr::{Decode, Encode, Opaque};

/// The program number.
pub const SM_PROGRAM: u32 = 100_024;
/// The version number.
pub const VERSION: u32 = 1;

/// The procedures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SmProc {
    /// Do nothing.
    Null = 0,
    /// Test whether a host can be monitored: [`SmName`] to [`SmStatRes`].
    Stat = 1,
    /// Monitor a host: [`MonArgs`] to [`SmStatRes`].
    Mon = 2,
    /// Stop monitoring a host: [`MonId`] to [`SmStat`].
    Unmon = 3,
    /// Stop monitoring all hosts for the caller: [`MyId`] to [`SmStat`].
    UnmonAll = 4,
    /// Behave as if this host had restarted.
    SimuCrash = 5,
    /// Receive the notice that a host has restarted: [`StatChge`].
    Notify = 6,
}

impl SmProc {
    /// Returns the procedure with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        use SmProc::*;
        [Null, Stat, Mon, Unmon, UnmonAll, SimuCrash, Notify].get(number as usize).copied()
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            SmProc::Null => "NULL",
            SmProc::Stat => "STAT",
            SmProc::Mon => "MON",
            SmProc::Unmon => "UNMON",
            SmProc::UnmonAll => "UNMON_ALL",
            SmProc::SimuCrash => "SIMU_CRASH",
            SmProc::Notify => "NOTIFY",
        }
    }
}

/// The name of a host.
pub type MonName = Opaque<1024>;

/// STAT arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SmName {
    /// The host.
    pub mon_name: MonName,
}

/// The result of a request to monitor a host (`res`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum SmRes {
    /// The host can be monitored.
    Succ = 0,
    /// The host cannot be monitored.
    Fail = 1,
}

/// STAT and MON results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SmStatRes {
    /// `Succ` if the host can be monitored.
    pub res: SmRes,
    /// The state number of this monitor.
    pub state: i32,
}

/// UNMON and UNMON_ALL results. The state number of a host increases with each restart, and is odd while the host is
/// up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SmStat {
    /// The state number of this monitor.
    pub state: i32,
}

/// The monitoring program and the procedure to call.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MyId {
    /// The host.
    pub my_name: MonName,
    /// The program number.
    pub my_prog: u32,
    /// The version number.
    pub my_vers: u32,
    /// The procedure number.
    pub my_proc: u32,
}

/// The monitored host and the monitoring program.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MonId {
    /// The host.
    pub mon_name: MonName,
    /// The monitoring program.
    pub my_id: MyId,
}

/// MON arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MonArgs {
    /// The monitored host and the monitoring program.
    pub mon_id: MonId,
    /// Private data that the notice returns.
    pub private: [u8; 16],
}

/// NOTIFY arguments: a host has restarted.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct StatChge {
    /// The host.
    pub mon_name: MonName,
    /// The new state number of the host.
    pub state: i32,
}

/// The arguments of the procedure in [`MyId`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Status {
    /// The host that has restarted.
    pub mon_name: MonName,
    /// The new state number of the host.
    pub state: i32,
    /// The private data from MON.
    pub private: [u8; 16],
}

#[cfg(test)]
mod tests {
    use xdr::Message;

    use super::*;

    #[test]
    fn fields_of_monitor_request_are_in_order() {
        let my_id = MyId { my_name: "me".into(), my_prog: 100_021, my_vers: 4, my_proc: 16 };
        let args = MonArgs { mon_id: MonId { mon_name: "them".into(), my_id }, private: *b"0123456789abcdef" };
        let message = Message::encode(&args);
        let expected =
            [&b"\0\0\0\x04them\0\0\0\x02me\0\0"[..], b"\0\x01\x86\xb5\0\0\0\x04\0\0\0\x10", b"0123456789abcdef"];
        assert_eq!(message.stream, expected.concat());
        assert_eq!(message.decode::<MonArgs>(), Ok(args));
        for len in 0..message.stream.len() {
            assert!(Message::from(message.stream.slice(..len)).decode::<MonArgs>().is_err());
        }
    }

    #[test]
    fn numbers_match_the_specification() {
        for number in 0..=6 {
            assert_eq!(SmProc::from_number(number).map(|procedure| procedure as u32), Some(number));
        }
        assert_eq!(SmProc::from_number(7), None);
    }
}
