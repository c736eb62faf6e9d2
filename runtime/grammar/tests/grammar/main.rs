//! Allowed tokens against their specification: JSON schemas of the kinds that agents send, with answers drawn
//! at random and checked by another implementation; texts that fit and that do not; drafts; reasoning.
//!
//! Planted, one at a time, and caught here: tokens behind drafts that are not rolled back, or reasoning that
//! is not; one end that counts and another that does not; an end that is text; tokens of the same bytes of
//! which one is forgotten, or is told to the library; a token that completes the tag and runs on into the
//! answer; an end within the reasoning; a budget that is forgotten; spacing behind the tag for ever; a mask
//! that is kept when a token comes; unknown formats of strings; numbers of schemas that are rounded; names
//! that come twice, or in another spelling; alternatives of any number.

mod answers;
mod calls;
mod corpus;
mod drafts;
mod meanings;
mod numbers;
mod patterns;
mod schemas;
mod support;
mod thinking;
mod trials;
