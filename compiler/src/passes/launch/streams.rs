//! Divides the launches of a body between two streams. Blocks mark launches that may run beside others
//! ([`Launch::aside`]); what waits for what follows from the memory that launches read and write.
//!
//! A marked launch moves up to the last launch that it conflicts with, and with it those that it follows, so
//! that it runs beside all between there and the first that needs it. A stream waits for the other before a
//! launch that conflicts with one it has not waited for. What has nothing to run beside stays in the first
//! stream.

use crate::kernels::Argument;
use crate::plan::cuda::{Launch, Module, Program};

/// What a launch reads and writes.
#[derive(Clone, Debug)]
struct Uses<T> {
    reads: Vec<T>,
    writes: Vec<T>,
    /// Whether it may run beside others.
    beside: bool,
}

impl<T: PartialEq> Uses<T> {
    /// Whether one writes what the other reads or writes.
    fn conflict(&self, other: &Uses<T>) -> bool {
        let spoils = |by: &Uses<T>, of: &Uses<T>| {
            by.writes.iter().any(|written| of.reads.contains(written) || of.writes.contains(written))
        };
        spoils(self, other) || spoils(other, self)
    }
}

impl Uses<Argument> {
    fn of(launch: &Launch, modules: &[Module]) -> Uses<Argument> {
        let (module, kernel) = launch.kernel;
        let parameters = modules[module].kernels[kernel].signature.parameters;
        let mut uses = Uses { reads: Vec::new(), writes: Vec::new(), beside: launch.beside };
        for (parameter, argument) in parameters.iter().zip(&launch.arguments) {
            if *argument != Argument::Null {
                let of =
                    if parameter.kind.starts_with("const ") { &mut uses.reads } else { &mut uses.writes };
                of.push(*argument);
            }
        }
        if let Some(gathers) = &launch.gathers {
            uses.reads.push(gathers.from);
            uses.writes.push(gathers.to);
        }
        uses
    }
}

/// A launch in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    /// Index among the body's launches.
    launch: usize,
    beside: bool,
    waits: bool,
}

/// Divides the launches of every body. Tails stay in one stream: they sample, in a graph of their own.
pub(super) fn divide(programs: &mut [Program], modules: &[Module]) {
    for program in programs {
        let of_passes = program.passes.iter_mut().map(|(_, launches)| launches);
        for launches in program.bodies.iter_mut().chain(of_passes) {
            let uses: Vec<_> = launches.iter().map(|launch| Uses::of(launch, modules)).collect();
            let place =
                |it: Placed| Launch { beside: it.beside, waits: it.waits, ..launches[it.launch].clone() };
            *launches = placed(&uses).into_iter().map(place).collect();
        }
    }
}

fn placed<T: PartialEq>(uses: &[Uses<T>]) -> Vec<Placed> {
    let mut beside: Vec<bool> = uses.iter().map(|it| it.beside).collect();
    loop {
        match meetings(uses, &beside, &moved_up(uses, &beside)) {
            Ok(placed) => return placed,
            Err(idle) => idle.into_iter().for_each(|launch| beside[launch] = false),
        }
    }
}

/// The launches in order, but those beside, and those that they follow, as early as they may be.
fn moved_up<T: PartialEq>(uses: &[Uses<T>], beside: &[bool]) -> Vec<usize> {
    let mut early = beside.to_vec();
    for launch in (0..uses.len()).rev().filter(|it| beside[*it]) {
        if let Some(followed) = (0..launch).rfind(|before| uses[launch].conflict(&uses[*before])) {
            early[followed] = true;
        }
    }
    let mut order: Vec<usize> = Vec::new();
    for launch in 0..uses.len() {
        let holds = |before: &usize| beside[*before] || uses[launch].conflict(&uses[*before]);
        let at = match early[launch] {
            true => order.iter().rposition(holds).map_or(0, |last| last + 1),
            false => order.len(),
        };
        order.insert(at, launch);
    }
    order
}

/// Where the streams wait for each other. The error names launches that nothing runs beside, or that nothing
/// in the body waits for.
fn meetings<T: PartialEq>(
    uses: &[Uses<T>],
    beside: &[bool],
    order: &[usize],
) -> Result<Vec<Placed>, Vec<usize>> {
    // Launches of either stream since the other last waited for it.
    let (mut first, mut second): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    // Whether the second stream has waited in this body, and whether the first has run beside what that was
    // given.
    let (mut forked, mut shared) = (false, false);
    let mut placed = Vec::new();
    for &launch in order {
        let conflicts = |others: &[usize]| others.iter().any(|other| uses[launch].conflict(&uses[*other]));
        let waits = if beside[launch] {
            let waits = !forked || conflicts(&first);
            if waits {
                forked = true;
                first.clear();
            }
            second.push(launch);
            waits
        } else {
            let waits = conflicts(&second);
            if waits {
                if !shared {
                    return Err(second);
                }
                shared = false;
                second.clear();
            }
            shared |= !second.is_empty();
            first.push(launch);
            waits
        };
        placed.push(Placed { launch, beside: beside[launch], waits });
    }
    if second.is_empty() { Ok(placed) } else { Err(second) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(reads: &[u8], writes: &[u8], beside: bool) -> Uses<u8> {
        Uses { reads: reads.to_vec(), writes: writes.to_vec(), beside }
    }

    fn text(placed: &[Placed]) -> String {
        let one = |it: &Placed| {
            let stream = if it.beside { "b" } else { "" };
            format!("{}{}{stream}", if it.waits { "|" } else { "" }, it.launch)
        };
        placed.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    /// A mixture: the router (0), x staged (1), the shared expert (2), the sort (3), the chosen experts (4,
    /// 5), the shared expert's down, staged and multiplied (6, 7), the sum (8).
    fn mixture() -> Vec<Uses<u8>> {
        vec![
            uses(&[0], &[9], false),
            uses(&[0], &[1], false),
            uses(&[1], &[2], true),
            uses(&[9], &[3], false),
            uses(&[1, 3], &[4], false),
            uses(&[3, 4], &[5], false),
            uses(&[2], &[6], true),
            uses(&[6], &[7], true),
            uses(&[3, 5, 7], &[0], false),
        ]
    }

    #[test]
    fn a_shared_expert_runs_beside_the_chosen_ones() {
        assert_eq!(text(&placed(&mixture())), "1 |2b 6b 7b 0 3 4 5 |8");
    }

    #[test]
    fn a_launch_that_nothing_runs_beside_stays_in_its_place() {
        let needed = [uses(&[0], &[1], false), uses(&[1], &[2], true), uses(&[2], &[3], false)];
        assert_eq!(text(&placed(&needed)), "0 1 2");
        let never_needed = [uses(&[0], &[1], false), uses(&[1], &[2], true), uses(&[1], &[3], false)];
        assert_eq!(text(&placed(&never_needed)), "0 1 2");
    }

    #[test]
    fn a_second_launch_beside_waits_for_what_it_overwrites() {
        // The second (4) writes what the first stream reads (2).
        let launches = [
            uses(&[0], &[1], false),
            uses(&[1], &[2], true),
            uses(&[1, 3], &[4], false),
            uses(&[4], &[5], false),
            uses(&[2], &[3], true),
            uses(&[5], &[6], false),
            uses(&[3, 6], &[0], false),
        ];
        assert_eq!(text(&placed(&launches)), "0 |1b 2 |4b 3 5 |6");
    }

    /// For each launch, by index, those that have ended before it begins.
    fn ended_before(placed: &[Placed]) -> Vec<Vec<bool>> {
        let mut ended = vec![vec![false; placed.len()]; placed.len()];
        // What the work in front in either stream follows, itself included.
        let mut fronts = [vec![false; placed.len()], vec![false; placed.len()]];
        // All launches of the body before follow each other.
        for it in placed {
            let [own, other] = [usize::from(it.beside), usize::from(!it.beside)];
            if it.waits {
                let seen = fronts[other].clone();
                fronts[own].iter_mut().zip(seen).for_each(|(front, seen)| *front |= seen);
            }
            ended[it.launch].clone_from(&fronts[own]);
            fronts[own][it.launch] = true;
        }
        ended
    }

    /// Pairs that conflict, of which the later does not wait for the earlier.
    fn races(uses: &[Uses<u8>], placed: &[Placed]) -> usize {
        let ended = ended_before(placed);
        let pairs = (0..uses.len()).flat_map(|later| (0..later).map(move |earlier| (earlier, later)));
        pairs
            .filter(|&(earlier, later)| uses[earlier].conflict(&uses[later]) && !ended[later][earlier])
            .count()
    }

    /// Bodies of up to eight launches over five places of memory.
    fn random_bodies(count: usize) -> impl Iterator<Item = Vec<Uses<u8>>> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        (0..count).map(move |_| {
            let launches = 1 + next(8);
            let mut places = |most: u64| (0..next(most + 1)).map(|_| next(5) as u8).collect::<Vec<_>>();
            let operands: Vec<_> = (0..launches).map(|_| (places(2), places(1))).collect();
            operands.into_iter().map(|(reads, writes)| Uses { reads, writes, beside: next(3) == 0 }).collect()
        })
    }

    #[test]
    fn launches_that_conflict_run_in_their_order() {
        let mut divided = 0;
        for uses in random_bodies(20_000) {
            let placed = placed(&uses);
            assert_eq!(races(&uses, &placed), 0, "{uses:?}: {}", text(&placed));
            let mut launches: Vec<usize> = placed.iter().map(|it| it.launch).collect();
            launches.sort_unstable();
            assert!(launches.into_iter().eq(0..uses.len()));
            divided += usize::from(placed.iter().any(|it| it.beside));
        }
        assert!(divided > 1_000, "{divided} bodies had two streams");
    }

    #[test]
    fn every_wait_is_needed() {
        for uses in random_bodies(20_000) {
            let placed = placed(&uses);
            // The first of the second stream waits for what stands before the body, too.
            let first = placed.iter().position(|it| it.beside);
            for at in (0..placed.len()).filter(|at| placed[*at].waits && Some(*at) != first) {
                let mut without = placed.clone();
                without[at].waits = false;
                assert_ne!(races(&uses, &without), 0, "{uses:?}: {} without {at}", text(&placed));
            }
        }
    }
}
