//! What is allowed, against what it is to be: JSON schemas of the kinds that agents send, with answers drawn at random and checked by
//! another implementation; texts that fit and that do not; drafts; reasoning.

mod answers;
mod corpus;
mod drafts;
mod support;
mod thinking;
