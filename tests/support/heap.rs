//! An allocator that counts allocated bytes.
#![allow(unsafe_code, reason = "an allocator that counts is one; it passes everything on to the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

static LIVE: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static MINE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

#[derive(Debug)]
pub struct Counting;

pub fn live_bytes() -> i64 {
    LIVE.load(Ordering::SeqCst)
}

pub fn allocated_by_this_thread() -> (u64, u64) {
    MINE.get()
}

fn count(bytes: usize, sign: i64) {
    LIVE.fetch_add(sign * i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
}

// SAFETY: each call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // During a thread's destruction its counter may be gone, and nobody reads it any more.
        MINE.try_with(|mine| {
            let (times, bytes) = mine.get();
            mine.set((times + 1, bytes + layout.size() as u64));
        })
        .ok();
        // SAFETY: the caller fulfils the contract of this trait, which `System` has too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as above, and `at` was allocated by `System`.
        unsafe { System.dealloc(at, layout) }
    }
}
