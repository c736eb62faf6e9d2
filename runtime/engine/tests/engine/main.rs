//! The engine on a scripted model, which checks every step it is given and samples from what it reads back.

mod answers;
mod constraints;
mod deadlines;
mod drafts;
mod drawn;
mod endings;
mod health;
mod images;
mod kept;
mod lookups;
mod offload;
mod support;
