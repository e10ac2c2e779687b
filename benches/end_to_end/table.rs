//! Tables on the standard output.

/// Prints a table: names are aligned left, figures right. The first `names` columns are names; columns without figures
/// are omitted.
pub fn print(names: usize, heads: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([heads[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let has_figures = |column: usize| column < names || rows.iter().any(|row| !row[column].is_empty());
    let line = |cells: &[&str]| {
        let shown = cells.iter().zip(&widths).enumerate().filter(|(column, _)| has_figures(*column));
        let cells = shown.map(
            |(column, (cell, &width))| {
                if column < names { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            },
        );
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    };
    line(heads);
    for row in rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
}
