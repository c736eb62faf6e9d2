//! Phases of a mixture: rules, operands, cost.

use super::super::{BlockOp, Kind, PhaseKind};
use super::graph::{ExpertDown, ExpertGate, ExpertUp, Route, Weighing};
use super::kernels::{
    ExpertsStream, ExpertsStreamDown, ExpertsStreamDownSum, ExpertsStreamSum, ExpertsStreamUp,
    ExpertsStreamUpPart,
};
use crate::blocks::products;
use crate::emit::call::Call;
use crate::emit::names::Working;
use crate::graph::Op;
use crate::kernels::{Arguments, Signature};
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::{Fusion, Lowering};
use crate::passes::{PassError, pass_error};
use crate::plan::Packing::{self, Stacked};
use crate::plan::cuda::{Cut, Launch};
use crate::plan::{BufferId, FieldId, Plan, Work};
use crate::spec::types::Activation;
use proc_macro2::TokenStream;

/// What a router chooses and weighs by, and hence what rows of its results hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// What keys and weights are.
    pub weighing: Weighing<FieldId>,
    /// What multiplies the weight of each expert, if they are scaled.
    pub scales: Option<FieldId>,
}

impl Choice {
    /// That of the op that the rule calls `route`, whose fields stand in its order.
    fn of(it: &Lowering, route: &str) -> Choice {
        let Route { weighing, scales, .. } = it.block_op::<Route>(route);
        let mut own = it.all_own(route).into_iter();
        let mut next = || own.next().expect("an op has a field for each of its vectors");
        let weighing = match *weighing {
            Weighing::Softmax { renormalise } => Weighing::Softmax { renormalise },
            Weighing::Scores { scale, .. } => Weighing::Scores { correction: next(), scale },
        };
        Choice { weighing, scales: scales.map(|_| next()) }
    }

    /// What is added to scores, if there are such.
    pub(super) fn correction(&self) -> Option<FieldId> {
        match self.weighing {
            Weighing::Softmax { .. } => None,
            Weighing::Scores { correction, .. } => Some(correction),
        }
    }

    /// All fields, in the op's order.
    pub(super) fn fields(&self) -> impl Iterator<Item = FieldId> {
        self.correction().into_iter().chain(self.scales)
    }
}

/// The router, and the inner rows of the experts it chooses and of the shared expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Residual stream.
    pub x: BufferId,
    /// Norm before all products.
    pub norm: FieldId,
    /// The router's matrix; the row that weighs a shared expert, if one does, comes last.
    pub router: FieldId,
    /// That row, where its format is not the router's. Of CPUs only.
    pub weigher: Option<FieldId>,
    /// The router's logits, and beside them the shared expert's weight before the sigmoid.
    pub logits: BufferId,
    /// Chosen weights, then chosen experts.
    pub routing: BufferId,
    /// Gate and up of every expert, [`Packing::Gated`](crate::plan::Packing::Gated), or only up; or the gate
    /// alone, beside `up`.
    pub matrix: FieldId,
    /// Up of every expert, where its format is not the gate's. Of CPUs only.
    pub up: Option<FieldId>,
    /// The product of normed rows that the experts read, if they do not read these.
    pub latent: Option<Latent>,
    /// Whether experts have gates.
    pub gated: bool,
    /// Experts chosen per token.
    pub active: usize,
    /// What the router chooses and weighs by.
    pub choice: Choice,
    /// Activation of every gate, or of every inner element.
    pub activation: Activation,
    /// Input of the down products: the rows of the chosen experts side by side.
    pub out: BufferId,
    /// The shared expert, if there is one.
    pub shared: Option<SharedUp>,
}

/// The shared expert's part of [`Experts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedUp {
    /// Gate and up, [`Packing::Gated`](crate::plan::Packing::Gated), or only up; or the gate alone, beside
    /// `up`.
    pub matrix: FieldId,
    /// Up, where its format is not the gate's. Of CPUs only.
    pub up: Option<FieldId>,
    /// Input of its down product.
    pub out: BufferId,
    /// Whether a row of the router's matrix weighs its result.
    pub weighed: bool,
}

/// The router of experts that reads the residual stream through a norm of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judge {
    /// Residual stream.
    pub x: BufferId,
    /// Norm before the router.
    pub norm: FieldId,
    /// Multiplies what the router reads, or its logits.
    pub factor: f32,
    /// The router's matrix.
    pub router: FieldId,
    /// What the router gives.
    pub logits: BufferId,
    /// Chosen weights, then chosen experts.
    pub routing: BufferId,
    /// What it chooses and weighs by.
    pub choice: Choice,
}

impl Kind for Judge {
    fn name(&self) -> &'static str {
        "judge"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.logits, self.routing])
    }

    fn fields(&self) -> Vec<FieldId> {
        [self.norm, self.router].into_iter().chain(self.choice.fields()).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.router)
    }

    fn work(&self, work: &mut Work) {
        work.routing(self.router, work.given.tokens);
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.judge(site, self, launches)
    }
}

/// The inner rows of experts chosen before, which read the residual stream through a norm of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// Residual stream.
    pub x: BufferId,
    /// Norm before the products.
    pub norm: FieldId,
    /// Chosen weights, then chosen experts.
    pub routing: BufferId,
    /// Gate and up of every expert, [`Packing::Gated`](crate::plan::Packing::Gated); or the gate alone,
    /// beside `up`.
    pub matrix: FieldId,
    /// Up of every expert, where its format is not the gate's. Of CPUs only.
    pub up: Option<FieldId>,
    /// Experts chosen per token.
    pub active: usize,
    /// Activation of every gate.
    pub activation: Activation,
    /// Input of the down products: the rows of the chosen experts side by side.
    pub out: BufferId,
}

impl Kind for Chosen {
    fn name(&self) -> &'static str {
        "chosen"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x, self.routing], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        [self.norm, self.matrix].into_iter().chain(self.up).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn chooses(&self) -> Option<(FieldId, usize)> {
        Some((self.matrix, self.active))
    }

    fn work(&self, work: &mut Work) {
        for matrix in self.staged() {
            work.chosen(matrix, self.active, work.given.tokens);
        }
    }

    fn staged(&self) -> Vec<FieldId> {
        with(self.matrix, self.up).collect()
    }

    fn apart(&self) -> Vec<FieldId> {
        pair(self.matrix, self.up)
    }

    fn working(&self, plan: &Plan) -> Vec<Working> {
        Chosen::working(self, plan)
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cut(&self, kernel: &Signature) -> Option<Cut> {
        cut(kernel)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.chosen(site, self, launches)
    }
}

/// The projection before experts of another width than the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// From the residual stream's width to the experts'.
    pub matrix: FieldId,
    /// What the experts read.
    pub out: BufferId,
}

impl Kind for Experts {
    fn name(&self) -> &'static str {
        "experts"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        let shared = self.shared.map(|it| it.out).into_iter().chain(self.latent.map(|it| it.out));
        (vec![self.x], [self.logits, self.routing].into_iter().chain(shared).chain([self.out]).collect())
    }

    fn fields(&self) -> Vec<FieldId> {
        let router = with(self.router, self.weigher);
        let own = [self.norm].into_iter().chain(router).chain(self.choice.fields());
        own.chain(with(self.matrix, self.up)).chain(self.beside()).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn chooses(&self) -> Option<(FieldId, usize)> {
        Some((self.matrix, self.active))
    }

    fn work(&self, work: &mut Work) {
        let tokens = work.given.tokens;
        for router in with(self.router, self.weigher) {
            work.routing(router, tokens);
        }
        for matrix in with(self.matrix, self.up) {
            work.chosen(matrix, self.active, tokens);
        }
        for matrix in self.beside() {
            work.product(matrix, tokens);
        }
    }

    fn staged(&self) -> Vec<FieldId> {
        let own = [self.router, self.matrix].into_iter().chain(self.weigher).chain(self.up);
        own.chain(self.beside()).collect()
    }

    fn apart(&self) -> Vec<FieldId> {
        let shared = self.shared.map_or(Vec::new(), |it| pair(it.matrix, it.up));
        [pair(self.router, self.weigher), pair(self.matrix, self.up), shared].concat()
    }

    fn working(&self, plan: &Plan) -> Vec<Working> {
        Experts::working(self, plan)
    }

    fn cut(&self, kernel: &Signature) -> Option<Cut> {
        cut(kernel)
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.experts(site, self, launches)
    }
}

impl Experts {
    /// Whether the router weighs the shared expert.
    pub(super) fn weighs_shared(&self) -> bool {
        self.shared.is_some_and(|it| it.weighed)
    }

    /// Matrices of products beside those of the router and the chosen experts.
    pub(super) fn beside(&self) -> impl Iterator<Item = FieldId> {
        let shared = self.shared.into_iter().flat_map(|it| with(it.matrix, it.up));
        shared.chain(self.latent.map(|it| it.matrix))
    }
}

/// A matrix, and the one beside it that would be a part of it, if there is one.
pub(super) fn with(matrix: FieldId, other: Option<FieldId>) -> impl Iterator<Item = FieldId> {
    [matrix].into_iter().chain(other)
}

/// Two matrices that would be one, if there are two.
fn pair(matrix: FieldId, other: Option<FieldId>) -> Vec<FieldId> {
    other.map_or(Vec::new(), |other| vec![matrix, other])
}

/// `residual += sum of weight * down * round(inner) + sigmoid(scale) * shared_down * round(shared_inner)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combine {
    /// Inner rows of the chosen experts side by side.
    pub inner: BufferId,
    /// Chosen weights, then chosen experts.
    pub routing: BufferId,
    /// Down of every expert.
    pub matrix: FieldId,
    /// Experts chosen per token.
    pub active: usize,
    /// The shared expert, if one is weighed by the router.
    pub shared: Option<SharedDown>,
    /// Residual stream, read and written.
    pub residual: BufferId,
    /// Whether the sum is added to what the buffer holds. If not, it takes its place: experts of another
    /// width than the residual stream.
    pub adds: bool,
}

/// The shared expert's part of [`Combine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedDown {
    /// Input of its down product.
    pub inner: BufferId,
    /// The router's logits, and beside them the shared expert's weight before the sigmoid.
    pub logits: BufferId,
    /// Down matrix.
    pub matrix: FieldId,
    /// The result of its down product, in backends that keep it.
    pub product: BufferId,
}

impl Kind for Combine {
    fn name(&self) -> &'static str {
        "combine"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        let read = self.shared.iter().flat_map(|it| [it.inner, it.logits]);
        let read = self.adds.then_some(self.residual).into_iter().chain(read);
        let written = self.shared.iter().map(|it| it.product).chain([self.residual]).collect();
        ([self.inner, self.routing].into_iter().chain(read).collect(), written)
    }

    fn fields(&self) -> Vec<FieldId> {
        std::iter::once(self.matrix).chain(self.shared.map(|it| it.matrix)).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn chooses(&self) -> Option<(FieldId, usize)> {
        Some((self.matrix, self.active))
    }

    fn work(&self, work: &mut Work) {
        let tokens = work.given.tokens;
        work.chosen(self.matrix, self.active, tokens);
        if let Some(shared) = self.shared {
            work.product(shared.matrix, tokens);
        }
    }

    fn staged(&self) -> Vec<FieldId> {
        self.shared.iter().map(|it| it.matrix).collect()
    }

    fn working(&self, plan: &Plan) -> Vec<Working> {
        Combine::working(self, plan)
    }

    fn cut(&self, kernel: &Signature) -> Option<Cut> {
        cut(kernel)
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn sums(&self, launcher: &Launcher, site: Site) -> Result<bool, PassError> {
        Ok(launcher.sum_of_combine(site, self).is_some())
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.combine(site, self, launches)
    }
}

/// What cuts a mixture's kernel, or a product's beside it.
fn cut(kernel: &Signature) -> Option<Cut> {
    let streams = [
        ExpertsStream::SIGNATURE,
        ExpertsStreamSum::SIGNATURE,
        ExpertsStreamUp::SIGNATURE,
        ExpertsStreamUpPart::SIGNATURE,
        ExpertsStreamDown::SIGNATURE,
        ExpertsStreamDownSum::SIGNATURE,
    ];
    if streams.contains(&kernel) { Some(Cut::Stream) } else { products::cut(kernel) }
}

/// Fusion rules of a mixture.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "experts",
        pattern: "n = rms-norm(x); l = linear(n); r = route(l); out = expert-gate(n, r) \
                  where l is kept, r is kept",
        matrices: &[(&["out"], Packing::Gated), (&["l"], Stacked)],
        buffers: &[&["l"], &["r"], &["out"]],
        lower: experts,
    },
    // With a shared expert.
    Fusion {
        name: "experts-shared",
        pattern: "n = rms-norm(x); l = linear(n); r = route(l); out = expert-gate(n, r); \
                  g = linear(n); u = linear(n); c = gate(g, u); s = linear(n) where l is kept, r is kept",
        matrices: &[(&["out"], Packing::Gated), (&["l", "s"], Stacked), (&["g", "u"], Packing::Gated)],
        buffers: &[&["l", "s"], &["r"], &["out"], &["c"]],
        lower: experts,
    },
    // With one that is not weighed.
    Fusion {
        name: "experts-unweighed",
        pattern: "n = rms-norm(x); l = linear(n); r = route(l); out = expert-gate(n, r); \
                  g = linear(n); u = linear(n); c = gate(g, u) where l is kept, r is kept",
        matrices: &[(&["out"], Packing::Gated), (&["l"], Stacked), (&["g", "u"], Packing::Gated)],
        buffers: &[&["l"], &["r"], &["out"], &["c"]],
        lower: experts,
    },
    // The same without gates.
    Fusion {
        name: "experts-ungated",
        pattern: "n = rms-norm(x); l = linear(n); r = route(l); out = expert-up(n, r) \
                  where l is kept, r is kept",
        matrices: &[(&["out"], Stacked), (&["l"], Stacked)],
        buffers: &[&["l"], &["r"], &["out"]],
        lower: experts,
    },
    Fusion {
        name: "experts-ungated-unweighed",
        pattern: "n = rms-norm(x); l = linear(n); r = route(l); out = expert-up(n, r); \
                  g = linear(n); c = activate(g) where l is kept, r is kept",
        matrices: &[(&["out"], Stacked), (&["l"], Stacked), (&["g"], Stacked)],
        buffers: &[&["l"], &["r"], &["out"], &["c"]],
        lower: experts,
    },
    // Experts of another width than the residual stream.
    Fusion {
        name: "experts-latent",
        pattern: "n = rms-norm(x); l = linear(n); r = route(l); v = linear(n); out = expert-up(v, r); \
                  g = linear(n); c = activate(g) where l is kept, r is kept, v is kept",
        matrices: &[(&["out"], Stacked), (&["l"], Stacked), (&["v"], Stacked), (&["g"], Stacked)],
        buffers: &[&["l"], &["r"], &["v"], &["out"], &["c"]],
        lower: experts,
    },
    // The router reads the residual stream by itself, and so do the experts.
    Fusion {
        name: "judge",
        pattern: "n = rms-norm(x); s = scale(n); l = linear(s); r = route(l) where l is kept",
        matrices: &[(&["l"], Stacked)],
        buffers: &[&["l"], &["r"]],
        lower: judge,
    },
    Fusion {
        name: "experts-chosen",
        pattern: "n = rms-norm(x); out = expert-gate(n, r)",
        matrices: &[(&["out"], Packing::Gated)],
        buffers: &[],
        lower: |it| {
            let ExpertGate { active, activation, .. } = *it.block_op("out");
            let (x, routing, out) = (it.whole("x")?, it.whole("r")?, it.whole("out")?);
            let (matrix, up) = (it.matrix("out"), it.up("out"));
            Ok(Chosen { x, norm: it.norm("n"), routing, matrix, up, active, activation, out }.into())
        },
    },
    Fusion {
        name: "combine-normed",
        pattern: "y = expert-down(i, r) where y feeds rms-norm",
        matrices: &[(&["y"], Stacked)],
        buffers: &[],
        lower: |it| combine(it, None),
    },
    // The same, of which each rank has a part.
    Fusion {
        name: "combine-part",
        pattern: "y = expert-down(i, r) where y feeds total",
        matrices: &[(&["y"], Stacked)],
        buffers: &[],
        lower: |it| combine(it, None),
    },
    Fusion {
        name: "combine",
        pattern: "y = expert-down(i, r); out = add(residual, y)",
        matrices: &[(&["y"], Stacked)],
        buffers: &[],
        lower: |it| combine(it, None),
    },
    Fusion {
        name: "combine-shared",
        pattern: "y = expert-down(i, r); d = linear(c); w = sigmoid-gate(d, s); t = add(y, w); \
                  out = add(residual, t) where d is kept",
        matrices: &[(&["y"], Stacked), (&["d"], Stacked)],
        buffers: &[],
        lower: |it| {
            let (inner, product) = (it.whole("c")?, it.whole("d")?);
            let shared = SharedDown { inner, logits: it.slice("s").buffer, matrix: it.matrix("d"), product };
            combine(it, Some(shared))
        },
    },
    Fusion {
        name: "combine-latent",
        pattern: "y = expert-down(i, r) where y feeds linear",
        matrices: &[(&["y"], Stacked)],
        buffers: &[],
        lower: |it| combine(it, None),
    },
];

fn experts(it: &Lowering) -> Result<PhaseKind, PassError> {
    let Route { active, .. } = *it.block_op("r");
    let (gated, activation) = match it.op("out") {
        Op::Block(BlockOp::ExpertGate(ExpertGate { activation, .. })) => (true, *activation),
        Op::Block(BlockOp::ExpertUp(ExpertUp { activation, .. })) => (false, *activation),
        _ => unreachable!("the rule says what makes inner rows"),
    };
    let shared = match it.given("c") {
        Some(Op::Gate { activation } | Op::Activate { activation }) => Some(*activation),
        _ => None,
    };
    if shared.is_some_and(|of_shared| of_shared != activation) {
        return Err(pass_error!("the experts of `{}` have two activations", it.body.name));
    }
    let up = |_| -> Result<SharedUp, PassError> {
        let (matrix, up, weighed) = (it.matrix("g"), it.up("g"), it.given("s").is_some());
        Ok(SharedUp { matrix, up, out: it.whole("c")?, weighed })
    };
    let latent =
        |_| -> Result<Latent, PassError> { Ok(Latent { matrix: it.matrix("v"), out: it.whole("v")? }) };
    let router = it.matrix("l");
    let weigher = it.given("s").map(|_| it.matrix("s"));
    Ok(Experts {
        x: it.whole("x")?,
        norm: it.norm("n"),
        router,
        weigher: weigher.filter(|weigher| *weigher != router),
        logits: it.whole("l")?,
        routing: it.whole("r")?,
        matrix: it.matrix("out"),
        up: it.up("out"),
        latent: it.given("v").map(latent).transpose()?,
        gated,
        active,
        choice: Choice::of(it, "r"),
        activation,
        out: it.whole("out")?,
        shared: shared.map(up).transpose()?,
    }
    .into())
}

fn judge(it: &Lowering) -> Result<PhaseKind, PassError> {
    let Op::Scale { factor } = *it.op("s") else { unreachable!("the rule says scale") };
    let (x, logits, routing) = (it.whole("x")?, it.whole("l")?, it.whole("r")?);
    let choice = Choice::of(it, "r");
    Ok(Judge { x, norm: it.norm("n"), factor, router: it.matrix("l"), logits, routing, choice }.into())
}

/// `y` is the sum, which is added to `residual` if the rule has one.
fn combine(it: &Lowering, shared: Option<SharedDown>) -> Result<PhaseKind, PassError> {
    let ExpertDown { active, .. } = *it.block_op("y");
    let (inner, routing, adds) = (it.whole("i")?, it.whole("r")?, it.given("out").is_some());
    let residual = it.whole(if adds { "residual" } else { "y" })?;
    Ok(Combine { inner, routing, matrix: it.matrix("y"), active, shared, residual, adds }.into())
}
