//! Leasehold's two rows: a renewed lease, and a renewed lease with a fencing token that Redis compares.

use leasehold::{FencedLock, RedisLock};

use crate::Result;
use crate::rows::{Sale, Seller};
use crate::worker::Till;

/// Leasehold's lock without a fencing token: a process that was stopped may still write too late.
pub(crate) struct Renewed {
    lock: RedisLock,
}

impl Renewed {
    pub(crate) fn new(till: &Till<'_>) -> Result<Renewed> {
        Ok(Renewed { lock: till.client()?.get_lock(till.shop.lock_name()) })
    }
}

impl Seller for Renewed {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        let guard = till.wait(|_| Ok(self.lock.acquire()?))?;
        let visit = till.shop.read()?;
        let Some(piece) = visit.piece else {
            till.released(guard.unlock())?;
            return Ok(Sale::SoldOut);
        };
        till.decide(piece)?;
        // A check before the write is careful, but not enough: the process may be stopped just after it.
        if guard.check().is_err() {
            till.released(guard.unlock())?;
            return Ok(Sale::Refused);
        }
        till.be_struck(piece)?;
        till.shop.write(visit)?;
        till.before_release(Some(piece))?;
        till.released(guard.unlock())?;
        Ok(Sale::Sold)
    }
}

/// `client.get_fenced_lock(name)`: each grant has a larger token, and the shop stores the largest seen.
pub(crate) struct Fenced {
    lock: FencedLock,
}

impl Fenced {
    pub(crate) fn new(till: &Till<'_>) -> Result<Fenced> {
        Ok(Fenced { lock: till.client()?.get_fenced_lock(till.shop.lock_name()) })
    }
}

impl Seller for Fenced {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        let guard = till.wait(|_| Ok(self.lock.acquire()?))?;
        let fence = guard.fencing_token().ok_or("a fenced lock was granted without a fence")?;
        let sale = match till.shop.read_fenced(fence)? {
            None => Sale::Refused,
            Some(visit) => match visit.piece {
                None => Sale::SoldOut,
                Some(piece) => {
                    till.decide(piece)?;
                    till.be_struck(piece)?;
                    let sold = till.shop.write_fenced(visit, fence)?;
                    till.before_release(Some(piece))?;
                    if sold { Sale::Sold } else { Sale::Refused }
                }
            },
        };
        till.released(guard.unlock())?;
        Ok(sale)
    }
}
