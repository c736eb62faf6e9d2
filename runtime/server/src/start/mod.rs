//! From the command line to a loaded model: weights found, verified and loaded, the engine's options, and
//! what the server reports of them.

pub(crate) mod alone;
pub(crate) mod batches;
pub(crate) mod calibrate;
pub(crate) mod draft;
pub(crate) mod gpus;
pub(crate) mod hosts;
pub(crate) mod keep;
pub(crate) mod load;
pub(crate) mod lookup;
pub(crate) mod offload;
pub(crate) mod paths;
pub(crate) mod reading;
pub(crate) mod repository;
pub(crate) mod schedule;
pub(crate) mod sliding;
pub(crate) mod swap;
pub(crate) mod verify;
pub(crate) mod warm_up;
pub(crate) mod worker_health;
