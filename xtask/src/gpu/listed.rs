//! The programs of tests/cuda, how each is built, and how it is run.

/// A build of a program and its runs. Arguments that begin with `@` are files of the store.
pub struct Program {
    /// Name of the build; unique.
    pub name: &'static str,
    /// Its source below tests/cuda, without `.cu`.
    pub source: &'static str,
    /// Macros of the preprocessor.
    pub defines: &'static [&'static str],
    /// Of a run that must pass.
    pub arguments: &'static [&'static str],
    /// Arguments that plant a defect, which the program must detect. Programs without them plant their own.
    pub planted: Option<&'static [&'static str]>,
    /// Whether it also runs outside of tools.
    pub alone: bool,
    /// compute-sanitizer's tools that this build also runs under.
    pub tools: &'static [&'static str],
    /// Whether its products need a card with `wgmma`.
    pub wgmma: bool,
}

/// For racecheck, which tracks the barrier arrivals of threads but not those of a warp through one lane.
/// Kernels without such rings need no separate build for it.
const EVERY_LANE: &str = "MONOMORPH_EVERY_LANE_ARRIVES";

const MEMCHECK: &[&str] = &["memcheck"];
const BOTH: &[&str] = &["memcheck", "racecheck"];

const fn program(name: &'static str, source: &'static str) -> Program {
    let (defines, arguments, tools): (&[_], &[_], &[_]) = (&[], &[], &[]);
    Program { name, source, defines, arguments, planted: None, alone: true, tools, wgmma: false }
}

/// A build for racecheck only.
const fn every_lane(name: &'static str, source: &'static str) -> Program {
    Program { defines: &[EVERY_LANE], alone: false, tools: &["racecheck"], ..program(name, source) }
}

/// Programs that check kernels. docs/gpu-servers.md says how long each takes to compile.
pub const PROGRAMS: &[Program] = &[
    Program { defines: &["PART=0"], ..program("attention-0", "attention/attention") },
    Program { defines: &["PART=1"], ..program("attention-1", "attention/attention") },
    Program { defines: &["PART=2"], wgmma: true, ..program("attention-2", "attention/attention") },
    Program { defines: &["PART=3"], ..program("attention-3", "attention/attention") },
    Program { defines: &["PART=4"], tools: MEMCHECK, ..program("attention-4", "attention/attention") },
    Program { defines: &["PART=5"], tools: BOTH, ..program("attention-5", "attention/attention") },
    Program {
        defines: &["PART=0"],
        tools: BOTH,
        ..program("attention-groups-0", "attention/attention_groups")
    },
    Program {
        defines: &["PART=1"],
        tools: BOTH,
        ..program("attention-groups-1", "attention/attention_groups")
    },
    Program {
        defines: &["PART=2"],
        wgmma: true,
        ..program("attention-groups-2", "attention/attention_groups")
    },
    Program { tools: MEMCHECK, wgmma: true, ..program("attention-widened", "attention/attention_widen") },
    Program { planted: Some(&["planted"]), tools: BOTH, ..program("rows", "rows/rows") },
    Program {
        defines: &["PART=0"],
        planted: Some(&["planted"]),
        tools: BOTH,
        ..program("vision-0", "vision/vision")
    },
    Program {
        defines: &["PART=1"],
        planted: Some(&["planted"]),
        tools: MEMCHECK,
        wgmma: true,
        ..program("vision-1", "vision/vision")
    },
    Program { planted: Some(&["planted"]), tools: BOTH, ..program("spans", "vision/spans") },
    Program { defines: &["SUITE=1"], arguments: &["check"], ..program("stream-1", "products/stream") },
    Program { defines: &["SUITE=2"], arguments: &["check"], ..program("stream-2", "products/stream") },
    program("stream_pairs", "products/stream_pairs"),
    Program { planted: Some(&["defect"]), wgmma: true, ..program("gemm", "products/gemm") },
    Program { planted: Some(&["defect"]), wgmma: true, ..program("gemm_even", "products/gemm_even") },
    Program {
        planted: Some(&["defect"]),
        tools: MEMCHECK,
        wgmma: true,
        ..program("gemm_fp8", "products/gemm_fp8")
    },
    Program { planted: Some(&["planted"]), ..program("embed", "ends/embed") },
    program("draft", "draft/draft"),
    // On a card each, if there are so many; else all ranks are on one, and nothing is timed.
    program("exchange", "exchange/exchange"),
    Program { defines: &["EXCHANGE_RANKS=4"], ..program("exchange-4", "exchange/exchange") },
    Program {
        arguments: &["@programs/sampling.bin"],
        planted: Some(&["@programs/sampling.bin", "planted"]),
        ..program("sample", "sampling/sample")
    },
    Program { defines: &["PART=0"], tools: BOTH, ..program("delta-0", "delta_net/delta") },
    Program { defines: &["PART=1"], tools: BOTH, ..program("delta-1", "delta_net/delta") },
    Program { defines: &["PART=2"], tools: MEMCHECK, ..program("delta-2", "delta_net/delta") },
    Program { defines: &["PART=0"], tools: BOTH, ..program("latent-0", "latent/latent") },
    Program { defines: &["PART=1"], tools: MEMCHECK, wgmma: true, ..program("latent-1", "latent/latent") },
    Program { defines: &["PART=2"], tools: BOTH, ..program("latent-2", "latent/latent") },
    Program { defines: &["PART=3"], tools: MEMCHECK, wgmma: true, ..program("latent-3", "latent/latent") },
    Program { defines: &["PART=4"], tools: BOTH, ..program("latent-4", "latent/latent") },
    Program { defines: &["PART=5"], tools: MEMCHECK, wgmma: true, ..program("latent-5", "latent/latent") },
    Program { defines: &["PART=0"], tools: BOTH, ..program("mamba2-0", "mamba2/mamba2") },
    Program { defines: &["PART=1"], tools: BOTH, ..program("mamba2-1", "mamba2/mamba2") },
    Program { defines: &["PART=2"], tools: MEMCHECK, ..program("mamba2-2", "mamba2/mamba2") },
    Program {
        defines: &["SUITE=1"],
        tools: MEMCHECK,
        ..program("experts_stream-1", "experts/experts_stream")
    },
    Program {
        defines: &["SUITE=2"],
        tools: MEMCHECK,
        ..program("experts_stream-2", "experts/experts_stream")
    },
    Program {
        planted: Some(&["defect"]),
        tools: MEMCHECK,
        ..program("experts_batch", "experts/experts_batch")
    },
    Program {
        planted: Some(&["defect"]),
        tools: MEMCHECK,
        wgmma: true,
        ..program("experts_fp8", "experts/experts_fp8")
    },
    Program {
        defines: &["PART=1", EVERY_LANE],
        ..every_lane("attention-1-every-lane", "attention/attention")
    },
    Program {
        defines: &["PART=3", EVERY_LANE],
        ..every_lane("attention-3-every-lane", "attention/attention")
    },
    Program {
        defines: &["PART=4", EVERY_LANE],
        ..every_lane("attention-4-every-lane", "attention/attention")
    },
    Program {
        defines: &["SUITE=1", EVERY_LANE],
        arguments: &["check"],
        ..every_lane("stream-1-every-lane", "products/stream")
    },
    every_lane("stream_pairs-every-lane", "products/stream_pairs"),
    Program { wgmma: true, ..every_lane("gemm-every-lane", "products/gemm") },
    Program { wgmma: true, ..every_lane("gemm_fp8-every-lane", "products/gemm_fp8") },
    Program { defines: &["PART=2", EVERY_LANE], ..every_lane("delta-2-every-lane", "delta_net/delta") },
    Program { defines: &["PART=2", EVERY_LANE], ..every_lane("mamba2-2-every-lane", "mamba2/mamba2") },
    Program {
        defines: &["SUITE=1", EVERY_LANE],
        ..every_lane("experts_stream-1-every-lane", "experts/experts_stream")
    },
    Program {
        defines: &["SUITE=2", EVERY_LANE],
        ..every_lane("experts_stream-2-every-lane", "experts/experts_stream")
    },
    Program { wgmma: true, ..every_lane("experts_fp8-every-lane", "experts/experts_fp8") },
    Program {
        defines: &["SMALL", EVERY_LANE],
        ..every_lane("experts_batch-every-lane", "experts/experts_batch")
    },
];

/// Programs that measure kernels and check nothing, with the work split that docs/performance-h200-kernels.md
/// found best.
pub const INSTRUMENTS: &[Program] = &[
    Program { wgmma: true, ..program("vision-bench", "vision/vision_bench") },
    Program { defines: &["SUITE=3"], arguments: &["bench"], ..program("stream-1b", "products/stream") },
    Program { defines: &["SUITE=4"], arguments: &["bench"], ..program("stream-8b", "products/stream") },
    Program { wgmma: true, ..program("gemm-bench", "products/gemm_bench") },
    Program { wgmma: true, ..program("gemm_fp8-bench", "products/gemm_fp8_bench") },
    Program { wgmma: true, defines: &["BENCH"], ..program("experts_fp8-bench", "experts/experts_fp8") },
    Program {
        defines: &["SPLIT_COUNT=16", "WARP_COUNT=8", "CHUNK_TOKENS=256", "RESIDENT_COUNT=1", "BEFORE_WAIT"],
        ..program("attention-decode", "attention/attention_bench")
    },
    Program {
        defines: &[
            "KV=E4m3",
            "SPLIT_COUNT=16",
            "WARP_COUNT=8",
            "CHUNK_TOKENS=256",
            "RESIDENT_COUNT=1",
            "BEFORE_WAIT",
        ],
        ..program("attention-decode-fp8", "attention/attention_bench")
    },
    Program {
        defines: &[
            "KV=Nvfp4",
            "SPLIT_COUNT=16",
            "WARP_COUNT=8",
            "CHUNK_TOKENS=256",
            "RESIDENT_COUNT=1",
            "BEFORE_WAIT",
        ],
        ..program("attention-decode-nvfp4", "attention/attention_bench")
    },
    Program {
        defines: &[
            "KV=Turbo4",
            "SPLIT_COUNT=16",
            "WARP_COUNT=8",
            "CHUNK_TOKENS=256",
            "RESIDENT_COUNT=1",
            "BEFORE_WAIT",
        ],
        ..program("attention-decode-turbo4", "attention/attention_bench")
    },
    Program {
        defines: &["PREFILL", "KEY_COUNT=128", "WGMMA"],
        wgmma: true,
        ..program("attention-prefill", "attention/attention_bench")
    },
    Program {
        defines: &["KV=E4m3", "PREFILL", "KEY_COUNT=128", "WGMMA"],
        wgmma: true,
        ..program("attention-prefill-fp8", "attention/attention_bench")
    },
    Program {
        defines: &["KV=E4m3", "PREFILL", "KEY_COUNT=128", "WGMMA", "WIDEN"],
        wgmma: true,
        ..program("attention-widen-fp8", "attention/attention_bench")
    },
    Program {
        defines: &["KV=Turbo4", "PREFILL", "KEY_COUNT=128", "WGMMA", "WIDEN"],
        wgmma: true,
        ..program("attention-widen", "attention/attention_bench")
    },
    Program {
        defines: &["KV=Turbo4", "PREFILL", "KEY_COUNT=128", "WGMMA"],
        wgmma: true,
        ..program("attention-prefill-turbo4", "attention/attention_bench")
    },
    Program {
        defines: &["PREFILL", "KEY_COUNT=128", "WGMMA", "WIDE"],
        wgmma: true,
        ..program("attention-prefill-wide", "attention/attention_bench")
    },
    program("delta-bench", "delta_net/delta_bench"),
    program("mamba2-bench", "mamba2/mamba2_bench"),
    Program {
        defines: &[
            "SPLIT_COUNT=128",
            "TILE_TOKENS=64",
            "STAGE_COUNT=4",
            "TERM_COUNT=1",
            "RESIDENT_COUNT=1",
            "WGMMA",
            "WITH_PREFILL",
        ],
        wgmma: true,
        ..program("latent-bench", "latent/latent_bench")
    },
    Program {
        defines: &["SUITE=3"],
        arguments: &["bench"],
        ..program("experts_stream-bench", "experts/experts_stream")
    },
    Program { defines: &["BENCH"], ..program("experts_batch-bench", "experts/experts_batch") },
];
