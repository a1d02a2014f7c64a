//! `examples/orders.rs` gives its documented results on each database.

#[path = "../../examples/orders.rs"]
mod example;

use example::{Became, run};

/// For each protection, the (orders, payments) of one purchase: in a race, after a pause, and after a resend.
const EXPECTED: [(&str, [(i64, i64); 3]); 6] = [
    ("nothing", [(2, 2), (2, 2), (2, 2)]),
    ("lock", [(1, 1), (2, 2), (2, 2)]),
    ("lock + fence", [(1, 1), (1, 2), (2, 2)]),
    ("unique key", [(1, 2), (1, 2), (2, 2)]),
    ("token", [(1, 2), (1, 2), (1, 1)]),
    ("all together", [(1, 1), (1, 2), (1, 1)]),
];

fn comes_to_what_it_says(url: &str) {
    let report = run(url);
    let expected =
        EXPECTED.map(|(label, became)| (label, became.map(|(orders, payments)| Became { orders, payments })));
    assert_eq!(report.rows, expected);
    assert_eq!(report.swept, 1, "only the form of two days ago is swept");
    assert_eq!(report.tutorials.is_some(), url.starts_with("mysql"), "the tutorials are about MySQL");
    let Some([looked_rr, looked_rc, key_rr, key_rc]) = report.tutorials else { return };
    assert_eq!(looked_rr.orders, 1);
    assert!(looked_rr.error.unwrap().contains("Deadlock"));
    assert_eq!((looked_rc.orders, looked_rc.error), (2, None), "a double order");
    for key in [key_rr, key_rc] {
        assert_eq!(key.orders, 1);
        assert!(key.error.unwrap().contains("Duplicate"));
    }
}

on_databases!(the_orders_example_gives_documented_results, D::start(), |server| {
    comes_to_what_it_says(&server.url());
});

#[test]
fn the_orders_example_gives_documented_results_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    comes_to_what_it_says(&format!("sqlite://{}/shop.db", folder.path().display()));
}
