//! The directory of the clients on a store in this process, and the list of its locks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::ident::{ClientId, LockName};
use crate::inspect::Inspection;
use crate::seam::directory::{Directory, Listing, Page, Place, Posted, Wanted, Written};
use crate::seam::{Answer, Failure};
use crate::stores::memory::access::MemoryAccess;
use crate::stores::memory::state::MemoryState;
use crate::time::Moment;

const PAGE: usize = 250;

impl MemoryAccess {
    pub(super) fn directory<T>(&self, ask: impl FnOnce(&mut MemoryState, Moment) -> T) -> Answer<T> {
        if let Err(error) = self.check_open() {
            return Err(Failure::Refused(error));
        }
        let mut state = self.shared.state.lock();
        Ok(ask(&mut state, self.shared.clock.now()))
    }
}

impl MemoryState {
    fn posted(&self, client: ClientId, now: Moment) -> Option<Posted> {
        let (text, until) = self.clients.get(&client).filter(|(_, until)| *until > now)?;
        Some(Posted { text: text.clone(), remaining: until.since(now) })
    }

    fn keys_after(&self, after: &str) -> BTreeSet<&str> {
        let keys = self.locks.keys().chain(self.read_writes.keys());
        let keys = keys.chain(self.counted.keys().map(|(_, key)| key));
        keys.map(|key| &**key).filter(|key| *key > after).collect()
    }
}

/// Faults never affect a client's own entry: no caller waits for it, and tests do not mean it.
impl Directory for MemoryAccess {
    fn write(&self, client: ClientId, text: &str, lease: Duration, _deadline: Moment, done: Written) {
        let entry = |now: Moment| (text.to_owned(), now.plus(lease));
        done(self.directory(|state, now| drop(state.clients.insert(client, entry(now)))));
    }

    fn remove(&self, client: ClientId, _deadline: Moment) -> Answer<()> {
        self.directory(|state, _| drop(state.clients.remove(&client)))
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        let page = |state: &mut MemoryState, now| {
            let found = clients.iter().map(|client| state.posted(*client, now)).collect();
            Page { found, next: None, requests: 1, looked_at: 0 }
        };
        self.ask(deadline, || self.directory(page))
    }

    fn clients(&self, _from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        let page = |state: &mut MemoryState, now| {
            let all = state.clients.keys().filter_map(|id| Some((*id, state.posted(*id, now)?)));
            let found: Vec<_> = all.collect();
            let looked_at = u64::try_from(state.clients.len()).unwrap_or(u64::MAX);
            Page { found, next: None, requests: 1, looked_at }
        };
        self.ask(deadline, || self.directory(page))
    }
}

impl Listing for MemoryAccess {
    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        let page = |state: &mut MemoryState, now| {
            let channels = self.shared.channels.lock();
            let keys: Vec<&str> = state.keys_after(&from.cursor).into_iter().take(PAGE).collect();
            let next = keys.get(PAGE - 1).map(|last| Place { servers: None, cursor: (*last).to_owned() });
            let found = keys.iter().filter_map(|key| {
                let name = LockName::new(&Arc::from(wanted.name(key)?), (*key).to_owned()).ok()?;
                Some(state.shown(&name, now, &channels))
            });
            let found = found.collect();
            Page { found, next, requests: 1, looked_at: u64::try_from(keys.len()).unwrap_or(u64::MAX) }
        };
        self.ask(deadline, || self.directory(page))
    }
}
