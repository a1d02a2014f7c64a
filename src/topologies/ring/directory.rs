//! The [directory](crate::seam::directory) of clients on a ring. Each client's entry is on the node to which
//! the entry's key belongs. A listing reads one node after the other.

use crate::error::{Error, ErrorKind};
use crate::ident::ClientId;
use crate::ident::derived::Part;
use crate::inspect::Inspection;
use crate::seam::directory::{Directory, Entry, Page, Place, Posted, Wanted, page_by_server, read_each};
use crate::seam::{Answer, Failure};
use crate::time::Moment;
use crate::topologies::ring::view::RingView;
use crate::topologies::ring::{RingStore, moved_on};

fn none<T>() -> Answer<T> {
    Failure::refused(Error::new(ErrorKind::Unsupported, "directory", "this node has no directory of clients"))
}

fn home(view: &RingView, client: ClientId) -> u32 {
    view.circle.home(&format!("{}{client}", Part::ClientEntry.text()))
}

impl RingStore {
    fn at_entry<T>(&self, client: ClientId, ask: impl FnOnce(&dyn Directory) -> Answer<T>) -> Answer<T> {
        let view = self.view();
        let Some(node) = view.node(home(&view, client)) else { return Err(Failure::Refused(moved_on())) };
        node.capabilities.directory.as_deref().map_or_else(none, ask)
    }

    /// Asks the node that `from` names for its next page. After the node's last page the next node follows.
    fn page<T>(
        &self,
        from: &Place,
        ask: impl FnOnce(&dyn Directory, &Place) -> Answer<Page<T>>,
    ) -> Answer<Page<T>> {
        let view = self.view();
        let labels = || {
            let nodes = view.nodes.iter().zip(0_u32..);
            let in_use = nodes.filter(|(_, home)| view.mark(*home).is_some());
            in_use.map(|(node, _)| node.label.clone()).collect::<Vec<String>>()
        };
        page_by_server(from, labels, |label, from| {
            let node = view.nodes.iter().find(|node| node.label == label);
            let node = node.ok_or_else(|| Failure::Refused(moved_on()))?;
            node.capabilities.directory.as_deref().map_or_else(none, |directory| ask(directory, from))
        })
    }
}

impl Directory for RingStore {
    fn write(&self, entry: Entry<'_>, deadline: Moment) -> Answer<()> {
        self.at_entry(entry.client, |node| node.write(entry, deadline))
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        self.at_entry(client, |node| node.remove(client, deadline))
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        read_each(clients, |client| self.at_entry(client, |node| node.read(&[client], deadline)))
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        self.page(from, |directory, from| directory.clients(from, deadline))
    }

    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        self.page(from, |directory, from| directory.locks(wanted, from, deadline))
    }
}
