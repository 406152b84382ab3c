//! NSM version 1, the status monitor beside NLM: X/Open "Protocols for Interworking: XNFS" (C702) chapter 11.
//!
//! Hosts notify this program that they have restarted, and the server releases their locks. Programs of this host, such
//! as the kernel's own lock manager, can monitor other hosts as with any status monitor. Programs of other hosts
//! cannot.

use std::{ops::RangeInclusive, sync::Arc};

use nfs::nsm::{self, SM_PROGRAM, SmProc, SmRes, SmStat, SmStatRes, VERSION};
use rpc::{AcceptError, Answering, Call, Procedure, Service};
use xdr::{Encode, Encoder};

use crate::{
    call::{
        context,
        error::WouldBlock,
        exec::{self, Answer, Null},
    },
    export::policy::PORT_PRIVILEGED,
    nlm::lockd::Lockd,
};

type Context<'a> = context::Context<'a, Lockd>;

/// The NSM program, version 1.
pub struct Nsm1 {
    shared: Arc<Lockd>,
}

impl Nsm1 {
    pub(crate) fn new(shared: Arc<Lockd>) -> Self {
        Self { shared }
    }
}

impl Service for Nsm1 {
    fn program(&self) -> u32 {
        SM_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        let procedure = SmProc::from_number(procedure)?;
        Some(Procedure { name: procedure.name(), idempotent: procedure != SmProc::SimuCrash })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        let shared = &self.shared;
        match SmProc::from_number(call.procedure) {
            None => Answering::Ready(Err(AcceptError::SystemErr)),
            Some(SmProc::Null) => exec::run::<Null<_>>(shared, call),
            Some(SmProc::Stat) => exec::run::<Stat>(shared, call),
            Some(SmProc::Mon) => exec::run::<Mon>(shared, call),
            Some(SmProc::Unmon) => exec::run::<Unmon>(shared, call),
            Some(SmProc::UnmonAll) => exec::run::<UnmonAll>(shared, call),
            Some(SmProc::SimuCrash) => exec::run::<SimuCrash>(shared, call),
            Some(SmProc::Notify) => exec::run::<Notify>(shared, call),
        }
    }
}

struct Stat;

impl Answer for Stat {
    type Shared = Lockd;
    type Args = nsm::SmName;
    type Status = ();
    const NAME: &'static str = "STAT";

    fn answer(cx: &Context<'_>, _: &nsm::SmName, out: &mut Encoder) -> Result<(), WouldBlock> {
        SmStatRes { res: SmRes::Succ, state: state(cx) }.encode(out);
        Ok(())
    }
}

struct Mon;

impl Answer for Mon {
    type Shared = Lockd;
    type Args = nsm::MonArgs;
    type Status = SmRes;
    const NAME: &'static str = "MON";

    fn answer(cx: &Context<'_>, args: &nsm::MonArgs, out: &mut Encoder) -> Result<SmRes, WouldBlock> {
        let is_stored = is_local(cx) && cx.shared.monitor(args, cx.may_block)?;
        let res = if is_stored { SmRes::Succ } else { SmRes::Fail };
        SmStatRes { res, state: state(cx) }.encode(out);
        Ok(res)
    }
}

struct Unmon;

impl Answer for Unmon {
    type Shared = Lockd;
    type Args = nsm::MonId;
    type Status = ();
    const NAME: &'static str = "UNMON";

    fn answer(cx: &Context<'_>, args: &nsm::MonId, out: &mut Encoder) -> Result<(), WouldBlock> {
        if is_local(cx) {
            cx.shared.unmonitor(|mon_id| mon_id == args, cx.may_block)?;
        }
        SmStat { state: state(cx) }.encode(out);
        Ok(())
    }
}

struct UnmonAll;

impl Answer for UnmonAll {
    type Shared = Lockd;
    type Args = nsm::MyId;
    type Status = ();
    const NAME: &'static str = "UNMON_ALL";

    fn answer(cx: &Context<'_>, args: &nsm::MyId, out: &mut Encoder) -> Result<(), WouldBlock> {
        if is_local(cx) {
            cx.shared.unmonitor(|mon_id| mon_id.my_id == *args, cx.may_block)?;
        }
        SmStat { state: state(cx) }.encode(out);
        Ok(())
    }
}

struct SimuCrash;

impl Answer for SimuCrash {
    type Shared = Lockd;
    type Args = ();
    type Status = ();
    const NAME: &'static str = "SIMU_CRASH";

    fn answer(cx: &Context<'_>, (): &(), _: &mut Encoder) -> Result<(), WouldBlock> {
        // It releases the locks of all hosts, so only root on this host may call it.
        let may = is_local(cx) && cx.peer.port() < PORT_PRIVILEGED;
        if may && !cx.may_block {
            return Err(WouldBlock);
        }
        if may && let Err(error) = cx.shared.simulate_crash() {
            tracing::warn!(%error, "SM_SIMU_CRASH failed");
        }
        Ok(())
    }
}

struct Notify;

impl Answer for Notify {
    type Shared = Lockd;
    type Args = nsm::StatChge;
    type Status = ();
    const NAME: &'static str = "NOTIFY";

    fn answer(cx: &Context<'_>, args: &nsm::StatChge, _: &mut Encoder) -> Result<(), WouldBlock> {
        cx.shared.restarted(cx.peer, &args.mon_name, args.state);
        cx.shared.queue_notices(&args.mon_name, args.state);
        Ok(())
    }
}

fn state(cx: &Context<'_>) -> i32 {
    cx.shared.identity().1
}

fn is_local(cx: &Context<'_>) -> bool {
    cx.peer.ip().to_canonical().is_loopback()
}
