//! The rules and the dashboard of `docs/operating.md` load, and use only metrics that exist.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use crate::docs::{files, read as page};
use crate::support::test_on;

/// All words that look like the name of a metric.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("leasehold_") && !word.starts_with("leasehold_client")).collect()
}

/// The name of a histogram, without the ending that an exporter adds.
fn base(name: &str) -> &str {
    ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

/// The names of all metrics of the feature `metrics` and of `leasehold serve`.
fn registered() -> BTreeSet<String> {
    let served = page("cli/src/serve/metrics.rs");
    let served = served.split('"').skip(1).step_by(2).filter(|text| !text.contains(' '));
    let served = served.map(|name| format!("leasehold_store_{name}"));
    let texts: Vec<String> = files("src", "rs").iter().map(page).collect();
    let literals = texts.iter().flat_map(|text| text.split('"').skip(1).step_by(2));
    literals
        .filter(|text| text.starts_with("leasehold_") && metrics(text).contains(text))
        .map(str::to_owned)
        .chain(served)
        .collect()
}

#[test]
fn docs_and_alert_rules_name_only_existing_metrics() {
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
fn the_dashboard_shows_the_metrics_of_leasehold_serve() {
    let (dashboard, counted) = (page("docs/operating/dashboard.json"), registered());
    let shown = metrics(&dashboard);
    let names = "up locks_held waiters locks_without_end oldest_hold_seconds deadlocks job_runs \
        job_last_success_timestamp_seconds job_last_exit_code list_age_seconds";
    for name in names.split(' ') {
        let name = format!("leasehold_store_{name}");
        assert!(counted.contains(&name) && shown.contains(&*name), "{name}");
    }
}

test_on!(prometheus_loads_the_scrape_configuration, crate::alerts::promtool(), |promtool| {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operating/prometheus.yml");
    let output = std::process::Command::new(promtool).args(["check", "config"]).arg(config).output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && said.contains("rules found"), "{said}");
});

#[test]
fn each_alert_links_to_a_paragraph_of_the_operating_page() {
    let operating = page("docs/operating.md");
    let headings = operating.lines().filter_map(|line| line.strip_prefix("### "));
    let anchors: BTreeSet<String> = headings.map(|text| text.to_lowercase().replace(' ', "-")).collect();
    let loaded = YamlLoader::load_from_str(&page("docs/operating/alerts.yml")).unwrap();
    let groups = loaded[0]["groups"].as_vec().unwrap();
    let rules: Vec<&Yaml> = groups.iter().flat_map(|group| group["rules"].as_vec().unwrap()).collect();
    assert!(rules.len() > 5);
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        let expr = rule["expr"].as_str().unwrap();
        assert!(!metrics(expr).is_empty(), "{name}: {expr}");
        assert!(matches!(rule["labels"]["severity"].as_str(), Some("page" | "ticket")), "{name}");
        assert!(rule["annotations"]["summary"].as_str().unwrap().ends_with('.'), "{name}");
        let runbook = rule["annotations"]["runbook_url"].as_str().unwrap();
        let anchor = runbook.strip_prefix(RUNBOOK).unwrap_or_else(|| panic!("{name}: {runbook}"));
        assert!(anchors.contains(anchor), "{name}: no paragraph {anchor} among {anchors:?}");
    }
}

/// The owner of an action's repository can move a tag to another commit, but cannot change a commit.
#[test]
fn each_workflow_action_is_pinned_to_a_commit() {
    let texts: String = files(".github/workflows", "yml").iter().map(page).collect();
    let used: Vec<&str> = texts.lines().filter_map(|line| line.trim().strip_prefix("- uses: ")).collect();
    assert!(used.len() > 10, "{used:?}");
    for action in used {
        let commit = action.split(['@', ' ']).nth(1).unwrap();
        let is_hash = commit.len() == 40 && commit.bytes().all(|digit| digit.is_ascii_hexdigit());
        assert!(is_hash && action.contains(" # v"), "{action}");
    }
}

/// The beginning of the link from an alert to its instructions, for the person whom the alert wakes.
const RUNBOOK: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/", "docs/operating.md#");

#[test]
fn operating_page_and_metrics_example_mention_the_histogram_buckets() {
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

/// The fields of Grafana's dashboard model (schema version 39) that this dashboard uses, by their place. `:s`
/// is a text, `:n` a number, `:b` a boolean, and without an ending a list or an object. A field after `?` may
/// be missing.
const FIELDS: &[(&str, &str)] = &[
    (
        "",
        "description:s editable:b panels refresh:s schemaVersion:n tags templating time timezone:s title:s uid:s version:n",
    ),
    ("/panels", "datasource description:s fieldConfig gridPos id:n targets title:s type:s"),
    ("/panels/datasource", "type:s uid:s"),
    ("/panels/fieldConfig", "defaults overrides"),
    ("/panels/gridPos", "h:n w:n x:n y:n"),
    ("/panels/targets", "expr:s legendFormat:s refId:s"),
    ("/templating", "list"),
    ("/templating/list", "?datasource ?includeAll:b label:s ?multi:b name:s query:s ?refresh:n type:s"),
    ("/templating/list/datasource", "type:s uid:s"),
    ("/time", "from:s to:s"),
];

/// Panics unless the value has exactly the fields that [`FIELDS`] lists for its place, if any.
fn has_its_fields(value: &Value, place: &str) {
    if let Value::Array(items) = value {
        return items.iter().for_each(|item| has_its_fields(item, place));
    }
    let Some((_, known)) = FIELDS.iter().find(|(at, _)| *at == place) else { return };
    let mut fields = value.as_object().unwrap().clone();
    for field in known.split(' ') {
        let (name, kind) = field.trim_start_matches('?').split_once(':').unwrap_or((field, ""));
        let name = name.trim_start_matches('?');
        let Some(value) = fields.remove(name) else {
            assert!(field.starts_with('?'), "{place} has no {name}");
            continue;
        };
        let is_right = match kind {
            "s" => value.is_string(),
            "n" => value.is_u64(),
            "b" => value.is_boolean(),
            _ => value.is_array() || value.is_object(),
        };
        assert!(is_right, "{place}/{name} is {value}");
        has_its_fields(&value, &format!("{place}/{name}"));
    }
    assert!(fields.is_empty(), "Grafana knows no {fields:?} in {place}");
}

#[test]
fn the_dashboard_has_only_fields_that_grafana_knows() {
    let dashboard: Value = serde_json::from_str(&page("docs/operating/dashboard.json")).unwrap();
    has_its_fields(&dashboard, "");
    assert_eq!(dashboard["schemaVersion"], 39);
    let list = |value: &Value| value.as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let variables = list(&dashboard["templating"]["list"]);
    let kinds = variables.iter().map(|variable| (text(&variable["name"]), text(&variable["type"])));
    let expected = [("source", "datasource"), ("job", "query"), ("store", "query")];
    assert!(kinds.eq(expected.map(|(name, kind)| (name.to_owned(), kind.to_owned()))));
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in list(&dashboard["panels"]) {
        let title = text(&panel["title"]);
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: two panels have its id");
        assert!(matches!(panel["type"].as_str(), Some("timeseries" | "stat")), "{title}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|field| panel["gridPos"][field].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{title}: outside of the 24 columns");
        for row in y..y + h {
            for column in x..x + w {
                assert!(places.insert((row, column)), "{title}: the panel covers another");
            }
        }
        assert_eq!(panel["datasource"], serde_json::json!({"type": "prometheus", "uid": "${source}"}));
        let targets = list(&panel["targets"]);
        assert!(!targets.is_empty() && text(&panel["description"]).ends_with('.'), "{title}");
        let mut refs = BTreeSet::new();
        for target in targets {
            let [id, expr, legend] = ["refId", "expr", "legendFormat"].map(|field| text(&target[field]));
            assert!(refs.insert(id) && !legend.is_empty(), "{title}");
            let of =
                if expr.contains("leasehold_store_") { "{instance=~\"$store\"" } else { "{job=~\"$job\"" };
            assert!(!metrics(&expr).is_empty() && expr.contains(of), "{expr}");
            is_balanced(&expr);
        }
    }
}
