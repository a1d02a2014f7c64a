//! Random replies of a Redis server for fuzz tests of the decoders; see `crate::fuzz`.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use redis::Value;

/// Replies of any shape, which often contain `texts`.
pub(crate) fn replies(texts: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        4 => select(texts).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..12),
    ];
    let leaf = prop_oneof![
        4 => text.prop_map(Value::BulkString),
        2 => (-2..70_000_i64).prop_map(Value::Int),
        1 => any::<i64>().prop_map(Value::Int),
        1 => Just(Value::Nil),
        1 => Just(Value::Okay),
        1 => "[a-z ]{0,8}".prop_map(Value::SimpleString),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            5 => vec(inner.clone(), 0..8).prop_map(Value::Array),
            1 => vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}

/// The approximate size of a reply in bytes.
pub(crate) fn weight(reply: &Value) -> usize {
    8 + match reply {
        Value::BulkString(bytes) => bytes.len(),
        Value::SimpleString(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Map(pairs) => pairs.iter().map(|(key, value)| weight(key) + weight(value)).sum(),
        _ => 0,
    }
}
