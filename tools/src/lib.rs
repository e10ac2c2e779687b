//! Commands that production does not need, and the conventions that all commands share.
//!
//! - [`allocate`]: explains how one cycle's capacity is shared out
//! - [`load`]: sends a scenario to a running Watermaster and accounts for every record
//! - [`work`]: stands in for a protected service
//! - [`trace`]: records when which client sent how much; [`trace_file`]: the file
//! - [`simulate`]: runs a trace through the core in simulated time
//! - [`rules`]: explains which rule decides for a client
//! - [`top`]: shows a running instance, live, over its HTTP API
//! - [`dlq`]: reads the dead letters of a service, and sends them again
//! - [`handover`]: hands the source topics to the service's own consumers, and takes them back
//! - [`demo`]: plays `load`'s part against an embedded broker and shows `top`'s table
//! - [`cli`]: exit codes, `--config`, `--output`; the service of a command, with the topics that match its patterns
//! - [`endpoint`]: requests to a running instance, `--url`, `--token-file`
//! - `format`: tables, numbers and ids as people read them; `moment`: times; `signals`: ctrl-c and SIGTERM as messages
//! - `progress`: how far a command is that reads many records
//!
//! The crate does not know the engine: the demo is handed a function that starts one.

pub mod allocate;
pub mod cli;
pub mod demo;
pub mod dlq;
pub mod endpoint;
mod format;
pub mod handover;
pub mod load;
mod moment;
mod progress;
pub mod rules;
mod signals;
pub mod simulate;
pub mod top;
pub mod trace;
pub mod trace_file;
pub mod work;
