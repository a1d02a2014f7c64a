//! Names and ids: what users give, what the store keys, what others are shown.

use leasehold::{LONGEST_NAME, NotHeld};

use super::harness::{Store, fresh};
use crate::support::{Holding, elsewhere};

contracts!(
    names_are_taken_as_they_are,
    names_differ_by_case_and_by_every_character,
    a_prefix_is_part_of_the_key_and_not_of_the_name,
    mapped_names_that_meet_are_one_lock,
    ids_and_owners_are_shown_as_uuid_and_number,
);

fn names_are_taken_as_they_are(store: &Store) {
    let (client, stranger) = (store.client(), store.client());
    let tag = fresh("odd");
    let longest = format!("{tag}{}", "x".repeat(LONGEST_NAME - tag.len()));
    let odd = [
        " ",
        "a b\tc",
        "line\r\nbreak",
        "nul\0inside",
        "k'); redis.call('flushall",
        "\"quoted\" \\ back",
        "{tag}:rest",
        "a}b{c}{}",
        "schlüssel-鍵-🔒",
        "%s%d%n",
        "redisson",
        "lock:channel",
    ];
    for name in odd.iter().map(|odd| format!("{tag}{odd}")).chain([longest]) {
        for kind in &store.kinds {
            let (lock, rival) = ((kind.make)(&client, &name), (kind.make)(&stranger, &name));
            assert_eq!(lock.name(), name);
            let guard = lock.acquire().unwrap();
            assert_eq!(guard.name(), name);
            assert!(!rival.try_lock().unwrap());
            guard.unlock().unwrap();
            assert!(rival.try_lock().unwrap());
            rival.unlock().unwrap();
        }
    }
}

fn names_differ_by_case_and_by_every_character(store: &Store) {
    let client = store.client();
    let name = fresh("case");
    let others = [name.to_uppercase(), format!("{name} "), format!(" {name}"), format!("{name}\0")];
    let held = Holding::take(&client.lock(&name));
    for other in others {
        assert!(client.lock(&other).try_lock().unwrap(), "{other:?}");
        client.lock(&other).unlock().unwrap();
    }
    held.release();
}

fn a_prefix_is_part_of_the_key_and_not_of_the_name(store: &Store) {
    let name = fresh("name");
    let prefixed = store.client_with(|options| options.key_prefix("shop:"));
    let plain = store.client();
    let guard = prefixed.lock(&name).acquire().unwrap();
    assert_eq!(guard.name(), name);
    assert!(plain.lock(&name).try_lock().unwrap(), "another key");
    plain.lock(&name).unlock().unwrap();
    assert!(!plain.lock(&format!("shop:{name}")).try_lock().unwrap(), "the same key");
    guard.unlock().unwrap();
}

fn mapped_names_that_meet_are_one_lock(store: &Store) {
    let name = fresh("Mapped");
    let client = store.client_with(|options| options.map_names(str::to_lowercase).key_prefix("p:"));
    let lock = client.lock(&name);
    lock.lock().unwrap();
    // Mapped first, prefixed second.
    let key = format!("p:{}", name.to_lowercase());
    assert!(!store.client().lock(&key).try_lock().unwrap());
    // One lock for this client's threads too, and one hold.
    let alias = client.lock(&name.to_uppercase());
    assert_eq!(alias.hold_count().unwrap(), 1);
    alias.lock().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 2);
    elsewhere(|| assert!(!alias.try_lock().unwrap()));
    assert_eq!((lock.name(), alias.name()), (name.as_str(), name.to_uppercase().as_str()));
    alias.unlock().unwrap();
    lock.unlock().unwrap();
    assert!(!alias.is_locked().unwrap());
}

fn ids_and_owners_are_shown_as_uuid_and_number(store: &Store) {
    let client = store.client();
    let id = client.id().to_string();
    assert_eq!(id.len(), 36);
    assert!(id.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)));
    assert_eq!(client.clone().id(), client.id());
    let owner = client.current_owner();
    assert_eq!(owner.to_string(), format!("{id}:{}", owner.number()));
    assert_eq!(client.current_owner(), owner, "a thread keeps its number");
    assert_ne!(elsewhere(|| client.current_owner()), owner);
    // It is what the holder's calls are under, and what others are shown.
    let lock = client.lock(&fresh("owner"));
    lock.lock().unwrap();
    let error = store.client().lock(lock.name()).unlock().unwrap_err();
    assert_eq!(error.not_held(), Some(&NotHeld::HeldBy(owner.to_string())));
    lock.unlock().unwrap();
    assert_eq!(client.current_owner(), owner, "an answered release gives no reason for a new number");
}
