//! What the user sees: live progress on a terminal, at the end a table or JSON.

use std::io::Write;

use comfy_table::{Attribute, Cell, CellAlignment, Color, Table, presets};
use hdrhistogram::Histogram;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::Result;
use crate::args::{Args, Row};
use crate::fleet::{Leftover, Outcome, Strikes};

/// One row as `--json` prints it.
#[derive(Debug, Serialize)]
struct JsonRow {
    lock: &'static str,
    sold: i64,
    oversold: i64,
    lost: i64,
    orders_per_s: f64,
    wait_p50_ms: f64,
    wait_p99_ms: f64,
}

impl From<&Outcome> for JsonRow {
    fn from(sale: &Outcome) -> JsonRow {
        JsonRow {
            lock: sale.row.name(),
            sold: sale.sold,
            oversold: sale.oversold(),
            lost: sale.lost(),
            orders_per_s: round(sale.sold as f64 / sale.took.as_secs_f64(), 10.0),
            wait_p50_ms: percentile_ms(&sale.waits, 50.0),
            wait_p99_ms: percentile_ms(&sale.waits, 99.0),
        }
    }
}

fn percentile_ms(waits: &Histogram<u64>, percent: f64) -> f64 {
    round(waits.value_at_percentile(percent) as f64 / 1_000.0, 1_000.0)
}

fn round(number: f64, parts: f64) -> f64 {
    (number * parts).round() / parts
}

/// One run's rows.
pub(crate) struct Report<'a> {
    args: &'a Args,
    run: u32,
    /// Draws on standard error, and only if that is a terminal.
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

impl<'a> Report<'a> {
    pub(crate) fn new(args: &'a Args, run: u32) -> Report<'a> {
        Report { args, run, bars: MultiProgress::new(), sales: Vec::new(), leftover: None }
    }

    pub(crate) fn start(&self, row: Row) -> Result<Line> {
        let bar = self.bars.add(ProgressBar::new(u64::try_from(self.args.stock)?));
        bar.set_style(ProgressStyle::with_template("{prefix:18} {bar:30} {pos:>5} of {len} sold  {msg}")?);
        bar.set_prefix(row.name());
        Ok(Line { bar })
    }

    pub(crate) fn finish(&mut self, line: &Line, sale: Outcome) -> Result<()> {
        let verdict = if sale.is_exact() {
            "exact".to_owned()
        } else {
            format!("{} oversold, {} lost", sale.oversold(), sale.lost())
        };
        line.show(u64::try_from(sale.sold)?);
        line.bar.abandon_with_message(verdict);
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

    /// Prints the table and what stands behind it; with `--json` nothing.
    pub(crate) fn print(&self) {
        if self.args.json {
            return;
        }
        let Args { processes, threads, stock, runs, .. } = self.args;
        if *runs > 1 {
            println!("\nrun {} of {runs}", self.run);
        }
        println!("\n{stock} pieces, {processes} processes with {threads} threads each\n\n{}\n", self.table());
        for sale in &self.sales {
            println!("{:18} {}", sale.row.name(), sale.row.story());
            let Strikes { killed: Some(killed), stopped: Some(stopped), server, standstill } = sale.strikes
            else {
                continue;
            };
            println!(
                "{:18} worker {killed} was killed -9 and worker {stopped} stopped while holding the lock",
                ""
            );
            if let (true, Some(topology)) = (server, self.args.topology) {
                println!("{:18} {}", "", topology.story());
            }
            println!(
                "{:18} refused writes: {}; releases that told of the loss: {}",
                "", sale.refused, sale.told_lost
            );
            println!(
                "{:18} nothing was sold for {:.1} s through these and the long job; without them {:.0} orders/s",
                "",
                standstill.as_secs_f64(),
                sale.sold as f64 / sale.took.saturating_sub(standstill).as_secs_f64()
            );
        }
        if let Some(Leftover { next_one_got_it, ttl }) = self.leftover {
            let answer = if next_one_got_it { "granted" } else { "refused" };
            println!(
                "\nSETNX without expiry: its holder was killed -9; the next SETNX is {answer}, TTL {ttl} (-1: for ever)"
            );
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_FULL_CONDENSED);
        table.set_header(["lock", "sold", "oversold", "lost", "orders/s", "wait p50 ms", "wait p99 ms"]);
        for sale in &self.sales {
            let row = JsonRow::from(sale);
            let wrong = |count: i64| {
                let cell = Cell::new(count);
                if count == 0 {
                    cell.fg(Color::Green)
                } else {
                    cell.fg(Color::Red).add_attribute(Attribute::Bold)
                }
            };
            table.add_row([
                Cell::new(row.lock),
                Cell::new(row.sold),
                wrong(row.oversold),
                wrong(row.lost),
                Cell::new(format!("{:.0}", row.orders_per_s)),
                Cell::new(format!("{:.2}", row.wait_p50_ms)),
                Cell::new(format!("{:.2}", row.wait_p99_ms)),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}
