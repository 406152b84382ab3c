//! The clocks of data servers: each must agree with that of the metadata server, which compares its own time with the modification times of
//! objects.

use std::time::Duration;

use pnfs::CLOCK_DIFFERENCE;
use vfs::Time;

use super::Finding;

/// A difference of two clocks, at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    Behind(Duration),
    Ahead(Duration),
}

/// Reports the clock of a data server that has set the modification time of an object between two times of this host.
pub fn finding(check: &str, modified: client::Time, between: (Time, Time)) -> Option<Finding> {
    let modified = Time { seconds: modified.seconds, nanoseconds: modified.nseconds };
    let fix = "run NTP on this host and on the data server";
    Some(match difference(modified, between)? {
        Difference::Behind(by) => Finding::bad(
            check.to_owned(),
            format!(
                "its clock is at least {by:?} behind that of this host, so a loss of writes there can stay unnoticed"
            ),
            fix,
        ),
        Difference::Ahead(by) => Finding::note(
            check.to_owned(),
            format!(
                "its clock is at least {by:?} ahead of that of this host, so files can get a later time than that of their last write"
            ),
            fix,
        ),
    })
}

/// Returns the difference of a clock that says `remote` at a time between two times of this host, if it is certainly too large.
fn difference(remote: Time, (before, after): (Time, Time)) -> Option<Difference> {
    // A file system can cut times to whole seconds.
    let cut = if remote.nanoseconds == 0 { 1_000_000_000 } else { 0 };
    let [remote, before, after] = [remote, before, after].map(Time::as_nanoseconds);
    let (behind, ahead) = (before.saturating_sub(remote + cut), remote.saturating_sub(after));
    let by = |nanoseconds: u64| Duration::from_millis(nanoseconds / 1_000_000);
    match (behind > CLOCK_DIFFERENCE, ahead > CLOCK_DIFFERENCE) {
        (true, _) => Some(Difference::Behind(by(behind))),
        (_, true) => Some(Difference::Ahead(by(ahead))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{any::Any, io, net::SocketAddr, path::Path, sync::Arc, thread};

    use server::{
        Config, NfsServer,
        config::{BackendKind, BackendSettings, Backends, DirectoryKind, Opening, Settings, Tree},
    };
    use vfs::{
        Attr, Caller, Vfs,
        interpose::{Interpose, Interposed, Operation},
    };

    use super::{super::data_servers, *};
    use crate::{commands::doctor::State, pnfs::objects::ObjectsKind};

    #[test]
    fn difference_is_at_least_that_to_the_nearer_end() {
        let at = |milliseconds: u64| Time {
            seconds: (milliseconds / 1000) as i64,
            nanoseconds: (milliseconds % 1000) as u32 * 1_000_000,
        };
        let found = |remote| difference(at(remote), (at(100_500), at(100_700)));
        let (behind, ahead) = (
            |milliseconds| Some(Difference::Behind(Duration::from_millis(milliseconds))),
            |milliseconds| Some(Difference::Ahead(Duration::from_millis(milliseconds))),
        );
        assert_eq!([100_400, 100_500, 100_600, 100_700, 100_800].map(found), [None; 5]);
        assert_eq!([100_399, 98_500].map(found), [behind(101), behind(2000)]);
        assert_eq!([100_801, 102_700].map(found), [ahead(101), ahead(2000)]);
        // These times can have been cut to whole seconds.
        assert_eq!([99_000, 100_000, 101_000].map(found), [behind(500), None, ahead(300)]);
    }

    /// A back end whose modification times are those of a clock that is fast by some seconds.
    struct Shifted<K>(K, i64);

    impl<K: BackendKind> BackendKind for Shifted<K> {
        fn check(&self, settings: &mut BackendSettings) -> Result<(), String> {
            self.0.check(settings)
        }

        fn default_name(&self, settings: &BackendSettings) -> Option<String> {
            self.0.default_name(settings)
        }

        fn is_persistent(&self) -> bool {
            self.0.is_persistent()
        }

        fn open(&self, settings: &BackendSettings, opening: &Opening<'_>) -> io::Result<Tree> {
            self.0.open(settings, opening)?.layered(|inner| Ok(Arc::new(Interposed(Times(inner, self.1)))))
        }
    }

    struct Times(Arc<dyn Vfs>, i64);

    impl Interpose for Times {
        fn inner(&self) -> &dyn Vfs {
            &*self.0
        }

        fn operation<T: Clone + Send + 'static>(
            &self,
            caller: &Caller<'_>,
            _: Operation,
            run: &mut dyn FnMut(&Caller<'_>) -> vfs::Result<T>,
        ) -> vfs::Result<T> {
            let mut result = run(caller)?;
            if let Some(attr) = (&mut result as &mut dyn Any).downcast_mut::<Attr>() {
                attr.mtime.seconds += self.1;
            }
            Ok(result)
        }
    }

    /// Serves the directories `nfs3` and `slipway` as data servers of these kinds, until the process ends.
    fn serve(dir: &Path, seconds: i64) -> SocketAddr {
        let (dir, (started, start)) = (dir.to_owned(), std::sync::mpsc::channel());
        let run = async move {
            let mut backends = Backends::standard();
            backends.register("files", Shifted(DirectoryKind, seconds));
            backends.register("objects", Shifted(ObjectsKind, seconds));
            let text = format!(
                "[[export]]\npath = '{0}/nfs3'\nsquash = 'none'\nbackend = 'files'\n\
                 [[export]]\npath = '{0}/slipway'\nsquash = 'none'\nbackend = 'objects'\noptions = {{ key_file = '{0}/key' }}\n",
                dir.display()
            );
            let (config, pool) = (Config::parse_with(&text, &backends).unwrap(), buf::Pool::default());
            let nfs = NfsServer::open_with(&config, &dir.join("state"), &pool, Settings::default()).unwrap();
            let server = nfs.services().into_iter().fold(rpc::Server::builder(), rpc::ServerBuilder::shared).build();
            let workers = rpc::Workers::new(rpc::WorkerOptions { threads: 1, ..Default::default() }).unwrap();
            let tcp = transports::for_server(&pool).find("tcp").unwrap();
            let listener = tcp.listen("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = listener.local_addr();
            workers.listen(server, listener);
            started.send(address).unwrap();
            nfs.upkeep().await;
        };
        thread::spawn(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run));
        start.recv().unwrap()
    }

    #[test]
    fn clocks_of_both_kinds_of_data_servers_are_examined() {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        for (seconds, expected) in [(0, None), (-60, Some(State::Bad)), (60, Some(State::Note))] {
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path();
            ["nfs3", "slipway"].into_iter().for_each(|name| std::fs::create_dir(at.join(name)).unwrap());
            vfs::private::replace(&at.join("key"), "0d".repeat(32).as_bytes()).unwrap();
            let address = serve(at, seconds);
            let server = |(id, kind): (usize, &str)| {
                let url = format!("nfs://{address}{}/{kind}?mountport={}", at.display(), address.port());
                format!("[[pnfs.server]]\nid = {id}\nkind = '{kind}'\nurl = '{url}&uid={uid}&gid={gid}'\n")
            };
            let servers = [(1, "nfs3"), (2, "slipway")].map(server).concat();
            let text = format!(
                "[[export]]\npath = '/plain'\n\
                 [[pnfs]]\nname = 'two'\nlayouts = 'none'\nkey_file = '{}/key'\n{servers}",
                at.display()
            );
            let found = data_servers::all(&Config::parse_with(&text, &Backends::standard()).unwrap()).unwrap();
            let clock = |id: u32| {
                let name = format!("data server two/{id}");
                let mut of_server = found.iter().filter(|finding| finding.check == name).peekable();
                assert!(of_server.peek().is_some_and(|first| !first.found.contains("cannot create")), "{found:?}");
                of_server.find(|finding| finding.found.contains("its clock is")).map(|finding| finding.state)
            };
            assert_eq!([1, 2].map(clock), [expected; 2], "{seconds} s: {found:?}");
        }
    }
}
