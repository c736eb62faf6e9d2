//! Path and query parameters; errors have the same envelope as all others.

use crate::error::ApiError;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use std::collections::BTreeMap;

/// The one parameter of a path.
pub(super) struct Id(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Id, ApiError> {
        let Path(id) =
            Path::from_request_parts(parts, state).await.map_err(|error| refused(&error.body_text()))?;
        Ok(Id(id))
    }
}

/// The query's parameters by name; the last of a repeated one.
pub(super) struct Asked(pub(super) BTreeMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Asked, ApiError> {
        let Query(asked) =
            Query::from_request_parts(parts, state).await.map_err(|error| refused(&error.body_text()))?;
        Ok(Asked(asked))
    }
}

fn refused(why: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_path", format!("the path cannot be read: {why}"))
}
