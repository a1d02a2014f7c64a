//! Owner numbers of a lock that must not be used again.

use std::collections::VecDeque;

use crate::sync::Mutex;

/// The last owner numbers under which a request about the lock may still come. Later numbers are greater.
#[derive(Debug, Default)]
pub(crate) struct GivenUp(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    last: VecDeque<u64>,
    /// This number and all before count as given up: there were too many.
    until: u64,
}

const MOST: usize = 32;

impl GivenUp {
    /// Something may still come under that number.
    pub(crate) fn add(&self, number: u64) {
        let mut numbers = self.0.lock();
        if !numbers.last.contains(&number) {
            numbers.last.push_back(number);
        }
        if numbers.last.len() > MOST
            && let Some(oldest) = numbers.last.pop_front()
        {
            numbers.until = numbers.until.max(oldest);
        }
    }

    /// Whether a grant under that number may meet a late request.
    pub(crate) fn has(&self, number: u64) -> bool {
        let numbers = self.0.lock();
        number <= numbers.until || numbers.last.contains(&number)
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_up_stays_so_however_many_follow() {
        let given_up = GivenUp::default();
        [9, 7, 7].iter().for_each(|number| given_up.add(*number));
        assert_eq!([6, 7, 8, 9, 10].map(|number| given_up.has(number)), [false, true, false, true, false]);
        (100..100 + MOST as u64).for_each(|number| given_up.add(number));
        assert_eq!([7, 9, 10, 100, 200].map(|number| given_up.has(number)), [true, true, false, true, false]);
    }
}
