//! Everything that kernels are handed: weights, K/V, activations, the step.

use crate::Error;
use crate::manifest::{Argument, Attention, ExtentOf, Launch, Manifest, Plane, Program, Shape};
use crate::step::Step;
use half::{bf16, f16};
use monomorph_device::cuda::Module;
use monomorph_device::cuda::measure::{AnyKernel, Call, Card, fill_shape};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Copies of a weight come to at least so many times the bytes of the second-level cache: nothing is read
/// from there twice.
const CACHES: u64 = 3;
const MOST_COPIES: u64 = 128;
/// Bytes of random keys and values, repeated over the cache.
const CHUNK: u64 = 1 << 22;
/// More than any step reads or writes of its ids, its history and its results.
const STEP_TABLES: u64 = 1 << 16;

/// Kernels of a manifest, loaded when they are first asked for.
pub(crate) struct Kernels<'a> {
    manifest: &'a Manifest,
    directory: PathBuf,
    /// By cubin, and by the part of a multiprocessor's memory that its kernels share.
    modules: HashMap<(String, Option<u32>), Module>,
    known: HashMap<usize, AnyKernel>,
}

impl<'a> Kernels<'a> {
    pub(crate) fn new(manifest: &'a Manifest, directory: &Path) -> Kernels<'a> {
        Kernels { manifest, directory: directory.to_owned(), modules: HashMap::new(), known: HashMap::new() }
    }

    /// The modules that were loaded, each with the name of its cubin.
    pub(crate) fn modules(&self) -> impl Iterator<Item = (&str, &Module)> {
        self.modules.iter().map(|((name, _), module)| (name.as_str(), module))
    }

    fn module(&mut self, card: &Card, at: usize) -> Result<&Module, Error> {
        let kernel = &self.manifest.kernels[at];
        if let Some(defect) = kernel.defects.first().filter(|_| !self.manifest.trace) {
            return Err(format!("kernel {}: {defect}", kernel.name).into());
        }
        let name = kernel.module.as_ref().ok_or_else(|| format!("kernel {} has no cubin", kernel.name))?;
        let key = (name.clone(), kernel.shared_part);
        if !self.modules.contains_key(&key) {
            let path = self.directory.join(format!("{name}.cubin"));
            let cubin = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            self.modules.insert(key.clone(), card.module(name, &cubin, kernel.shared_part)?);
        }
        Ok(&self.modules[&key])
    }

    fn get(&mut self, card: &Card, at: usize) -> Result<AnyKernel, Error> {
        if let Some(kernel) = self.known.get(&at) {
            return Ok(*kernel);
        }
        let it = &self.manifest.kernels[at];
        let kernel = card.kernel(self.module(card, at)?, &it.name, it.block, it.shared)?;
        self.known.insert(at, kernel);
        Ok(kernel)
    }
}

/// Made-up weights: an instance a layer, and more where the cache would hold them all.
pub(crate) struct Weights {
    /// By field, instance and plane: codes, scales, row scales.
    instances: Vec<Vec<[u64; 3]>>,
}

impl Weights {
    pub(crate) fn new(manifest: &Manifest, card: &mut Card, kernels: &mut Kernels) -> Result<Weights, Error> {
        let (mut instances, mut seed) = (Vec::new(), 0);
        for field in &manifest.fields {
            let fill = &manifest.kernels[field.fill];
            let fill = (fill.name.as_str(), fill.block);
            let copies = match field.shape {
                Shape::Matrix { codes, .. } => copies(manifest, field.instances, codes),
                Shape::Vector { .. } => field.instances,
            };
            let mut made = Vec::new();
            for _ in 0..copies {
                seed += 1;
                let planes = match field.shape {
                    Shape::Matrix { rows, columns, gated, codes, scales, row_scales } => {
                        let mut plane = |bytes| if bytes > 0 { card.allocate(bytes) } else { Ok(0) };
                        let planes = [plane(codes)?, plane(scales)?, plane(row_scales)?];
                        let shape = fill_shape(rows, columns, gated, seed);
                        card.fill_matrix(kernels.module(card, field.fill)?, fill, planes, shape)?;
                        planes
                    }
                    Shape::Vector { length, centre } => {
                        let values = card.allocate(4 * length as u64)?;
                        card.fill_vector(
                            kernels.module(card, field.fill)?,
                            fill,
                            (values, length),
                            centre,
                            seed,
                        )?;
                        [values, 0, 0]
                    }
                };
                made.push(planes);
            }
            instances.push(made);
        }
        card.wait()?;
        Ok(Weights { instances })
    }

    /// Instances of a field.
    pub(crate) fn copies(&self, field: usize) -> usize {
        self.instances[field].len()
    }
}

/// Copies of `bytes` each, at least `least`, that no cache holds.
fn copies(manifest: &Manifest, least: usize, bytes: u64) -> usize {
    let enough = (CACHES * manifest.card.l2_bytes).div_ceil(bytes.max(1)).min(MOST_COPIES);
    least.max(enough as usize)
}

/// Activations and what kernels work in, by name: address and bytes.
pub(crate) type Areas = BTreeMap<String, (u64, u64)>;

pub(crate) fn areas(manifest: &Manifest, card: &mut Card) -> Result<Areas, Error> {
    let sizes = manifest.buffers.iter().chain(&manifest.scratch).filter(|(_, bytes)| **bytes > 0);
    sizes.map(|(name, bytes)| Ok((name.clone(), (card.allocate(*bytes)?, *bytes)))).collect()
}

/// What one program works on: in decode behind `context` tokens of each sequence, in prefill with a prompt of
/// so many.
pub(crate) struct Memory {
    sizes: [u32; 3],
    step: u64,
    tokens: u64,
    sampled_ids: u64,
    history: u64,
    sampled: u64,
    /// By body and copy.
    caches: Vec<Vec<u64>>,
    rotary: Vec<u64>,
    /// By body, part and layer: with the bytes of a part.
    states: Vec<BTreeMap<String, (u64, Vec<u64>)>>,
}

impl Memory {
    pub(crate) fn new(
        manifest: &Manifest,
        card: &mut Card,
        chunk: u64,
        program: &Program,
        context: usize,
    ) -> Result<Memory, Error> {
        let block_tokens = manifest.kv.block_tokens;
        let step = match program.decode {
            true => Step::decode(program.rows, context, block_tokens),
            false => Step::prefill(context, block_tokens),
        };
        let (mut caches, mut rotary, mut states) = (Vec::new(), Vec::new(), Vec::new());
        for body in &manifest.bodies {
            let attention = body.attention.as_ref();
            caches.push(match attention {
                Some(it) => cache(manifest, card, chunk, it, step.blocks as u64, body.layers)?,
                None => Vec::new(),
            });
            rotary.push(match attention {
                Some(it) => card.uploaded_angles(&it.inverse, it.factor, context + 1)?,
                None => 0,
            });
            let mut parts = BTreeMap::new();
            for (name, bytes) in body.state.iter().flatten().filter(|(_, bytes)| **bytes > 0) {
                let bytes = manifest.max_sequences as u64 * bytes;
                let layers: Result<Vec<u64>, _> = (0..body.layers).map(|_| card.allocate(bytes)).collect();
                parts.insert(name.clone(), (bytes, layers?));
            }
            states.push(parts);
        }
        let memory = Memory {
            sizes: [step.tokens, step.sequences, step.outputs].map(|it| it as u32),
            tokens: card.uploaded(if step.rows.is_empty() { &[0; 8] } else { &step.rows })?,
            step: card.uploaded(&step.header)?,
            sampled_ids: card.allocate(STEP_TABLES)?,
            history: card.allocate(STEP_TABLES)?,
            sampled: card.allocate(STEP_TABLES)?,
            caches,
            rotary,
            states,
        };
        card.wait()?;
        Ok(memory)
    }

    /// Makes recurrent states as before a first token, so that the same launches have the same results.
    pub(crate) fn forget(&self, card: &Card) -> Result<(), Error> {
        for (bytes, layers) in self.states.iter().flat_map(BTreeMap::values) {
            layers.iter().try_for_each(|address| card.fill(*address, *bytes, 0))?;
        }
        Ok(())
    }

    /// Copies of a body's cache.
    pub(crate) fn caches(&self, body: usize) -> usize {
        self.caches[body].len()
    }
}

/// Random keys and values for each layer, and for more where the second-level cache would hold all.
fn cache(
    manifest: &Manifest,
    card: &mut Card,
    chunk: u64,
    attention: &Attention,
    blocks: u64,
    layers: usize,
) -> Result<Vec<u64>, Error> {
    let (bytes, ahead) = (attention.block_bytes * blocks, attention.ahead_bytes);
    let ones = 1f32.to_le_bytes().repeat(attention.static_scales);
    let mut caches = Vec::new();
    for _ in 0..copies(manifest, layers, bytes) {
        let start = card.allocate(ahead + bytes)?;
        let address = start + ahead;
        if ahead > 0 {
            // In front of the scales stands what is measured: nothing.
            let scales = card.uploaded(&ones)?;
            card.copy(scales, address - ones.len() as u64, ones.len() as u64)?;
        }
        for at in (0..bytes).step_by(CHUNK as usize) {
            card.copy(chunk, address + at, CHUNK.min(bytes - at))?;
        }
        caches.push(address);
    }
    Ok(caches)
}

/// Formats of keys and values whose elements have codes.
const NARROW: [&str; 5] = ["fp8", "nvfp4", "turbo8", "turbo4", "turbo3"];

/// [`CHUNK`] bytes of values of mean 0 and deviation 1, the same at every call.
pub(crate) fn random_kv(format: &str) -> Result<Vec<u8>, Error> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    // Twelve uniform values have the variance 1.
    let mut value = || (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
    let mut bytes = Vec::with_capacity(CHUNK as usize);
    while bytes.len() < CHUNK as usize {
        match format {
            "bf16" => bytes.extend(bf16::from_f32(value()).to_le_bytes()),
            "f16" => bytes.extend(f16::from_f32(value()).to_le_bytes()),
            "f32" => bytes.extend(value().to_le_bytes()),
            // Codes and scales whose exponents are small. Of two formats both are narrow.
            narrow if NARROW.contains(&narrow) || narrow.ends_with(" values") => {
                bytes.push((value() * 32.0) as i32 as u8 & 0xbf);
            }
            other => return Err(format!("K/V of format {other} cannot be made up").into()),
        }
    }
    Ok(bytes)
}

/// Where arguments of launches are found.
pub(crate) struct Places<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) weights: &'a Weights,
    pub(crate) areas: &'a Areas,
}

impl Places<'_> {
    /// A launch for a layer, with the range of weights that follows it.
    pub(crate) fn call(
        &self,
        (card, kernels): (&Card, &mut Kernels),
        memory: &Memory,
        launch: &Launch,
        layer: usize,
        following: [u64; 2],
    ) -> Result<Call, Error> {
        let [tokens, sequences, outputs] = memory.sizes;
        let grid = launch.grid.map(|(of, number)| match of {
            ExtentOf::Fixed => number,
            ExtentOf::Tokens => tokens.div_ceil(number),
            ExtentOf::Sequences => sequences.div_ceil(number),
            ExtentOf::Outputs => outputs.div_ceil(number),
        });
        let kernel = kernels.get(card, launch.kernel)?;
        let address = |argument| self.address(memory, argument, layer, following);
        Ok(Call { kernel, grid, arguments: launch.arguments.iter().map(address).collect::<Result<_, _>>()? })
    }

    /// The codes of the first matrix behind place `at` of the schedule: where they begin and end.
    pub(crate) fn following(&self, memory: &Memory, at: usize) -> Result<[u64; 2], Error> {
        for (body, layer) in &self.manifest.schedule[at + 1..] {
            if let Some(first) = self.manifest.bodies[*body].first {
                let codes = Argument::Field(first, Plane::Codes);
                let begin = self.address(memory, &codes, *layer, [0; 2])?;
                let Shape::Matrix { codes, .. } = self.manifest.fields[first].shape else {
                    return Err(format!("{} is no matrix", self.manifest.fields[first].name).into());
                };
                return Ok([begin, begin + codes]);
            }
        }
        Ok([0; 2])
    }

    fn address(
        &self,
        memory: &Memory,
        argument: &Argument,
        layer: usize,
        following: [u64; 2],
    ) -> Result<u64, Error> {
        Ok(match argument {
            Argument::Step => memory.step,
            Argument::Tokens => memory.tokens,
            Argument::SampledIds => memory.sampled_ids,
            Argument::History => memory.history,
            Argument::Sampled => memory.sampled,
            Argument::Buffer(name) | Argument::Scratch(name) => {
                self.areas.get(name).ok_or_else(|| format!("there is no area {name}"))?.0
            }
            Argument::Field(field, plane) => {
                let instances = &self.weights.instances[*field];
                instances[layer % instances.len()][*plane as usize]
            }
            Argument::Cache(body) => memory.caches[*body][layer % memory.caches[*body].len()],
            Argument::State(body, part) => {
                memory.states[*body].get(part).ok_or_else(|| format!("there is no state {part}"))?.1[layer]
            }
            Argument::Following(at) => following[*at],
            Argument::Rotary(body) => memory.rotary[*body],
            Argument::Null => 0,
            Argument::Pass(_) | Argument::Ids(_) | Argument::Drafted(_) | Argument::Held => {
                return Err(format!("{argument:?}: programs that draft are not tuned").into());
            }
        })
    }
}
