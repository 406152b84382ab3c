//! Who has a delegation to write a file knows better than the server how large it is, and whether it has been changed: what
//! CB_GETATTR asks.
//!
//! Read RFC 8881 §10.4.3 and §20.1. GETATTR by another client has the compound wait for the holder's answer. If that does not come
//! in time, is a refusal, or cannot be asked for, the delegation is recalled, and the other client told to come again. A
//! holder is asked one question of a file at a time, and all who want to know meanwhile hear the answer.

use std::{collections::HashMap, sync::Arc, time::Duration};

use nfs::v4::{
    Clientid4, Res4, Stateid4,
    attr::{Attr4, Purpose},
    callback::{CbArgop4, CbGetAttrArgs, CbResop4},
};
use parking_lot::Mutex;
use tokio::{sync::watch, time::timeout};
use vfs::{Cred, SetAttr, SetTime};

use super::{compound::Cursor, state::recallable::Held, upkeep::Errand};
use crate::{
    call::{
        context::{Context, Object, Shared},
        error::{Fault, Fault4},
    },
    clock,
    nlm::lockd::LockFile,
};

/// The questions under way, by the delegations that they are about.
#[derive(Default)]
pub(crate) struct Questions(Mutex<HashMap<Stateid4, watch::Receiver<Option<Answer>>>>);

/// A question under way.
pub(super) struct Question {
    about: Stateid4,
    answer: watch::Receiver<Option<Answer>>,
    patience: Duration,
}

/// A question that is to be asked.
pub(super) struct Asking {
    holder: Held<LockFile>,
    said: watch::Sender<Option<Answer>>,
}

impl Asking {
    /// Who is asked.
    pub(super) fn client(&self) -> Clientid4 {
        self.holder.client
    }
}

/// Asks it.
pub(super) async fn ask(shared: Arc<Shared>, Asking { holder, said }: Asking) {
    let answer = shared.getattr_of(&holder).await;
    shared.answer(&holder, &said, answer);
}

/// What a holder says of a file; nothing if it says nothing of use.
type Answer = Option<Told>;

/// What a holder knows of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    change: Option<u64>,
    size: Option<u64>,
}

/// The answer to a question, until the operation that asked it has ended.
#[derive(Clone)]
pub(super) struct Answered {
    about: Stateid4,
    answer: Answer,
}

impl Question {
    /// Waits for its answer, for a while.
    pub(super) async fn answered(mut self) -> Answered {
        let heard = timeout(self.patience, self.answer.wait_for(Option::is_some)).await;
        let answer = heard.ok().and_then(Result::ok).and_then(|answer| (*answer).flatten());
        Answered { about: self.about, answer }
    }
}

impl Context<'_> {
    /// The size of a file of which somebody else has a delegation to write, as far as the server does not know it itself. If the
    /// holder has changed the file, the server's own attributes say so from now on.
    ///
    /// # Errors
    /// `WouldBlock` while the holder is asked: the cursor has the question. DELAY while the delegation is recalled.
    pub(super) fn size_at_holder(&self, at: &mut Cursor, object: &Object<'_>) -> Result<Option<u64>, Fault4> {
        let (answered, now) = (at.answered.clone(), clock::now());
        if !self.shared.v4.marks().may_be_delegated(&(&object.export.id(), &object.handle)) {
            return Ok(None);
        }
        let (file, by) = ((object.export.id(), object.handle.clone()), Some(at.client()));
        let holder = self.shared.with_locks(|state, locks| state.holder(locks, &file, by, now))?;
        let Some(holder) = holder else { return Ok(None) };
        let told = match answered.filter(|answered| answered.about == holder.stateid) {
            Some(Answered { answer: Some(told), .. }) => told,
            Some(Answered { answer: None, .. }) => {
                self.before_read(object, by)?;
                // It has been given back in the meantime.
                return Ok(None);
            }
            None => {
                at.question = Some(self.shared.ask(holder));
                return Err(Fault::WouldBlock);
            }
        };
        let known = object.getattr()?;
        let differs = told.size.is_some_and(|size| size != known.size);
        let is_modified =
            || Ok::<_, Fault4>(self.shared.with_state(|state| state.is_modified(&holder, told.change, differs)));
        if object.once("is modified", is_modified)? {
            // §10.4.3: so that the change attribute does not go back if the holder never writes what it has.
            let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            object.vfs().setattr(&object.caller_as(&Cred::root()), &object.handle, &set, None)?;
        }
        Ok(told.size)
    }
}

impl Shared {
    /// Asks a holder, unless that is being done.
    fn ask(&self, holder: Held<LockFile>) -> Question {
        let (about, patience) = (holder.stateid, (self.v4.lease / LEASE_PARTS).max(PATIENCE_MIN));
        let mut questions = self.v4.questions.0.lock();
        if let Some(answer) = questions.get(&about) {
            return Question { about, answer: answer.clone(), patience };
        }
        let (said, answer) = watch::channel(None);
        questions.insert(about, answer.clone());
        drop(questions);
        self.v4.run(Errand::GetAttr(Asking { holder, said }));
        Question { about, answer, patience }
    }

    /// A question is not asked: nobody hears anything of use.
    pub(super) fn leave(&self, Asking { holder, said }: Asking) {
        self.answer(&holder, &said, None);
    }

    fn answer(&self, holder: &Held<LockFile>, said: &watch::Sender<Option<Answer>>, answer: Answer) {
        self.v4.questions.0.lock().remove(&holder.stateid);
        said.send_replace(Some(answer));
    }

    async fn getattr_of(&self, holder: &Held<LockFile>) -> Answer {
        let fh = self.callback_fh(&holder.file);
        let wanted = [Attr4::Change, Attr4::Size].into_iter().map(|attr| attr as u32).collect();
        let operation = CbArgop4::GetAttr(CbGetAttrArgs { fh, attr_request: wanted });
        let called = self.v4.callbacks.call(&self.v4.state, holder.client, &operation).await;
        let fattr = match called {
            Ok(CbResop4::GetAttr(Res4::Ok(fattr))) => fattr,
            Ok(result) => {
                tracing::debug!(client = holder.client.0, ?result, "a holder does not tell of a file");
                return None;
            }
            Err(error) => {
                tracing::debug!(client = holder.client.0, %error, "a holder cannot be asked");
                return None;
            }
        };
        let attrs = fattr.to_attrs(2, Purpose::Get).ok()?;
        Some(Told { change: attrs.change, size: attrs.size })
    }
}

/// How long others wait for what a holder says of a file before it has to give it back: such a part of a lease, and a second at least.
const LEASE_PARTS: u32 = 90;
const PATIENCE_MIN: Duration = Duration::from_secs(1);
