//! The rules and the dashboard of `docs/operating.md` load, over existing metrics.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { sources(&path, found) } else { found.push(path) }
    }
}

/// All words in the form of a metric's name.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("leasehold_") && !word.starts_with("leasehold_client")).collect()
}

/// Without an exporter's additions to names of histograms.
fn base(name: &str) -> &str {
    ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

/// The names of the feature `metrics` and of `leasehold serve`.
fn registered() -> BTreeSet<String> {
    let served = page("cli/src/serve/metrics.rs");
    let served = served.split('"').skip(1).step_by(2).filter(|text| !text.contains(' '));
    let served = served.map(|name| format!("leasehold_store_{name}"));
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let literals = texts.iter().flat_map(|text| text.split('"').skip(1).step_by(2));
    literals
        .filter(|text| text.starts_with("leasehold_") && metrics(text).contains(text))
        .map(str::to_owned)
        .chain(served)
        .collect()
}

#[test]
fn pages_rules_and_dashboard_name_real_metrics() {
    let registered = registered();
    for name in ["docs/operating.md", "docs/operating/alerts.yml", "docs/operating/dashboard.json"] {
        let text = page(name);
        let named = metrics(&text);
        assert!(named.len() > 5, "{name}: {named:?}");
        for metric in named {
            assert!(registered.contains(base(metric)), "{name} names {metric}; there are {registered:?}");
        }
    }
}

#[test]
fn the_dashboard_shows_what_serve_counts() {
    let (dashboard, counted) = (page("docs/operating/dashboard.json"), registered());
    let shown = metrics(&dashboard);
    for name in [
        "up",
        "locks_held",
        "waiters",
        "locks_without_end",
        "oldest_hold_seconds",
        "deadlocks",
        "job_runs",
        "job_last_success_timestamp_seconds",
        "job_last_exit_code",
        "list_age_seconds",
    ] {
        let name = format!("leasehold_store_{name}");
        assert!(counted.contains(&name) && shown.contains(&*name), "{name}");
    }
}

/// Prometheus's own tool reads the configuration and its rules.
#[test]
fn the_scrape_configuration_is_one_that_prometheus_loads() {
    let Some(promtool) = crate::alerts::promtool() else { return };
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operating/prometheus.yml");
    let output = std::process::Command::new(promtool).args(["check", "config"]).arg(config).output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && said.contains("rules found"), "{said}");
}

#[test]
fn each_alert_leads_to_its_paragraph() {
    let operating = page("docs/operating.md");
    let headings = operating.lines().filter_map(|line| line.strip_prefix("### "));
    let anchors: BTreeSet<String> = headings.map(|text| text.to_lowercase().replace(' ', "-")).collect();
    let loaded = YamlLoader::load_from_str(&page("docs/operating/alerts.yml")).unwrap();
    let groups = loaded[0]["groups"].as_vec().unwrap();
    let rules: Vec<&Yaml> = groups.iter().flat_map(|group| group["rules"].as_vec().unwrap()).collect();
    assert!(rules.len() > 5);
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        let known = ["alert", "expr", "for", "labels", "annotations"];
        for field in rule.as_hash().unwrap().keys() {
            assert!(known.contains(&field.as_str().unwrap()), "{name}: Prometheus knows no {field:?}");
        }
        let expr = rule["expr"].as_str().unwrap();
        assert!(!metrics(expr).is_empty(), "{name}: {expr}");
        is_balanced(expr);
        let span = rule["for"].as_str().unwrap_or("0s");
        let (number, unit) = span.split_at(span.len() - 1);
        assert!(number.parse::<u32>().is_ok() && ["s", "m", "h"].contains(&unit), "{name}: for {span}");
        assert!(matches!(rule["labels"]["severity"].as_str(), Some("page" | "ticket")), "{name}");
        assert!(rule["annotations"]["summary"].as_str().unwrap().ends_with('.'), "{name}");
        let runbook = rule["annotations"]["runbook_url"].as_str().unwrap();
        let anchor = runbook.strip_prefix(RUNBOOK).unwrap_or_else(|| panic!("{name}: {runbook}"));
        assert!(anchors.contains(anchor), "{name}: no paragraph {anchor} among {anchors:?}");
    }
}

/// Whoever controls an action's repository can move its tags.
#[test]
fn each_action_of_the_workflows_is_named_by_its_commit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    let texts = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect::<String>();
    let used: Vec<&str> = texts.lines().filter_map(|line| line.trim().strip_prefix("- uses: ")).collect();
    assert!(used.len() > 10, "{used:?}");
    for action in used {
        let commit = action.split(['@', ' ']).nth(1).unwrap();
        let is_hash = commit.len() == 40 && commit.bytes().all(|digit| digit.is_ascii_hexdigit());
        assert!(is_hash && action.contains(" # v"), "{action}");
    }
}

/// A link for a person who was woken.
const RUNBOOK: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/", "docs/operating.md#");

#[test]
fn the_pages_name_the_buckets_that_the_dashboard_needs() {
    let buckets = page("docs/operating/dashboard.json");
    let buckets: BTreeSet<&str> =
        metrics(&buckets).into_iter().filter_map(|name| name.strip_suffix("_bucket")).collect();
    assert!(buckets.len() >= 5, "{buckets:?}");
    for name in ["docs/operating.md", "examples/metrics.rs"] {
        assert!(page(name).contains("Metrics::BUCKETS"), "{name}");
    }
    #[cfg(feature = "metrics")]
    assert!(leasehold::Metrics::BUCKETS.is_sorted());
}

fn is_balanced(expr: &str) {
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        let count = |wanted| expr.chars().filter(|char| *char == wanted).count();
        assert_eq!(count(open), count(close), "{expr}");
    }
}

/// The parts of Grafana's dashboard model (schema version 39) that this dashboard uses; it may have no
/// others.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "their presence and their types are what counts")]
struct Dashboard {
    uid: String,
    title: String,
    description: String,
    tags: Vec<String>,
    timezone: String,
    schema_version: u32,
    version: u32,
    editable: bool,
    refresh: String,
    time: Range,
    templating: Templating,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "as above")]
struct Range {
    from: String,
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Templating {
    list: Vec<Variable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "as above")]
struct Variable {
    name: String,
    label: String,
    #[serde(rename = "type")]
    kind: VariableKind,
    query: String,
    datasource: Option<Source>,
    multi: Option<bool>,
    include_all: Option<bool>,
    refresh: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum VariableKind {
    Datasource,
    Query,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    #[serde(rename = "type")]
    kind: String,
    uid: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "as above")]
struct Panel {
    id: u32,
    title: String,
    description: String,
    #[serde(rename = "type")]
    kind: PanelKind,
    datasource: Source,
    grid_pos: Place,
    field_config: FieldConfig,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum PanelKind {
    Timeseries,
    Stat,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    x: u32,
    y: u32,
    w: u32,
    h: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "as above")]
struct FieldConfig {
    defaults: Value,
    overrides: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Target {
    ref_id: String,
    expr: String,
    legend_format: String,
}

#[test]
fn the_dashboard_is_one_that_grafana_loads() {
    let dashboard: Dashboard = serde_json::from_str(&page("docs/operating/dashboard.json")).unwrap();
    assert_eq!(dashboard.schema_version, 39);
    let variables: Vec<&str> = dashboard.templating.list.iter().map(|variable| &*variable.name).collect();
    assert_eq!(variables, ["source", "job", "store"]);
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in &dashboard.panels {
        assert!(ids.insert(panel.id), "{}: two have its id", panel.title);
        let Place { x, y, w, h } = panel.grid_pos;
        assert!(w > 0 && h > 0 && x + w <= 24, "{}: outside of the 24 columns", panel.title);
        for row in y..y + h {
            for column in x..x + w {
                assert!(places.insert((row, column)), "{}: over another", panel.title);
            }
        }
        assert_eq!((&*panel.datasource.kind, &*panel.datasource.uid), ("prometheus", "${source}"));
        assert!(!panel.targets.is_empty() && panel.description.ends_with('.'), "{}", panel.title);
        let mut refs = BTreeSet::new();
        for Target { ref_id, expr, legend_format } in &panel.targets {
            assert!(refs.insert(ref_id) && !legend_format.is_empty(), "{}", panel.title);
            let of =
                if expr.contains("leasehold_store_") { "{instance=~\"$store\"" } else { "{job=~\"$job\"" };
            assert!(!metrics(expr).is_empty() && expr.contains(of), "{expr}");
            is_balanced(expr);
        }
    }
}
