//! A lock's path, and the names of its nodes, as in Curator's `InterProcessMutex`. Below the lock's path each
//! owner has an ephemeral node `_c_<GUID>-lock-<number>`. The server gives the numbers, and the lowest has
//! the lock.

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::hosts::unescaped;
use crate::ident::Owner;
use crate::seam::Family;
use crate::seam::directory::Wanted;

const BASE: &str = "/leasehold";
/// The library's own nodes in `BASE`: the folder of clients' entries, and the node of the format number.
const OWN: [&str; 2] = [CLIENTS, FORMAT];
const CLIENTS: &str = "%clients";
const FORMAT: &str = "%format";

pub(super) fn of_lock(chroot: &str, key: &str) -> Result<String> {
    let words = "the name, or a part of it, ends as a waiter's node on ZooKeeper (lock-, __READ__ or __WRIT__ and ten \
                     digits): use another name";
    let is_node = |part: &str| QueuedNode::new(part.to_owned()).is_some();
    Error::require("lock", !key.split('/').any(is_node), || words)?;
    if key.starts_with('/') {
        check(key)?;
        let below = key.strip_prefix(BASE).and_then(|rest| rest.strip_prefix('/'));
        let is_ours = below.and_then(|below| below.split('/').next()).is_some_and(|part| OWN.contains(&part));
        Error::require("lock", !is_ours, || "the path belongs to leasehold's own data: use another name")?;
        return Ok(format!("{chroot}{key}"));
    }
    let mut path = format!("{chroot}{BASE}/");
    let is_dots = matches!(key, "." | "..");
    for character in key.chars() {
        if is_dots || matches!(character, '/' | '%') || !is_allowed(character) {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                path.push_str(&format!("%{byte:02X}"));
            }
        } else {
            path.push(character);
        }
    }
    Ok(path)
}

/// The folder of clients' entries. No lock has this path: `%cl` is no encoded character, and [`of_lock`]
/// refuses names that are this path.
pub(super) fn of_clients(chroot: &str) -> String {
    format!("{chroot}{BASE}/{CLIENTS}")
}

pub(super) fn of_format(chroot: &str) -> String {
    format!("{chroot}{BASE}/{FORMAT}")
}

pub(super) struct ListedFolder {
    pub(super) folder: String,
    /// If names are paths: the part of each name up to and with its last slash.
    parent: Option<String>,
}

impl ListedFolder {
    pub(super) fn key_of(&self, child: &str) -> Option<String> {
        match &self.parent {
            Some(parent) => Some(format!("{parent}{child}")),
            None => unescaped(child),
        }
    }
}

/// The folder with the wanted locks: if the pattern is a path, the last folder before its first wildcard.
pub(super) fn listed(chroot: &str, wanted: &Wanted) -> ListedFolder {
    let plain = wanted.pattern.split(['*', '?', '[', '\\']).next().unwrap_or_default();
    let literal = format!("{}{plain}", wanted.prefix);
    let parent =
        literal.rfind('/').filter(|_| literal.starts_with('/')).and_then(|last| literal.get(..=last));
    let Some(parent) = parent else {
        return ListedFolder { folder: format!("{chroot}{BASE}"), parent: None };
    };
    let folder = format!("{chroot}{}", parent.trim_end_matches('/'));
    let folder = if folder.is_empty() { "/".to_owned() } else { folder };
    ListedFolder { folder, parent: Some(parent.to_owned()) }
}

pub(super) fn check(path: &str) -> Result<()> {
    let refuse =
        |why: &str| Err(Error::invalid("lock", format!("the name is not a valid path of ZooKeeper: {why}")));
    let Some(parts) = path.strip_prefix('/') else { return refuse("it does not begin with a slash") };
    if parts == "zookeeper" || parts.starts_with("zookeeper/") {
        return refuse("what is below /zookeeper belongs to the server");
    }
    for part in parts.split('/') {
        match part {
            "" => return refuse("a part of it is empty"),
            "." | ".." => return refuse("a part of it is only dots"),
            _ => {}
        }
    }
    match parts.chars().find(|character| !is_allowed(*character)) {
        Some(character) => refuse(&format!("it has the character {character:?}")),
        None => Ok(()),
    }
}

/// Whether ZooKeeper accepts the character. It refuses every character of two UTF-16 units.
fn is_allowed(character: char) -> bool {
    !matches!(character, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{d7ff}'..='\u{f8ff}' | '\u{fff0}'..)
}

fn family_marker(family: Family) -> &'static str {
    match family {
        Family::Read => "__READ__",
        Family::Write => "__WRIT__",
        // The store's `check_name` has refused token locks and counted kinds.
        Family::Lock | Family::Token | Family::Counted => "lock-",
    }
}

/// The prefix of an owner's nodes, by which the owner finds a node whose creation was not answered.
pub(super) fn prefix(owner: Owner, family: Family) -> String {
    let guid = Uuid::from_u128(owner.client().as_u128() ^ u128::from(owner.number()));
    format!("_c_{}-{}", guid.as_hyphenated(), family_marker(family))
}

/// The node of a waiter or holder, ours or Curator's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedNode {
    pub(super) name: String,
    pub(super) family: Family,
    number: i32,
}

impl QueuedNode {
    /// `None` unless the name is a waiter's or holder's. The number has ten digits, or a minus on overflow.
    fn new(name: String) -> Option<QueuedNode> {
        [Family::Lock, Family::Read, Family::Write].into_iter().find_map(|family| {
            let (_, digits) = name.rsplit_once(family_marker(family))?;
            let number = digits.parse::<i32>().ok().filter(|number| format!("{number:010}") == digits)?;
            Some(QueuedNode { number, name: name.clone(), family })
        })
    }

    /// Whether the server has run out of numbers. It then repeats the last number, so two nodes hold the
    /// lock, or gives negative ones, so the newest node holds the lock (ZooKeeper's `DataTree`).
    pub(super) fn is_past_the_last(&self) -> bool {
        !(0..i32::MAX).contains(&self.number)
    }

    /// Whether this node has the lock only after `other` has ended.
    pub(super) fn waits_for(&self, other: &QueuedNode) -> bool {
        self.number > other.number && (self.family != Family::Read || other.family == Family::Write)
    }

    pub(super) fn digits(name: &str, family: Family) -> &str {
        name.rsplit_once(family_marker(family)).map_or("", |(_, digits)| digits)
    }
}

/// A lock's nodes, ordered by number. An owner that reads while it writes has one number for both.
#[derive(Debug, Default)]
pub(super) struct NodeLine(Vec<QueuedNode>);

impl NodeLine {
    pub(super) fn new(children: Vec<String>) -> NodeLine {
        let mut waiters: Vec<_> = children.into_iter().filter_map(QueuedNode::new).collect();
        waiters.sort_by_key(|waiter| (waiter.number, waiter.family != Family::Write));
        NodeLine(waiters)
    }

    pub(super) fn is_strange_to(&self, family: Family) -> bool {
        self.0.iter().any(|waiter| (waiter.family == Family::Lock) != (family == Family::Lock))
    }

    pub(super) fn is_busy_for(&self, family: Family) -> bool {
        self.0.iter().any(|waiter| family != Family::Read || waiter.family == Family::Write)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &QueuedNode> {
        self.0.iter()
    }

    pub(super) fn find(&self, name: &str) -> Option<&QueuedNode> {
        self.0.iter().find(|waiter| waiter.name == name)
    }

    /// The nearest node that must end before `waiter` has the lock. `None` if `waiter` has the lock.
    pub(super) fn in_front_of(&self, waiter: &QueuedNode) -> Option<&QueuedNode> {
        self.0.iter().rev().find(|other| waiter.waits_for(other))
    }

    pub(super) fn holders(&self, family: Family) -> impl Iterator<Item = &QueuedNode> {
        self.0.iter().filter(move |one| one.family == family && self.in_front_of(one).is_none())
    }
}

pub(super) fn with_parents(path: &str) -> impl Iterator<Item = &str> {
    let inner = path.match_indices('/').skip(1).filter_map(|(at, _)| path.get(..at));
    inner.chain(std::iter::once(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::ClientId;

    #[test]
    fn lock_names_are_percent_encoded_unless_they_are_paths() {
        let of = |key: &str| of_lock("/app", key).unwrap();
        assert_eq!(of("/locks/a"), "/app/locks/a");
        assert_eq!(of("orders"), "/app/leasehold/orders");
        assert_eq!(of("a/b%c"), "/app/leasehold/a%2Fb%25c");
        assert_eq!(
            (of("."), of(".."), of("...")),
            (
                "/app/leasehold/%2E".to_owned(),
                "/app/leasehold/%2E%2E".to_owned(),
                "/app/leasehold/...".to_owned()
            )
        );
        assert_eq!(of("nul\0 🔒 ü"), "/app/leasehold/nul%00 %F0%9F%94%92 ü");
    }

    #[test]
    fn a_lock_name_is_read_back_from_its_path() {
        for key in ["orders", "a/b%c", ".", "..", "...", "nul\0 🔒 ü"] {
            let path = of_lock("", key).unwrap();
            assert_eq!(unescaped(path.strip_prefix("/leasehold/").unwrap()).as_deref(), Some(key));
        }
        let clients = of_clients("/app");
        assert_eq!(clients, "/app/leasehold/%clients");
        for node in ["%clients", "%", "%2", "%FF", "a%zz"] {
            assert_eq!(unescaped(node), None, "{node}");
        }
    }

    #[test]
    fn a_path_pattern_lists_only_the_folder_before_its_wildcard() {
        let of = |prefix: &str, pattern: &str| {
            let wanted = Wanted { prefix: prefix.to_owned(), pattern: pattern.to_owned() };
            let place = listed("/app", &wanted);
            (place.key_of("a%2Fb"), place.folder)
        };
        let below = |key: &str, folder: &str| (Some(key.to_owned()), folder.to_owned());
        assert_eq!(of("", "*"), below("a/b", "/app/leasehold"));
        assert_eq!(of("jobs/", "*"), below("a/b", "/app/leasehold"));
        assert_eq!(of("", "/jobs/n*/x"), below("/jobs/a%2Fb", "/app/jobs"));
        assert_eq!(of("/jobs/", "eu/*"), below("/jobs/eu/a%2Fb", "/app/jobs/eu"));
        assert_eq!(of("/", "*"), below("/a%2Fb", "/app"));
    }

    #[test]
    fn invalid_zookeeper_paths_are_refused_as_lock_names() {
        for path in
            ["/", "//", "/a/", "/a//b", "/a/./b", "/..", "/a\0", "/🔒", "/zookeeper", "/zookeeper/quota"]
        {
            assert_eq!(of_lock("", path).unwrap_err().kind(), crate::ErrorKind::InvalidInput, "{path:?}");
        }
        for path in [of_clients(""), of_format(""), format!("{}/a", of_clients(""))] {
            assert!(of_lock("/app", &path).unwrap_err().to_string().contains("own data"), "{path:?}");
        }
        assert!(of_lock("", "/zookeepers/a").is_ok() && of_lock("", "/leasehold/%clientsa").is_ok());
    }

    fn line(children: &[&str]) -> NodeLine {
        NodeLine::new(children.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn nodes_of_waiters_alone_form_the_queue_ordered_by_number() {
        let line = line(&[
            "_c_b-lock-0000000010",
            "sub",
            "_c_c-lock-0000000009",
            "lock-0000000003",
            "lock-",
            "x-lock-y",
            "x-lock-0",
            "x-lock-00000000001",
            "x-lock-+000000001",
            "x__READ__7",
        ]);
        let names: Vec<_> = line.0.iter().map(|waiter| waiter.name.as_str()).collect();
        assert_eq!(names, ["lock-0000000003", "_c_c-lock-0000000009", "_c_b-lock-0000000010"]);
        assert_eq!(line.in_front_of(&line.0[2]).unwrap().name, names[1]);
        assert_eq!(line.holders(Family::Lock).map(|one| &*one.name).collect::<Vec<_>>(), [names[0]]);
        assert!(line.is_strange_to(Family::Read) && !line.is_strange_to(Family::Lock));
    }

    #[test]
    fn readers_wait_for_writers_and_writers_for_everybody() {
        let names = ["a__READ__", "b__READ__", "c__WRIT__", "d__READ__", "e__WRIT__", "f__READ__"];
        let names: Vec<_> =
            names.iter().zip(1..).map(|(name, number)| format!("{name}{number:010}")).collect();
        let line = line(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let front = line.0.iter().map(|one| line.in_front_of(one).map(|other| other.name.clone()));
        let front: Vec<_> = front.map(Option::unwrap_or_default).collect();
        assert_eq!(front, ["", "", &*names[1], &*names[2], &*names[3], &*names[4]]);
        assert_eq!(line.holders(Family::Read).count(), 2);
        assert!(line.is_busy_for(Family::Read) && line.is_busy_for(Family::Write));
    }

    #[test]
    fn a_writer_that_also_reads_uses_one_number_for_both() {
        let line = line(&["a__READ__0000000007", "a__WRIT__0000000007", "b__READ__0000000008"]);
        assert_eq!(line.holders(Family::Write).count(), 1);
        assert_eq!(
            line.holders(Family::Read).map(|one| &*one.name).collect::<Vec<_>>(),
            ["a__READ__0000000007"]
        );
        assert_eq!(QueuedNode::digits("_c_x-__WRIT__0000000007", Family::Write), "0000000007");
    }

    #[test]
    fn each_owner_has_its_own_curator_style_prefix() {
        let client = ClientId::random();
        let (one, other) = [1, 2].map(|number| prefix(Owner::new(client, number), Family::Lock)).into();
        assert_ne!(one, other);
        let guid = one.strip_prefix("_c_").unwrap().strip_suffix("-lock-").unwrap();
        assert_eq!(guid.len(), 36);
        assert!(Uuid::parse_str(guid).is_ok());
    }

    #[test]
    fn node_names_of_waiters_are_refused_as_lock_names() {
        let own = "_c_0f0c2d4e-0000-4000-8000-000000000001-lock-0000000001";
        for name in
            [own, &format!("/a/{own}"), &format!("/{own}/a"), "lock-0000000003", "x__WRIT__0000000001"]
        {
            assert_eq!(of_lock("", name).unwrap_err().kind(), crate::ErrorKind::InvalidInput, "{name}");
        }
        for name in [&own[..own.len() - 1], "/a/x-lock-00000000001", "lock-", "_c_"] {
            assert!(of_lock("", name).is_ok(), "{name}");
        }
    }

    #[test]
    fn with_parents_lists_a_path_after_its_parents() {
        assert_eq!(with_parents("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b", "/a/b/c"]);
        assert_eq!(with_parents("/a").collect::<Vec<_>>(), ["/a"]);
    }
}

#[cfg(all(test, leasehold_fuzz))]
mod fuzz {
    use super::*;
    use crate::fuzz::{each, nearly_text};

    #[test]
    fn any_name_is_read_back_or_refused() {
        each(nearly_text(&[b"orders", b"/jobs/night", b"a/b%c", b".", b"/zookeeper"]), String::len, |name| {
            match of_lock("", name) {
                Ok(path) if !name.starts_with('/') => {
                    let node = path.strip_prefix("/leasehold/").unwrap();
                    assert!(
                        !node.contains('/') && unescaped(node).as_deref() == Some(name),
                        "{name:?}: {path:?}"
                    );
                }
                Ok(path) => assert_eq!(path, *name),
                Err(_) => {}
            }
            drop(unescaped(name));
            drop(listed("/app", &Wanted { prefix: name.clone(), pattern: name.clone() }).key_of(name));
        });
    }
}
