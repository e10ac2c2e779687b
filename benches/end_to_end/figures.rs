//! Medians, quantiles and their text form.

pub const MIB: f64 = 1024.0 * 1024.0;

/// Returns the values in ascending order.
pub fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the value at this fraction of the sorted values; the upper one if two are in the middle.
pub fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    sorted[((sorted.len() as f64 * fraction) as usize).min(sorted.len() - 1)]
}

/// A median with the smallest and the largest value.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub largest: f64,
}

impl Spread {
    /// Computes the spread of at least one value.
    pub fn of(values: impl Iterator<Item = f64>) -> Spread {
        let values = sorted(values);
        Spread { median: quantile(&values, 0.5), least: values[0], largest: values[values.len() - 1] }
    }

    pub fn text(&self, digits: usize) -> String {
        let Spread { median, least, largest } = self;
        format!("{median:.digits$} ({least:.digits$}–{largest:.digits$})")
    }
}
