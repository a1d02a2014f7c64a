//! The directory of clients in a cluster: each entry is on the member that has its slot. Lists go from member
//! to member.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, LockName};
use crate::inspect::Inspection;
use crate::seam::directory::{Directory, Listing, Page, Place, Posted, Wanted, Written};
use crate::seam::{Answer, Failure, Inspect};
use crate::stores::redis::cluster::ClusterStore;
use crate::stores::redis::directory::{entry, listed};
use crate::stores::redis::reply::Redirect;
use crate::stores::redis::store::RedisStore;
use crate::time::Moment;

const ACTION: &str = "directory";

impl ClusterStore {
    /// The members that are still to be asked, the present one first.
    fn servers(&self, from: &Place) -> Vec<String> {
        match &from.servers {
            Some(servers) => servers.clone(),
            None => self.topology.primaries().iter().map(ToString::to_string).collect(),
        }
    }

    /// Has `ask` ask the present member for its next page, which says where that goes on; then come the
    /// others.
    fn page<T>(
        &self,
        from: &Place,
        ask: impl FnOnce(&RedisStore) -> Result<(Page<T>, String)>,
    ) -> Answer<Page<T>> {
        let mut servers = self.servers(from);
        let Some(server) = servers.first().cloned() else {
            let words = "no member of the cluster is known to have slots";
            return Err(Failure::Refused(Error::new(ErrorKind::Busy, "list", words)));
        };
        let members = self.topology.primaries();
        let Some(member) = members.iter().find(|member| member.to_string() == server) else {
            let words = format!("{server} has left the cluster while its locks were listed");
            return Err(Failure::Refused(Error::new(ErrorKind::Busy, "list", words)));
        };
        match self.topology.node(member).and_then(|node| ask(&node.store)) {
            Ok((mut page, cursor)) => {
                if cursor.is_empty() {
                    servers.remove(0);
                }
                page.next = (!servers.is_empty()).then_some(Place { servers: Some(servers), cursor });
                Ok(page)
            }
            Err(error) => self.noted(Err(Failure::Refused(error))),
        }
    }
}

impl Directory for ClusterStore {
    fn write(&self, client: ClientId, text: &str, lease: Duration, deadline: Moment, done: Written) {
        let place = match self.place(&LockName::reserved(entry(client)), deadline) {
            Ok(place) => place,
            Err(error) => return done(Err(Failure::Refused(error))),
        };
        let me = self.me.clone();
        // If the slot has moved, it is written in the next round.
        let take =
            move |answer| done(if let Some(store) = me.upgrade() { store.noted(answer) } else { answer });
        place.node.store.write(client, text, lease, deadline, Box::new(take));
    }

    fn write_now(&self, client: ClientId, text: &str, lease: Duration, deadline: Moment) -> Answer<()> {
        let name = LockName::reserved(entry(client));
        self.ask(ACTION, &name, deadline, |store| store.write_now(client, text, lease, deadline))
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        let name = LockName::reserved(entry(client));
        self.ask(ACTION, &name, deadline, |store| store.remove(client, deadline))
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        let mut page = Page { found: Vec::new(), next: None, requests: 0, looked_at: 0 };
        for client in clients {
            let name = LockName::reserved(entry(*client));
            page.requests += 1;
            match self.ask(ACTION, &name, deadline, |store| store.read(&[*client], deadline)) {
                Ok(one) => page.found.extend(one.found),
                // That of one member which is away says nothing about the others'.
                Err(_) => page.found.push(None),
            }
        }
        Ok(page)
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        self.page(from, |store| {
            let here = Place { servers: None, cursor: from.cursor.clone() };
            let mut page = store.clients(&here, deadline).map_err(Failure::into_error)?;
            let cursor = page.next.take().map_or_else(String::new, |next| next.cursor);
            Ok((page, cursor))
        })
    }
}

impl Listing for ClusterStore {
    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        self.page(from, |store| {
            let looked = store.look_at_page(wanted, &from.cursor, deadline).map_err(Failure::into_error)?;
            let mut page = Page {
                found: Vec::new(),
                next: None,
                requests: looked.requests,
                looked_at: looked.looked_at,
            };
            for (name, seen) in looked.seen {
                let seen = match seen.map_err(Failure::into_error) {
                    // Its slot moves: it is asked for where it is.
                    Err(error) if Redirect::of(&error).is_some() || error.kind() == ErrorKind::Busy => {
                        page.requests += 1;
                        self.describe(&name, deadline).map_err(Failure::into_error)
                    }
                    seen => seen,
                };
                page.found.extend(listed(seen)?);
            }
            Ok((page, looked.cursor))
        })
    }
}
