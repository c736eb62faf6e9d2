//! One model, one quantisation, one piece of hardware: from three TOML files to the source of a server.
//!
//! `spec` (what a person wrote, validated) → `graph` (what is computed) → `passes` → `plan` (what runs, in
//! which order, over which bytes) → `emit` (text). `reference` runs a graph slowly and plainly and is what
//! everything else is checked against; `report` shows a plan to people.

pub mod blocks;
pub mod emit;
pub mod graph;
pub mod import;
pub mod kernels;
pub mod passes;
pub mod plan;
pub mod reference;
pub mod report;
pub mod spec;
pub mod standing;
pub mod toolchain;
