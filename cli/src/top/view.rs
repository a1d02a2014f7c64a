//! The state of `top`'s screen, and the effect of keys. No drawing and no I/O.

use std::cmp::Ordering;
use std::time::Duration;

use leasehold::{Holder, Inspection, ListedLock, ObjectKind};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::clock::Moment;
use crate::cycles;
use crate::say::plain;
use crate::show;
use crate::store;
use crate::top::asks::{Answer, Ask, Poll};

pub(crate) enum Next {
    Go,
    Quit,
    Interrupt,
    Stop,
    Ask(Ask),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Order {
    #[default]
    Waiting,
    Since,
    Left,
    Name,
}

impl Order {
    fn next(self) -> Order {
        match self {
            Order::Waiting => Order::Since,
            Order::Since => Order::Left,
            Order::Left => Order::Name,
            Order::Name => Order::Waiting,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Order::Waiting => "most waiters first",
            Order::Since => "longest held first",
            Order::Left => "soonest end first",
            Order::Name => "by name",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) holder: String,
    pub(crate) since: Option<Duration>,
    /// The time until the hold ends; `Duration::MAX` if it never ends.
    pub(crate) left: Option<Duration>,
    pub(crate) waiting: u64,
    pub(crate) fence: Option<u64>,
    pub(crate) is_deadlocked: bool,
}

#[derive(Debug, Default)]
pub(crate) enum Mode {
    #[default]
    Moving,
    Filtering,
    Asking(String),
    Question(Box<Inspection>),
}

#[derive(Default)]
pub(crate) struct View {
    pub(crate) poll: Option<Poll>,
    pub(crate) rows: Vec<Row>,
    pub(crate) order: Order,
    pub(crate) reversed: bool,
    pub(crate) filter: String,
    pub(crate) mode: Mode,
    /// A message that disappears with the next key.
    pub(crate) said: Option<String>,
    pub(crate) trouble: Option<(String, Moment)>,
    selected: Option<String>,
    pub(crate) first: usize,
    pub(crate) height: usize,
}

impl View {
    pub(crate) fn has_locks(&self) -> bool {
        self.poll.is_some()
    }

    pub(crate) fn answered(&mut self, answer: Answer, now: Moment) {
        match answer {
            Answer::Polled(poll) => {
                self.trouble = None;
                self.poll = Some(poll);
                self.arrange();
            }
            Answer::Failed(error) => {
                let since = self.trouble.as_ref().map_or(now, |(_, since)| *since);
                self.trouble = Some((plain(&store::text(&error)), since));
                if !matches!(self.mode, Mode::Filtering) {
                    self.mode = Mode::Moving;
                }
            }
            Answer::Asked(seen) => {
                // If the user has pressed another key meanwhile, the answer is dropped.
                if !matches!(&self.mode, Mode::Asking(name) if *name == seen.name) {
                    return;
                }
                if show::is_lock(&seen) && seen.is_held() {
                    self.mode = Mode::Question(seen);
                } else if !show::is_lock(&seen) && seen.kind != ObjectKind::Absent {
                    self.mode = Mode::Moving;
                    self.say(show::impossible(&seen));
                } else {
                    self.mode = Mode::Moving;
                    self.say(format!("{} is held by nobody", seen.name));
                }
            }
            Answer::Said(words) => self.say(words),
        }
    }

    pub(crate) fn typed(&mut self, key: &KeyEvent) -> Next {
        self.said = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Next::Interrupt,
                KeyCode::Char('z') => Next::Stop,
                _ => Next::Go,
            };
        }
        match std::mem::take(&mut self.mode) {
            Mode::Filtering => self.filtering(key.code),
            Mode::Question(seen) if matches!(key.code, KeyCode::Char('y' | 'Y')) => {
                return Next::Ask(Ask::Force(seen));
            }
            Mode::Question(seen) => self.say(format!("{}: nothing was done", seen.name)),
            Mode::Asking(_) | Mode::Moving => return self.moving(key.code),
        }
        Next::Go
    }

    fn moving(&mut self, key: KeyCode) -> Next {
        let page = isize::try_from(self.height.max(2) - 1).unwrap_or(isize::MAX);
        match key {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Esc if self.filter.is_empty() => return Next::Quit,
            KeyCode::Esc => {
                self.filter.clear();
                self.arrange();
            }
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-page),
            KeyCode::PageDown | KeyCode::Char(' ') => self.go(page),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX),
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.arrange();
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.arrange();
            }
            KeyCode::Char('/') => self.mode = Mode::Filtering,
            KeyCode::Enter => return Next::Ask(Ask::Poll),
            KeyCode::Char('f') => {
                let Some(row) = self.rows.get(self.at()) else { return Next::Go };
                self.mode = Mode::Asking(row.name.clone());
                return Next::Ask(Ask::Question(row.name.clone()));
            }
            _ => {}
        }
        Next::Go
    }

    fn filtering(&mut self, key: KeyCode) {
        self.mode = Mode::Filtering;
        match key {
            KeyCode::Enter => self.mode = Mode::Moving,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Moving;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(char) => self.filter.push(char),
            _ => {}
        }
        self.arrange();
    }

    fn say(&mut self, words: String) {
        self.said = Some(plain(&words));
    }

    pub(crate) fn at(&self) -> usize {
        let is_it = |row: &Row| Some(&row.name) == self.selected.as_ref();
        self.rows.iter().position(is_it).unwrap_or(0)
    }

    fn go(&mut self, by: isize) {
        let to = self.at().saturating_add_signed(by).min(self.rows.len().saturating_sub(1));
        self.selected = self.rows.get(to).map(|row| row.name.clone());
    }

    pub(crate) fn visible(&self) -> Vec<String> {
        self.rows.iter().skip(self.first).take(self.height).map(|row| row.name.clone()).collect()
    }

    fn arrange(&mut self) {
        let Some(poll) = &self.poll else { return };
        let rows = poll.locks.iter().map(|lock| {
            let is_deadlocked = poll.deadlocks.iter().any(|cycle| cycles::has(cycle, &lock.name));
            Row { is_deadlocked, ..row(lock, poll.fences.get(&lock.name).copied()) }
        });
        let filter = self.filter.to_lowercase();
        let is_meant = |row: &Row| {
            filter.is_empty()
                || [&row.name, &row.holder].iter().any(|text| text.to_lowercase().contains(&filter))
        };
        let mut rows: Vec<Row> = rows.filter(is_meant).collect();
        rows.sort_by(|one, other| compare(self.order, one, other));
        if self.reversed {
            rows.reverse();
        }
        self.rows = rows;
    }
}

fn compare(order: Order, one: &Row, other: &Row) -> Ordering {
    let first = match order {
        Order::Waiting => other.waiting.cmp(&one.waiting).then(other.since.cmp(&one.since)),
        Order::Since => other.since.cmp(&one.since),
        Order::Left => one.left.unwrap_or(Duration::MAX).cmp(&other.left.unwrap_or(Duration::MAX)),
        Order::Name => Ordering::Equal,
    };
    first.then_with(|| one.name.cmp(&other.name))
}

fn row(lock: &ListedLock, fence: Option<u64>) -> Row {
    let named = |holder: &Holder| {
        let Some(place) = &holder.location else { return holder.owner.clone() };
        let what = place.label.as_ref().unwrap_or(&place.program);
        let mut words = format!("{what} {}:{}", place.host, place.pid);
        if !place.thread.is_empty() {
            words += &format!(" {}", place.thread);
        }
        words.trim_start().to_owned()
    };
    let mut holder = lock.holders.first().map_or(String::new(), named);
    if lock.holders.len() > 1 {
        holder += &format!(" and {} more", lock.holders.len() - 1);
    }
    Row {
        name: lock.name.clone(),
        kind: lock.kind.to_string().trim_start_matches("a ").to_owned(),
        holder: plain(&holder),
        since: lock.holders.iter().filter_map(|holder| holder.held_for).max(),
        left: lock.remaining,
        waiting: lock.waiting,
        fence,
        is_deadlocked: false,
    }
}
