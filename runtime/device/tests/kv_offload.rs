//! Attention over blocks on disk: the same bits as over resident ones, whatever is where and however little
//! is staged at a time.
//!
//! Planted, one at a time, and caught here: a window's blocks taken one too early; the states of rows not
//! carried from one window to the next; a window released before the lanes are done with it; a pass that
//! reads the parts of the layer before; a failed read that is not reported (its rows are not lost).

mod common;

use common::{Random, sequence};
use monomorph_device::cpu::*;
use monomorph_model::{
    BlockId, OffloadOptions, OffloadRoom, OffloadSlot, Output, RowOutput, SequenceStep, Slot, Step,
};
use std::path::Path;

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const DIM: usize = 32;
const QKV: usize = (HEADS + 2 * KV_HEADS) * DIM;
const OUT: usize = HEADS * DIM;
const LAYERS: usize = 3;
const TOKENS: usize = 96;

static PARTS: [usize; LAYERS] = [0, 1, 2];

fn options(directory: &Path, bytes: u64, page_bytes: usize, window_pages: Option<usize>) -> OffloadOptions {
    OffloadOptions {
        directory: directory.to_owned(),
        bytes,
        depth: 8,
        page_bytes,
        resident: None,
        window_pages,
    }
}

/// What is in a cache, and how it is attended to.
struct Case<E, const BLOCK: usize> {
    team: Team,
    offload: KvOffload,
    cache: KvCache<E, KV_HEADS, DIM, BLOCK>,
    batch: Batch,
    scratch: AttentionScratch<HEADS, KV_HEADS, DIM>,
    qkv: Rows<QKV>,
    out: Rows<OUT>,
    angles: Rows<DIM>,
}

impl<E: KvKept, const BLOCK: usize> Case<E, BLOCK> {
    fn new(lanes: usize, blocks: usize, offload: Option<&OffloadOptions>) -> Self {
        let mut cache = KvCache::<E, KV_HEADS, DIM, BLOCK>::new(&PARTS, blocks).unwrap();
        let part = KvCache::<E, KV_HEADS, DIM, BLOCK>::block_bytes(1);
        let offload = KvOffload::open(offload, blocks, BLOCK, &[(part, &PARTS)], |_| {}).unwrap();
        cache.stream(&offload);
        let limits = BatchLimits {
            tokens: TOKENS,
            sequences: 4,
            vocabulary: 10,
            context: 4096,
            block_tokens: BLOCK,
            blocks,
        };
        Case {
            team: Team::new(lanes).unwrap(),
            cache,
            batch: Batch::new(limits).streamed(&offload),
            scratch: AttentionScratch::new(lanes, 4096).streamed(TOKENS),
            qkv: Rows::new(TOKENS),
            out: Rows::new(TOKENS),
            angles: Rows::new(TOKENS),
            offload,
        }
    }

    /// One step: what each layer makes of these rows; and what became of the sequences.
    fn step(&mut self, step: &Step, rows: &[Vec<f32>]) -> (Vec<Vec<f32>>, Vec<RowOutput>) {
        let mut outputs = Outputs::<0>::default();
        self.batch.fill(step, &outputs);
        outputs.begin(step);
        self.offload.begin(step, &self.batch, 0..LAYERS);
        let mut found = Vec::new();
        let frequencies: [f32; DIM / 2] = std::array::from_fn(|i| 0.7f32.powi(i as i32 * 3));
        for layer in 0..LAYERS {
            for (row, values) in rows.iter().enumerate() {
                let mine = self.qkv.row_mut(row);
                mine.copy_from_slice(values);
                mine[0] += layer as f32;
                mine[QKV - 1] -= layer as f32;
            }
            let Case { team, batch, qkv, angles, cache, scratch, out, .. } = &*self;
            team.run(|lane| {
                rotary_angles(lane, batch, &frequencies, 1.0, angles);
                attention(
                    lane, batch, layer, qkv, &NoNorm, &NoNorm, angles, Halves, 0.3, cache, scratch, out,
                );
            });
            found.extend((0..rows.len()).map(|row| self.out.row(row).to_vec()));
        }
        self.offload.end(step, &mut outputs);
        let ticket = outputs.end();
        (found, outputs.collect(ticket).rows)
    }
}

/// A sequence as both caches have it.
struct Stream {
    slot: u32,
    rows: Vec<Vec<f32>>,
    done: usize,
    /// Blocks, in the cache that has all of them.
    whole: Vec<u32>,
    /// Blocks, or places on disk, in the other.
    table: Vec<Result<u32, (u32, usize)>>,
}

/// Runs sequences of so many tokens with all blocks resident, and beside them with blocks sent to disk at
/// random as soon as they are full; both must give the same bits.
fn equal<E: KvKept, const BLOCK: usize>(
    lanes: usize,
    lengths: &[usize],
    most: usize,
    page_bytes: usize,
    window: Option<usize>,
    seed: u64,
) {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path(), 64 << 20, page_bytes, window);
    let mut random = Random(seed);
    let mut streams: Vec<Stream> = (0..)
        .zip(lengths)
        .map(|(slot, n)| Stream {
            slot,
            rows: (0..*n).map(|_| random.vector(QKV, 1.0)).collect(),
            done: 0,
            whole: Vec::new(),
            table: Vec::new(),
        })
        .collect();
    let all: usize = lengths.iter().map(|n| n.div_ceil(BLOCK)).sum();
    let mut resident = Case::<E, BLOCK>::new(lanes, all, None);
    let mut streamed = Case::<E, BLOCK>::new(lanes, all, Some(&options));
    let OffloadRoom { places, group } = streamed.offload.room().expect("there is room");
    let mut free: Vec<u32> = (0..all as u32).collect();
    // In no order, as sequences that come and go leave them.
    let mut places: Vec<u32> = (0..places as u32).collect();
    let (mut next, mut sent, mut steps) = (0, 0, 0);
    while streams.iter().any(|stream| stream.done < stream.rows.len()) {
        let (mut whole, mut offloaded) = (Step::default(), Step::default());
        let (mut rows, mut room) = (Vec::new(), TOKENS);
        for stream in &mut streams {
            let left = (stream.rows.len() - stream.done).min(room);
            if left == 0 || random.below(4) == 0 {
                continue;
            }
            let count = left.min(1 + random.below(most));
            let end = stream.done + count;
            while stream.whole.len() < end.div_ceil(BLOCK) {
                stream.whole.push(next);
                stream.table.push(Ok(free.swap_remove(random.below(free.len()))));
                next += 1;
            }
            // Full, and not in order: what is first may stay.
            for from in 0..stream.table.len() {
                let blocks: Vec<u32> =
                    stream.table[from..].iter().take(group).map_while(|place| place.ok()).collect();
                if blocks.len() < group
                    || (from + group) * BLOCK > stream.done
                    || random.below(3) > 0
                    || places.is_empty()
                {
                    continue;
                }
                let to = places.swap_remove(random.below(places.len()));
                let ids: Vec<BlockId> = blocks.iter().map(|block| BlockId(*block)).collect();
                streamed.cache.offload_blocks(&ids, OffloadSlot(to)).unwrap();
                free.extend(blocks);
                for (at, place) in stream.table[from..from + group].iter_mut().enumerate() {
                    *place = Err((to, at));
                }
                sent += 1;
            }
            let row = sequence(stream.done, vec![1; count], &stream.whole, Output::None);
            let row = SequenceStep { slot: Slot(stream.slot), ..row };
            let table = stream.table.iter().map(|place| match *place {
                Ok(block) => BlockId(block),
                Err((to, at)) => {
                    if at == 0 {
                        offloaded.offloaded.push(OffloadSlot(to));
                    }
                    BlockId((all + (offloaded.offloaded.len() - 1) * group + at) as u32)
                }
            });
            let table = SequenceStep { blocks: table.collect(), ..row.clone() };
            whole.sequences.push(row);
            offloaded.sequences.push(table);
            rows.extend_from_slice(&stream.rows[stream.done..end]);
            room -= count;
            stream.done = end;
        }
        if rows.is_empty() {
            continue;
        }
        let (expected, _) = resident.step(&whole, &rows);
        let (found, outputs) = streamed.step(&offloaded, &rows);
        assert!(outputs.iter().all(|row| matches!(row, RowOutput::None)), "{outputs:?}");
        assert!(found == expected, "step {steps} with {} blocks on disk", offloaded.offloaded.len());
        steps += 1;
    }
    assert!(sent * group > 10, "{sent} groups of {group} blocks were sent");
}

#[test]
fn blocks_on_disk_are_as_good_as_resident_ones() {
    // Groups of one block and of several; a window of one segment, of a few, and of all there is.
    for (seed, page, window) in [(1, 0, Some(0)), (2, 60_000, Some(4)), (3, 20_000, None)] {
        equal::<f32, 16>(2, &[500, 40, 333], 96, page, window, seed);
        equal::<f16, 16>(3, &[900], 33, page, window, seed);
    }
    equal::<bf16, 48>(2, &[900, 500], 50, 0, Some(0), 4);
    equal::<f16, 32>(1, &[400, 129, 128, 900], 20, 30_000, Some(3), 5);
}

#[test]
fn narrow_blocks_go_to_disk_with_their_scales() {
    equal::<Fp8, 16>(2, &[500, 40], 96, 20_000, Some(4), 8);
    equal::<(Turbo8, Turbo4), 32>(2, &[333, 129], 33, 0, Some(0), 9);
    equal::<(Nvfp4, Turbo3), 16>(3, &[400], 50, 20_000, None, 10);
}

#[test]
fn token_by_token_contexts_are_split_over_lanes() {
    equal::<f16, 16>(4, &[400], 1, 20_000, Some(3), 6);
    equal::<f32, 128>(2, &[2400, 1000], 80, 0, Some(0), 7);
}

#[test]
fn what_cannot_be_read_is_lost_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path(), 1 << 24, 0, Some(0));
    let mut case = Case::<f32, 16>::new(2, 8, Some(&options));
    let mut random = Random(8);
    let rows: Vec<Vec<f32>> = (0..66).map(|_| random.vector(QKV, 1.0)).collect();
    let first =
        Step { sequences: vec![sequence(0, vec![1; 64], &[0, 1, 2, 3], Output::None)], ..Step::default() };
    case.step(&first, &rows[..64]);
    case.cache.offload_blocks(&[BlockId(0)], OffloadSlot(0)).unwrap();
    // Nothing was ever sent to the second of these places.
    let offloaded = sequence(64, vec![1], &[8, 9, 2, 3, 4], Output::None);
    let other = SequenceStep { slot: Slot(1), ..sequence(0, vec![1], &[5], Output::None) };
    let step = |places: &[u32]| Step {
        offloaded: places.iter().map(|place| OffloadSlot(*place)).collect(),
        sequences: vec![offloaded.clone(), other.clone()],
        ..Step::default()
    };
    let (found, outputs) = case.step(&step(&[0, 399]), &rows[64..]);
    let [RowOutput::Lost(why), RowOutput::None] = &outputs[..] else { panic!("{outputs:?}") };
    assert!(why.contains("disk"), "{why}");
    assert!(found.iter().flatten().all(|x| x.is_finite()));
    // The step after finds everything.
    case.cache.offload_blocks(&[BlockId(1)], OffloadSlot(399)).unwrap();
    let (_, outputs) = case.step(&step(&[0, 399]), &rows[64..]);
    assert!(outputs.iter().all(|row| matches!(row, RowOutput::None)), "{outputs:?}");
}

#[test]
#[should_panic(expected = "there is no K/V block 8")]
fn a_block_on_disk_that_would_be_written_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path(), 1 << 24, 0, Some(0));
    let mut case = Case::<f32, 16>::new(1, 8, Some(&options));
    let step = Step {
        offloaded: vec![OffloadSlot(0)],
        sequences: vec![sequence(3, vec![1], &[8], Output::None)],
        ..Step::default()
    };
    case.step(&step, &[vec![0.0; QKV]]);
}
