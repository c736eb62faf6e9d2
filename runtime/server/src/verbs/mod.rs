//! One file a verb.

pub(crate) mod bench;
pub(crate) mod cli;
mod ending;
mod feeding;
pub(crate) mod generate;
pub(crate) mod health;
pub(crate) mod info;
pub(crate) mod logits;
pub(crate) mod manual;
pub(crate) mod pack;
pub(crate) mod perplexity;
pub(crate) mod profile;
pub(crate) mod read;
mod report;
pub(crate) mod retrieval;
mod seeing;
pub(crate) mod serve;
mod serving;
mod steps;
mod stopping;
pub(crate) mod supervise;
pub(crate) mod version;
mod watching;
