//! Logs go to stderr, so that stdout has only results.

use std::io::IsTerminal;

use tracing::{Level, Subscriber};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter, util::TryInitError};

use watermaster_settings::LogFormat;

/// Starts logging for the whole process, at the level of `RUST_LOG`, or else at `default`.
///
/// # Errors
/// Fails when logging was started before.
pub fn init(format: LogFormat, default: Level) -> Result<(), TryInitError> {
    use tracing_subscriber::util::SubscriberInitExt;

    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default.as_str()));
    lines(format, std::io::stderr().is_terminal(), filter, std::io::stderr).try_init()
}

/// Returns a subscriber that writes one line for each event. JSON keeps an event's own fields, `message` among them,
/// apart in `fields`, because an event may have a field called `target` or `level`.
fn lines<W>(format: LogFormat, terminal: bool, filter: EnvFilter, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(terminal);
    if is_json(format, terminal) { Box::new(lines.json().finish()) } else { Box::new(lines.finish()) }
}

fn is_json(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use serde_json::Value;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(format: LogFormat, log: impl FnOnce()) -> String {
        let memory = Buffer::default();
        let writer = memory.clone();
        let subscriber = lines(format, false, EnvFilter::new("debug"), move || writer.clone());
        tracing::subscriber::with_default(subscriber, log);
        String::from_utf8(std::mem::take(&mut memory.0.lock().unwrap())).unwrap()
    }

    /// Logs an example of each form that the program uses, with broken and hostile text.
    fn log_examples() {
        let (service, left_out) = ("kyc", [None, Some(12_u64)]);
        tracing::info!(service, target = "kyc.requests", capacity = 400_u64, cycle_seconds = 10.0, enforce = true, "a");
        for left_out in left_out {
            tracing::warn!(service, left_out, "a record names no client: {}", "\"a\nb\u{1b}[2J\\");
        }
        tracing::error!("no service is left running");
        tracing::debug!(target: "librdkafka", "{}: {}", "FAIL", "[thrd:x]: é");
    }

    /// At the level trace, the HTTP client writes URLs and contents of requests, which may hold secrets.
    #[test]
    fn libraries_write_no_trace() {
        assert_eq!(log::STATIC_MAX_LEVEL, log::LevelFilter::Debug);
    }

    #[test]
    fn each_line_of_json_has_time_level_target_and_message() {
        let text = written(LogFormat::Json, log_examples);
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 5, "{text}");
        for line in &lines {
            let time = line["timestamp"].as_str().unwrap();
            assert!(humantime::parse_rfc3339(time).is_ok(), "{time}");
            assert!(["DEBUG", "INFO", "WARN", "ERROR"].contains(&line["level"].as_str().unwrap()));
            assert!(line["target"].as_str().is_some_and(|target| !target.is_empty()), "{line}");
            assert!(line["fields"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{line}");
        }
        let fields = &lines[0]["fields"];
        assert_eq!((&fields["capacity"], &fields["cycle_seconds"]), (&Value::from(400), &Value::from(10.0)));
        assert_eq!((&fields["enforce"], &fields["target"]), (&Value::from(true), &Value::from("kyc.requests")));
        assert_eq!(lines[0]["target"], module_path!());
        assert_eq!((lines[1]["fields"].get("left_out"), &lines[2]["fields"]["left_out"]), (None, &Value::from(12)));
        assert_eq!(lines[1]["fields"]["message"], "a record names no client: \"a\nb\u{1b}[2J\\");
        assert_eq!(lines[4]["target"], "librdkafka");
    }

    #[test]
    fn text_is_a_line_for_each_event() {
        let text = written(LogFormat::Text, || tracing::warn!(service = "kyc", "waiting for the brokers"));
        assert!(text.ends_with("waiting for the brokers service=\"kyc\"\n") && text.contains(" WARN "), "{text}");
    }

    #[test]
    fn json_is_the_default_without_a_terminal() {
        let json = [LogFormat::Auto, LogFormat::Text, LogFormat::Json]
            .map(|format| [is_json(format, true), is_json(format, false)]);
        assert_eq!(json, [[false, true], [false, false], [true, true]]);
    }
}
