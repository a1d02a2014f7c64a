//! The library's rules that are in no script: a test explores all states of a small model of each rule,
//! intact and broken on purpose. docs/figures/proof.md has the numbers of states.

mod page;

use leasehold_proof::rules::RULES;

#[test]
fn each_deliberately_broken_rule_reaches_its_wrong_state() {
    let (mut kept, mut broken, mut missed) = (Vec::new(), Vec::new(), Vec::new());
    for rule in RULES {
        let found = rule.explored("");
        assert!(found.wrong.is_none(), "{}: {:#?}", rule.name, found.wrong);
        assert!(!found.is_cut, "{}: more than {} states", rule.name, found.states);
        println!("{}: {} states", rule.name, found.states);
        kept.push(format!(
            "| {} | {} | {} | {} | {} |",
            rule.name, rule.words, found.states, found.steps, found.deepest
        ));
        for (name, words) in rule.breaks {
            let found = rule.explored(name);
            match found.wrong {
                Some((wrong, way)) if wrong == *words => {
                    broken.push(format!("| {} | {name} | {wrong} | {} |", rule.name, way.len()));
                }
                other => {
                    missed.push(format!("{}, {name}: {words} was to be seen, not {other:#?}", rule.name))
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
    page::has("rules", "| Rule | World | States | Steps | Deepest |", &kept);
    page::has("broken rules", "| Rule | Broken so | What is seen | Steps |", &broken);
}
