//! Bodies of a vision tower, which follow all others.

use super::{PassError, pass_error};
use crate::graph::{BodyId, Graph, Run};
use crate::plan::TowerPlan;
use crate::spec::types::{HardwareKind, Target};

/// Moves the bodies of a graph's tower behind its others, and returns the tower's schedule over them.
///
/// # Errors
/// When the backend has no towers, or the target asks for what does not go with one yet.
pub fn bodies(target: &Target, graph: &mut Graph) -> Result<Option<TowerPlan>, PassError> {
    let Some(tower) = graph.vision.take() else { return Ok(None) };
    let on_card = matches!(target.hardware.kind, HardwareKind::Cuda(_));
    if target.hosts > 1 {
        return Err(pass_error!(
            "several processes do not see images yet: build with `--vision off`, or without `--hosts`"
        ));
    }
    let vision = target.tower.as_ref().expect("a graph with a tower is built from it");
    let behind = graph.bodies.len();
    let at = |run: &Run| BodyId(behind + run.body.0);
    let schedule = tower.schedule.iter().map(|run| (at(run), run.layer)).collect();
    let branches = tower.branches.iter().map(|branch| (branch.after, at(&branch.run))).collect();
    let plan = TowerPlan::new(vision, on_card, target.image_patches, BodyId(behind), schedule, branches);
    graph.bodies.extend(tower.bodies.into_iter().map(|mut body| {
        body.name = format!("tower_{}", body.name);
        body
    }));
    Ok(Some(plan))
}
