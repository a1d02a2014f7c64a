//! Explores each kind of lock in all states of some small worlds. `LEASEHOLD_BLESS=1 ./check proof` writes
//! the numbers of states to docs/figures/proof.md.

mod page;

use leasehold_proof::kinds::Kind;
use leasehold_proof::lua::{self, Scripts};
use leasehold_proof::server::commands;
use leasehold_proof::world::Limits;
use leasehold_proof::worlds::{KINDS, REFUSED, WORLDS, explored, worlds};

#[test]
fn all_invariants_hold_in_every_state() {
    let texts = lua::load(&|_, text| text);
    let of_kind = |kind| {
        let scripts = Scripts::new(&texts, true);
        let mut rows = Vec::new();
        for world in worlds(kind) {
            let found = explored(&scripts, kind, world.limits);
            assert!(found.wrong.is_none(), "{kind:?}, {}: {:#?}", world.name, found.wrong);
            assert!(!found.is_cut, "{kind:?}, {}: more than {} states", world.name, found.states);
            let row = format!(
                "| {kind:?} | {} | {} | {} | {} |",
                world.name, found.states, found.steps, found.deepest
            );
            println!("{row}");
            rows.push(row);
        }
        rows
    };
    let rows: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = KINDS.into_iter().map(|kind| scope.spawn(move || of_kind(kind))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("what must hold does not")).collect()
    });
    page::has("states", "| Kind | World | States | Steps | Deepest |", &rows);
    let words: Vec<String> =
        WORLDS.iter().map(|world| format!("| {} | {} |", world.name, world.words)).collect();
    page::has("worlds", "| World | What is in it |", &words);
}

/// Before Redis 7.0 a script cannot query its user's permissions, and takes another path.
#[test]
fn invariants_hold_when_scripts_cannot_query_rights() {
    let texts = lua::load(&|_, text| text);
    let scripts = Scripts::new(&texts, false);
    for kind in KINDS {
        for world in worlds(kind).take(6) {
            let found = explored(&scripts, kind, world.limits);
            assert!(found.wrong.is_none() && !found.is_cut, "{kind:?}, {}: {:#?}", world.name, found.wrong);
        }
    }
}

/// If a command is refused, the script's earlier changes stay.
#[test]
fn invariants_hold_when_a_command_is_refused() {
    let texts = lua::load(&|_, text| text);
    let of_kind = |kind: Kind| {
        let uses = |command: &&str| {
            kind.scripts().iter().any(|script| texts[*script].contains(&format!("'{command}'")))
        };
        let mut rows = Vec::new();
        for command in commands().filter(uses) {
            let mut states = 0;
            for knows_acl in [true, false] {
                let scripts = Scripts::new(&texts, knows_acl);
                let found = explored(&scripts, kind, Limits { refused: Some(command), ..REFUSED });
                assert!(
                    found.wrong.is_none() && !found.is_cut,
                    "{kind:?} without {command}: {:#?}",
                    found.wrong
                );
                states += found.states;
            }
            rows.push(format!("| {kind:?} | `{command}` | {states} |"));
        }
        rows
    };
    let rows: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = KINDS.into_iter().map(|kind| scope.spawn(move || of_kind(kind))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("what must hold does not")).collect()
    });
    page::has("refused", "| Kind | The user may not use | States |", &rows);
}
