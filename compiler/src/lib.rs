//! Compiles one model in one quantisation for one piece of hardware: from three TOML files to the source of a
//! server.
//!
//! `spec` (validated specs) → `graph` (the computation) → `passes` → `plan` (what runs, in what order, over
//! which bytes) → `emit` (text). `reference` runs a graph slowly and plainly, as the oracle for everything
//! else; `report` prints a plan.

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
