//! One NVIDIA GPU.
mod pack;
mod shape;
