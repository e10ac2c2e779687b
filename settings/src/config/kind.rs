//! The kinds of value that a key can hold, and what people are told is allowed.

use std::time::Duration;

use crate::token;

/// What a key holds.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Flag,
    Count(u64, u64),
    Ratio,
    Weight,
    Duration(Duration, Duration),
    Size(u64, u64),
    Choice(&'static [&'static str]),
    MapBudget,
    Listen,
    Servers,
    GroupId,
    InstanceId,
    ServiceName,
    Topic,
    Client,
    TokenFile,
    ClientFromList,
    ClientList,
}

/// How a kind is written in TOML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Flag,
    Integer,
    Decimal,
    Text,
    TextOrInteger,
    List,
}

impl Kind {
    /// How it is written in TOML.
    pub fn form(self) -> Form {
        match self {
            Kind::Flag => Form::Flag,
            Kind::Count(..) => Form::Integer,
            Kind::Ratio | Kind::Weight => Form::Decimal,
            Kind::Size(..) => Form::TextOrInteger,
            Kind::ClientFromList | Kind::ClientList => Form::List,
            _ => Form::Text,
        }
    }

    /// What is allowed, for people.
    pub fn allowed(self) -> String {
        match self {
            Kind::Flag => "true or false".to_owned(),
            Kind::Count(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Ratio => "0 to 1, with at most six decimals".to_owned(),
            Kind::Weight => "0.001 to 1000000, with at most three decimals".to_owned(),
            Kind::Duration(min, max) => format!(
                "a duration with its unit, such as \"100ms\" or \"10s\", from {} to {}",
                humantime::format_duration(min),
                humantime::format_duration(max)
            ),
            Kind::Size(min, max) => {
                format!("a size such as \"256MiB\" or \"16MB\", or whole bytes, from {min} to {max} bytes")
            }
            Kind::Choice(names) => names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or "),
            Kind::MapBudget => "\"N chars\" or \"N bytes\", N from 64 to 4096".to_owned(),
            Kind::Listen => "an IP address and a port, such as \"127.0.0.1:9464\" or \"[::1]:9464\"".to_owned(),
            Kind::Servers => "host:port of one or more brokers, separated by commas".to_owned(),
            Kind::GroupId => "1 to 100 letters, digits, dots, dashes or underscores".to_owned(),
            Kind::InstanceId => "1 to 128 letters, digits, dots, dashes or underscores, and not \"leader\"".to_owned(),
            Kind::ServiceName => "1 to 64 letters, digits, dashes or underscores".to_owned(),
            Kind::Topic => "1 to 249 letters, digits, dots, dashes or underscores, as Kafka has it".to_owned(),
            Kind::Client => "a client id of 1 to 128 bytes".to_owned(),
            Kind::TokenFile => format!(
                "the path of a file that can be read, that not every user may write, with a token of at least {} \
                 characters and at most {} bytes",
                token::MIN_CHARS,
                token::MAX_BYTES
            ),
            Kind::ClientFromList => {
                "a list of one or more of \"header:NAME\", \"json:/pointer\", \"key\" and \"topic\"".to_owned()
            }
            Kind::ClientList => "a list of one or more client ids of 1 to 128 bytes each".to_owned(),
        }
    }
}
