//! A schema registry of one test: it answers as a function says, and remembers the questions.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A question: the path with its query, and the header `authorization`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub path: String,
    pub authorization: Option<String>,
}

/// A stub that listens on a port of its own until the test ends.
#[derive(Debug)]
pub struct StubRegistry {
    pub url: String,
    questions: Arc<Mutex<Vec<Question>>>,
}

impl StubRegistry {
    /// Starts a stub that answers each question with a status and a body. It takes one connection at a time. The body of
    /// a status 302 is the address to ask instead.
    pub fn start(answer: impl Fn(&Question) -> (u16, String) + Send + 'static) -> StubRegistry {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("it has an address"));
        let questions = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::clone(&questions);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that gives up is no failure of the stub.
                _ = serve(&stream, &answer, &asked);
            }
        });
        StubRegistry { url, questions }
    }

    /// Returns the questions so far.
    pub fn questions(&self) -> Vec<Question> {
        self.questions.lock().expect("no test panics with the lock").clone()
    }

    /// Returns the paths of the questions so far.
    pub fn paths(&self) -> Vec<String> {
        self.questions().into_iter().map(|question| question.path).collect()
    }
}

fn serve(
    mut stream: &TcpStream, answer: &impl Fn(&Question) -> (u16, String), asked: &Mutex<Vec<Question>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut authorization = None;
    for line in lines {
        let line = line?;
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => authorization = Some(value.to_owned()),
            Some(_) => {}
            None => break,
        }
    }
    let question = Question { path, authorization };
    asked.lock().expect("no test panics with the lock").push(question.clone());
    let (status, body) = answer(&question);
    let length = body.len();
    let location = if status == 302 { format!("location: {body}\r\n") } else { String::new() };
    let head = format!("HTTP/1.1 {status} Said\r\ncontent-length: {length}\r\n{location}connection: close");
    write!(stream, "{head}\r\n\r\n{body}")
}

/// Returns the body with which a registry answers about a schema.
pub fn stored(format: &str, schema: &str, references: &serde_json::Value) -> String {
    let mut body = serde_json::json!({"schema": schema, "references": references});
    // Avro is the format that has no name.
    if format != "AVRO" {
        body["schemaType"] = format.into();
    }
    body.to_string()
}

/// Returns the body with which a registry says that there is no such schema.
pub fn not_found() -> String {
    serde_json::json!({"error_code": 40403, "message": "Schema not found"}).to_string()
}
