//! The layout of `top`: a line about the store, a table, and a line for messages and keys.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row as TableRow, Table, TableState};

use crate::clock::Moment;
use crate::say::{folded, plain};
use crate::show::harmless;
use crate::top::view::{Mode, Row, View};

/// The styles use no colors, which might be unreadable on the terminal's background.
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);
const OLD: Style = Style::new().add_modifier(Modifier::DIM);

const KEYS: &str = "q quit  ↑↓ move  / filter  s sort  r reverse  f force  Enter refresh";

pub(crate) fn draw(frame: &mut Frame<'_>, view: &mut View, now: Moment) {
    let width = frame.area().width;
    let question = match &view.mode {
        Mode::Question(seen) => folded(&harmless(seen).to_string(), width),
        Mode::Moving if width < NARROW => {
            view.rows.get(view.at()).map_or(Vec::new(), |row| folded(&row.words(), width))
        }
        _ => Vec::new(),
    };
    let below = u16::try_from(question.len()).unwrap_or(u16::MAX).min(frame.area().height / 2);
    let parts = [Constraint::Length(1), Constraint::Min(2), Constraint::Length(below), Constraint::Length(1)];
    let [top, middle, shown, bottom] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Line::styled(summary(view, now), BOLD), top);
    table(frame, view, middle, now);
    for (line, row) in question.iter().zip(shown.rows()) {
        frame.render_widget(line.as_str(), row);
    }
    frame.render_widget(last_line(view, now, width), bottom);
}

fn summary(view: &View, now: Moment) -> String {
    let order = if view.reversed {
        format!("{}, reversed", view.order.words())
    } else {
        view.order.words().to_owned()
    };
    let Some(poll) = &view.poll else { return "the store is asked".to_owned() };
    let shown = u64::try_from(poll.locks.len()).unwrap_or(u64::MAX);
    let locks = if poll.found == 1 { "lock" } else { "locks" };
    let mut words = format!("{} {locks}, {} waiting", poll.found, poll.waiting);
    if poll.found > shown {
        words += &format!(", the first {shown} here");
    }
    if !view.filter.is_empty() {
        words += &format!(", {} with “{}”", view.rows.len(), plain(&view.filter));
    }
    words += &format!(", {order}");
    match poll.deadlocks.len() {
        0 => {}
        1 => words += ", 1 deadlock",
        count => words += &format!(", {count} deadlocks"),
    }
    let age = now.since(poll.since);
    if view.trouble.is_some() {
        words += &format!("; of {} ago", time(age));
    }
    words
        + &format!("; {} requests, {} keys, {} ms", poll.cost.requests, poll.cost.keys, poll.took.as_millis())
}

fn last_line(view: &View, now: Moment, width: u16) -> Line<'static> {
    match &view.mode {
        Mode::Filtering => {
            Line::raw(format!("filter: {}_   (Enter keeps it, Esc clears it)", plain(&view.filter)))
        }
        Mode::Asking(name) => Line::raw(format!("who has {}?", plain(name))),
        Mode::Question(_) if width < WIDE => Line::styled("release it by force? y: yes, else: no", BOLD),
        Mode::Question(_) => Line::styled(
            "release it by force? Its holder goes on without it, unless it checks. y: yes, any other key: no",
            BOLD,
        ),
        Mode::Moving => match (&view.trouble, &view.said) {
            (Some((words, since)), _) => {
                Line::styled(format!("no answer for {}: {words}", time(now.since(*since))), BOLD)
            }
            (None, Some(said)) => Line::styled(said.clone(), BOLD),
            (None, None) => Line::styled(KEYS, OLD),
        },
    }
}

const WIDE: u16 = 100;
/// A screen that is narrower (in characters) shows only the most important columns, and below the table all
/// columns of the selected lock.
const NARROW: u16 = 72;

fn table(frame: &mut Frame<'_>, view: &mut View, area: Rect, now: Moment) {
    let age = view.poll.as_ref().map_or(Duration::ZERO, |poll| now.since(poll.since));
    view.height = usize::from(area.height.saturating_sub(1));
    let (at, count) = (view.at(), view.rows.len());
    let least = (at + 1).saturating_sub(view.height);
    view.first = view.first.clamp(least, at.max(least)).min(count.saturating_sub(view.height).max(least));
    let shown = view.rows.iter().skip(view.first).take(view.height);
    let rows: Vec<Vec<String>> = shown.map(|row| kept(cells(row, age), area.width)).collect();
    let header = kept(NAMES.map(str::to_owned), area.width);
    let widths = header.iter().enumerate().map(|(column, name)| match name.as_str() {
        "NAME" | "HOLDER" => Constraint::Fill(1),
        _ => {
            let cells = rows.iter().filter_map(|row| row.get(column)).chain([name]);
            let widest = cells.map(|cell| cell.chars().count()).max();
            Constraint::Length(widest.and_then(|widest| u16::try_from(widest).ok()).unwrap_or(u16::MAX))
        }
    });
    let widths: Vec<Constraint> = widths.collect();
    let header = TableRow::new(header).style(BOLD);
    let style = if view.trouble.is_some() { OLD } else { Style::new() };
    let table = Table::new(rows.into_iter().map(TableRow::new), widths)
        .header(header)
        .row_highlight_style(CHOSEN)
        .style(style);
    let mut state = TableState::new().with_selected((count > 0).then(|| at.saturating_sub(view.first)));
    frame.render_stateful_widget(table, area, &mut state);
}

fn kept(cells: [String; 7], width: u16) -> Vec<String> {
    let is_kept = |name: &str| match name {
        "KIND" => width >= WIDE,
        "LEFT" | "FENCE" => width >= NARROW,
        _ => true,
    };
    NAMES.iter().zip(cells).filter(|(name, _)| is_kept(name)).map(|(_, cell)| cell).collect()
}

const NAMES: [&str; 7] = ["NAME", "KIND", "HOLDER", "SINCE", "LEFT", "WAITERS", "FENCE"];

impl Row {
    fn words(&self) -> String {
        let mut words = format!("{}: {}, held by {}", plain(&self.name), self.kind, self.holder);
        if let Some(fence) = self.fence {
            words += &format!(", token {fence}");
        }
        words
    }
}

fn cells(row: &Row, age: Duration) -> [String; 7] {
    let left = match row.left {
        None => "?".to_owned(),
        Some(Duration::MAX) => "no end".to_owned(),
        Some(left) => time(left.saturating_sub(age)),
    };
    let mark = if row.is_deadlocked { "deadlock: " } else { "" };
    [
        format!("{mark}{}", plain(&row.name)),
        row.kind.clone(),
        row.holder.clone(),
        row.since.map_or("?".to_owned(), |since| time(since + age)),
        left,
        row.waiting.to_string(),
        row.fence.map_or(String::new(), |fence| fence.to_string()),
    ]
}

fn time(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..=59 => format!("{seconds}s"),
        60..=3599 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_six_characters() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m00s"),
            (3599, "59m59s"),
            (3600, "1h00m"),
            (86_399, "23h59m"),
            (86_400, "1d00h"),
            (99 * 86_400 + 23 * 3600, "99d23h"),
        ] {
            assert_eq!(time(Duration::from_secs(seconds)), text);
        }
    }
}
