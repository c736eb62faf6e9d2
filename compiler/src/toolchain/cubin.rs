//! Resources of a kernel, from the assembler and the cubin, and the limits that a build enforces.

use crate::plan::cuda::Kernel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Resources of one kernel. Bytes are per thread, but shared memory is per block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// 32-bit registers per thread.
    pub registers: u32,
    /// Bytes of register spills stored.
    pub spill_stores: u32,
    /// Bytes of register spills loaded.
    pub spill_loads: u32,
    /// Bytes of stack frame.
    pub stack: u32,
    /// Further bytes of local memory.
    pub local: u32,
    /// Bytes of shared memory declared in the kernel.
    pub static_shared: u32,
    /// Named barriers.
    pub barriers: u32,
}

/// Limits of a card for one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLimits {
    /// Registers a thread can address.
    pub registers_per_thread: u32,
    /// Registers of one SM, over all its blocks.
    pub registers_per_sm: u32,
    /// Bytes of shared memory one block may have.
    pub shared_per_block: u32,
}

/// Reads `ptxas -v`: one entry per kernel.
pub fn assembler_report(text: &str) -> BTreeMap<String, Usage> {
    let mut kernels = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let name = rest.split('\'').next().unwrap_or(rest).to_owned();
            kernels.insert(name.clone(), Usage::default());
            current = Some(name);
        }
        let Some(usage) = current.as_ref().and_then(|name| kernels.get_mut(name)) else { continue };
        let before = |unit: &str| {
            let head = line.split(unit).next().filter(|head| head.len() < line.len())?;
            head.rsplit([' ', ',']).next()?.parse::<u32>().ok()
        };
        let mut take = |unit: &str, place: fn(&mut Usage) -> &mut u32| {
            if let Some(value) = before(unit) {
                *place(usage) = value;
            }
        };
        take(" bytes stack frame", |it| &mut it.stack);
        take(" bytes spill stores", |it| &mut it.spill_stores);
        take(" bytes spill loads", |it| &mut it.spill_loads);
        take(" registers", |it| &mut it.registers);
        take(" barriers", |it| &mut it.barriers);
        take(" bytes smem", |it| &mut it.static_shared);
    }
    kernels
}

/// Adds what `cuobjdump --dump-resource-usage` reads from the machine code: local memory, which ptxas counts
/// as stack only in part. Its shared memory is ignored, because it includes the 1 KiB that the system
/// reserves.
///
/// # Errors
/// When the two disagree on the kernels, or on their registers.
pub fn add_inspection(kernels: &mut BTreeMap<String, Usage>, dump: &str) -> Result<(), String> {
    let mut lines = dump.lines().map(str::trim);
    let mut seen = 0;
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("Function ").and_then(|rest| rest.strip_suffix(':')) else {
            continue;
        };
        let figures = lines.next().unwrap_or_default();
        let figure = |key: &str| {
            let word = figures.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix(':'));
            word.and_then(|value| value.parse::<u32>().ok())
        };
        let usage = kernels.get_mut(name).ok_or_else(|| format!("ptxas says nothing of kernel `{name}`"))?;
        let registers = figure("REG").ok_or_else(|| format!("cuobjdump says nothing of kernel `{name}`"))?;
        if registers != usage.registers {
            return Err(format!(
                "`{name}` has {} registers by ptxas and {registers} in the cubin",
                usage.registers
            ));
        }
        usage.local = figure("LOCAL").unwrap_or_default();
        usage.stack = usage.stack.max(figure("STACK").unwrap_or_default());
        seen += 1;
    }
    if seen == kernels.len() {
        Ok(())
    } else {
        Err(format!("the cubin holds {seen} kernels, and ptxas reported {}", kernels.len()))
    }
}

/// Reasons why a kernel must not ship, each with the kernel's name and the figure; empty if it may.
pub fn defects(module: &str, kernel: &Kernel, usage: &Usage, limits: &KernelLimits) -> Vec<String> {
    let name = format!("kernel `{}` of `{module}`", kernel.name);
    let mut defects = Vec::new();
    let mut refuse = |wrong: bool, what: String| {
        if wrong {
            defects.push(format!("{name} {what}"));
        }
    };
    if kernel.decode {
        let spilled = usage.spill_stores + usage.spill_loads;
        refuse(spilled > 0, format!("spills {} + {} bytes a thread", usage.spill_stores, usage.spill_loads));
        refuse(
            spilled == 0 && usage.local + usage.stack > 0,
            format!("keeps {} bytes a thread in local memory", usage.local + usage.stack),
        );
    }
    refuse(
        usage.registers > limits.registers_per_thread,
        format!("uses {} registers a thread, and there are {}", usage.registers, limits.registers_per_thread),
    );
    // A warp is allocated registers in units of 256.
    let warps = kernel.block.div_ceil(32);
    let registers = warps * (usage.registers * 32).next_multiple_of(256);
    refuse(
        registers > limits.registers_per_sm,
        format!("uses {registers} registers a block, and an SM has {}", limits.registers_per_sm),
    );
    let shared = usage.static_shared + kernel.shared;
    refuse(
        shared > limits.shared_per_block,
        format!(
            "uses {shared} bytes of shared memory a block ({} static, {} dynamic), and there are {}",
            usage.static_shared, kernel.shared, limits.shared_per_block
        ),
    );
    defects
}
