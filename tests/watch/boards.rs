//! The files of the dashboards: they follow the rules of Grafana's own linter and use existing names only.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use watermaster::metrics::table::{Metric, TABLE};

use crate::board::{Board, list, placeholders, text};
use crate::repository::{files, read, root};
use crate::{assert_none, promql::examine};

/// Returns the recording rules of which boards may use the series: none, so that they work with any Prometheus.
fn nothing_recorded() -> BTreeSet<String> {
    BTreeSet::new()
}

/// Returns the titles of all panels by the name of their board: the last words of its title, as the runbooks use them.
pub fn panel_titles() -> BTreeMap<String, BTreeSet<String>> {
    let mut boards = BTreeMap::new();
    for board in Board::all() {
        let name = board.name().to_owned();
        boards.insert(name, board.panels().map(|panel| panel.title().to_owned()).collect());
    }
    boards
}

#[test]
fn every_expression_parses_and_uses_existing_names() {
    let mut problems = Vec::new();
    for board in Board::all() {
        for panel in board.panels() {
            for target in panel.targets() {
                let expression = text(&target["expr"]);
                let findings = examine(expression, &nothing_recorded());
                problems.extend(findings.problems.iter().map(|why| panel.problem(format!("{why} in {expression}"))));
                let legend = placeholders(text(&target["legendFormat"]));
                let unknown = legend.filter(|label| !findings.labels.contains(*label));
                problems.extend(unknown.map(|label| panel.problem(format!("no series has the label {label}"))));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn annotations_and_variables_use_existing_series() {
    let mut problems = Vec::new();
    for board in Board::all() {
        for expression in board.annotations().map(|annotation| text(&annotation["expr"])) {
            let findings = examine(expression, &nothing_recorded());
            problems.extend(findings.problems.iter().map(|why| format!("{}: {why} in {expression}", board.file)));
        }
        for variable in board.variables() {
            let findings = examine(variable.series, &nothing_recorded());
            let query = variable.query;
            problems.extend(findings.problems.iter().map(|why| format!("{}: {why} in {query}", board.file)));
            if !findings.labels.contains(variable.label) {
                problems.push(format!("{}: no label {:?} in {query}", board.file, variable.label));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn counters_are_shown_by_their_rate_over_grafanas_interval() {
    let mut problems = Vec::new();
    for board in Board::all() {
        for panel in board.panels() {
            for expression in panel.expressions() {
                let bare = examine(expression, &nothing_recorded()).not_rated;
                problems.extend(bare.iter().map(|name| panel.problem(format!("{name} is used without rate"))));
                // Restarts are counted over the alert's range, because a rate over seconds hides them.
                let ranges = expression.replace("[30m]", "[$__range]");
                if ranges.split('[').skip(1).any(|range| !range.starts_with("$__")) {
                    problems.push(panel.problem(format!("{expression} has a fixed range")));
                }
            }
        }
    }
    assert_none(problems);
}

/// Instances of a group share one capacity, so that its sum over them would be a multiple of it.
#[test]
fn no_panel_sums_a_shared_capacity() {
    let mut problems = Vec::new();
    for board in Board::all() {
        for panel in board.panels() {
            for expression in panel.expressions() {
                for (at, _) in expression.match_indices("watermaster_capacity_units") {
                    let (before, after) = expression.split_at(at);
                    let is_max = before.rsplit_once("by (").is_some_and(|(before, _)| before.ends_with("max "));
                    let is_own = after.split(" bool 0").next().is_some_and(|group| group.ends_with("=="));
                    if !is_max && !is_own {
                        problems.push(panel.problem(expression));
                    }
                }
            }
        }
    }
    assert_none(problems);
}

#[test]
fn missing_series_are_not_replaced_by_made_up_values() {
    let made_up = ["vector(", "absent(", "absent_over_time("];
    let boards = Board::all();
    let panels = boards.iter().flat_map(Board::panels);
    assert_none(
        panels
            .flat_map(|panel| panel.expressions().map(move |expression| (panel, expression)))
            .filter(|(_, expression)| made_up.iter().any(|word| expression.to_lowercase().contains(word)))
            .map(|(panel, expression)| panel.problem(expression))
            .collect(),
    );
}

#[test]
fn each_panel_has_a_title_a_description_a_unit_and_a_query() {
    let mut problems = Vec::new();
    for board in Board::all() {
        for panel in board.panels() {
            let json = panel.json;
            let told = [&json["title"], &json["description"], &json["fieldConfig"]["defaults"]["unit"]];
            if told.iter().any(|value| text(value).is_empty()) {
                problems.push(panel.problem("no title, description or unit"));
            }
            if panel.expressions().next().is_none() || panel.expressions().any(str::is_empty) {
                problems.push(panel.problem("no query"));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn panels_have_unique_ids_and_do_not_overlap() {
    let mut problems = Vec::new();
    for board in Board::all() {
        let (mut ids, mut taken) = (BTreeSet::new(), BTreeMap::new());
        for panel in board.rows_and_panels() {
            let title = text(&panel["title"]);
            if !panel["id"].as_u64().is_some_and(|id| ids.insert(id)) {
                problems.push(format!("{}: {title:?} has no unique id", board.file));
            }
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap_or(u64::MAX));
            if x.saturating_add(w) > 24 || w == 0 || h == 0 || h > 100 || y > 10_000 {
                problems.push(format!("{}: {title:?} does not fit into 24 columns", board.file));
                continue;
            }
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                if let Some(other) = taken.insert(cell, title) {
                    problems.push(format!("{}: {title:?} overlaps {other:?}", board.file));
                    break;
                }
            }
        }
    }
    assert_none(problems);
}

/// Without these settings the panels have nothing to show, and each open panel is one that a reader has to understand.
/// All of the board *Capacity planning* is for shadow mode.
#[test]
fn panels_that_need_a_setting_are_in_a_collapsed_row_that_names_it() {
    const SETTINGS: [(&str, &str); 6] = [
        ("watermaster_shadow_", "shadow mode"),
        ("watermaster_target_lag_", "consumer_group"),
        ("watermaster_pace_", "[service.pace]"),
        ("watermaster_service_late_", "[service.pace]"),
        ("watermaster_client_group_", "[service.group.NAME]"),
        ("watermaster_group_hold_", "scope = \"group\""),
    ];
    let mut problems = Vec::new();
    for board in Board::all().iter().filter(|board| board.uid() != "watermaster-capacity-planning") {
        let mut row = &Value::Null;
        for panel in board.rows_and_panels() {
            if panel["type"] == "row" {
                row = panel;
            }
            let is_inside = list(&row["panels"]).any(|inner| inner["id"] == panel["id"]);
            if panel["type"] != "row" && is_inside != (row["collapsed"] == true) {
                problems.push(format!("{}: {} is not in {}", board.file, panel["title"], row["title"]));
            }
        }
        for panel in board.panels() {
            let row = list(&board.json["panels"]).find(|row| list(&row["panels"]).any(|inner| inner == panel.json));
            let title = row.map_or("", |row| text(&row["title"]));
            let needs = |metric: &str| panel.expressions().all(|expression| expression.contains(metric));
            let needed = SETTINGS.iter().filter(|(metric, setting)| needs(metric) && !title.contains(setting));
            problems.extend(needed.map(|(_, setting)| panel.problem(format!("not in a row for {setting}"))));
        }
    }
    assert_none(problems);
}

#[test]
fn no_data_source_is_hard_coded() {
    let mut problems = Vec::new();
    for board in Board::all() {
        for source in data_sources(&board.json) {
            let is_grafanas_own = source["type"] == "grafana";
            if source["uid"] != "${datasource}" && !is_grafanas_own {
                problems.push(format!("{}: data source {source}", board.file));
            }
        }
        let first = &board.json["templating"]["list"][0];
        if first["type"] != "datasource" || first["name"] != "datasource" {
            problems.push(format!("{}: its first variable is not the data source", board.file));
        }
        for panel in board.panels() {
            let queries = panel.targets().map(|target| &target["datasource"]);
            if queries.chain([&panel.json["datasource"]]).any(Value::is_null) {
                problems.push(panel.problem("a query without a data source"));
            }
        }
    }
    assert_none(problems);
}

/// Returns every value with the key `datasource`, at any depth.
fn data_sources(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| if key == "datasource" { vec![value] } else { data_sources(value) })
            .collect(),
        Value::Array(values) => values.iter().flat_map(data_sources).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn boards_can_be_provisioned_and_link_to_each_other() {
    let boards = Board::all();
    let uids: BTreeSet<_> = boards.iter().map(Board::uid).collect();
    assert_eq!(uids.len(), boards.len(), "a uid for each board");
    let mut problems = Vec::new();
    for board in &boards {
        let json = &board.json;
        if board.uid().is_empty() || !json["id"].is_null() || json["editable"] != false {
            problems.push(format!("{}: needs a uid, \"id\": null, \"editable\": false", board.file));
        }
        let written = json.to_string();
        for target in written.split("\"/d/").skip(1) {
            let uid = target.split(['?', '"', '/']).next().unwrap_or_default();
            if !uids.contains(uid) {
                problems.push(format!("{}: a link to {uid:?}, which is not a board", board.file));
            }
        }
    }
    assert_none(problems);
}

/// Sorted and indented boards give readable diffs. `UPDATE_DOCS=1` converts an export from a browser.
#[test]
fn boards_are_tidy() {
    for path in files("grafana/dashboards", "json") {
        let written = read(&path);
        let board = sorted(serde_json::from_str(&written).unwrap());
        let tidy = serde_json::to_string_pretty(&board).unwrap() + "\n";
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, tidy).unwrap();
        } else {
            assert!(written == tidy, "{} is not sorted and indented by two; UPDATE_DOCS=1 rewrites it", path.display());
        }
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            fields.into_iter().collect()
        }
        Value::Array(values) => values.into_iter().map(sorted).collect(),
        other => other,
    }
}

#[test]
fn every_metric_is_on_a_board_or_the_table_says_why_not() {
    let boards = Board::all();
    let panels = boards.iter().flat_map(Board::panels);
    let charted: BTreeSet<_> = panels
        .flat_map(|panel| panel.expressions())
        .flat_map(|expression| examine(expression, &nothing_recorded()).metrics)
        .collect();
    let wrong = TABLE.iter().filter(|metric| charted.contains(metric.name) == metric.uncharted.is_some());
    let problem = |metric: &Metric| match metric.uncharted {
        Some(_) => format!("{} is on a board: the table of metrics needs no reason against it", metric.name),
        None => format!("{} is on no board, and the table of metrics gives no reason", metric.name),
    };
    assert_none(wrong.map(problem).collect());
}

/// `$__rate_interval` is correct only if Grafana knows the scrape interval.
#[test]
fn grafana_knows_the_scrape_interval() {
    let source = read(&root("grafana/provisioning/datasources/prometheus.yaml"));
    let told = source.lines().find_map(|line| line.trim().strip_prefix("timeInterval: ")).expect("timeInterval");
    let scrapes = read(&root("prometheus/prometheus.yml"));
    let job = scrapes.split("job_name: watermaster\n").nth(1).expect("a job called watermaster");
    let interval = job.lines().find_map(|line| line.trim().strip_prefix("scrape_interval: "));
    assert_eq!(Some(told), interval);
}

#[test]
fn the_pictures_are_drawn_with_the_grafana_that_compose_runs() {
    let compose = read(&root("docker-compose.yml"));
    let runs = compose.lines().find_map(|line| line.trim().strip_prefix("image: grafana/grafana:"));
    let draws: Value = serde_json::from_str(&read(&root("tools/pictures/package.json"))).expect("JSON");
    assert_eq!(runs, draws["dependencies"]["@grafana/ui"].as_str());
}
