//! Plots as SVG, by hand: bands over time, lines over time, bars. Colours are the page's classes `c0` to `c7`, and each band is
//! also told by its outline and its title, each line by its dashes.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 36.0;
/// A row of bars.
const ROW: f64 = 26.0;

/// How many classes of colour there are.
pub const COLOURS: usize = 8;

/// What a plot is called, and what it shows in a sentence for who can't see it.
#[derive(Debug, Clone, Copy)]
pub struct Caption<'a> {
    /// Unique in the page; letters and dashes.
    pub id: &'a str,
    pub title: &'a str,
    pub description: &'a str,
    /// On the axis of values.
    pub unit: &'a str,
}

/// Bands stacked over time, each with its values for each bucket, and a line to compare with.
pub fn bands(caption: Caption<'_>, bucket: f64, bands: &[(&str, Vec<f64>)], line: (&str, f64)) -> String {
    let buckets = bands.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let value = |values: &[f64], at: usize| values.get(at).copied().filter(|value| value.is_finite()).unwrap_or(0.0);
    let sums = (0..buckets).map(|at| bands.iter().map(|(_, values)| value(values, at)).sum::<f64>());
    let axes = Axes::new(buckets, bucket, sums.fold(line.1, f64::max));
    let mut svg = axes.open(caption);
    let mut base = vec![0.0; buckets];
    for (index, (name, values)) in bands.iter().enumerate() {
        let top: Vec<f64> = base.iter().enumerate().map(|(at, below)| below + value(values, at)).collect();
        let there = top.iter().enumerate().map(|(at, top)| (at, *top));
        let back = base.iter().enumerate().rev();
        let mut path = String::new();
        for (at, top) in there {
            axes.step(&mut path, at, top);
        }
        for (at, below) in back {
            let y = axes.y(*below);
            let _ = write!(path, "L{} {y}L{} {y}", axes.x(at + 1), axes.x(at));
        }
        if !path.is_empty() {
            let class = index % COLOURS;
            let _ = write!(svg, "<path class=\"band c{class}\" d=\"{path}Z\"><title>{}</title></path>", escaped(name));
        }
        base = top;
    }
    let y = axes.y(line.1);
    let _ = write!(
        svg,
        "<path class=\"limit\" d=\"M{} {y}H{}\"/><text class=\"limit-label\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text></svg>",
        number(LEFT),
        number(WIDTH - RIGHT),
        number(WIDTH - RIGHT - 4.0),
        axes.y_above(line.1),
        escaped(line.0)
    );
    svg
}

/// Lines over time; a bucket without a value interrupts its line.
pub fn lines(caption: Caption<'_>, bucket: f64, lines: &[(&str, Vec<Option<f64>>)]) -> String {
    let buckets = lines.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let finite = |value: &Option<f64>| value.filter(|value| value.is_finite());
    let largest = lines.iter().flat_map(|(_, values)| values.iter().filter_map(finite)).fold(0.0, f64::max);
    let axes = Axes::new(buckets, bucket, largest);
    let mut svg = axes.open(caption);
    for (index, (name, values)) in lines.iter().enumerate() {
        let mut path = String::new();
        let mut interrupted = true;
        for (at, value) in values.iter().enumerate() {
            if let Some(value) = finite(value) {
                let y = axes.y(value);
                let pen = if interrupted { 'M' } else { 'L' };
                let _ = write!(path, "{pen}{} {y}H{}", axes.x(at), axes.x(at + 1));
            }
            interrupted = finite(value).is_none();
        }
        if !path.is_empty() {
            let class = index % COLOURS;
            let _ = write!(svg, "<path class=\"line d{class}\" d=\"{path}\"><title>{}</title></path>", escaped(name));
        }
    }
    svg.push_str("</svg>");
    svg
}

/// A bar for each name, with its number beside it.
pub fn bars(caption: Caption<'_>, rows: &[(&str, u64)]) -> String {
    const LABELS: f64 = 150.0;
    const NUMBERS: f64 = 90.0;
    let height = ROW * rows.len().max(1) as f64 + 8.0;
    let largest = rows.iter().map(|(_, value)| *value).max().unwrap_or(0).max(1) as f64;
    let mut svg = open(caption, height);
    for (index, (name, value)) in rows.iter().enumerate() {
        let y = ROW * index as f64 + 4.0;
        let length = (*value as f64 / largest * (WIDTH - LABELS - NUMBERS)).max(1.0);
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect class=\"bar\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\
             <text x=\"{}\" y=\"{}\">{value}</text>",
            number(LABELS - 8.0),
            number(y + ROW * 0.6),
            escaped(name),
            number(LABELS),
            number(y + 2.0),
            number(length),
            number(ROW - 6.0),
            number(LABELS + length + 6.0),
            number(y + ROW * 0.6),
        );
    }
    svg.push_str("</svg>");
    svg
}

/// Where things are in a plot over time.
struct Axes {
    buckets: usize,
    /// Seconds.
    bucket: f64,
    largest: f64,
    step: f64,
}

impl Axes {
    fn new(buckets: usize, bucket: f64, largest: f64) -> Axes {
        let largest = if largest.is_finite() && largest > 0.0 { largest } else { 1.0 };
        let step = nice_step(largest);
        Axes { buckets: buckets.max(1), bucket, largest: (largest * 1.04 / step).ceil() * step, step }
    }

    fn x(&self, bucket: usize) -> String {
        number(LEFT + (WIDTH - LEFT - RIGHT) * bucket as f64 / self.buckets as f64)
    }

    fn height_of(&self, value: f64) -> f64 {
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - value / self.largest)
    }

    fn y(&self, value: f64) -> String {
        number(self.height_of(value))
    }

    fn y_above(&self, value: f64) -> String {
        number(self.height_of(value) - 4.0)
    }

    /// Along the top of a bucket.
    fn step(&self, path: &mut String, at: usize, value: f64) {
        let pen = if path.is_empty() { 'M' } else { 'L' };
        let y = self.y(value);
        let _ = write!(path, "{pen}{} {y}L{} {y}", self.x(at), self.x(at + 1));
    }

    fn open(&self, caption: Caption<'_>) -> String {
        let mut svg = open(caption, HEIGHT);
        let mut value = 0.0;
        while value <= self.largest * 1.000_001 {
            let y = self.y(value);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{} {y}H{}\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                number(LEFT),
                number(WIDTH - RIGHT),
                number(LEFT - 6.0),
                number(self.height_of(value) + 4.0),
                tick(value)
            );
            value += self.step;
        }
        let length = self.buckets as f64 * self.bucket;
        let step = nice_step(length);
        let mut time = 0.0;
        while time <= length * 1.000_001 {
            let x = number(LEFT + (WIDTH - LEFT - RIGHT) * time / length);
            let _ = write!(
                svg,
                "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                number(HEIGHT - 18.0),
                tick(time)
            );
            time += step;
        }
        let _ = write!(
            svg,
            "<text class=\"unit\" x=\"{}\" y=\"{}\" text-anchor=\"end\">seconds since the start</text>\
             <text class=\"unit\" x=\"4\" y=\"11\">{}</text>",
            number(WIDTH - RIGHT),
            number(HEIGHT - 3.0),
            escaped(caption.unit)
        );
        svg
    }
}

fn open(caption: Caption<'_>, height: f64) -> String {
    let Caption { id, title, description, .. } = caption;
    format!(
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{id}-title {id}-description\" xmlns=\"http://www.w3.org/2000/svg\">\
         <title id=\"{id}-title\">{}</title><desc id=\"{id}-description\">{}</desc>",
        number(WIDTH),
        number(height),
        escaped(title),
        escaped(description)
    )
}

/// A step of 1, 2 or 5 times a power of ten, so that there are five to ten of them.
fn nice_step(largest: f64) -> f64 {
    let power = 10.0_f64.powf((largest / 5.0).log10().floor());
    let parts = largest / 5.0 / power;
    power
        * if parts >= 5.0 {
            5.0
        } else if parts >= 2.0 {
            2.0
        } else {
            1.0
        }
}

fn tick(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A coordinate; never anything but a number.
fn number(value: f64) -> String {
    if value.is_finite() { format!("{value:.1}") } else { "0.0".to_owned() }
}

/// A text for XML: marked up where it must be, without what XML can't hold.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' => escaped.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
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
        assert_eq!([0.0, 0.5, 20.0, 0.005].map(tick), ["0", "0.5", "20", "0.005"]);
    }

    #[test]
    fn no_text_breaks_the_markup() {
        assert_eq!(escaped("a<b>&\"c\"\u{1}\n"), "a&lt;b&gt;&amp;&quot;c&quot;\u{fffd} ");
    }
}
