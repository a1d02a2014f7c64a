//! The picture of `top` in the docs: made of a screen over the demo's workers, and compared with one.
//!
//! `LEASEHOLD_BLESS=1 cargo test -p leasehold-cli --test cli picture` makes it anew. Look at it before it is
//! committed.

use std::fmt::Write;
use std::process::{Command, Stdio};

use crate::top::{Top, run};
use crate::world::{Run, Server, eventually, stock};

const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/top.svg");
const ROWS: u16 = 9;
const COLUMNS: u16 = 132;
/// The columns of one letter, and the rows of one line.
const WIDTH: usize = 8;
const HEIGHT: usize = 19;

#[test]
fn the_picture_of_top_shows_what_top_shows() {
    let Some(stock) = stock() else { return };
    let server = Server::start();
    let mut workers = Command::new(stock);
    workers.args(["--url", &server.url(), "--rows", "redis_lock_fenced", "--stock", "1000000"]);
    let _workers = Run::start(workers.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    let _import = run(&server, "nightly", &["import"]);
    let mut top = Top::sized(&server.url(), &["--interval", "100ms"], ROWS, COLUMNS);
    top.shows(&["import", "nightly "]);
    let _next = run(&server, "nightly-2", &["import"]);
    let _readers = [run(&server, "report", &["-s", "accounts"]), run(&server, "audit", &["-s", "accounts"])];
    top.shows(&["import", "nightly ", " 1 "]);
    top.shows(&["accounts", " and 1 more"]);
    top.types("j");
    let is_written = std::env::var_os("LEASEHOLD_BLESS").is_some();
    let drawn = if is_written { String::new() } else { std::fs::read_to_string(PICTURE).unwrap() };
    let drawn: Vec<String> = texts(&drawn).iter().map(|line| essence(line)).collect();
    eventually(&format!("the screen is as the picture: {drawn:#?}"), || {
        let screen = top.screen.lock().unwrap().screen().clone();
        let lines: Vec<String> = screen.rows(0, COLUMNS).collect();
        let is_whole = lines.iter().filter(|line| is_a_lock(line)).count() == 3
            && lines.iter().any(|line| line.starts_with("leasehold-demo:") && line.contains("stock "));
        if is_written && is_whole {
            std::fs::write(PICTURE, picture(&screen)).unwrap();
        }
        if is_written {
            is_whole
        } else {
            lines.iter().map(|line| essence(line)).collect::<Vec<_>>() == drawn
        }
    });
}

/// The part that is the same on each machine and at each moment: words without a digit; of a lock its name,
/// what it is and who holds it, but not where.
fn essence(line: &str) -> String {
    let is_number = |word: &str| word.contains(|letter: char| letter.is_ascii_digit());
    let words = line.split_whitespace().map(|word| match word.split_once('{') {
        Some((before, _)) => before,
        None if is_number(word) => "#",
        None => word,
    });
    words.take(if is_a_lock(line) { 4 } else { usize::MAX }).collect::<Vec<_>>().join(" ")
}

fn is_a_lock(line: &str) -> bool {
    line.contains(" lock ") || line.contains(" lock, ")
}

/// The lines in a picture.
fn texts(picture: &str) -> Vec<String> {
    let lines = picture.lines().filter(|line| line.starts_with("<text"));
    let inner = |line: &str| {
        let text = line.split_once('>').unwrap().1.strip_suffix("</text>").unwrap();
        let mut bare = String::new();
        for part in text.split('<') {
            bare += part.rsplit_once('>').map_or(part, |(_, behind)| behind);
        }
        bare.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    };
    lines.map(inner).collect()
}

/// The screen as letters on a dark ground. No machine is named in it.
fn picture(screen: &vt100::Screen) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (width, height) = (usize::from(COLUMNS) * WIDTH + 24, usize::from(ROWS) * HEIGHT + 24);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"ui-monospace, monospace\" font-size=\"13\">\n\
         <title>leasehold top over the locks of the demo and of three jobs</title>\n\
         <rect fill=\"#161b22\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n"
    );
    for (row, line) in (0..ROWS).zip(screen.rows(0, COLUMNS)) {
        let line = with_host(line.trim_end(), &host);
        let cell = screen.cell(row, 0).unwrap();
        let top = 12 + usize::from(row) * HEIGHT;
        if cell.inverse() {
            let width = usize::from(COLUMNS) * WIDTH;
            writeln!(
                svg,
                "<rect fill=\"#c9d1d9\" x=\"12\" y=\"{top}\" width=\"{width}\" height=\"{HEIGHT}\"/>"
            )
            .unwrap();
        }
        let color = match (cell.inverse(), cell.dim()) {
            (true, _) => "#161b22",
            (_, true) => "#8b949e",
            _ => "#c9d1d9",
        };
        let weight = if cell.bold() { " font-weight=\"bold\"" } else { "" };
        let (below, length) = (top + 14, line.chars().count() * WIDTH);
        let length = if line.is_empty() { String::new() } else { format!(" textLength=\"{length}\"") };
        let text = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        writeln!(
            svg,
            "<text xml:space=\"preserve\" fill=\"{color}\"{weight} x=\"12\" y=\"{below}\"{length}>{text}</text>"
        )
        .unwrap();
    }
    svg + "</svg>\n"
}

/// Another name for the host, and the columns behind it where they were.
fn with_host(line: &str, host: &str) -> String {
    const OTHER: &str = "shop-1";
    let Some((before, behind)) = line.split_once(&format!("{host}:")) else { return line.to_owned() };
    let (cell, rest) = behind.split_once("  ").unwrap_or((behind, ""));
    let columns = host.chars().count() + cell.chars().count();
    let room = columns.saturating_sub(OTHER.len() + cell.chars().count());
    let rest = if rest.is_empty() { String::new() } else { format!("  {}{rest}", " ".repeat(room)) };
    let too_long = OTHER.len().saturating_sub(host.chars().count());
    let mut rest = rest.as_str();
    for _ in 0..too_long {
        rest = rest.strip_prefix("  ").map_or(rest, |_| &rest[1..]);
    }
    format!("{before}{OTHER}:{cell}{rest}")
}

#[test]
fn a_picture_is_read_as_it_was_drawn() {
    let mut parser = vt100::Parser::new(ROWS.try_into().unwrap(), COLUMNS.try_into().unwrap(), 0);
    parser.process(b"\x1b[1m3 locks <&>\r\n\x1b[0;7mimport\x1b[0m");
    let svg = picture(parser.screen());
    assert_eq!(texts(&svg)[..3], ["3 locks <&>", "import", ""]);
    assert!(svg.contains("font-weight") && svg.contains("fill=\"#161b22\" x="), "{svg}");
    assert_eq!(with_host("a   nightly myhost:12   1s", "myhost"), "a   nightly shop-1:12   1s");
    assert_eq!(with_host("a   nightly longerhost:12   1s", "longerhost"), "a   nightly shop-1:12       1s");
    assert_eq!(with_host("a   nightly vm:12         1s", "vm"), "a   nightly shop-1:12     1s");
}
