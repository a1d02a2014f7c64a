//! The node of several that a name belongs to: consistent hashing with virtual nodes.
//!
//! All processes that share a ring must agree, whatever their version and language, so the whole of it is
//! here: hash, points and choice are fixed, and a test pins their values.

/// How many points of the circle a node of weight one has. With this number, the shares of equal nodes are
/// within 6 % of each other's mean; a test prints the measurement.
pub(crate) const POINTS: u32 = 2_000;

/// FNV-1a of 64 bits, then the finisher of `MurmurHash3`: FNV alone leaves similar texts close together.
pub(crate) fn hash(text: &[u8]) -> u64 {
    let fnv = text.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ (fnv >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

/// The points of all nodes, in order.
#[derive(Debug)]
pub(crate) struct Circle {
    points: Vec<(u64, u32)>,
}

impl Circle {
    /// Of nodes, each with its label, its weight and the number it goes by here.
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
        // By label too: where two points are one, all processes take the same, in whatever order the nodes
        // were given.
        points.sort_unstable();
        Circle { points: points.into_iter().map(|(point, _, node)| (point, node)).collect() }
    }

    /// The node of the first point at or after the name's hash, around the circle.
    pub(crate) fn home(&self, name: &str) -> u32 {
        let at = hash(name.as_bytes());
        let next = self.points.partition_point(|(point, _)| *point < at);
        self.points.get(next).or(self.points.first()).map_or(0, |(_, node)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(labels: &[String], each: u32) -> Circle {
        let numbers = 0_u32..;
        Circle::with_points(
            labels.iter().zip(numbers).map(|(label, number)| (label.as_str(), 1, number)),
            each,
        )
    }

    fn labels(nodes: usize) -> Vec<String> {
        (1..=nodes).map(|node| format!("10.0.0.{node}:6379")).collect()
    }

    /// The part of all hashes that each node has.
    fn shares(circle: &Circle, nodes: usize) -> Vec<f64> {
        let mut shares = vec![0.0; nodes];
        let mut before = circle.points.last().unwrap().0;
        for (point, node) in &circle.points {
            shares[*node as usize] += point.wrapping_sub(before) as f64 / 2_f64.powi(64);
            before = *point;
        }
        shares
    }

    /// By how much the share that is furthest from its due is off.
    fn spread(nodes: usize, each: u32) -> f64 {
        let shares = shares(&circle(&labels(nodes), each), nodes);
        shares.iter().map(|share| (share * nodes as f64 - 1.0).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn the_hash_is_the_same_for_ever() {
        assert_eq!(hash(b""), 0xefd0_1f60_ba99_2926);
        assert_eq!(hash(b"stock:42"), 0x0565_ae82_2912_fbaf);
        let three = circle(&labels(3), POINTS);
        let homes: Vec<u32> = (0..8).map(|name| three.home(&format!("name-{name}"))).collect();
        assert_eq!(homes, [2, 2, 2, 0, 1, 2, 1, 0]);
    }

    /// Prints a table of points and shares: `--nocapture` shows it.
    #[test]
    fn shares_are_within_ten_percent_and_closer_with_more_points() {
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
        let numbers = 0_u32..;
        let nodes = labels.iter().zip(weights).zip(numbers);
        let circle = Circle::new(nodes.map(|((label, weight), number)| (label.as_str(), weight, number)));
        for (share, weight) in shares(&circle, 4).iter().zip(weights) {
            assert!((share * 6.0 / f64::from(weight) - 1.0).abs() < 0.10, "weight {weight}: {share}");
        }
    }

    #[test]
    fn a_node_that_comes_takes_its_share_and_nothing_else_moves() {
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
    fn the_order_in_which_nodes_are_named_does_not_matter() {
        let labels = labels(5);
        let forth = circle(&labels, 100);
        let back: Vec<_> =
            labels.iter().zip(0_u32..).map(|(label, number)| (label.as_str(), 1, number)).collect();
        let back = Circle::with_points(back.into_iter().rev(), 100);
        assert!((0..1_000).all(|name| forth.home(&format!("{name}")) == back.home(&format!("{name}"))));
    }
}
