//! The threads and the state of the proxy.
//!
//! Each connection (a link) has two lanes, to the server and to the client. A lane has a reading thread,
//! which finds frames and decides what happens to each, and a writing thread, which waits until a frame is
//! due and not held. One mutex guards all decisions, and a condition variable signals every change.

use super::super::now;
use super::super::server::Port;
use super::resp::{NotResp, frame_length, is_message, strings};
use super::{Command, Direction, Do, OWN_LIMIT, Then, Which, thread};
use parking_lot::{Condvar, Mutex, MutexGuard};
use socket2::SockRef;
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) type Pick = Box<dyn Fn(&Command) -> bool + Send>;

pub(super) struct Rule {
    pub(super) fault: usize,
    pub(super) pick: Pick,
    pub(super) act: Do,
    /// How many more commands the rule may hit; `None` for any number.
    pub(super) left: Option<usize>,
}

/// What has happened with one fault. Rules name a fault by its index in `State::faults`.
#[derive(Default)]
pub(super) struct FaultState {
    pub(super) hits: usize,
    pub(super) released: bool,
    pub(super) commands: Vec<Command>,
}

/// Bytes that a lane is to write.
struct Item {
    bytes: Vec<u8>,
    due: Instant,
    /// The fault that must be released before the bytes are written.
    gate: Option<usize>,
    after: After,
}

#[derive(Clone, Copy)]
enum After {
    GoOn,
    /// The sender has closed its end, so the receiver's end is closed after these bytes.
    End,
    Fault(Then),
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Item>,
    /// Whether all later bytes are lost.
    silent: bool,
    closed: bool,
}

impl Lane {
    fn push(&mut self, item: Item) {
        if !self.silent {
            self.queue.push_back(item);
        }
    }
}

struct Pending {
    replies: usize,
    fault: Option<(usize, Do)>,
}

pub(super) struct Link {
    client: Arc<TcpStream>,
    server: Arc<TcpStream>,
    subscriber: bool,
    to_server: Lane,
    to_client: Lane,
    pending: VecDeque<Pending>,
}

impl Link {
    fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }

    pub(super) fn is(&self, id: u64, which: Which) -> bool {
        match which {
            Which::All => true,
            Which::Subscribers => self.subscriber,
            Which::Others => !self.subscriber,
            Which::One(one) => one == id,
        }
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) stop: bool,
    pub(super) refuse: bool,
    pub(super) listening: bool,
    /// Whether all bytes pass without being read as RESP.
    pub(super) plain: bool,
    /// The new connections that are accepted and not served, if connections are ignored.
    pub(super) ignored: Option<Vec<TcpStream>>,
    pub(super) accepted: u64,
    /// The open links. A link's threads end when they notice that the link is no longer here.
    pub(super) links: BTreeMap<u64, Link>,
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) holds: Vec<(Direction, Which)>,
    /// The connections whose clients the proxy does not read from.
    pub(super) deaf: Option<Which>,
    pub(super) request_delay: Duration,
    pub(super) reply_delay: Duration,
    pub(super) drip: Option<(usize, Duration)>,
    pub(super) drop_messages: bool,
    pub(super) messages_dropped: usize,
    pub(super) rules: Vec<Rule>,
    pub(super) faults: Vec<FaultState>,
    pub(super) log: Vec<Command>,
}

pub(super) struct Shared {
    pub(super) upstream: Mutex<SocketAddr>,
    pub(super) port: Port,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl State {
    fn is_deaf_to(&self, id: u64) -> bool {
        self.links.get(&id).zip(self.deaf).is_some_and(|(link, which)| link.is(id, which))
    }

    fn held(&self, direction: Direction, id: u64) -> bool {
        let Some(link) = self.links.get(&id) else { return false };
        self.holds.iter().any(|(held, which)| *held == direction && link.is(id, *which))
    }

    /// Ends a link, whose threads then end by themselves, or only silences it.
    pub(super) fn end(&mut self, id: u64, then: Then) {
        if then == Then::Silent {
            let link = self.links.get_mut(&id).expect("a link that is open");
            for lane in [Direction::ToServer, Direction::ToClient] {
                link.lane(lane).silent = true;
                link.lane(lane).queue.clear();
            }
            return;
        }
        let Some(link) = self.links.remove(&id) else { return };
        drop(link.server.shutdown(Shutdown::Both));
        if then == Then::Reset {
            // The shutdown of the read side ends the reading thread, and sends no FIN. With a linger of zero,
            // the last close then sends RST.
            drop(SockRef::from(&*link.client).set_linger(Some(Duration::ZERO)));
            drop(link.client.shutdown(Shutdown::Read));
        } else {
            drop(link.client.shutdown(Shutdown::Both));
        }
    }

    /// The fault of the first rule that selects this command, and the rule's action. The command counts
    /// towards the rule's limit.
    fn fault_for(&mut self, command: &Command) -> Option<(usize, Do)> {
        let rule = self.rules.iter_mut().find(|rule| rule.left != Some(0) && (rule.pick)(command))?;
        if let Some(left) = &mut rule.left {
            *left -= 1;
        }
        let found = (rule.fault, rule.act.clone());
        self.faults[found.0].commands.push(command.clone());
        Some(found)
    }

    fn request(&mut self, id: u64, bytes: Vec<u8>) {
        let command = Command { connection: id, args: strings(&bytes) };
        self.log.push(command.clone());
        let fault = self.fault_for(&command);
        let due = now() + self.request_delay;
        let mut item = Item { bytes, due, gate: None, after: After::GoOn };
        let mut pending = Pending { replies: command.replies(), fault: None };
        match fault {
            Some((fault, Do::HoldRequest)) => {
                self.faults[fault].hits += 1;
                item.gate = Some(fault);
            }
            Some((fault, Do::DropRequest(then))) => {
                self.faults[fault].hits += 1;
                item.bytes.clear();
                item.after = After::Fault(then);
                pending.replies = 0;
            }
            Some((fault, Do::Watch)) => self.faults[fault].hits += 1,
            other => pending.fault = other,
        }
        let Some(link) = self.links.get_mut(&id) else { return };
        link.subscriber |= command.subscribes();
        if pending.replies > 0 && !link.to_server.silent {
            link.pending.push_back(pending);
        }
        link.to_server.push(item);
    }

    fn reply(&mut self, id: u64, bytes: Vec<u8>) {
        let due = now() + self.reply_delay;
        let mut item = Item { bytes, due, gate: None, after: After::GoOn };
        let Some(link) = self.links.get_mut(&id) else { return };
        if is_message(&item.bytes, link.subscriber) {
            if self.drop_messages {
                self.messages_dropped += 1;
                return;
            }
        } else if let Some(front) = link.pending.front_mut() {
            front.replies -= 1;
            let fault = front.fault.take();
            if front.replies == 0 {
                link.pending.pop_front();
            }
            if let Some((fault, act)) = fault {
                self.faults[fault].hits += 1;
                match act {
                    Do::SwallowReply(then) => {
                        item.bytes.clear();
                        item.after = After::Fault(then);
                    }
                    Do::CutReply(length, then) => {
                        item.bytes.truncate(length);
                        item.after = After::Fault(then);
                    }
                    Do::GarbleReply(other) => item.bytes = other,
                    Do::DelayReply(delay) => item.due += delay,
                    Do::HoldReply => item.gate = Some(fault),
                    Do::HoldRequest | Do::DropRequest(_) | Do::Watch => panic!("done with the request"),
                }
            }
        }
        link.to_client.push(item);
    }

    fn pass(&mut self, id: u64, direction: Direction, bytes: Vec<u8>) {
        let delay = match direction {
            Direction::ToServer => self.request_delay,
            Direction::ToClient => self.reply_delay,
        };
        if let Some(link) = self.links.get_mut(&id).filter(|_| !bytes.is_empty()) {
            link.lane(direction).push(Item { bytes, due: now() + delay, gate: None, after: After::GoOn });
        }
    }

    /// Closes the receiver's end, after all earlier bytes, because the sender has closed its own.
    fn finish(&mut self, id: u64, direction: Direction) {
        if let Some(link) = self.links.get_mut(&id) {
            let end = Item { bytes: Vec::new(), due: now(), gate: None, after: After::End };
            link.lane(direction).push(end);
        }
    }

    /// Closes a lane. When both lanes are closed, the link ends.
    fn close_lane(&mut self, id: u64, direction: Direction) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let lane = link.lane(direction);
        lane.queue.clear();
        (lane.silent, lane.closed) = (true, true);
        if link.to_server.closed && link.to_client.closed {
            self.end(id, Then::Close);
        }
    }
}

impl Shared {
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let value = change(&mut self.state.lock());
        self.changed.notify_all();
        value
    }

    pub(super) fn wait(&self, limit: Duration, cond: impl Fn(&State) -> bool) -> bool {
        let end = now() + limit;
        let mut state = self.state.lock();
        while !cond(&state) {
            if self.changed.wait_until(&mut state, end).timed_out() {
                return cond(&state);
            }
        }
        true
    }

    /// Connects to the proxy, so that the accepting thread wakes and sees the changed state.
    pub(super) fn wake_acceptor(&self) {
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port.number())));
    }

    pub(super) fn accept_loop(self: Arc<Shared>, listener: TcpListener) {
        let mut listener = Some(listener);
        loop {
            let accepted = listener.as_ref().map(TcpListener::accept);
            let mut state = self.state.lock();
            if state.stop {
                return;
            }
            if state.refuse {
                // The listener closes under the mutex, so no client connects once `listening` is false. The
                // shutdown also ends the copy of the socket that a child process has while it starts.
                if let Some(listener) = listener.take() {
                    drop(SockRef::from(&listener).shutdown(Shutdown::Both));
                }
                drop(accepted);
                state.listening = false;
                self.changed.notify_all();
                while state.refuse && !state.stop {
                    self.changed.wait(&mut state);
                }
                continue;
            }
            if listener.is_none() {
                // The bind fails only while a child that is just starting has a copy of the old listener.
                match TcpListener::bind((Ipv4Addr::LOCALHOST, self.port.number())) {
                    Ok(bound) => listener = Some(bound),
                    Err(_) => {
                        self.changed.wait_for(&mut state, Duration::from_millis(5));
                    }
                }
                state.listening = listener.is_some();
                self.changed.notify_all();
                continue;
            }
            if let Some(Ok((client, _))) = accepted {
                match &mut state.ignored {
                    Some(ignored) => ignored.push(client),
                    None => self.link(&mut state, client),
                }
            }
        }
    }

    pub(super) fn upstream(&self) -> SocketAddr {
        *self.upstream.lock()
    }

    /// Opens a link for a new client. If there is no server, closes the client's connection.
    fn link(self: &Arc<Shared>, state: &mut MutexGuard<'_, State>, client: TcpStream) {
        let server = MutexGuard::unlocked(state, || TcpStream::connect_timeout(&self.upstream(), OWN_LIMIT));
        let Ok(server) = server else { return };
        if state.stop {
            return;
        }
        client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).expect("TCP_NODELAY");
        let id = state.accepted;
        state.accepted += 1;
        let (client, server) = (Arc::new(client), Arc::new(server));
        state.links.insert(
            id,
            Link {
                client: Arc::clone(&client),
                server: Arc::clone(&server),
                subscriber: false,
                to_server: Lane::default(),
                to_client: Lane::default(),
                pending: VecDeque::new(),
            },
        );
        state.threads.retain(|thread| !thread.is_finished());
        for (direction, from, to) in
            [(Direction::ToServer, &client, &server), (Direction::ToClient, &server, &client)]
        {
            let (shared, from) = (Arc::clone(self), Arc::clone(from));
            state.threads.push(thread("proxy-read", move || shared.read_loop(id, direction, &from)));
            let (shared, to) = (Arc::clone(self), Arc::clone(to));
            state.threads.push(thread("proxy-write", move || shared.write_loop(id, direction, &to)));
        }
        self.changed.notify_all();
    }

    fn read_loop(&self, id: u64, direction: Direction, from: &TcpStream) {
        let mut from = from;
        let (mut pending, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            if direction == Direction::ToServer {
                let mut state = self.state.lock();
                while state.is_deaf_to(id) {
                    self.changed.wait(&mut state);
                }
            }
            // A failed read is an end too: the other side has reset the connection.
            let count = from.read(&mut chunk).unwrap_or(0);
            pending.extend_from_slice(&chunk[..count]);
            let more = self.change(|state| {
                if !state.links.contains_key(&id) {
                    return false;
                }
                if state.plain {
                    state.pass(id, direction, std::mem::take(&mut pending));
                }
                loop {
                    let frame = match frame_length(&pending) {
                        Ok(Some(length)) => pending.drain(..length).collect(),
                        Ok(None) => break,
                        Err(NotResp) => {
                            state.pass(id, direction, std::mem::take(&mut pending));
                            break;
                        }
                    };
                    match direction {
                        Direction::ToServer => state.request(id, frame),
                        Direction::ToClient => state.reply(id, frame),
                    }
                }
                if count == 0 {
                    state.pass(id, direction, std::mem::take(&mut pending));
                    state.finish(id, direction);
                }
                count > 0
            });
            if !more {
                return;
            }
        }
    }

    fn write_loop(&self, id: u64, direction: Direction, to: &TcpStream) {
        loop {
            let (item, drip) = {
                let mut state = self.state.lock();
                loop {
                    if !state.links.contains_key(&id) {
                        return;
                    }
                    let held = state.held(direction, id);
                    let front = state.links.get_mut(&id).and_then(|link| link.lane(direction).queue.front());
                    let front = front.map(|item| (item.due, item.gate));
                    let gated = |fault: usize| !state.faults[fault].released;
                    match front {
                        Some((due, gate)) if !held && !gate.is_some_and(gated) => {
                            if due <= now() {
                                break;
                            }
                            self.changed.wait_until(&mut state, due);
                        }
                        _ => self.changed.wait(&mut state),
                    }
                }
                let drip = if direction == Direction::ToClient { state.drip } else { None };
                let link = state.links.get_mut(&id).expect("looked up above");
                (link.lane(direction).queue.pop_front().expect("looked up above"), drip)
            };
            let written = match drip {
                None => (&*to).write_all(&item.bytes).is_ok(),
                Some((size, pause)) => {
                    item.bytes.chunks(size).all(|piece| self.drip_one(id, to, piece, pause))
                }
            };
            if !written {
                // The receiver is gone, but the other direction goes on: a held request must still arrive.
                self.change(|state| state.close_lane(id, direction));
                return;
            }
            match item.after {
                After::GoOn => {}
                After::End => {
                    drop(to.shutdown(Shutdown::Write));
                    self.change(|state| state.close_lane(id, direction));
                    return;
                }
                After::Fault(then) => self.change(|state| {
                    if state.links.contains_key(&id) {
                        state.end(id, then);
                    }
                }),
            }
        }
    }

    fn drip_one(&self, id: u64, to: &TcpStream, piece: &[u8], pause: Duration) -> bool {
        let mut to = to;
        if to.write_all(piece).is_err() {
            return false;
        }
        let end = now() + pause;
        let mut state = self.state.lock();
        while state.links.contains_key(&id) {
            if self.changed.wait_until(&mut state, end).timed_out() {
                return true;
            }
        }
        false
    }
}
