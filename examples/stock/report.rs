//! The output for the user: live progress on a terminal, at the end a table or JSON, and a verdict.

use std::io::Write;

use comfy_table::{Attribute, Cell, CellAlignment, Color, Table, presets};
use hdrhistogram::Histogram;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::Result;
use crate::args::{Args, Row};
use crate::fleet::{Leftover, Outcome};
use crate::shop::Counts;
use crate::talk::Trouble;

#[derive(Debug, Serialize)]
struct JsonRow {
    lock: &'static str,
    slow: Wrong,
    killed: Wrong,
    stopped: Wrong,
    /// The wrong sales of the run in which a server is killed; only with `--topology`.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<Wrong>,
    /// Sales given up, because a newer fencing token was seen or the guard's check failed.
    refused: u64,
    orders_per_s: f64,
    wait_p50_ms: f64,
    wait_p90_ms: f64,
}

#[derive(Debug, Serialize)]
struct Wrong {
    late: u64,
    twice: u64,
}

impl From<Counts> for Wrong {
    fn from(counts: Counts) -> Wrong {
        Wrong { late: counts.late, twice: counts.twice }
    }
}

impl From<&Outcome> for JsonRow {
    fn from(sale: &Outcome) -> JsonRow {
        let server = sale.runs.iter().find(|run| run.trouble == Trouble::Server);
        JsonRow {
            lock: sale.row.name(),
            slow: sale.counts(Trouble::Slow).into(),
            killed: sale.counts(Trouble::Killed).into(),
            stopped: sale.counts(Trouble::Stopped).into(),
            server: server.map(|run| run.counts.into()),
            refused: sale.refused,
            orders_per_s: round(sale.pace(), 10.0),
            wait_p50_ms: percentile_ms(&sale.waits, 50.0),
            wait_p90_ms: percentile_ms(&sale.waits, 90.0),
        }
    }
}

fn percentile_ms(waits: &Histogram<u64>, percent: f64) -> f64 {
    round(waits.value_at_percentile(percent) as f64 / 1_000.0, 1_000.0)
}

fn round(number: f64, parts: f64) -> f64 {
    (number * parts).round() / parts
}

/// The words in the table's head, and their meanings.
const LEGEND: [(&str, &str); 7] = [
    ("late", "sales written by a seller after another had been let in"),
    ("twice", "pieces sold a second time"),
    ("slow", "one job and one release took longer than the lease"),
    ("killed", "one worker was killed -9 between its read and its write"),
    ("stopped", "one worker was stopped there (SIGSTOP), and went on when another had come in (SIGCONT)"),
    ("orders/s", "sales per second, without the time in which a fault stopped them all"),
    ("wait", "half, and nine of ten, had the lock within this many milliseconds"),
];

/// The report about one repetition of the demo; `--runs` sets how many there are.
pub(crate) struct Report<'a> {
    args: &'a Args,
    run: u32,
    /// The progress bars, drawn on standard error if that is a terminal.
    bars: MultiProgress,
    sales: Vec<Outcome>,
    leftover: Option<Leftover>,
}

/// The progress of one row.
pub(crate) struct Line {
    bar: ProgressBar,
}

impl Line {
    pub(crate) fn show(&self, orders: u64) {
        self.bar.set_position(orders);
    }

    pub(crate) fn note(&self, what: &'static str) {
        self.bar.set_message(what);
    }
}

/// The verdict on the rows, in one line.
pub(crate) struct Verdict {
    pub(crate) text: String,
    /// Whether leasehold's rows kept their promises.
    pub(crate) is_kept: bool,
}

impl<'a> Report<'a> {
    pub(crate) fn new(args: &'a Args, run: u32) -> Report<'a> {
        Report { args, run, bars: MultiProgress::new(), sales: Vec::new(), leftover: None }
    }

    pub(crate) fn start(&self, row: Row) -> Result<Line> {
        let pieces = u64::try_from(self.args.stock)? * self.args.troubles(row).len() as u64;
        let bar = self.bars.add(ProgressBar::new(pieces));
        bar.set_style(ProgressStyle::with_template("{prefix:18} {bar:30} {pos:>5} of {len} sold  {msg}")?);
        bar.set_prefix(row.name());
        Ok(Line { bar })
    }

    pub(crate) fn finish(&mut self, line: &Line, sale: Outcome) -> Result<()> {
        let sum = |count: fn(&Counts) -> u64| sale.runs.iter().map(|run| count(&run.counts)).sum::<u64>();
        line.show(sale.orders());
        let (late, twice) = (sum(|counts| counts.late), sum(|counts| counts.twice));
        line.bar.abandon_with_message(format!("{late} late, {twice} twice"));
        if self.args.json {
            let mut out = std::io::stdout().lock();
            serde_json::to_writer(&mut out, &JsonRow::from(&sale))?;
            writeln!(out)?;
        }
        self.sales.push(sale);
        Ok(())
    }

    pub(crate) fn deadlock(&mut self, leftover: Leftover) {
        self.leftover = Some(leftover);
    }

    /// Prints the table and its explanation; with `--json` prints nothing.
    pub(crate) fn print(&self) {
        if self.args.json {
            return;
        }
        let Args { processes, threads, stock, runs, .. } = self.args;
        if *runs > 1 {
            println!("\nrun {} of {runs}", self.run);
        }
        println!(
            "\n{stock} pieces, {processes} processes with {threads} threads each, every lock with a lease of 1 s\n\n{}\n",
            self.table()
        );
        for (column, meaning) in LEGEND {
            println!("{column:18} {meaning}");
        }
        println!();
        for sale in &self.sales {
            println!("{:18} {}", sale.row.name(), sale.row.story());
            if let (true, Some(topology)) = (sale.row.is_leasehold(), self.args.topology) {
                println!("{:18} {}", "", topology.story());
            }
            if sale.refused + sale.told_lost > 0 {
                println!(
                    "{:18} writes refused: {}; releases that told of the loss: {}",
                    "", sale.refused, sale.told_lost
                );
            }
        }
        if let Some(Leftover { next_one_got_it, ttl }) = self.leftover {
            let answer = if next_one_got_it { "granted" } else { "refused" };
            println!(
                "{:18} without expiry: its holder was killed -9; the next SETNX is {answer}, TTL {ttl} (-1: for ever)",
                "setnx"
            );
        }
        println!("\n{}", self.verdict().text);
    }

    /// The verdict on the rows. Leasehold's lock promises no wrong sale in slow moments and after kill -9,
    /// its fenced lock promises none at all.
    pub(crate) fn verdict(&self) -> Verdict {
        let wrong = |counts: Counts| counts.late + counts.twice > 0;
        let mut parts = Vec::new();
        let mut is_kept = true;
        if let Some(sale) = self.sales.iter().find(|sale| sale.row == Row::RedisLock) {
            let troubled = wrong(sale.counts(Trouble::Slow)) || wrong(sale.counts(Trouble::Killed));
            is_kept &= !troubled;
            let so_far = if troubled { "WRONG" } else { "nothing wrong" };
            let late = sale.counts(Trouble::Stopped).late;
            parts.push(format!("redis_lock: {so_far} when slow or killed, {late} late when stopped"));
        }
        if let Some(sale) = self.sales.iter().find(|sale| sale.row == Row::RedisLockFenced) {
            is_kept &= !sale.is_wrong();
            let so_far = if sale.is_wrong() { "WRONG" } else { "nothing wrong, stopped or not" };
            parts.push(format!("redis_lock_fenced: {so_far}"));
        }
        let others = || self.sales.iter().filter(|sale| !sale.row.is_leasehold());
        if others().next().is_some() {
            let failed = others().filter(|sale| sale.is_wrong()).count();
            parts.push(format!("the others: {failed} of {} went wrong", others().count()));
        }
        Verdict { text: format!("verdict: {}", parts.join("; ")), is_kept }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_FULL_CONDENSED);
        let mut troubles = vec![Trouble::Slow, Trouble::Killed, Trouble::Stopped];
        let mut header = vec!["lock", "slow\nlate / twice", "killed\nlate / twice", "stopped\nlate / twice"];
        if self.args.topology.is_some() {
            troubles.push(Trouble::Server);
            header.push("server killed\nlate / twice");
        }
        header.extend(["orders/s", "wait ms\np50 / p90"]);
        table.set_header(header);
        for sale in &self.sales {
            let row = JsonRow::from(sale);
            let mut cells = vec![Cell::new(row.lock)];
            for &trouble in &troubles {
                let Counts { late, twice, .. } = sale.counts(trouble);
                cells.push(match late + twice {
                    _ if !sale.runs.iter().any(|run| run.trouble == trouble) => Cell::new(""),
                    0 => Cell::new("0 / 0").fg(Color::Green),
                    _ => Cell::new(format!("{late} / {twice}")).fg(Color::Red).add_attribute(Attribute::Bold),
                });
            }
            cells.push(Cell::new(format!("{:.0}", row.orders_per_s)));
            cells.push(Cell::new(format!("{:.2} / {:.1}", row.wait_p50_ms, row.wait_p90_ms)));
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}
