//! Medians and their like, and how they are written.

pub const MIB: f64 = 1024.0 * 1024.0;

/// In ascending order.
pub fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The value below which this part lies; the upper one of two in the middle.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() as f64 * part) as usize).min(sorted.len() - 1)]
}

/// The median, with the least and the largest.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub largest: f64,
}

impl Spread {
    /// Of at least one.
    pub fn of(values: impl Iterator<Item = f64>) -> Spread {
        let values = sorted(values);
        Spread { median: quantile(&values, 0.5), least: values[0], largest: values[values.len() - 1] }
    }

    pub fn text(&self, digits: usize) -> String {
        let Spread { median, least, largest } = self;
        format!("{median:.digits$} ({least:.digits$}–{largest:.digits$})")
    }
}
