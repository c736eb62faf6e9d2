//! One file a verb.

pub(crate) mod bench;
pub(crate) mod cli;
mod ending;
pub(crate) mod generate;
pub(crate) mod health;
pub(crate) mod info;
pub(crate) mod logits;
pub(crate) mod manual;
mod report;
pub(crate) mod serve;
mod serving;
mod sliding;
mod steps;
mod stopping;
pub(crate) mod version;
