//! Since when nobody has used what a client keeps until others ask for it, as stores tell people that have no clock of
//! their own: by the client's wall clock, in milliseconds since 1970.

use std::time::Duration;

use crate::time::{millis, wall_ms};

/// What is told is not written again if it is not further off than this, and nothing is told of what was used since:
/// a write goes to the disks of a majority.
const WORTH_A_WRITE: Duration = Duration::from_millis(500);

/// What is to be told of a lock that is unused for so long, if that is not told already.
pub(crate) fn to_be_told(unused: Duration, told: Option<u64>) -> Option<Option<u64>> {
    let since = (unused >= WORTH_A_WRITE).then(|| wall_ms().saturating_sub(millis(unused)));
    let is_told = match (since, told) {
        (Some(since), Some(told)) => u128::from(since.abs_diff(told)) <= WORTH_A_WRITE.as_millis(),
        (since, told) => since == told,
    };
    (!is_told).then_some(since)
}

/// For how long it is unused, if that was told.
pub(crate) fn unused_for(since: Option<u64>) -> Option<Duration> {
    since.map(|since| Duration::from_millis(wall_ms().saturating_sub(since)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unused_for_a_while_is_told_once_and_what_is_used_again_no_more() {
        let ms = Duration::from_millis;
        assert_eq!([ms(0), ms(499)].map(|unused| to_be_told(unused, None)), [None, None]);
        let since = to_be_told(ms(5_000), None).unwrap();
        assert!(unused_for(since).unwrap() >= ms(5_000));
        assert_eq!(to_be_told(ms(5_000), since), None);
        let later = to_be_told(ms(4_000), since).unwrap();
        assert!(later > since, "it was used meanwhile");
        assert_eq!(to_be_told(ms(0), since), Some(None));
    }
}
