//! `elect --listen`: answers over HTTP whether this process leads (`/leader`), and whether it leads or could
//! become the leader (`/ready`).
//!
//! The supervisor publishes until when it leads, and each answer compares this with the clock. Therefore a
//! 200 is always written before the helper kills the command, even if all other threads of the
//! supervisor are stuck. The answer may be outdated when it arrives.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use leasehold::LockClient;

use crate::clock::Moment;
use crate::say::{Exit, Say};
use crate::serve::fresh::Fresh;
use crate::serve::http::{self, Answer, Request};

const WAIT: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    Stands,
    Begins,
    Leads {
        term: Option<u64>,
        /// This process leads until this instant, which is before another process can lead.
        until: Moment,
    },
    Ends,
}

pub(super) struct Office {
    stage: Mutex<Stage>,
    listener: Mutex<Option<TcpListener>>,
    store: OnceLock<Fresh<()>>,
}

impl Office {
    pub(super) fn listening(address: &str, say: Say) -> Result<Office, Exit> {
        let listener = http::listen(address, say)?;
        Ok(Office {
            stage: Mutex::new(Stage::Stands),
            listener: Mutex::new(Some(listener)),
            store: OnceLock::new(),
        })
    }

    pub(super) fn open(self: &Arc<Self>, say: Say) -> Result<(), Exit> {
        let Some(listener) = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        let address = listener.local_addr();
        let office = Arc::clone(self);
        http::start(listener, move |request| office.answer(request), say)?;
        if let Ok(address) = address {
            http::announce(address, say);
        }
        Ok(())
    }

    pub(super) fn reach(&self, client: &LockClient, name: &str, say: Say) -> Result<(), Exit> {
        let fresh = Fresh::health(client, name).map_err(|error| say.no_thread(&error))?;
        fresh.want(); // so the first request does not wait
        self.store.set(fresh).ok(); // cannot fail, since this runs once in a process
        Ok(())
    }

    pub(super) fn set(&self, stage: Stage) {
        *self.stage() = stage;
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &Request) -> Answer {
        if let Some(refusal) = http::refusal(request) {
            return refusal;
        }
        // No answer names a lock, host or program, so any `Host` header will do, unlike in `serve`.
        match request.path.as_str() {
            "/leader" => leader(*self.stage(), Moment::now()),
            "/ready" => self.ready(),
            _ => Answer::text(404, "there are /leader and /ready"),
        }
    }

    fn ready(&self) -> Answer {
        let Some(store) = self.store.get() else {
            return Answer::text(503, "the store has not answered yet");
        };
        let seen = store.get(WAIT);
        match (seen.trouble(), seen.last, *self.stage()) {
            (Some(trouble), _, _) => Answer::text(503, trouble.words()),
            (None, None, _) => Answer::text(503, "the store has not answered yet"),
            (None, Some(_), Stage::Begins) => Answer::text(503, "the command does not run yet"),
            (None, Some(_), Stage::Leads { until, .. }) if Moment::now() < until => {
                Answer::text(200, "ready")
            }
            (None, Some(_), Stage::Leads { .. } | Stage::Ends) => {
                Answer::text(503, "the command is being ended")
            }
            (None, Some(_), Stage::Stands) => Answer::text(200, "ready"),
        }
    }
}

fn leader(stage: Stage, now: Moment) -> Answer {
    match stage {
        Stage::Leads { term, until } if now < until => {
            let term = term.map_or_else(String::new, |term| format!("term {term}\n"));
            Answer::text(200, &format!("{term}left_ms {}", until.since(now).as_millis()))
        }
        Stage::Stands | Stage::Begins | Stage::Leads { .. } | Stage::Ends => {
            Answer::text(503, "does not lead")
        }
    }
}
