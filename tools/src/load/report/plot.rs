//! Plots as SVG: bands over time, lines over time, bars. Colours are the classes `c0` to `c7` of the page; outlines, titles
//! and dashes distinguish bands and lines without them.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 36.0;

/// The number of colours.
pub const COLOURS: usize = 8;

/// The texts of a plot.
#[derive(Debug, Clone, Copy)]
pub struct Caption<'a> {
    /// Unique in the page; letters and dashes.
    pub id: &'a str,
    pub title: &'a str,
    /// A sentence for screen readers.
    pub description: &'a str,
    /// The unit of the vertical axis.
    pub unit: &'a str,
}

/// Draws bands stacked over time, each with a value for each bucket, and a horizontal line to compare with.
pub fn bands(caption: Caption<'_>, bucket: f64, bands: &[(&str, Vec<f64>)], line: (&str, f64)) -> String {
    let buckets = bands.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let value = |values: &[f64], at: usize| values.get(at).copied().filter(|value| value.is_finite()).unwrap_or(0.0);
    let sums = (0..buckets).map(|at| bands.iter().map(|(_, values)| value(values, at)).sum::<f64>());
    let axes = Axes::new(buckets, bucket, sums.fold(line.1, f64::max));
    let mut svg = axes.open(caption);
    let mut base = vec![0.0; buckets];
    for (index, (name, values)) in bands.iter().enumerate().filter(|_| buckets > 0) {
        let top: Vec<f64> = base.iter().enumerate().map(|(at, below)| below + value(values, at)).collect();
        let mut path = axes.steps(top.iter().map(|top| Some(*top)));
        for (at, below) in base.iter().enumerate().rev() {
            let _ = write!(path, "L{1} {0}H{2}", axes.y(*below), axes.x(at + 1), axes.x(at));
        }
        let _ = write!(svg, "<path class=\"band c{}\" d=\"{path}Z\">{}</path>", index % COLOURS, title(name));
        base = top;
    }
    let (y, above) = (axes.y(line.1), number(axes.height_of(line.1) - 4.0));
    let (left, right, inner) = (number(LEFT), number(WIDTH - RIGHT), number(WIDTH - RIGHT - 4.0));
    let _ = write!(svg, "<path class=\"limit\" d=\"M{left} {y}H{right}\"/>");
    let text = escaped(line.0);
    svg + &format!("<text class=\"limit-label\" x=\"{inner}\" y=\"{above}\" text-anchor=\"end\">{text}</text></svg>")
}

/// Draws lines over time; a bucket without a value interrupts its line.
pub fn lines(caption: Caption<'_>, bucket: f64, lines: &[(&str, Vec<Option<f64>>)]) -> String {
    let buckets = lines.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let finite = |value: &Option<f64>| value.filter(|value| value.is_finite());
    let largest = lines.iter().flat_map(|(_, values)| values.iter().filter_map(finite)).fold(0.0, f64::max);
    let axes = Axes::new(buckets, bucket, largest);
    let mut svg = axes.open(caption);
    for (index, (name, values)) in lines.iter().enumerate() {
        let path = axes.steps(values.iter().map(finite));
        if !path.is_empty() {
            let _ = write!(svg, "<path class=\"line d{}\" d=\"{path}\">{}</path>", index % COLOURS, title(name));
        }
    }
    svg + "</svg>"
}

/// Draws a bar for each name, with its number beside it.
pub fn bars(caption: Caption<'_>, rows: &[(&str, u64)]) -> String {
    const ROW: f64 = 26.0;
    const LABELS: f64 = 150.0;
    const NUMBERS: f64 = 90.0;
    let largest = rows.iter().map(|(_, value)| *value).max().unwrap_or(0).max(1) as f64;
    let mut svg = open(caption, ROW * rows.len().max(1) as f64 + 8.0);
    for (index, (name, value)) in rows.iter().enumerate() {
        let top = ROW * index as f64 + 6.0;
        let length = (*value as f64 / largest * (WIDTH - LABELS - NUMBERS)).max(1.0);
        let (x, end, y, text) =
            (number(LABELS - 8.0), number(LABELS + length + 6.0), number(top + 13.6), escaped(name));
        let (left, top, width, height) = (number(LABELS), number(top), number(length), number(ROW - 6.0));
        let _ = write!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{text}</text><text x=\"{end}\" y=\"{y}\">{value}</text>\
             <rect class=\"bar\" x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\"/>"
        );
    }
    svg + "</svg>"
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

    fn open(&self, caption: Caption<'_>) -> String {
        let mut svg = open(caption, HEIGHT);
        let (left, right, labels) = (number(LEFT), number(WIDTH - RIGHT), number(LEFT - 6.0));
        for value in ticks(self.largest, self.step) {
            let (y, below, text) = (self.y(value), number(self.height_of(value) + 4.0), tick(value));
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{left} {y}H{right}\"/>\
                 <text x=\"{labels}\" y=\"{below}\" text-anchor=\"end\">{text}</text>"
            );
        }
        let length = self.buckets as f64 * self.bucket;
        for time in ticks(length, nice_step(length)) {
            let (x, text) = (number(LEFT + (WIDTH - LEFT - RIGHT) * time / length), tick(time));
            let _ = write!(svg, "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{text}</text>", number(HEIGHT - 18.0));
        }
        let (bottom, unit) = (number(HEIGHT - 3.0), escaped(caption.unit));
        svg + &format!(
            "<text class=\"unit\" x=\"{right}\" y=\"{bottom}\" text-anchor=\"end\">seconds since the start</text>\
             <text class=\"unit\" x=\"4\" y=\"11\">{unit}</text>"
        )
    }
}

fn open(caption: Caption<'_>, height: f64) -> String {
    let Caption { id, title, description, .. } = caption;
    let (width, height, title, description) = (number(WIDTH), number(height), escaped(title), escaped(description));
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"{id}-title {id}-description\" \
         xmlns=\"http://www.w3.org/2000/svg\"><title id=\"{id}-title\">{title}</title>\
         <desc id=\"{id}-description\">{description}</desc>"
    )
}

fn title(name: &str) -> String {
    format!("<title>{}</title>", escaped(name))
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

fn tick(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Writes a coordinate; infinite ones become 0.
fn number(value: f64) -> String {
    format!("{:.1}", if value.is_finite() { value } else { 0.0 })
}

/// Escapes a text for XML and replaces characters that XML can't hold.
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
