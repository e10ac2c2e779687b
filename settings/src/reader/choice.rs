//! Enums with a name for each variant.

use std::str::FromStr;

use strum::VariantNames;

use super::schema::Kind;
use super::values::{FromText, ValueError};

/// An enum of which a key holds one variant, by its name. The names come from strum's derives.
pub trait Choice: FromStr + VariantNames {}

impl<T: Choice> FromText for T {
    fn from_text(text: &str, _: Kind) -> Result<T, ValueError> {
        text.parse().map_err(|_| ValueError::NotAllowed)
    }
}
