//! Reports, and, where there are two GPUs, ranks that are introduced to each other.

use super::super::driver::Claim;
use super::*;
use monomorph_abi::world::WORLD_BYTES;
use monomorph_model::{
    BlockId, CudaSpec, Figures, HardwareSpec, HostGuard, LoadOptions, Model, ModelSpec, Progress, Protocol,
    StatesWanted, Step, StepOutput, Ticket, Weights,
};
use monomorph_world::Rank;

#[test]
fn a_report_is_read_once_it_is_written() {
    let peer = MissingPeer { written: 1, rank: 0, peer: 1, gathers: 1, turn: 17, row: 3 };
    assert_eq!(missing(bytes_of(&[MissingPeer { written: 0, ..peer }])).map(|it| it.to_string()), None);
    let words = missing(bytes_of(&[peer])).map(|it| it.to_string());
    assert_eq!(words.as_deref(), Some("rank 0 waited in vain for the part of rank 1 in gather 17, row 3"));
}

const RANKS: usize = 2;
const INBOX: u64 = 4096;
const SPEC: ModelSpec = ModelSpec {
    target: "h200/trial/none",
    model: "trial",
    specs: &[],
    commit: None,
    hardware: HardwareSpec {
        name: "h200",
        features: &[],
        cuda: Some(CudaSpec {
            architecture: "sm_90a",
            capability: (9, 0),
            multiprocessors: 1,
            tuning: "none",
        }),
    },
    hidden: 0,
    layers: 0,
    vocabulary: 0,
    context: 0,
    block_tokens: 0,
    block_bytes: 0,
    state_bytes: 0,
    step_tokens: 0,
    step_sequences: 0,
    kv_formats: monomorph_formats::cached::KvFormats::both(monomorph_formats::cached::Cached::F32),
    kv_exact_layers: 0,
    kv_scales: None,
    kv_elements: 0,
    formats: &[],
    tensors: &[],
    unused: &[],
    files: &[],
    canaries: &[],
    weight_bytes: 0,
    scratch_bytes: 0,
    protocol: Protocol { stop_ids: &[], chat_template: None, tools: None, reasoning: None },
    sampling: &[],
    figures: Figures {
        limit_decode: 0.0,
        limit_prefill: 0.0,
        predicted_decode: 0.0,
        predicted_prefill: 0.0,
        copy_bandwidth: 0.0,
    },
    draft: None,
    batch_invariant: None,
};

/// A rank that has only inboxes.
struct Trial {
    // Dropped first.
    _claim: Claim,
    _gpu: Gpu,
}

impl Rank for Trial {
    fn load_rank(_: &Weights, _: &LoadOptions, _: &Progress, seat: Seat) -> Result<Self, LoadError> {
        let gpu = Gpu::open(&SPEC, seat.ordinal())?;
        gpu.reach(seat)?;
        gpu.reach(seat)?;
        let claim = Claim::new(3 * INBOX)?;
        let stream = gpu.stream();
        // SAFETY: just claimed.
        unsafe { stream.clear(claim.start, claim.bytes) }?;
        stream.wait()?;
        let at = |part: u64| Pointer(claim.start + part * INBOX);
        let memory = WorldMemory {
            world: at(0),
            sums: at(1),
            sums_bytes: INBOX,
            gathered: at(2),
            gathered_bytes: INBOX,
        };
        let addresses = seat.exchange("addresses", [claim.start])?;
        let exchange = Exchange::open(&gpu, memory, Traffic::NONE, seat)?;
        let mut found = vec![0; 3 * INBOX as usize];
        // SAFETY: within the claim.
        unsafe { stream.download(claim.start, &mut found) }?;
        stream.wait()?;
        let all = [INBOX, 2 * INBOX].map(|from| addresses.iter().map(|it| it[0] + from).collect::<Vec<_>>());
        let report = exchange.report.address()?.0;
        let world = World::new(seat.rank(), [&all[0], &all[1]], report, DEADLINE_NS);
        assert_eq!(&found[..WORLD_BYTES], bytes_of(&[world]));
        assert!(found[INBOX as usize..].iter().all(|byte| *byte == EMPTY));
        seat.meet("the end")?;
        Ok(Trial { _claim: claim, _gpu: gpu })
    }
}

impl Model for Trial {
    const SPEC: &'static ModelSpec = &SPEC;
    const RANKS: usize = RANKS;

    fn load(_: &Weights, _: &LoadOptions, _: &Progress) -> Result<Self, LoadError> {
        unreachable!("a rank")
    }

    fn blocks(&self) -> usize {
        0
    }

    fn sequences(&self) -> usize {
        0
    }

    fn read_block(&mut self, _: BlockId, _: &mut [u8]) {}

    fn write_block(&mut self, _: BlockId, _: &[u8]) {}

    fn submit(&mut self, _: &Step) -> Ticket {
        unreachable!("no steps")
    }

    fn collect(&mut self, _: Ticket) -> StepOutput {
        unreachable!("no steps")
    }
}

fn load(ordinals: Vec<usize>) -> Result<(), LoadError> {
    let options = LoadOptions {
        blocks: None,
        context: 0,
        shorter: false,
        states: StatesWanted::default(),
        offload: None,
        memory_fraction: 1.0,
        guard: HostGuard { bytes: 0, available: || u64::MAX },
        threads: 1,
        report: |_| {},
        ordinals,
        process: None,
        kv_calibration: Vec::new(),
    };
    monomorph_world::World::<Trial>::load(&Weights::Dummy { seed: 0 }, &options, &Progress::default())
        .map(drop)
}

#[test]
#[ignore = "needs two GPUs that reach each other"]
fn ranks_know_the_inboxes_of_all() {
    load(Vec::new()).expect("two GPUs");
    load(vec![1, 0]).expect("again, the other way round");
    let words = load(vec![0, 99]).expect_err("no such GPU").to_string();
    assert!(
        words.contains("rank 1 (GPU 99)") && words.contains("of number 99, and the driver finds"),
        "{words}"
    );
}

/// What a kernel is loaded by must not be its first launch: that would wait for a device which polls.
#[test]
#[ignore = "needs a GPU"]
fn a_kernel_that_was_looked_up_is_loaded() {
    use super::super::module::Module;
    use cudarc::driver::sys;
    const PTX: &str =
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n\0";
    let gpu = Gpu::open(&SPEC, 0).expect("a GPU");
    let module = Module::load(&gpu, "trial", PTX.as_bytes(), None).expect("a sound module");
    let kernel = module.any_kernel::<()>("nothing", 32, 0).expect("its kernel");
    let mut state = sys::CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_MAX;
    // SAFETY: writes one number; the function is alive.
    let result = unsafe { sys::cuFuncIsLoaded(&mut state, kernel.function) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    assert_eq!(state, sys::CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED);
}
