//! Checks the properties that each state of a small world must have.

use super::event::Request;
use super::world::{At, NOW, Setup, World};

impl World {
    pub(super) fn check(&self, setup: &Setup) -> Result<(), String> {
        if self.was_forced {
            return Ok(()); // from now on only the end is checked
        }
        let mut owners = 0;
        for (c, client) in self.clients.iter().enumerate() {
            for (t, user) in client.users.iter().enumerate() {
                if !matches!(user.at, At::Working | At::Counting | At::EndingInner) {
                    continue;
                }
                let Some(hold) = self.counts_on(c, t) else { continue };
                owners += 1;
                if user.saw_end {
                    return Err(format!("a hold of client {c} that was seen to end stands again"));
                }
                if self.store.owner != Some((c, hold.number)) {
                    return Err(format!(
                        "client {c} counts on {hold:?}, and the store has {:?}",
                        self.store.owner
                    ));
                }
            }
            for own in client.lock.holds.iter().filter(|own| own.is_live() && !own.is_over(NOW)) {
                let number = own.number;
                let is_in_doubt =
                    self.strays.iter().any(|(other, request)| *other == c && request.ends(number))
                        || client.wires.iter().flatten().any(|request| request.ends(number))
                        || client.cleanups.iter().any(|(other, _, _)| *other == number);
                let renews = |request: &Request| request.renews_another(own.hold.0);
                let is_renewed = client.wires.iter().flatten().any(renews)
                    || self.strays.iter().any(|(other, request)| *other == c && renews(request));
                if is_renewed {
                    return Err(format!("the renewal of an earlier hold may prolong that of client {c}"));
                }
                if is_in_doubt {
                    return Err(format!("client {c} holds under number {number}, whose end may yet come"));
                }
            }
        }
        if owners > 1 {
            return Err("two own the lock".to_owned());
        }
        if self.store.passes > setup.rules.lock.local_handoffs && setup.rules.lock.longest_slice.is_zero() {
            return Err("a client hands the lock on and on while others wait".to_owned());
        }
        // A waiting client recalls a cached hold at once, so only a time slice may keep the client waiting.
        if u128::from(self.idle_wait) > setup.rules.lock.longest_slice.as_nanos() && !self.had_fault {
            return Err("a client waits for an unused lock that another client caches".to_owned());
        }
        Ok(())
    }
}
