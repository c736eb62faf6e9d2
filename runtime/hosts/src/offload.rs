//! Ids of blocks on disk.

use monomorph_model::{BlockId, Step};

/// A step with the ids of this process's own model, if they differ from those of the world: blocks on disk
/// are numbered behind those on the device, of which it may have more than all agreed on.
pub(crate) fn local_blocks(step: &Step, agreed: usize, own: usize) -> Option<Step> {
    if step.offloaded.is_empty() || agreed == own {
        return None;
    }
    let mut step = step.clone();
    for block in step.sequences.iter_mut().flat_map(|row| &mut row.blocks) {
        if block.0 as usize >= agreed {
            *block = BlockId((block.0 as usize - agreed + own) as u32);
        }
    }
    Some(step)
}
