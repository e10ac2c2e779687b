//! The parts of the dashboards in `grafana/dashboards` that tests check.

use serde_json::Value;

use super::repository::{files, read};

/// A dashboard.
pub struct Board {
    pub file: String,
    pub json: Value,
}

impl Board {
    pub fn all() -> Vec<Board> {
        let board = |path: std::path::PathBuf| Board {
            file: path.file_name().unwrap().to_string_lossy().into_owned(),
            json: serde_json::from_str(&read(&path)).unwrap_or_else(|why| panic!("{}: {why}", path.display())),
        };
        files("grafana/dashboards", "json").into_iter().map(board).collect()
    }

    pub fn uid(&self) -> &str {
        text(&self.json["uid"])
    }

    /// Returns the last words of the board's title, by which runbooks name the board.
    pub fn name(&self) -> &str {
        text(&self.json["title"]).trim_start_matches("Watermaster / ")
    }

    /// Returns all rows and panels. A collapsed row contains its panels; an open row stands before them.
    pub fn rows_and_panels(&self) -> impl Iterator<Item = &Value> {
        list(&self.json["panels"]).flat_map(|row| std::iter::once(row).chain(list(&row["panels"])))
    }

    pub fn panels(&self) -> impl Iterator<Item = Panel<'_>> {
        let panels = self.rows_and_panels().filter(|panel| panel["type"] != "row");
        panels.map(move |json| Panel { board: &self.file, json })
    }

    /// Returns the annotations with a query; Grafana's built-in one has none.
    pub fn annotations(&self) -> impl Iterator<Item = &Value> {
        list(&self.json["annotations"]["list"]).filter(|annotation| !text(&annotation["expr"]).is_empty())
    }

    /// Returns the board's variables with a query.
    pub fn variables(&self) -> impl Iterator<Item = Variable<'_>> {
        let variables = list(&self.json["templating"]["list"]).filter(|variable| variable["type"] == "query");
        variables.map(|variable| {
            let query = text(&variable["query"]["query"]);
            let asked = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            let (series, label) = asked.and_then(|asked| asked.rsplit_once(", ")).unwrap_or((query, ""));
            Variable { name: text(&variable["name"]), query, series, label }
        })
    }
}

/// A variable with `label_values(series, label)`.
pub struct Variable<'b> {
    pub name: &'b str,
    pub query: &'b str,
    pub series: &'b str,
    pub label: &'b str,
}

/// A panel that shows data.
#[derive(Clone, Copy)]
pub struct Panel<'b> {
    pub board: &'b str,
    pub json: &'b Value,
}

impl<'b> Panel<'b> {
    /// Returns the panel's id, or 0, which no panel should have, if there is none.
    pub fn id(&self) -> u64 {
        self.json["id"].as_u64().unwrap_or_default()
    }

    pub fn title(&self) -> &'b str {
        text(&self.json["title"])
    }

    pub fn targets(&self) -> impl Iterator<Item = &'b Value> + use<'b> {
        list(&self.json["targets"])
    }

    pub fn expressions(&self) -> impl Iterator<Item = &'b str> + use<'b> {
        self.targets().map(|target| text(&target["expr"]))
    }

    pub fn problem(&self, what: impl std::fmt::Display) -> String {
        format!("{}: {:?}: {what}", self.board, self.title())
    }
}

/// Returns a string of a board; empty if there is none.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns a list of a board; empty if there is none.
pub fn list(value: &Value) -> std::slice::Iter<'_, Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// Returns the names in a legend: `a` and `b` for `{{a}} in {{b}}`.
pub fn placeholders(legend: &str) -> impl Iterator<Item = &str> {
    legend.split("{{").skip(1).filter_map(|rest| rest.split_once("}}")).map(|(label, _)| label.trim())
}
