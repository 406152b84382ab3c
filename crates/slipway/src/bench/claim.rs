//! [`Claim`]: a published result that is shown next to our measurement.
//!
//! Those machines had the adapters, disks and processors of their time. Compare the shape of a curve, and sometimes the
//! ratio.

use serde::Serialize;

/// A published result.
#[derive(Debug, Serialize)]
pub struct Claim {
    /// The authors and the place of publication.
    pub source: &'static str,
    /// The result.
    pub text: &'static str,
}

/// Throughput by block size and read-ahead.
pub const SUN_THROUGHPUT: Claim = Claim {
    source: "Callaghan, Lingutla-Raj, Chiu, Staubach, Asad: NFS over RDMA (Sun, 2003), figures 15 and 16",
    text: "RDMA moves about 60 % more than TCP once blocks are large and several are in flight; with small blocks, or one \
           at a time, both wait for round trips and the surfaces lie close together.",
};

/// CPU by throughput.
pub const SUN_CPU: Claim = Claim {
    source: "Callaghan, Lingutla-Raj, Chiu, Staubach, Asad: NFS over RDMA (Sun, 2003), figures 17 and 18",
    text: "At the same throughput the client spends about a third of the CPU that TCP takes: with an adapter that places \
           data, no copy is left to pay for. Over software iWARP the copy is still there.",
};

/// Read-Write and Read-Read.
pub const OPENSOLARIS_DESIGN: Claim = Claim {
    source: "Noronha, Chai, Talpey, Panda: Designing NFS with RDMA for Security, Performance and Scalability \
             (ICPP 2007, OpenSolaris), first figure",
    text: "Read-Write (the server places data by RDMA Write) scales further than Read-Read (the client fetches \
           them by RDMA Read, and says when it is done) with more threads at 128 KiB, at less client CPU; \
           and the server exposes no memory.",
};

/// The ways of registration.
pub const OPENSOLARIS_REGISTRATION: Claim = Claim {
    source: "Noronha, Chai, Talpey, Panda: Designing NFS with RDMA for Security, Performance and Scalability \
             (ICPP 2007, OpenSolaris), second figure",
    text: "Registering each buffer for its RPC gives about 350 MB/s, fast registration 400 MB/s, and a registration \
           cache 700 MB/s.",
};

/// Small READs, one at a time.
pub const NETAPP_SMALL: Claim = Claim {
    source: "NetApp's 4 KiB test of NFS/RDMA",
    text: "With blocks of 4 KiB, a round trip decides, not bandwidth: what RDMA saves is latency and CPU for \
           each operation.",
};

/// Bandwidth of RoCE.
pub const NVIDIA_BANDWIDTH: Claim = Claim {
    source: "NVIDIA: Doubling Network File System Performance with RDMA-Enabled Networking",
    text: "NFS over RoCE moves two to three times what TCP does at 128 KiB.",
};

/// Small operations on many threads.
pub const NVIDIA_IOPS: Claim = Claim {
    source: "NVIDIA: Doubling Network File System Performance with RDMA-Enabled Networking, figures 3 and 4",
    text: "NFS over RoCE does up to 2.5 times the operations of TCP at 2 KiB and 8 KiB with 16 threads.",
};

/// The paper on pNFS over RDMA.
macro_rules! osu {
    ($figures:literal) => {
        concat!(
            "Noronha, Ouyang, Panda: Designing a High-Performance Clustered NAS: A Case Study with pNFS over RDMA on InfiniBand (HiPC 2008), ",
            $figures
        )
    };
}

/// Small operations of pNFS.
pub const OSU_LATENCY: Claim = Claim {
    source: osu!("figure 3"),
    text: "Operations with payloads of 1 byte to 32 KiB take up to 65 % less time than over TCP.",
};

/// Creation with several data servers.
pub const OSU_CREATE: Claim = Claim {
    source: osu!("figures 4 and 5"),
    text: "With 1 to 16 data servers. That metadata server makes each file on every data server before it grants the layout. Here, the series \
           nfs3 does that, too; with slipway, the handles are computed.",
};

/// Throughput of data servers.
pub const OSU_THROUGHPUT: Claim = Claim {
    source: osu!("figures 6 and 7"),
    text: "With 8 data servers, READs of successive blocks reach 5,029 MB/s, and WRITEs 1,872 MB/s: up to 188 % and 150 % more than \
           over TCP.",
};

/// Blocks that are used with different frequencies.
pub const OSU_ZIPF: Claim = Claim {
    source: osu!("figures 8 and 9"),
    text: "Blocks by Zipf's law with exponent 0.9. Loads other than successive blocks gain up to 27 % over TCP.",
};

/// The memory of idle clients.
pub const OSU_MEMORY: Claim = Claim {
    source: osu!("the design of sessions over RDMA"),
    text: "Each client has 32 slots with a receive buffer of 1 KiB each at each server, 32 KiB altogether, and receive buffers are not shared.",
};

/// BTIO.
pub const OSU_BTIO: Claim =
    Claim { source: osu!("figure 10"), text: "BTIO is faster than with the Lustre file system." };
