//! Names and ids: what users pass in, which keys the store writes, and what other clients see.

use leasehold::{ErrorKind, MAX_NAME_LEN, NotHeld};

use crate::support::{Holding, elsewhere, fresh};

contract!(names_with_odd_characters_are_used_unchanged, |store| {
    let (client, stranger) = (store.client(), store.client());
    let tag = fresh("odd");
    let longest = format!("{tag}{}", "x".repeat(MAX_NAME_LEN - tag.len()));
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
});

contract!(names_differ_by_case_and_by_every_character, |store| {
    let (name, [client]) = store.clients("case");
    let others = [name.to_uppercase(), format!("{name} "), format!(" {name}"), format!("{name}\0")];
    let held = Holding::take(&client.get_lock(&name));
    for other in others {
        assert!(client.get_lock(&other).try_lock().unwrap(), "{other:?}");
        client.get_lock(&other).unlock().unwrap();
    }
    held.release();
});

contract!(the_key_prefix_changes_the_key_and_not_the_name, |store| {
    let name = fresh("name");
    let prefixed = store.client_with(|options| options.key_prefix("shop:"));
    let plain = store.client();
    let guard = prefixed.get_lock(&name).acquire().unwrap();
    assert_eq!(guard.name(), name);
    assert!(plain.get_lock(&name).try_lock().unwrap(), "the prefixed name has the same key");
    plain.get_lock(&name).unlock().unwrap();
    assert!(!plain.get_lock(format!("shop:{name}")).try_lock().unwrap(), "the names have different keys");
    guard.unlock().unwrap();
});

contract!(names_mapped_to_one_key_are_one_lock, |store| {
    let name = fresh("Mapped");
    let client = store.client_with(|options| options.map_names(str::to_lowercase).key_prefix("p:"));
    let lock = client.get_lock(&name);
    lock.lock().unwrap();
    let key = format!("p:{}", name.to_lowercase());
    assert!(!store.client().get_lock(&key).try_lock().unwrap());
    let alias = client.get_lock(name.to_uppercase());
    assert_eq!(alias.hold_count().unwrap(), 1);
    alias.lock().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 2);
    elsewhere(|| assert!(!alias.try_lock().unwrap()));
    assert_eq!((lock.name(), alias.name()), (name.as_str(), name.to_uppercase().as_str()));
    alias.unlock().unwrap();
    lock.unlock().unwrap();
    assert!(!alias.is_locked().unwrap());
});

contract!(an_owner_is_shown_as_its_clients_uuid_and_a_number, |store| {
    let client = store.client();
    let id = client.id().to_string();
    assert_eq!(id.len(), 36);
    assert!(id.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)));
    assert_eq!(client.clone().id(), client.id());
    let owner = client.current_owner();
    assert_eq!(owner.to_string(), format!("{id}:{}", owner.number()));
    assert_eq!(client.current_owner(), owner, "the thread's number changed");
    assert_ne!(elsewhere(|| client.current_owner()), owner);
    let lock = client.get_lock(fresh("owner"));
    lock.lock().unwrap();
    let error = store.client().get_lock(lock.name()).unlock().unwrap_err();
    assert_eq!(error.not_held(), Some(&NotHeld::HeldBy(owner.to_string())));
    lock.unlock().unwrap();
    assert_eq!(client.current_owner(), owner, "the number changed after an answered release");
});

/// Names with these endings look like keys or records that stores make for a lock, such as its queue.
const SHAPES: [&str; 16] = [
    "-lock-0",
    "/export-lock-0",
    "/export-lock-0000000001",
    "/lock-0000000001",
    "/a__READ__0000000001",
    "/a__WRIT__0000000001",
    "/_c_0f0c2d4e-0000-4000-8000-000000000001-lock-0000000001",
    "/0f0c2d4e-0000-8000-8000-000000000001:7",
    "/%/0f0c2d4e-0000-8000-8000-000000000001:7",
    "/%clients/0f0c2d4e-0000-8000-8000-000000000001",
    "%2F0f0c2d4e-0000-8000-8000-000000000001:7",
    ":timeout",
    ":mutex",
    ":0f0c2d4e-0000-8000-8000-000000000001:7:rwlock_timeout:1",
    "_clients",
    "0",
];

contract!(locks_with_similar_names_do_not_interfere, |store| {
    let (client, other) = (store.client(), store.client());
    for root in [fresh("shop"), format!("/{}", fresh("shop"))] {
        let refused = |name: &str| {
            let tried = client.get_lock(name).try_lock();
            tried.is_err_and(|error| error.kind() == ErrorKind::InvalidInput)
        };
        if refused(&format!("{root}a")) {
            continue; // this store refuses names that begin like `root`
        }
        let names = SHAPES.iter().map(|shape| format!("{root}{shape}"));
        let names: Vec<String> = names.filter(|name| !refused(name)).collect();
        assert!(names.len() > SHAPES.len() / 2, "{names:?}");
        let neighbours: Vec<_> = names
            .iter()
            .map(|name| {
                drop(client.get_lock(name).unlock()); // `refused` may have acquired the lock
                client.get_lock(name).acquire_owned().unwrap()
            })
            .collect();
        let guard = other.get_lock(&root).try_acquire().unwrap().expect("no client holds the lock");
        let seen = client.inspect(&root).unwrap();
        assert_eq!(seen.holders.len(), 1, "{seen}");
        assert_eq!((seen.holders[0].owner.clone(), seen.waiting), (guard.owner().to_string(), 0), "{seen}");
        assert!(!client.get_lock(&root).try_lock().unwrap());
        for (name, neighbour) in names.iter().zip(&neighbours) {
            let seen = other.inspect(name).unwrap();
            assert_eq!(seen.holders.len(), 1, "{seen}");
            assert_eq!(seen.holders[0].owner, neighbour.owner().to_string(), "{seen}");
        }
        guard.unlock().unwrap();
        assert!(!other.get_lock(&root).force_unlock().unwrap(), "the lock itself is still held");
        for neighbour in neighbours {
            neighbour.unlock().unwrap();
        }
        for name in &names {
            assert!(other.get_lock(name).try_lock().unwrap(), "{name}");
            other.get_lock(name).unlock().unwrap();
        }
        assert!(client.get_lock(&root).try_lock().unwrap());
        client.get_lock(&root).unlock().unwrap();
    }
});
