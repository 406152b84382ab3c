//! Tests of [`buf::Spin`] on a runtime.

use std::{future::poll_fn, io::Write, os::unix::net::UnixStream, task::Poll};

use buf::Spin;

#[test]
fn a_yielding_task_lets_the_runtime_poll_sockets() {
    // This runtime polls sockets only when no task can run, or when a task yields to them.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_io().event_interval(u32::MAX).build().unwrap();
    runtime.block_on(async {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
        ours.write_all(b"x").unwrap();
        let mut polls = 0;
        let spinning = poll_fn(|cx| {
            let ready = theirs.poll_read_ready(cx).is_ready();
            polls += 1;
            if ready || polls > 1000 {
                return Poll::Ready(ready);
            }
            Spin::yield_to_sockets(cx);
            Poll::Pending
        });
        assert!(spinning.await, "the socket was not polled");
    });
}
