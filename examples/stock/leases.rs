//! Leasehold's two rows: a renewed lease, and a renewed lease whose fence Redis compares before each write.
//!
//! One job of these rows takes longer than its lease, which is what undoes `lua_no_renewal`; here the watchdog renews it.
//! So they also get what a watchdog cannot help against: one process is killed between read and write-back, one is
//! stopped there until its lease has run out and others have sold on.

use leasehold::{FencedLock, RedisLock};

use crate::Result;
use crate::rows::{Sale, Seller};
use crate::worker::Till;

/// `client.lock(name)`: as good as a lock can be on its own.
pub(crate) struct Renewed {
    lock: RedisLock,
}

impl Renewed {
    pub(crate) fn new(till: &Till<'_>) -> Result<Renewed> {
        Ok(Renewed { lock: till.client()?.lock(&till.shop.lock_name()) })
    }
}

impl Seller for Renewed {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        let guard = till.wait(|_| Ok(self.lock.acquire()?))?;
        let stock = till.shop.read()?;
        if stock <= 0 {
            till.released(guard.unlock())?;
            return Ok(Sale::SoldOut);
        }
        till.think(stock)?;
        // The careful thing to do, and still not enough: the process may be stopped right after it was told "yes".
        if guard.check().is_err() {
            till.released(guard.unlock())?;
            return Ok(Sale::Refused);
        }
        till.be_struck(stock)?;
        till.shop.write_back(stock - 1)?;
        let order = till.order();
        till.shop.record(&order)?;
        till.released(guard.unlock())?;
        Ok(Sale::Sold)
    }
}

/// `client.fenced_lock(name)`: every grant brings a larger number, and the data remembers the largest it has seen.
pub(crate) struct Fenced {
    lock: FencedLock,
}

impl Fenced {
    pub(crate) fn new(till: &Till<'_>) -> Result<Fenced> {
        Ok(Fenced { lock: till.client()?.fenced_lock(&till.shop.lock_name()) })
    }
}

impl Seller for Fenced {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        let guard = till.wait(|_| Ok(self.lock.acquire()?))?;
        let fence = guard.fence().ok_or("a fenced lock was granted without a fence")?;
        let sale = match till.shop.read_fenced(fence)? {
            None => Sale::Refused,
            Some(stock) if stock <= 0 => Sale::SoldOut,
            Some(stock) => {
                till.think(stock)?;
                till.be_struck(stock)?;
                let order = format!("{} fence {fence}", till.order());
                if till.shop.sell_fenced(fence, stock - 1, &order)? { Sale::Sold } else { Sale::Refused }
            }
        };
        till.released(guard.unlock())?;
        Ok(sale)
    }
}
