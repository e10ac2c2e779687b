//! Plots over time: their axes and curves in the coordinates of `report.html`. Colours are the classes `c0` to `c7` of the
//! page; outlines, titles and dashes distinguish curves without them.

use std::fmt::Write;

use crate::format::decimal;

// The area between the axes; `report.html` has the same numbers.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 748.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 224.0;

/// The number of colours.
pub const COLOURS: usize = 8;

/// A plot over time.
#[derive(Debug)]
pub struct Plot<'a> {
    pub curves: Vec<Curve<'a>>,
    pub levels: Vec<Mark>,
    pub times: Vec<Mark>,
    pub limit: Option<Mark>,
}

/// A band or a line.
#[derive(Debug)]
pub struct Curve<'a> {
    pub name: &'a str,
    /// The class of its colour.
    pub class: String,
    pub path: String,
}

/// A labelled place on an axis.
#[derive(Debug)]
pub struct Mark {
    pub at: String,
    pub label: String,
}

impl<'a> Plot<'a> {
    /// Draws bands stacked over time, each with a value for each bucket, and a horizontal line to compare with.
    pub fn bands(bucket: f64, bands: &[(&'a str, Vec<f64>)], (label, limit): (String, f64)) -> Self {
        let buckets = bands.first().map_or(0, |(_, values)| values.len());
        let sums = (0..buckets).map(|at| bands.iter().map(|(_, values)| values[at]).sum::<f64>());
        let axes = Axes::new(buckets, bucket, sums.fold(limit, f64::max));
        let mut base = vec![0.0; buckets];
        let mut curves = Vec::new();
        for (index, (name, values)) in bands.iter().enumerate().filter(|_| buckets > 0) {
            let top: Vec<f64> = base.iter().zip(values).map(|(below, value)| below + value).collect();
            let mut path = axes.steps(top.iter().copied().map(Some));
            for (at, below) in base.iter().enumerate().rev() {
                let _ = write!(path, "L{} {}H{}", axes.x(at + 1), axes.y(*below), axes.x(at));
            }
            curves.push(Curve { name, class: format!("c{}", index % COLOURS), path: path + "Z" });
            base = top;
        }
        Plot { limit: Some(Mark { at: axes.y(limit), label }), ..axes.plot(curves) }
    }

    /// Draws lines over time; a bucket without a value interrupts its line.
    pub fn lines(bucket: f64, lines: &[(&'a str, Vec<Option<f64>>)]) -> Self {
        let largest = lines.iter().flat_map(|(_, values)| values.iter().flatten()).copied().fold(0.0, f64::max);
        let axes = Axes::new(lines.first().map_or(0, |(_, values)| values.len()), bucket, largest);
        let curve = |(index, (name, values)): (usize, &(&'a str, Vec<Option<f64>>))| Curve {
            name,
            class: format!("d{index}"),
            path: axes.steps(values.iter().copied()),
        };
        axes.plot(lines.iter().enumerate().map(curve).collect())
    }
}

/// The axes of a plot over time.
struct Axes {
    buckets: usize,
    /// Length of a bucket in seconds.
    bucket: f64,
    largest: f64,
    step: f64,
}

impl Axes {
    fn new(buckets: usize, bucket: f64, largest: f64) -> Axes {
        let largest = if largest > 0.0 { largest } else { 1.0 };
        let step = nice_step(largest);
        Axes { buckets: buckets.max(1), bucket, largest: (largest * 1.04 / step).ceil() * step, step }
    }

    fn x(&self, bucket: usize) -> String {
        format!("{:.1}", LEFT + (RIGHT - LEFT) * bucket as f64 / self.buckets as f64)
    }

    fn y(&self, value: f64) -> String {
        format!("{:.1}", BOTTOM - (BOTTOM - TOP) * value / self.largest)
    }

    /// Returns a path along the values of the buckets, interrupted where there is none.
    fn steps(&self, values: impl Iterator<Item = Option<f64>>) -> String {
        let (mut path, mut pen) = (String::new(), 'M');
        for (at, value) in values.enumerate() {
            if let Some(value) = value {
                let _ = write!(path, "{pen}{} {}H{}", self.x(at), self.y(value), self.x(at + 1));
            }
            pen = if value.is_some() { 'L' } else { 'M' };
        }
        path
    }

    fn plot<'a>(&self, curves: Vec<Curve<'a>>) -> Plot<'a> {
        let levels = ticks(self.largest, self.step).map(|value| Mark { at: self.y(value), label: decimal(value) });
        let length = self.buckets as f64 * self.bucket;
        let x = |time: f64| format!("{:.1}", LEFT + (RIGHT - LEFT) * time / length);
        let times = ticks(length, nice_step(length)).map(|time| Mark { at: x(time), label: decimal(time) });
        Plot { curves, levels: levels.collect(), times: times.collect(), limit: None }
    }
}

/// Returns a step of 1, 2 or 5 times a power of ten that divides an axis into five to ten parts.
fn nice_step(largest: f64) -> f64 {
    let power = 10.0_f64.powf((largest / 5.0).log10().floor());
    let parts = largest / 5.0 / power;
    power * [5.0, 2.0].into_iter().find(|step| parts >= *step).unwrap_or(1.0)
}

fn ticks(largest: f64, step: f64) -> impl Iterator<Item = f64> {
    (0..).map(move |at| f64::from(at) * step).take_while(move |value| *value <= largest * 1.000_001)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_nice_and_neither_few_nor_many() {
        for largest in [0.003, 0.7, 1.0, 4.2, 10.0, 37.0, 99.0, 1e6] {
            let steps = largest / nice_step(largest);
            assert!((4.99..=12.6).contains(&steps), "{largest}: {steps}");
        }
    }
}
