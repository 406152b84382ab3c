//! Measures the cost of a call from the service's entry to the finished reply, without a network: `cargo bench -p
//! slipway-server`.

#[path = "../tests/suite/common/mod.rs"]
mod common;

use std::{
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Instant,
};

use common::*;
use nfs::v3::*;
use xdr::Message;

fn main() {
    let rig = Rig::new();
    let root = rig.root();
    let file = rig.file(&root, "file", &vec![7; 1 << 20]);
    let read = |count| move |file: &NfsFh3| Message::encode(&ReadArgs { file: file.clone(), offset: 0, count });
    let list =
        ReadDirPlusArgs { dir: root.clone(), cookie: 0, cookieverf: [0; 8], dircount: 1 << 20, maxcount: 1 << 20 };
    measure(&rig, "NULL", Proc3::Null, &Message::encode(&()));
    measure(&rig, "GETATTR", Proc3::GetAttr, &Message::encode(&GetAttrArgs { object: file.clone() }));
    measure(&rig, "ACCESS", Proc3::Access, &Message::encode(&AccessArgs { object: file.clone(), access: 0x3f }));
    measure(&rig, "LOOKUP", Proc3::Lookup, &Message::encode(&LookupArgs { what: name_in(&root, "file") }));
    measure(&rig, "READ 4 KiB", Proc3::Read, &read(4096)(&file));
    measure(&rig, "READ 128 KiB", Proc3::Read, &read(128 << 10)(&file));
    measure(&rig, "WRITE 4 KiB", Proc3::Write, &Message::encode(&write_args(&file, 0, &[7; 4096])));
    measure(&rig, "WRITE 128 KiB", Proc3::Write, &Message::encode(&write_args(&file, 0, &[7; 128 << 10])));
    for i in 0..1000 {
        rig.file(&root, &format!("entry {i}"), b"");
    }
    measure(&rig, "READDIRPLUS of 1,000", Proc3::ReadDirPlus, &Message::encode(&list));
}

fn measure(rig: &Rig, name: &str, procedure: Proc3, arguments: &Message) {
    let run = |calls: u32| {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(call(rig, procedure, black_box(arguments)));
        }
        start.elapsed() / calls
    };
    let calls = (200_000_000 / run(100).as_nanos().max(1)).clamp(10, 1_000_000) as u32;
    let best = (0..3).map(|_| run(calls)).min().expect("`run` must have been called");
    println!("{name:>22}: {:>8} ns", best.as_nanos());
}

fn call(rig: &Rig, procedure: Proc3, arguments: &Message) -> Message {
    let mut future = pin!(rig.paper.call(&*rig.nfs, procedure as u32, (rig.peer, &rig.caller), arguments));
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => reply.expect("call must be accepted"),
        Poll::Pending => unreachable!("the memory back end must not block"),
    }
}
