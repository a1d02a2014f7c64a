//! Replacements for optional parts that a store does not have.

use crate::error::ErrorKind;
use crate::ident::{ClientId, LockName, Owner};
use crate::inspect::{Inspection, ObjectKind};
use crate::seam::Store;
use crate::seam::answer::{Answered, Attempt, Pending, Release};
use crate::seam::capabilities::ConnectionWatch;
use crate::seam::claim::Claim;
use crate::seam::failure::{Answer, Failure};
use crate::seam::kind::Kind;
use crate::time::Moment;

/// A store without a pipeline is asked at once.
pub(crate) fn begin_attempt(
    store: &dyn Store,
    claim: &Claim,
    count: u32,
    deadline: Moment,
) -> Box<dyn Pending<Attempt>> {
    match store.capabilities().pipeline {
        Some(pipeline) => pipeline.begin_attempt(claim, count, deadline),
        None => Box::new(Answered(store.attempt(claim, count, deadline))),
    }
}

/// A store without a pipeline is asked at once.
pub(crate) fn begin_release(
    store: &dyn Store,
    claim: &Claim,
    left: u32,
    deadline: Moment,
) -> Box<dyn Pending<Release>> {
    match store.capabilities().pipeline {
        Some(pipeline) => pipeline.begin_release(claim, left, deadline),
        None => Box::new(Answered(store.release(claim, left, deadline))),
    }
}

/// Asks all stores.
pub(crate) fn any_hung_up<'a>(stores: impl Iterator<Item = &'a dyn Store>) -> Option<bool> {
    let hung_up = |store: &dyn Store| store.capabilities().connections.and_then(ConnectionWatch::hung_up);
    stores.map(hung_up).fold(None, |any, one| any.max(one))
}

/// [`Inspect::describe`](super::Inspect::describe) for a store that knows only what
/// [`Inspect::inspect`](super::Inspect::inspect) says, which is asked for each kind of lock.
pub(crate) fn describe_by_kinds(store: &dyn Store, name: &LockName, deadline: Moment) -> Answer<Inspection> {
    let nobody = Owner::new(ClientId::random(), 0);
    let mut kind = ObjectKind::Absent;
    for asked in Kind::HELD {
        if store.check_name(asked, name).is_err() {
            continue;
        }
        match store.inspect(asked, name, nobody, deadline) {
            Ok(Some(snapshot)) => return Ok(snapshot.described(asked, name)),
            Ok(None) => {}
            Err(Failure::Refused(error) | Failure::Unknown(error))
                if error.kind() == ErrorKind::WrongType =>
            {
                kind = ObjectKind::Foreign { what: "something else".to_owned() };
            }
            Err(Failure::Refused(error) | Failure::Unknown(error)) => return Err(Failure::Refused(error)),
        }
    }
    Ok(Inspection::new(name.given(), kind))
}
