//! A model whose ranks are processes: one of them.

use super::driver;
use super::fault::Fault;
use super::gpu::{Gpu, settle, version_text};
use super::model::{Model, Stack};
use super::nccl::{Communicator, Library};
use super::world::Gathered;
use monomorph_model::{
    BlockId, LoadError, LoadOptions, ModelSpec, OffloadRoom, OffloadSlot, Progress, SlidingId, SlidingSpec,
    StatePlace, Step, StepOutput, Ticket, Weights, device_fault,
};
use monomorph_world::Seat;
use std::mem::ManuallyDrop;

/// One of the ranks of a stack, which is alone in its process. Every process makes the same calls in the same
/// order: see `monomorph_hosts`.
pub struct Process<S: Stack> {
    /// Not dropped after a fault: the device may wait for a process that is gone, and to give memory back
    /// waits for the device.
    model: ManuallyDrop<Model<S>>,
    gpu: Gpu,
    seat: (usize, usize),
}

impl<S: Stack> Process<S> {
    fn collective(&self) -> Result<&Communicator, String> {
        self.model.steps.collective().ok_or_else(|| "no collective is joined".to_owned())
    }

    /// Gathers as many values as there is room for, in steps: NCCL connects to the other ranks in several
    /// ways, each when it is first needed, and that must not be while a graph is recorded.
    fn warm_up(&self, Gathered { at, bytes }: Gathered) -> Result<(), Fault> {
        let (rank, ranks) = self.seat;
        let Some(collective) = self.model.steps.collective() else { return Ok(()) };
        let most = bytes as usize / (ranks * size_of::<f32>());
        for count in (0..usize::BITS).map(|bits| 1 << bits).take_while(|count| *count <= most) {
            let own = at.offset((rank * count * size_of::<f32>()) as u64);
            collective.all_gather(self.gpu.stream(), own, at, count)?;
        }
        settle(&self.gpu)
    }
}

impl<S: Stack> Drop for Process<S> {
    fn drop(&mut self) {
        if device_fault().is_none() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.model) };
        }
    }
}

impl<S: Stack> monomorph_model::Model for Process<S> {
    /// Blocks, states and weights of all ranks.
    const SPEC: &'static ModelSpec = &ModelSpec {
        block_bytes: S::RANKS * S::SPEC.block_bytes,
        state_bytes: S::RANKS as u64 * S::SPEC.state_bytes,
        weight_bytes: S::RANKS as u64 * S::SPEC.weight_bytes,
        scratch_bytes: S::RANKS as u64 * S::SPEC.scratch_bytes,
        ..*S::SPEC
    };
    const SLIDING: Option<SlidingSpec> = SlidingSpec::over(S::RANKS, S::SLIDING);
    const STEPS_IN_FLIGHT: usize = <Model<S> as monomorph_model::Model>::STEPS_IN_FLIGHT;
    const SPLIT_SAMPLING: bool = <Model<S> as monomorph_model::Model>::SPLIT_SAMPLING;
    const RANKS: usize = S::RANKS;
    const PROCESSES: &'static [usize] = &[S::RANKS];

    fn check_hardware(ordinals: &[usize]) -> Result<(), LoadError> {
        Gpu::check(S::SPEC, ordinals, 1)
    }

    fn ordinal_of(uuid: &str) -> Result<usize, LoadError> {
        Gpu::ordinal_of(S::SPEC, uuid)
    }

    fn load(weights: &Weights, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError> {
        let Some(process) = options.process.as_ref().filter(|it| it.processes == S::RANKS) else {
            let ranks = S::RANKS;
            return Err(LoadError::Device(format!(
                "this build runs as {ranks} processes, and is none of them"
            )));
        };
        let (rank, ordinals) = (process.rank, options.ordinals(1)?);
        let seat = Seat::of_process(rank, S::RANKS, &ordinals[0]);
        let (model, gpu) = Model::load_stack(weights, options, progress, seat)?;
        Ok(Process { model: ManuallyDrop::new(model), gpu, seat: (rank, S::RANKS) })
    }

    fn blocks(&self) -> usize {
        self.model.blocks()
    }

    fn sliding_blocks(&self) -> usize {
        self.model.sliding_blocks()
    }

    fn sequences(&self) -> usize {
        self.model.sequences()
    }

    fn snapshots(&self) -> usize {
        self.model.snapshots()
    }

    fn offload(&self) -> Option<OffloadRoom> {
        self.model.offload()
    }

    fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        self.model.offload_blocks(blocks, to)
    }

    fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        self.model.read_block(block, into);
    }

    fn write_block(&mut self, block: BlockId, from: &[u8]) {
        self.model.write_block(block, from);
    }

    fn read_sliding(&mut self, block: SlidingId, into: &mut [u8]) {
        self.model.read_sliding(block, into);
    }

    fn write_sliding(&mut self, block: SlidingId, from: &[u8]) {
        self.model.write_sliding(block, from);
    }

    fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
        self.model.read_state(place, into);
    }

    fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        self.model.write_state(place, from);
    }

    fn versions(options: &LoadOptions) -> Result<(String, String), String> {
        let file = options.process.as_ref().and_then(|process| process.nccl.as_deref());
        let nccl = Library::open(file)?;
        if let Some(warning) = nccl.warning() {
            (options.report)(format_args!("{warning}"));
        }
        let driver = driver::version().map_err(|fault| fault.to_string())?;
        Ok((version_text(driver), nccl.version()))
    }

    fn identify() -> Result<Vec<u8>, String> {
        Library::opened()?.name()
    }

    fn join(&mut self, name: &[u8], rank: usize, processes: usize) -> Result<(), String> {
        if (rank, processes) != self.seat {
            let (own, ranks) = self.seat;
            return Err(format!(
                "it loaded the part of rank {own} of {ranks}, and joins as {rank} of {processes}"
            ));
        }
        self.gpu.enter().map_err(|fault| fault.to_string())?;
        let collective = Communicator::join(&self.gpu, name, rank, processes)?;
        self.model.steps.join(collective);
        Ok(())
    }

    fn add_up(&mut self, value: u64) -> Result<u64, String> {
        let Gathered { at, .. } = self.model.stack.gathered().ok_or_else(nothing)?;
        let (rank, ranks) = self.seat;
        let (stream, collective) = (self.gpu.stream(), self.collective()?);
        let own = at.offset((rank * size_of::<f32>()) as u64);
        let mut found = vec![0; ranks * size_of::<f32>()];
        // SAFETY: within the memory that is gathered in, which has room for a value of each rank; no step
        // runs yet.
        let gathered = unsafe { stream.upload(own.0, &(value as f32).to_le_bytes()) }
            .and_then(|()| collective.all_gather(stream, own, at, 1))
            // SAFETY: as above.
            .and_then(|()| unsafe { stream.download(at.0, &mut found) })
            .and_then(|()| stream.wait());
        gathered.map_err(|fault| fault.to_string())?;
        let values = found.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        Ok(values.sum::<f32>() as u64)
    }

    fn record(&mut self) -> Result<(), String> {
        let gathered = self.model.stack.gathered().ok_or_else(nothing)?;
        self.warm_up(gathered).and_then(|()| self.model.record()).map_err(|fault| fault.to_string())
    }

    fn submit(&mut self, step: &Step) -> Ticket {
        self.model.submit(step)
    }

    fn sample(&mut self, step: &Step) {
        self.model.sample(step);
    }

    fn collect(&mut self, ticket: Ticket) -> StepOutput {
        self.model.collect(ticket)
    }
}

fn nothing() -> String {
    "this build gathers nothing from other processes".to_owned()
}
