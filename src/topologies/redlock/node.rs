//! One server of Redlock: its connection, its own names for locks, and whether it answers.

use std::sync::Arc;
use std::time::Duration;

use crate::config::NameMapper;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::seam::{Answer, Claim, Failure, Kind, ListensFor, OpenStore, QueueMode};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, OnceLock};
use crate::time::{Clock, Moment};

/// Connects to a server, within the time given as the argument.
pub(crate) type VoterOpener = Box<dyn Fn(Duration) -> Result<Voter> + Send + Sync>;

pub(crate) struct Voter {
    pub(crate) store: OpenStore,
    /// The server's own id, which is the same under each of its addresses. `None` if it cannot be read.
    pub(crate) identity: Option<String>,
    /// Weaknesses of the server's configuration, which are reported as warnings.
    pub(crate) doubts: Vec<&'static str>,
    pub(crate) note_format: FormatNoter,
}

pub(crate) type FormatNoter = Box<dyn Fn(Moment) -> Answer<()> + Send + Sync>;

impl Voter {
    /// Stores the format number on the server. Fails only if the server has another number. A client that may
    /// not write the number's key can still lock, so other errors are ignored.
    pub(super) fn store_format(&self, deadline: Moment) -> Result<()> {
        match (self.note_format)(deadline) {
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::IncompatibleFormat => {
                Err(error.during("connect"))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) struct VotingNode {
    /// The server's address for error messages, without a password.
    pub(super) place: String,
    pub(super) map_names: Option<NameMapper>,
    pub(super) open: VoterOpener,
    pub(super) is_opening: AtomicBool,
    /// Empty until the first successful connection.
    pub(super) member: OnceLock<Voter>,
    outage: Mutex<Option<NodeOutage>>,
    /// The first owner number that was unused when the server last went out of use. A server out of use gets
    /// no requests, so it holds nothing under this number or a higher one.
    unasked_from: AtomicU64,
}

/// The state of a server that is out of use. The server gets no requests until it has answered the monitor.
struct NodeOutage {
    error: Error,
    next_check: Moment,
    pause: Duration,
    probe: Option<(Kind, Arc<LockName>, Owner)>,
}

/// First and longest pause between two checks of a server that is out of use.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

impl VotingNode {
    pub(crate) fn new(place: String, map_names: Option<NameMapper>, open: VoterOpener) -> VotingNode {
        VotingNode {
            place,
            map_names,
            open,
            is_opening: AtomicBool::new(false),
            member: OnceLock::default(),
            outage: Mutex::new(None),
            unasked_from: AtomicU64::new(0),
        }
    }

    /// The lock's name on this server. `None` if this server uses the name that the user gave.
    pub(super) fn renamed(&self, name: &LockName) -> Result<Option<LockName>> {
        self.map_names.as_ref().map(|map| name.keyed(map(name.key()))).transpose()
    }

    pub(super) fn claim(&self, claim: &Claim) -> Result<Claim> {
        let renamed = self.renamed(&claim.name)?;
        let name = renamed.map_or_else(|| Arc::clone(&claim.name), Arc::new);
        // The wait queue is not used, because its order would differ between the servers.
        Ok(Claim { name, queue_mode: QueueMode::Barges, listens_for: ListensFor::Releases, ..claim.clone() })
    }

    pub(super) fn join(&self, member: Voter) {
        self.member.get_or_init(|| member); // only the monitor connects, so there is no second member
        *self.outage.lock() = None;
    }

    /// Notes that connecting failed. Returns `true` if the server answered with an error of another kind than
    /// before, which deserves a warning.
    pub(super) fn stays_away(&self, error: Error) -> bool {
        let Some(outage) = &mut *self.outage.lock() else { return false };
        let is_news = !error.is_silence() && outage.error.kind() != error.kind();
        outage.goes_on(error);
        is_news
    }

    pub(super) fn ready(&self) -> Result<&OpenStore> {
        if let Some(outage) = &*self.outage.lock() {
            return Err(outage.error.copy());
        }
        self.member
            .get()
            .map(|member| &member.store)
            .ok_or_else(|| Error::new(ErrorKind::Unreachable, "connect", "it has not been reached yet"))
    }

    pub(super) fn is_ready(&self) -> bool {
        self.outage.lock().is_none() && self.member.get().is_some()
    }

    pub(super) fn may_hold(&self, owner: Owner) -> bool {
        self.is_ready() || owner.number() < self.unasked_from.load(Ordering::SeqCst)
    }

    /// Takes the server out of use because of `error`, and returns whether it was in use. `fresh_number`
    /// gives the first owner number for which the server cannot hold anything.
    pub(super) fn put_out(
        &self,
        error: &Error,
        probe: Option<(Kind, Arc<LockName>, Owner)>,
        fresh_number: impl FnOnce() -> u64,
    ) -> bool {
        let mut outage = self.outage.lock();
        if outage.is_some() {
            return false;
        }
        self.unasked_from.store(fresh_number(), Ordering::SeqCst);
        let pause = LOOK_AGAIN.0;
        let next_check = Clock::System.after(pause);
        *outage = Some(NodeOutage { error: error.copy(), next_check, pause, probe });
        true
    }

    /// If a check is due, sends the server a request, and waits up to `patience`; calls `open` instead if the
    /// server was never connected. Returns whether it is in use again, and when the next check is due.
    pub(super) fn look(&self, patience: Duration, open: impl FnOnce()) -> (bool, Moment) {
        let probe = match &*self.outage.lock() {
            None => return (false, Moment::NEVER),
            Some(_) if self.is_opening.load(Ordering::SeqCst) => return (false, Moment::NEVER),
            Some(outage) if Clock::System.now() < outage.next_check => return (false, outage.next_check),
            Some(outage) => outage.probe.clone(),
        };
        let Some(member) = self.member.get() else {
            open();
            return (false, Moment::NEVER);
        };
        let inspect = |(kind, name, owner): (Kind, Arc<LockName>, Owner)| {
            member.store.inspect(kind, &name, owner, Clock::System.after(patience))
        };
        let answer = probe.map(inspect);
        let mut outage = self.outage.lock();
        if let (Some(Err(failure)), Some(outage)) = (answer, &mut *outage)
            && failure.error().is_silence()
        {
            return (false, outage.goes_on(failure.into_error()));
        }
        *outage = None;
        (true, Moment::NEVER)
    }
}

impl NodeOutage {
    fn goes_on(&mut self, error: Error) -> Moment {
        self.error = error;
        self.pause = (self.pause * 2).min(LOOK_AGAIN.1);
        self.next_check = Clock::System.after(self.pause);
        self.next_check
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::ClientId;
    use crate::seam::Store;
    use crate::stores::memory::MemoryStore;

    fn silence() -> Error {
        Error::new(ErrorKind::TimedOut, "request", "no answer")
    }

    #[test]
    fn a_redlock_servers_outage_lasts_until_it_joins_again() {
        let open = |_| Err(silence());
        let node = VotingNode::new("a server".to_owned(), None, Box::new(open));
        let store = || Voter {
            store: OpenStore::from(Arc::new(MemoryStore::new().open()) as Arc<dyn Store>),
            identity: None,
            doubts: Vec::new(),
            note_format: Box::new(|_| Ok(())),
        };
        let may_hold = |number| node.may_hold(Owner::new(ClientId::random(), number));
        let put_out = |first: u64| node.put_out(&silence(), None, || first);
        node.join(store());
        assert!(put_out(10));
        assert!(!put_out(20), "the server is away already");
        assert!(may_hold(9) && !may_hold(10));
        assert_eq!(node.outage.lock().as_ref().unwrap().pause, LOOK_AGAIN.0);
        for _ in 0..10 {
            assert!(!node.stays_away(silence()), "a second silence was reported");
        }
        let refused = || Error::new(ErrorKind::IncompatibleFormat, "connect", "another version's");
        assert!(node.stays_away(refused()));
        assert!(!node.stays_away(refused()), "once");
        assert_eq!(
            node.outage.lock().as_ref().unwrap().pause,
            LOOK_AGAIN.1,
            "the server is not checked less often"
        );
        node.join(store());
        assert!(node.is_ready() && may_hold(u64::MAX));
        assert!(put_out(30));
        assert!(may_hold(29) && !may_hold(30));
        assert_eq!(
            node.outage.lock().as_ref().unwrap().pause,
            LOOK_AGAIN.0,
            "the server is not checked soon"
        );
    }
}
