//! A lock that a client takes and frees for a try when it connects.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ident::{ClientId, LockName, Owner, unbound_number};
use crate::seam::{Answer, Claim, Failure, Kind};
use crate::stores::sql::rows::{Change, Rows};
use crate::stores::sql::{OTHER_COLUMNS, other_table};
use crate::time::Moment;

/// Takes a lock of its own and frees it, over a connection on which a transaction has begun that is rolled
/// back afterwards: settings of the server's, triggers and columns by which each lock would fail are found
/// out when the client connects. A user who may only read is let in, as are those who may write again later.
pub(super) fn try_one<D: Rows>(database: &D, link: &mut D::Link, deadline: Moment) -> Answer<()> {
    let key = format!("leasehold-try:{}", ClientId::random());
    let name = LockName::new(&Arc::from(&*key), key).map_err(Failure::Refused)?;
    let owner = Owner::new(ClientId::random(), unbound_number());
    let claim = Claim::new(Kind::Mutex, &Arc::new(name), owner, Duration::from_secs(60));
    let tried = database.take(link, &claim, true, deadline).and_then(|change| match change {
        Change::Made(_) => database.leave(link, &claim, 0, deadline).map(|change| change.map(|()| 0)),
        Change::None(row) => Ok(Change::None(row)),
    });
    match tried {
        Ok(Change::Made(_)) => Ok(()),
        Ok(Change::None(_)) => {
            let words = "a lock could not be taken and freed for a try, although nobody has it: see the triggers and rules of \
                         the table";
            Err(Failure::Refused(Error::new(ErrorKind::Protocol, "connect", words)))
        }
        Err(Failure::Refused(error)) if error.is_retryable() || error.kind() == ErrorKind::NoPermission => {
            Ok(())
        }
        Err(Failure::Refused(error)) if error.detail().starts_with(OTHER_COLUMNS) => {
            let table = database.table().map_or_else(String::new, |table| table.name.clone());
            let error = Error::new(error.kind(), "connect", other_table(&table)).with_source(error);
            Err(Failure::Refused(error))
        }
        Err(failure) => Err(failure),
    }
}
