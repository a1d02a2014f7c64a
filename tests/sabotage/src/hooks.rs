//! Changes that the copy needs so that mutations can be switched. `tests/meta/mutations.rs` checks that each
//! text to replace still exists, since `./check` without arguments makes no copy.

/// Each change as file, text and replacement. They add the module that knows which mutation is on, and call it where
/// the library reads its scripts and statements.
pub(crate) const HOOKS: &[(&str, &str, &str)] = &[
    ("src/lib.rs", "mod client;\n", "mod client;\n#[cfg(leasehold_sabotage)]\nmod sabotage;\n"),
    // A name that only one of a mutation's two texts uses may cause a warning, which must not stop the build.
    ("src/lib.rs", "#![forbid(unsafe_code)]\n", "#![forbid(unsafe_code)]\n#![allow(warnings)]\n"),
    // The program `leasehold` is a crate of its own, so it needs the module too.
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
