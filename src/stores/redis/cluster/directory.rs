//! The directory of clients in a cluster. An entry is on its key slot's member; a listing reads all members.

use crate::error::{Error, ErrorKind};
use crate::ident::{ClientId, LockName};
use crate::inspect::Inspection;
use crate::seam::directory::{Directory, Entry, Page, Place, Posted, Wanted, page_by_server, read_each};
use crate::seam::{Answer, Failure, Inspect};
use crate::stores::redis::cluster::ClusterStore;
use crate::stores::redis::directory::entry_key;
use crate::stores::redis::reply::Redirect;
use crate::stores::redis::store::RedisStore;
use crate::time::Moment;

impl ClusterStore {
    fn at_entry<T>(
        &self,
        client: ClientId,
        deadline: Moment,
        ask: impl Fn(&RedisStore) -> Answer<T>,
    ) -> Answer<T> {
        self.ask("directory", &LockName::reserved(entry_key(client)), deadline, ask)
    }

    /// Asks the member that `from` names for its next page. Once its pages are read, the next member follows.
    fn page<T>(
        &self,
        from: &Place,
        ask: impl FnOnce(&RedisStore, &Place) -> Answer<Page<T>>,
    ) -> Answer<Page<T>> {
        let members = self.topology.primaries();
        let all = || members.iter().map(ToString::to_string).collect();
        self.noted(page_by_server(from, all, |server, from| {
            let Some(member) = members.iter().find(|member| member.to_string() == server) else {
                let words = format!("the cluster's member {server} no longer has slots");
                return Failure::refused(Error::new(ErrorKind::Busy, "list", words));
            };
            ask(&self.topology.node(member).map_err(Failure::Refused)?.store, from)
        }))
    }
}

impl Directory for ClusterStore {
    fn write(&self, entry: Entry<'_>, deadline: Moment) -> Answer<()> {
        self.at_entry(entry.client, deadline, |store| store.write(entry, deadline))
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        self.at_entry(client, deadline, |store| store.remove(client, deadline))
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        read_each(clients, |client| self.at_entry(client, deadline, |store| store.read(&[client], deadline)))
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        self.page(from, |store, from| store.clients(from, deadline))
    }

    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        let describe = |name: &LockName, error: &Error| {
            let moves = Redirect::of(error).is_some() || error.kind() == ErrorKind::Busy;
            moves.then(|| self.describe(name, deadline))
        };
        self.page(from, |store, from| store.locks_page(wanted, &from.cursor, deadline, describe))
    }
}
