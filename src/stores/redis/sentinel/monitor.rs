//! The thread that notices a new master. It keeps a connection to each Sentinel, on which it receives
//! messages about switches. It also asks each Sentinel once a second, in case a message is lost. `Sentinels`
//! takes the news, and ends connections to the old master.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;

use crate::error::Result;
use crate::park::{Parker, Service};
use crate::stores::redis::conn::connection::{Connection, ServerPlace};
use crate::stores::redis::reply::done;
use crate::stores::redis::script::Command;
use crate::stores::redis::sentinel::{CHANNELS, Sentinels};
use crate::sync::Mutex;
use crate::time::{Clock, Moment};
use crate::wire::{Wire, await_any};

const EVERY: Duration = Duration::from_secs(1);
/// The longest time that one Sentinel may delay the others.
const MOST: Duration = Duration::from_secs(1);
/// The shortest and the longest pause before connecting again to a Sentinel that failed.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(16));

pub(crate) struct SentinelMonitor {
    shared: Arc<MonitorShared>,
}

struct MonitorShared {
    sentinels: Arc<Sentinels>,
    service: Service,
    /// The connections to Sentinels, which `close` ends. `None` after `close`.
    open: Mutex<Option<Vec<Weak<Wire>>>>,
}

struct Post {
    place: Arc<ServerPlace>,
    connection: Option<Connection>,
    next: Moment,
    back_off: Duration,
}

impl SentinelMonitor {
    pub(crate) fn start(sentinels: &Arc<Sentinels>) -> Result<SentinelMonitor> {
        let (service, parker) = Service::new(&Clock::System);
        let open = Mutex::new(Some(Vec::new()));
        let shared = Arc::new(MonitorShared { sentinels: Arc::clone(sentinels), service, open });
        let theirs = Arc::clone(&shared);
        shared.service.start("leasehold-sentinel", move || theirs.run(&parker))?;
        Ok(SentinelMonitor { shared })
    }

    pub(crate) fn close(&self) {
        let open = self.shared.open.lock().take();
        for stream in open.into_iter().flatten().filter_map(|stream| stream.upgrade()) {
            stream.shutdown();
        }
        self.shared.service.stop();
    }
}

impl Drop for SentinelMonitor {
    /// For a store that is dropped without `close`.
    fn drop(&mut self) {
        self.close();
    }
}

impl MonitorShared {
    fn run(&self, parker: &Parker) {
        let post = |place| Post { place, connection: None, next: Clock::System.now(), back_off: BACK_OFF.0 };
        let mut posts: Vec<Post> = self.sentinels.places().into_iter().map(post).collect();
        self.service.run(parker, |_woken_for| {
            let next = Clock::System.after(EVERY);
            self.round(&mut posts);
            let connections = posts.iter().filter_map(|post| post.connection.as_ref());
            let streams: Vec<_> = connections.map(|connection| &*connection.stream).collect();
            if streams.is_empty() {
                return next;
            }
            // `close` shuts down the sockets, which ends this wait.
            await_any(streams.into_iter(), next.since(Clock::System.now()));
            Clock::System.now()
        });
    }

    fn round(&self, posts: &mut [Post]) {
        let deadline = Clock::System.after(MOST);
        for post in posts.iter_mut() {
            post.talk(|connection| self.sentinels.send_question(connection, deadline));
        }
        let said: Vec<_> = posts
            .iter_mut()
            .filter_map(|post| post.talk(|connection| self.sentinels.read_answer(connection, deadline)))
            .collect();
        self.sentinels.learn_from_all(&said, Clock::System.now());
        // Connecting may take long, so it comes last.
        for post in posts.iter_mut() {
            let now = Clock::System.now();
            if post.connection.is_none() && now >= post.next && !self.service.is_stopped() {
                post.connection = self.connect(&post.place, now.plus(MOST)).ok();
                post.note(post.connection.is_some());
            }
        }
    }

    /// Connects with RESP3, in which one connection carries messages and replies.
    fn connect(&self, place: &ServerPlace, deadline: Moment) -> Result<Connection> {
        let mut commands = vec![Command::new("HELLO").arg(3_u32)];
        commands.extend(CHANNELS.map(|channel| Command::new("SUBSCRIBE").arg(channel)));
        // The connection is registered before anything is sent, so that `close` need not wait for a silent
        // Sentinel.
        let mut connection =
            self.sentinels.greet(place, &commands, deadline, |stream| self.register(stream))?;
        done(connection.receive(deadline)?)?;
        for _ in CHANNELS {
            // A refused subscription is ignored, because the monitor also asks each Sentinel once a second.
            let _either: Value = connection.receive(deadline)?;
        }
        Ok(connection)
    }

    /// Registers the connection, so that `close` ends it. After `close`, ends it now.
    fn register(&self, stream: &Arc<Wire>) {
        match &mut *self.open.lock() {
            None => stream.shutdown(),
            Some(open) => {
                open.retain(|stream| stream.strong_count() > 0);
                open.push(Arc::downgrade(stream));
            }
        }
    }
}

impl Post {
    fn talk<T>(&mut self, talk: impl FnOnce(&mut Connection) -> Result<T>) -> Option<T> {
        let result = talk(self.connection.as_mut()?).ok();
        if result.is_none() {
            self.connection = None;
            self.note(false);
        }
        result
    }

    fn note(&mut self, is_well: bool) {
        if is_well {
            self.back_off = BACK_OFF.0;
        } else {
            self.next = Clock::System.after(self.back_off);
            self.back_off = (self.back_off * 2).min(BACK_OFF.1);
        }
    }
}
