//! Stands in for `http` in a build without the feature: the configuration refuses every registry before this is called.

use std::{error::Error, path::Path};

use super::RegistryError;

pub(super) use NoClient as Client;

pub(super) struct NoClient;

impl NoClient {
    pub(super) fn new(_: Option<&Path>) -> Result<NoClient, RegistryError> {
        Ok(NoClient)
    }

    pub(super) fn get(
        &self, _: &str, _: Option<(&str, &str)>,
    ) -> Result<(u16, Option<String>), Box<dyn Error + Send + Sync>> {
        Err("this build has no feature schema-registry".into())
    }
}
