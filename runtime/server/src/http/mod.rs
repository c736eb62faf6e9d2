//! HTTP: routes, bodies, streams. Nothing here knows which model it serves; it is compiled once.

pub(crate) mod app;
pub(crate) mod asker;
mod auth;
pub(crate) mod background;
mod best;
mod body;
mod chat;
pub(crate) mod compactions;
mod completions;
pub(crate) mod connections;
pub(crate) mod cors;
pub(crate) mod dump;
mod health;
pub(crate) mod hosts;
pub(crate) mod ignored;
pub(crate) mod keys;
pub(crate) mod large;
mod messages;
mod metrics;
mod models;
mod openapi;
mod page;
mod parameters;
mod protocol;
mod render;
mod request_id;
pub(crate) mod responses;
mod retry;
mod router;
pub(crate) mod stream;
mod tokens;

pub(crate) use router::router;
#[cfg(test)]
pub(crate) use router::routes;
