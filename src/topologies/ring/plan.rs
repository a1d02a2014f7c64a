//! A ring as a program describes it (nodes, epoch, earlier lists), and the choice of each name's home node by
//! consistent hashing with virtual nodes.
//!
//! All processes that share a ring must choose the same node, in every version and language. This file
//! therefore defines the hash, the points and the choice, and a test fixes their values.

use std::collections::BTreeSet;

use crate::config::debug_fields;
use crate::error::{Error, ErrorKind, Result};

/// The largest epoch. Larger numbers are not exact in languages whose numbers are doubles.
const LAST_EPOCH: u64 = 1 << 53;
const MOST_WEIGHT: u32 = 100;
const LONGEST_LABEL: usize = 200;

/// A server of a ring.
///
/// # Examples
///
/// ```
/// use leasehold::RingNode;
///
/// let node = RingNode::new("redis://10.0.0.7:6379").label("seven").weight(2);
/// assert_eq!(node.label_text(), "seven");
/// assert_eq!(RingNode::new("redis://me:secret@10.0.0.7:6379/2").label_text(), "10.0.0.7:6379/2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RingNode {
    pub(crate) url: String,
    pub(crate) label: String,
    pub(crate) weight: u32,
    pub(crate) is_lost: bool,
}

impl RingNode {
    /// The server at `url`: a single server, or a master watched by Sentinels. A cluster is refused, because
    /// a cluster spreads names itself.
    #[must_use]
    pub fn new(url: impl AsRef<str>) -> RingNode {
        let url = url.as_ref();
        let place = url.split_once("://").map_or(url, |(_, rest)| rest);
        let place = place.split(['?', '#']).next().unwrap_or_default();
        let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
        let label = place.trim_end_matches('/').to_owned();
        RingNode { url: url.to_owned(), label, weight: 1, is_lost: false }
    }

    /// Sets the label, which decides which names belong to the node. Defaults to the address in the URL.
    ///
    /// A node with a label can change its address without moving names, if the server at the new address has
    /// the old data. A server without the data is a new node, and needs a new label.
    #[must_use]
    pub fn label(mut self, label: impl AsRef<str>) -> RingNode {
        label.as_ref().clone_into(&mut self.label);
        self
    }

    /// Sets the node's share of the names, relative to weight 1, the default. Allowed are 1 to 100.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> RingNode {
        self.weight = weight;
        self
    }

    /// Declares a node of an [earlier list](Ring::moving_from) lost with its locks, so no client asks it.
    ///
    /// # Guarantees
    ///
    /// Mutual exclusion for its names holds only once all leases on the lost node have ended. Declare a node
    /// lost no sooner than one lease after any client could last reach it. The node must not return with its
    /// data.
    #[must_use]
    pub fn lost(mut self) -> RingNode {
        self.is_lost = true;
        self
    }

    /// The label as set by [`label`](Self::label), or the address in the URL.
    #[must_use]
    pub fn label_text(&self) -> &str {
        &self.label
    }
}

impl From<&str> for RingNode {
    fn from(url: &str) -> RingNode {
        RingNode::new(url)
    }
}

impl From<String> for RingNode {
    fn from(url: String) -> RingNode {
        RingNode::new(&url)
    }
}

// `Debug` does not show the URL, because it may contain a password.
debug_fields!(RingNode, |it| label: it.label, weight: it.weight);

/// A numbered list of servers over which names are spread.
///
/// All processes that share locks need the same list with the same number. A node remembers the highest
/// number, and refuses grants under a lower one, so processes can change to a new list one after the other;
/// see [`LockClient::change_ring`](crate::LockClient::change_ring).
///
/// # Examples
///
/// ```
/// use leasehold::Ring;
///
/// let two = Ring::new(["redis://10.0.0.1", "redis://10.0.0.2"]);
/// // A third node joins: while locks may still be held on their old nodes, old and new nodes are asked …
/// let three = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
/// let moving = Ring::new(three).epoch(2).moving_from(["redis://10.0.0.1", "redis://10.0.0.2"]);
/// // … and when all those locks have been released, only the new nodes.
/// let settled = Ring::new(three).epoch(3);
/// # drop((two, moving, settled));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a list of nodes does nothing by itself"]
pub struct Ring {
    pub(crate) epoch: u64,
    pub(crate) nodes: Vec<RingNode>,
    /// Earlier lists, whose nodes may still have holds.
    pub(crate) earlier: Vec<Vec<RingNode>>,
}

impl Ring {
    /// A ring of these nodes, with number 1.
    pub fn new<N: Into<RingNode>>(nodes: impl IntoIterator<Item = N>) -> Ring {
        Ring { epoch: 1, nodes: nodes.into_iter().map(Into::into).collect(), earlier: Vec::new() }
    }

    /// Sets the list's number (epoch). It must be higher than that of every earlier list; the first list has
    /// 1, the default.
    pub fn epoch(mut self, epoch: u64) -> Ring {
        self.epoch = epoch;
        self
    }

    /// Names the nodes of the previous list, which may still have holds. Before a new node grants a name that
    /// belonged to an old node, the client asks the old node too. If the previous list was itself moving from
    /// an earlier one, call `moving_from` twice: once for each list.
    pub fn moving_from<N: Into<RingNode>>(mut self, nodes: impl IntoIterator<Item = N>) -> Ring {
        self.earlier.push(nodes.into_iter().map(Into::into).collect());
        self
    }

    pub(crate) fn checked(self) -> Result<Ring> {
        let epoch = self.epoch;
        Error::require("ring", (1..=LAST_EPOCH).contains(&epoch), || {
            format!("an epoch of {epoch} cannot be used: it must be from 1 to {LAST_EPOCH}")
        })?;
        for nodes in std::iter::once(&self.nodes).chain(&self.earlier) {
            Error::require("ring", !nodes.is_empty(), || "a ring needs at least one node")?;
            let mut labels = BTreeSet::new();
            for node in nodes {
                node.check()?;
                let label = &node.label;
                Error::require("ring", labels.insert(label), || {
                    format!(
                        "two nodes have the label {label:?}: list each node once, or set labels by label()"
                    )
                })?;
            }
        }
        for RingNode { label, is_lost, .. } in &self.nodes {
            let words = || format!("node {label:?} is marked lost, but is in the list of nodes to use");
            Error::require("ring", !is_lost, words)?;
        }
        Ok(self)
    }

    /// All nodes of this list and of the earlier lists, each label once, this list's nodes first.
    pub(crate) fn all_nodes(&self) -> Vec<&RingNode> {
        let mut all: Vec<&RingNode> = Vec::new();
        for node in self.nodes.iter().chain(self.earlier.iter().flatten()) {
            if all.iter().all(|other| other.label != node.label) {
                all.push(node);
            }
        }
        all
    }

    pub(crate) fn mark(&self, label: &str) -> RingMark {
        let mut before: Vec<u64> = self.earlier.iter().map(|nodes| fingerprint(nodes)).collect();
        before.sort_unstable();
        before.dedup();
        RingMark { epoch: self.epoch, ring: fingerprint(&self.nodes), before, label: label.to_owned() }
    }
}

impl RingNode {
    fn check(&self) -> Result<()> {
        let RingNode { url, label, weight, .. } = self;
        let is_usable = (1..=LONGEST_LABEL).contains(&label.len()) && !label.contains(char::is_control);
        let words =
            "a node's label is empty, too long, or has control characters: give it another by label()";
        Error::require("ring", is_usable, || words)?;
        Error::require("ring", (1..=MOST_WEIGHT).contains(weight), || {
            format!(
                "a weight of {weight} for node {label:?} cannot be used: it must be from 1 to {MOST_WEIGHT}"
            )
        })?;
        let is_cluster = url.split_once("://").is_some_and(|(scheme, _)| scheme.contains("cluster"));
        Error::when(is_cluster, ErrorKind::Unsupported, "ring", || {
            format!(
                "node {label:?} is a cluster, which spreads names by itself: a ring needs servers that stand alone"
            )
        })
    }
}

/// A hash of the list's labels and weights: two lists with equal fingerprints place every name alike.
fn fingerprint(nodes: &[RingNode]) -> u64 {
    let mut lines: Vec<String> = nodes.iter().map(|node| format!("{} {}", node.weight, node.label)).collect();
    lines.sort_unstable();
    hash(format!("1 {POINTS}\n{}", lines.join("\n")).as_bytes())
}

/// The text that a node stores: `epoch ring before label`. `ring` is the [`fingerprint`] of the list of
/// nodes, `before` has those of the earlier lists, `label` is the node's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RingMark {
    pub(crate) epoch: u64,
    ring: u64,
    before: Vec<u64>,
    label: String,
}

impl std::fmt::Display for RingMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let before: Vec<String> = self.before.iter().map(|ring| format!("{ring:016x}")).collect();
        let before = if before.is_empty() { "-".to_owned() } else { before.join(",") };
        write!(f, "{} {:016x} {before} {}", self.epoch, self.ring, self.label)
    }
}

impl RingMark {
    fn read(text: &str) -> Option<RingMark> {
        let mut parts = text.splitn(4, ' ');
        let epoch = parts.next()?.parse().ok()?;
        let ring = u64::from_str_radix(parts.next()?, 16).ok()?;
        let before = parts.next()?;
        let before = if before == "-" {
            Vec::new()
        } else {
            before.split(',').map(|ring| u64::from_str_radix(ring, 16).ok()).collect::<Option<_>>()?
        };
        Some(RingMark { epoch, ring, before, label: parts.next()?.to_owned() })
    }

    /// Whether this mark may replace `stored`, the node's mark. The error says what the user must do.
    pub(crate) fn may_replace(&self, stored: &str) -> Result<()> {
        if stored.is_empty() {
            return Ok(());
        }
        let node = &self.label;
        let invalid = |detail: String| Err(Error::invalid("ring", detail));
        let Some(stored) = RingMark::read(stored) else {
            return invalid(format!("node {node:?} has a foreign value in the key of the ring's version"));
        };
        if stored.label != *node {
            return invalid(format!(
                "the server of {node:?} is the ring's node {:?}: an address is wrong, or one server is named twice",
                stored.label
            ));
        }
        Error::when(stored.epoch > self.epoch, ErrorKind::StaleRing, "ring", || {
            format!(
                "node {node:?} knows epoch {}, but this client uses epoch {}: give the client the newer list of nodes by change_ring",
                stored.epoch, self.epoch
            )
        })?;
        if stored.epoch == self.epoch {
            if (stored.ring, &stored.before) == (self.ring, &self.before) {
                return Ok(());
            }
            return invalid(format!(
                "node {node:?} knows epoch {} with another list of nodes: each list needs an epoch of its own",
                self.epoch
            ));
        }
        // A ring of the same nodes may drop earlier lists: users do so when the holds there have ended.
        // Any other ring must name as earlier every list whose nodes may have holds.
        let is_same = stored.ring == self.ring;
        let asks_all = self.before.contains(&stored.ring)
            && stored.before.iter().all(|ring| *ring == self.ring || self.before.contains(ring));
        if is_same || asks_all {
            return Ok(());
        }
        invalid(format!(
            "node {node:?} has granted locks under epoch {}, whose nodes are not among those that epoch {} moves from: name them by moving_from",
            stored.epoch, self.epoch
        ))
    }
}

/// Points on the hash circle for a node of weight 1. With this number, the shares of equal nodes differ from
/// their mean by less than 10 %, as a test checks.
pub(crate) const POINTS: u32 = 2_000;

/// 64-bit FNV-1a, then MurmurHash3's finisher, because FNV-1a alone gives similar texts similar hashes.
pub(crate) fn hash(text: &[u8]) -> u64 {
    let fnv = text.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ (fnv >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

#[derive(Debug, Default)]
pub(crate) struct Circle {
    points: Vec<(u64, u32)>,
}

impl Circle {
    pub(crate) fn new<'a>(nodes: impl Iterator<Item = (&'a str, u32, u32)>) -> Circle {
        Circle::with_points(nodes, POINTS)
    }

    fn with_points<'a>(nodes: impl Iterator<Item = (&'a str, u32, u32)>, each: u32) -> Circle {
        let mut points: Vec<(u64, &str, u32)> = nodes
            .flat_map(|(label, weight, node)| {
                (0..each * weight)
                    .map(move |number| (hash(format!("{label}#{number}").as_bytes()), label, node))
            })
            .collect();
        // Sorted by label too, so that nodes with an equal point have one order in all processes.
        points.sort_unstable();
        Circle { points: points.into_iter().map(|(point, _, node)| (point, node)).collect() }
    }

    pub(crate) fn home(&self, name: &str) -> u32 {
        let at = hash(name.as_bytes());
        let next = self.points.partition_point(|(point, _)| *point < at);
        self.points.get(next).or(self.points.first()).map_or(0, |(_, node)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: [&str; 2] = ["redis://a", "redis://b"];
    const THREE: [&str; 3] = ["redis://a", "redis://b", "redis://c"];
    const FOUR: [&str; 4] = ["redis://a", "redis://b", "redis://c", "redis://d"];

    fn mark(ring: &Ring) -> RingMark {
        ring.mark("a")
    }

    fn refusal(new: &Ring, old: &Ring) -> Error {
        mark(new).may_replace(&mark(old).to_string()).unwrap_err()
    }

    #[test]
    fn a_ring_nodes_epoch_mark_is_read_back_unchanged() {
        let ring = Ring::new(THREE).epoch(7).moving_from(TWO).moving_from(FOUR);
        let mark = ring.mark("a label, with blanks");
        assert_eq!(RingMark::read(&mark.to_string()), Some(mark));
        assert_eq!(RingMark::read(&Ring::new(TWO).mark("a").to_string()), Some(Ring::new(TWO).mark("a")));
        for text in ["", "1", "1 2", "x 0 - a", "1 y - a", "1 0 z a", "1 0 -"] {
            assert_eq!(RingMark::read(text), None, "{text}");
        }
    }

    #[test]
    fn a_newer_ring_must_name_the_node_list_being_replaced() {
        let one = Ring::new(TWO);
        let moving = Ring::new(THREE).epoch(2).moving_from(TWO);
        mark(&moving).may_replace(&mark(&one).to_string()).unwrap();
        assert!(refusal(&Ring::new(THREE).epoch(2), &one).to_string().contains("moving_from"));
        assert!(
            refusal(&Ring::new(FOUR).epoch(2).moving_from(THREE), &one).to_string().contains("moving_from")
        );
        mark(&Ring::new(THREE).epoch(3)).may_replace(&mark(&moving).to_string()).unwrap();
    }

    #[test]
    fn a_ring_change_during_a_move_must_name_both_node_lists() {
        let moving = Ring::new(THREE).epoch(2).moving_from(TWO);
        let half = Ring::new(FOUR).epoch(3).moving_from(THREE);
        assert!(refusal(&half, &moving).to_string().contains("moving_from"));
        mark(&half.moving_from(TWO)).may_replace(&mark(&moving).to_string()).unwrap();
        // `TWO` is the new ring itself, so only `THREE` must be named.
        mark(&Ring::new(TWO).epoch(3).moving_from(THREE)).may_replace(&mark(&moving).to_string()).unwrap();
    }

    #[test]
    fn an_older_ring_or_another_of_equal_epoch_is_refused() {
        let (one, two) = (Ring::new(TWO), Ring::new(THREE).epoch(2).moving_from(TWO));
        let error = refusal(&one, &two);
        assert_eq!(error.kind(), ErrorKind::StaleRing);
        assert!(error.is_retryable() && error.to_string().contains("change_ring"));
        mark(&one).may_replace(&mark(&one).to_string()).unwrap();
        for other in [Ring::new(THREE), Ring::new([RingNode::new(TWO[0]), RingNode::new(TWO[1]).weight(2)])] {
            assert_eq!(refusal(&other, &one).kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(refusal(&Ring::new(THREE).epoch(2), &two).kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn one_server_named_as_two_ring_nodes_is_refused() {
        let ring = Ring::new(TWO);
        let error = ring.mark("a").may_replace(&ring.mark("b").to_string()).unwrap_err();
        assert!(error.to_string().contains("one server is named twice"), "{error}");
        assert!(ring.mark("a").may_replace("something else").is_err());
    }

    #[test]
    fn unusable_node_lists_are_refused() {
        let none: [&str; 0] = [];
        for ring in [
            Ring::new(none),
            Ring::new(["redis://a", "redis://a/"]),
            Ring::new(TWO).epoch(0),
            Ring::new(TWO).epoch(u64::MAX),
            Ring::new(TWO).moving_from(none),
            Ring::new([RingNode::new("redis://a").weight(0)]),
            Ring::new([RingNode::new("redis://a").weight(101)]),
            Ring::new([RingNode::new("redis://a").label("")]),
            Ring::new([RingNode::new("redis://a").lost()]),
            Ring::new(["redis-cluster://a"]),
        ] {
            let error = ring.clone().checked().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported), "{ring:?}");
        }
    }

    #[test]
    fn a_ring_nodes_label_and_debug_output_have_no_password() {
        let node = RingNode::new("redis://me:S3CR3T@10.0.0.1:6379/");
        assert!(!format!("{node:?}").contains("S3CR3T"));
        assert_eq!(node.label_text(), "10.0.0.1:6379");
        assert_eq!(RingNode::new("redis+unix:///run/r.sock?pass=S3CR3T").label_text(), "/run/r.sock");
    }
}

#[cfg(test)]
mod circle_tests {
    use super::*;

    fn numbered(labels: &[String]) -> Vec<(&str, u32, u32)> {
        labels.iter().zip(0..).map(|(label, number)| (label.as_str(), 1, number)).collect()
    }

    fn circle(labels: &[String], each: u32) -> Circle {
        Circle::with_points(numbered(labels).into_iter(), each)
    }

    fn labels(nodes: usize) -> Vec<String> {
        (1..=nodes).map(|node| format!("10.0.0.{node}:6379")).collect()
    }

    fn shares(circle: &Circle, nodes: usize) -> Vec<f64> {
        let mut shares = vec![0.0; nodes];
        let mut before = circle.points.last().unwrap().0;
        for (point, node) in &circle.points {
            shares[*node as usize] += point.wrapping_sub(before) as f64 / 2_f64.powi(64);
            before = *point;
        }
        shares
    }

    /// The largest deviation of a node's share from the mean share, as a fraction.
    fn spread(nodes: usize, each: u32) -> f64 {
        let shares = shares(&circle(&labels(nodes), each), nodes);
        shares.iter().map(|share| (share * nodes as f64 - 1.0).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn the_hash_that_places_names_on_nodes_never_changes() {
        assert_eq!(hash(b""), 0xefd0_1f60_ba99_2926);
        assert_eq!(hash(b"stock:42"), 0x0565_ae82_2912_fbaf);
        let three = circle(&labels(3), POINTS);
        let homes: Vec<u32> = (0..8).map(|name| three.home(&format!("name-{name}"))).collect();
        assert_eq!(homes, [2, 2, 2, 0, 1, 2, 1, 0]);
    }

    #[test]
    fn ring_nodes_share_names_equally_within_ten_percent() {
        let counts = [2, 3, 5, 8, 16];
        for each in [1, 10, 40, 100, 160, 400, 1_000, POINTS] {
            let row: Vec<String> =
                counts.iter().map(|nodes| format!("{:5.1} %", spread(*nodes, each) * 100.0)).collect();
            println!("| {each:5} | {} |", row.join(" | "));
        }
        for nodes in 2..=16 {
            assert!(spread(nodes, POINTS) < 0.10, "{nodes} nodes: {}", spread(nodes, POINTS));
        }
        assert!(spread(8, 40) > 0.10 && spread(16, 160) > 0.10, "fewer points would do");
    }

    #[test]
    fn a_node_of_weight_three_has_three_times_the_share() {
        let labels = labels(4);
        let weights = [1, 1, 3, 1];
        let nodes = numbered(&labels).into_iter().zip(weights);
        let circle = Circle::new(nodes.map(|((label, _, number), weight)| (label, weight, number)));
        for (share, weight) in shares(&circle, 4).iter().zip(weights) {
            assert!((share * 6.0 / f64::from(weight) - 1.0).abs() < 0.10, "weight {weight}: {share}");
        }
    }

    #[test]
    fn a_new_node_moves_only_its_own_share() {
        for nodes in [2_usize, 4, 8] {
            let (before, after) = (circle(&labels(nodes), POINTS), circle(&labels(nodes + 1), POINTS));
            let names: Vec<String> = (0..10_000).map(|name| format!("name-{name}")).collect();
            let moved = names.iter().filter(|name| before.home(name) != after.home(name));
            let moved: Vec<u32> = moved.map(|name| after.home(name)).collect();
            assert!(
                moved.iter().all(|home| *home as usize == nodes),
                "a name moved between nodes that stayed"
            );
            let (share, due) = (moved.len() as f64 / 10_000.0, 1.0 / (nodes + 1) as f64);
            assert!((share / due - 1.0).abs() < 0.20, "{share} of the names moved, {due} were due");
        }
    }

    #[test]
    fn the_order_of_ring_nodes_does_not_move_names() {
        let labels = labels(5);
        let forth = circle(&labels, 100);
        let back = Circle::with_points(numbered(&labels).into_iter().rev(), 100);
        assert!((0..1_000).all(|name| forth.home(&format!("{name}")) == back.home(&format!("{name}"))));
    }
}
