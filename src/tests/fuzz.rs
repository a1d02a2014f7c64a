//! Generated input for the tests of parsers, mostly nearly valid, and a limit for what a parser may allocate.
//!
//! `./check fuzz` builds these tests with `--cfg leasehold_fuzz` and runs them one at a time, since
//! allocations are counted for the process. `LEASEHOLD_CASES` sets the number of inputs.

use std::alloc::System;
use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CASES: u32 = 20_000;

/// How many bytes a parser may allocate at most, freed ones included, for an input of `bytes` bytes. Of the
/// constant part, an empty cluster's map of slots takes 256 KiB.
fn allowed(bytes: usize) -> usize {
    1024 * 1024 + 256 * bytes
}

/// Makes `read` read many inputs: it must neither panic nor allocate more than allowed.
pub(crate) fn each<T: Debug>(inputs: impl Strategy<Value = T>, bytes: fn(&T) -> usize, read: impl Fn(&T)) {
    let cases = std::env::var("LEASEHOLD_CASES").map_or(CASES, |cases| cases.parse().unwrap());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(config).run(&inputs, |input| {
        let region = Region::new(ALLOCATOR);
        read(&input);
        let cost = region.change().bytes_allocated;
        prop_assert!(cost <= allowed(bytes(&input)), "{cost} bytes were allocated");
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{cases} inputs");
}

/// One of the seeds with some changes, or random bytes.
pub(crate) fn nearly(seeds: &'static [&'static [u8]]) -> impl Strategy<Value = Vec<u8>> {
    let seed = select(seeds).prop_map(<[u8]>::to_vec);
    let edits = vec((any::<Index>(), edit()), 0..6);
    let changed = (seed, edits).prop_map(|(mut bytes, edits)| {
        for (at, edit) in edits {
            let at = at.index(bytes.len() + 1);
            match edit {
                Edit::Set(byte) => {
                    if let Some(place) = bytes.get_mut(at) {
                        *place = byte;
                    }
                }
                Edit::Insert(more) => drop(bytes.splice(at..at, more)),
                Edit::Cut(count) => drop(bytes.drain(at..(at + count).min(bytes.len()))),
                Edit::End => bytes.truncate(at),
                Edit::Repeat(times) => {
                    let again = bytes[..at].repeat(times);
                    bytes.splice(at..at, again);
                }
            }
        }
        bytes
    });
    prop_oneof![4 => changed, 1 => vec(any::<u8>(), 0..64)]
}

pub(crate) fn nearly_text(seeds: &'static [&'static [u8]]) -> impl Strategy<Value = String> {
    nearly(seeds).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[derive(Debug, Clone)]
enum Edit {
    Set(u8),
    Insert(Vec<u8>),
    Cut(usize),
    End,
    Repeat(usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    const TELLING: &[&[u8]] = &[
        b"\r\n",
        b"-1",
        b"0",
        b"99999999999999999999",
        b"2147483647",
        b"4294967296",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\"",
        b"\\u0000",
        b"[",
        b"{",
        b"%",
        b"@",
        b"*1\r\n",
        b"\0",
        b"\xc3\xbc",
    ];
    prop_oneof![
        3 => any::<u8>().prop_map(Edit::Set),
        3 => select(TELLING).prop_map(|bytes| Edit::Insert(bytes.to_vec())),
        1 => vec(any::<u8>(), 1..8).prop_map(Edit::Insert),
        2 => (1..16_usize).prop_map(Edit::Cut),
        1 => Just(Edit::End),
        1 => (1..40_usize).prop_map(Edit::Repeat),
    ]
}
