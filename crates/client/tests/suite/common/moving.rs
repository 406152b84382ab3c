//! A server of NFSv4 whose file system can move away. It then answers as RFC 8881 §11 and RFC 7530 §8 require.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use nfs::v4::{
    attr::{Attr4, Attrs},
    compound::*,
    location::{FsLocation4, FsLocations4},
    *,
};
use parking_lot::Mutex;
use rpc::{AcceptError, Answering, Call, ReplyHeader, Service};
use xdr::{Decode, Decoder, Message};

use super::wrapped::Wrap;

/// The state of the file system.
#[derive(Default)]
pub struct MoveState {
    pub gone: Mutex<Option<Gone>>,
    /// The number of requests for its locations.
    pub asked: AtomicUsize,
    /// The number of WRITEs that were executed here.
    pub written: AtomicUsize,
}

#[derive(Clone)]
pub struct Gone {
    pub fsid: u64,
    /// The path of its root here.
    pub path: &'static str,
    /// Its locations: servers and paths.
    pub places: Vec<(String, &'static str)>,
    /// Set if the server reports that some file system has moved. Cleared by a request for the locations.
    pub lease_moved: bool,
}

/// A service whose file system can move away.
pub struct Moving(pub Arc<MoveState>);

fn names(path: &str) -> Pathname4 {
    path.split('/').filter(|name| !name.is_empty()).map(Into::into).collect()
}

/// Returns `true` if an operation is about data that need not be durable.
fn may_be_lost(op: &Argop4) -> bool {
    matches!(op, Argop4::Write(WriteArgs { stable: StableHow4::Unstable, .. }) | Argop4::Commit(_))
}

impl Gone {
    fn attrs(&self, mask: &Bitmap4) -> attr::Fattr4 {
        let place = |(server, path): &(String, &str)| FsLocation4 {
            server: vec![server.as_str().into()],
            rootpath: names(path),
        };
        let locations = self.places.iter().map(place).collect();
        let mut attrs = Attrs {
            fsid: Some(Fsid4 { major: self.fsid, minor: 0 }),
            fs_locations: Some(FsLocations4 { fs_root: names(self.path), locations }),
            ..Attrs::default()
        };
        attrs.retain(mask);
        attrs.into()
    }
}

/// Returns the results that the service itself has for a request with these operations.
async fn pass_on(inner: &dyn Service, call: &Call<'_>, args: &CompoundArgs) -> Result<CompoundRes, AcceptError> {
    let message = Message::encode(args);
    let call = Call {
        xid: call.xid,
        version: call.version,
        procedure: call.procedure,
        caller: call.caller,
        is_wrapped: call.is_wrapped,
        peer: call.peer,
        arrived: call.arrived,
        connection: call.connection,
        transport: call.transport,
        arguments: Decoder::new(&message),
    };
    let reply = inner.call(call).await?;
    let mut decoder = Decoder::new(&reply);
    ReplyHeader::decode(&mut decoder).unwrap();
    Ok(CompoundRes::decode(&mut decoder).unwrap())
}

impl Moving {
    async fn answer(
        &self,
        inner: &dyn Service,
        call: &Call<'_>,
        gone: &Gone,
        mut args: CompoundArgs,
    ) -> Result<CompoundRes, AcceptError> {
        let in_it = args.argarray.iter().any(|op| matches!(op, Argop4::PutFh(_)));
        let alone = matches!(args.argarray[..], [Argop4::Renew(_)]);
        let lease_moved = || self.0.gone.lock().as_ref().is_some_and(|gone| gone.lease_moved);
        if !(in_it || alone && lease_moved()) {
            let mut res = pass_on(inner, call, &args).await?;
            if let Some(Resop4::Sequence(Res4::Ok(ok))) = res.resarray.first_mut()
                && lease_moved()
            {
                ok.status_flags |= SEQ4_STATUS_LEASE_MOVED;
            }
            return Ok(res);
        }
        let mut res = CompoundRes { status: Nfsstat4::Ok, tag: args.tag.clone(), resarray: Vec::new() };
        if let Some(Argop4::Sequence(_)) = args.argarray.first() {
            let ops = args.argarray.split_off(1);
            res = pass_on(inner, call, &args).await?;
            if res.status != Nfsstat4::Ok {
                return Ok(res);
            }
            args.argarray = ops;
        }
        for op in &args.argarray {
            let result = match op {
                Argop4::PutFh(_) => Resop4::PutFh(Res4::Ok(())),
                Argop4::SaveFh => Resop4::SaveFh(Res4::Ok(())),
                Argop4::GetAttr(args) if args.attr_request.contains(Attr4::FsLocations as u32) => {
                    self.0.asked.fetch_add(1, SeqCst);
                    self.0.gone.lock().as_mut().unwrap().lease_moved = false;
                    Resop4::GetAttr(Res4::Ok(gone.attrs(&args.attr_request)))
                }
                Argop4::Renew(_) if !lease_moved() => Resop4::Renew(Res4::Ok(())),
                // Only NFSv4.0 has this status.
                _ if args.minorversion == 0 && lease_moved() => Resop4::failure(op.opnum(), Nfsstat4::LeaseMoved),
                _ => Resop4::failure(op.opnum(), Nfsstat4::Moved),
            };
            res.status = result.status();
            res.resarray.push(result);
            if res.status != Nfsstat4::Ok {
                break;
            }
        }
        Ok(res)
    }
}

impl Wrap for Moving {
    fn call<'a>(&'a self, inner: &'a dyn Service, call: Call<'a>) -> Answering<'a> {
        let gone = self.0.gone.lock().clone();
        let args = CompoundArgs::decode(&mut call.arguments.clone());
        match (gone, args) {
            (Some(gone), Ok(args)) if call.procedure == PROC_COMPOUND => Answering::Pending(Box::pin(async move {
                let res = self.answer(inner, &call, &gone, args).await?;
                Ok(call.reply(&res))
            })),
            (None, Ok(args)) if args.argarray.iter().any(may_be_lost) => {
                Answering::Pending(Box::pin(async move {
                    let mut res = pass_on(inner, &call, &args).await?;
                    // The data are not durable, and the verifiers of two servers can be equal.
                    for result in &mut res.resarray {
                        match result {
                            Resop4::Write(Res4::Ok(written)) => {
                                (written.committed, written.writeverf) = (StableHow4::Unstable, VERIFIER);
                                self.0.written.fetch_add(1, SeqCst);
                            }
                            Resop4::Commit(Res4::Ok(verifier)) => *verifier = VERIFIER,
                            _ => {}
                        }
                    }
                    Ok(call.reply(&res))
                }))
            }
            _ => inner.call(call),
        }
    }
}

const VERIFIER: Verifier4 = [7; 8];
