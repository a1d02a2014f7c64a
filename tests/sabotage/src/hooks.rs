//! The copy has these changes beside the mutations. `tests/meta/mutations.rs` reads this file too, since the
//! gate makes no copy.

/// File, text, and replacement: the module that knows which mutation is on, and the places that read scripts
/// and statements.
pub(crate) const HOOKS: &[(&str, &str, &str)] = &[
    ("src/lib.rs", "mod client;\n", "mod client;\n#[cfg(leasehold_sabotage)]\nmod sabotage;\n"),
    // One of two texts may leave a name unused.
    ("src/lib.rs", "#![forbid(unsafe_code)]\n", "#![forbid(unsafe_code)]\n#![allow(warnings)]\n"),
    // The program `leasehold` has a switch of its own.
    (
        "cli/src/main.rs",
        "mod run;\n#[cfg(windows)]\n",
        "mod run;\n#[allow(warnings)]\nmod sabotage;\n#[cfg(windows)]\n",
    ),
    (
        "src/stores/redis/script.rs",
        "    fn of(body: Cow<'static, str>) -> Script {\n",
        "    fn of(body: Cow<'static, str>) -> Script {\n        let body = Cow::<str>::Owned(crate::sabotage::text(&body));\n",
    ),
    (
        "src/stores/sql/statement.rs",
        "    let mut filled = text.to_owned();\n",
        "    let parts = &crate::sabotage::text(parts);\n    let mut filled = crate::sabotage::text(text);\n",
    ),
    (
        "src/locks/fencing/mod.rs",
        "pub const REDIS_SET: &str = include_str!(\"fenced_set.lua\");",
        "pub static REDIS_SET: crate::sabotage::Text = crate::sabotage::Text(include_str!(\"fenced_set.lua\"));",
    ),
];
