//! Bar charts as SVG.

use std::path::Path;

use anyhow::Result;
use svg::Document;
use svg::node::element::{Rectangle, Text};

use crate::report::grouped;

pub struct Bar {
    pub label: String,
    pub value: f64,
    pub ours: bool,
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 44.0;
const STEP: f64 = 26.0;

pub fn write(path: &Path, title: &str, bars: &[Bar]) -> Result<()> {
    let most = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let height = TOP + STEP * bars.len() as f64 + 12.0;
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("role", "img")
        .set("font-family", "system-ui, sans-serif")
        .set("font-size", 13)
        .add(Rectangle::new().set("width", WIDTH).set("height", height).set("fill", "#ffffff"))
        .add(Text::new(title).set("x", 16).set("y", 26).set("font-size", 15).set("fill", "#1f2328"));
    for (row, bar) in bars.iter().enumerate() {
        let top = TOP + STEP * row as f64;
        let length = (bar.value / most * (WIDTH - LEFT - RIGHT)).max(1.0);
        let digits = match bar.value {
            value if value >= 100.0 => 0,
            value if value >= 1.0 => 1,
            _ => 3,
        };
        let fill = if bar.ours { "#0b6bcb" } else { "#9aa4af" };
        let baseline = top + 14.0;
        let label = Text::new(&bar.label).set("text-anchor", "end").set("fill", "#1f2328");
        let value = Text::new(grouped(bar.value, digits)).set("fill", "#1f2328");
        document = document
            .add(label.set("x", LEFT - 8.0).set("y", baseline))
            .add(
                Rectangle::new()
                    .set("x", LEFT)
                    .set("y", top)
                    .set("width", (length * 10.0).round() / 10.0)
                    .set("height", 18)
                    .set("fill", fill),
            )
            .add(value.set("x", ((LEFT + length + 6.0) * 10.0).round() / 10.0).set("y", baseline));
    }
    Ok(svg::save(path, &document)?)
}
