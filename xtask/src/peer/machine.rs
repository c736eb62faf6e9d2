//! Chooses llama.cpp's build options for this machine.
//!
//! A native build (`GGML_NATIVE`) dies of SIGSEGV where the CPU announces AMX and the system does not let a
//! process use it, as in some containers and virtual machines: it requests permission at start
//! (`ggml_amx_init`) and, when refused, goes on without its buffers. There it is built for everything else
//! that the CPU has.

/// Build options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// CMake flags.
    pub flags: Vec<String>,
    /// A note for readers of the figures, if the build does not use the whole machine.
    pub note: Option<&'static str>,
}

/// The note when AMX is left out.
const WITHOUT_AMX: &str =
    "llama.cpp is built without AMX: this CPU announces it, and the system does not let a process use it";

/// ggml's options, each with all the flags of `/proc/cpuinfo` that it needs.
const FEATURES: [(&str, &[&str]); 11] = [
    ("SSE42", &["sse4_2"]),
    ("AVX", &["avx"]),
    ("AVX2", &["avx2"]),
    ("FMA", &["fma"]),
    ("F16C", &["f16c"]),
    ("BMI2", &["bmi2"]),
    ("AVX_VNNI", &["avx_vnni"]),
    ("AVX512", &["avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"]),
    ("AVX512_VBMI", &["avx512vbmi"]),
    ("AVX512_VNNI", &["avx512_vnni"]),
    ("AVX512_BF16", &["avx512_bf16"]),
];
/// ggml's options of AMX.
const AMX: [&str; 3] = ["AMX_TILE", "AMX_INT8", "AMX_BF16"];

/// llama.cpp's build options for a CPU that announces `cpu`, on a system that does or does not let a process
/// use AMX tiles.
pub fn decide(cpu: &[&str], tiles_allowed: bool) -> Build {
    let announced = cpu.iter().any(|flag| flag.starts_with("amx_"));
    if !announced || tiles_allowed {
        return Build { flags: vec!["-DGGML_NATIVE=ON".to_owned()], note: None };
    }
    let option = |name: &str, on: bool| format!("-DGGML_{name}={}", if on { "ON" } else { "OFF" });
    let has = |needed: &[&str]| needed.iter().all(|flag| cpu.contains(flag));
    let mut flags = vec![option("NATIVE", false)];
    flags.extend(FEATURES.map(|(name, needed)| option(name, has(needed))));
    flags.extend(AMX.map(|name| option(name, false)));
    Build { flags, note: Some(WITHOUT_AMX) }
}

/// [`decide`] for this machine.
pub fn here() -> Build {
    // A system without this file announces nothing that must be left out.
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    decide(&announced(&cpuinfo), tiles_allowed())
}

/// The flags of the first processor.
fn announced(cpuinfo: &str) -> Vec<&str> {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    line.map_or(Vec::new(), |(_, flags)| flags.split_whitespace().collect())
}

/// Whether this process may use AMX tiles; requests permission the way llama.cpp does.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn tiles_allowed() -> bool {
    /// Requests permission to use a part of the register state (`asm/prctl.h`).
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    /// The tile data.
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours. It changes only which state the
    // kernel saves for this process, and nothing here uses tiles.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn tiles_allowed() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::{AMX, FEATURES, announced, decide};

    const SAPPHIRE_RAPIDS: &str = "processor\t: 0\nflags\t\t: fpu sse4_2 avx avx2 fma f16c bmi2 avx_vnni avx512f avx512dq \
        avx512cd avx512bw avx512vl avx512vbmi avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8\nprocessor\t: 1\n";

    #[test]
    fn a_machine_gets_all_that_it_announces_and_allows() {
        let cpu = announced(SAPPHIRE_RAPIDS);
        let native = vec!["-DGGML_NATIVE=ON".to_owned()];
        for (cpu, allowed) in
            [(&cpu[..], true), (&["avx2", "fma"][..], false), (&[][..], false), (&[][..], true)]
        {
            let build = decide(cpu, allowed);
            assert_eq!((build.flags, build.note), (native.clone(), None), "{cpu:?}, {allowed}");
        }
    }

    #[test]
    fn amx_that_is_not_allowed_is_left_out_and_nothing_else() {
        let build = decide(&announced(SAPPHIRE_RAPIDS), false);
        assert!(build.note.is_some_and(|note| note.contains("without AMX")));
        let on = |name: &str| build.flags.contains(&format!("-DGGML_{name}=ON"));
        let off = |name: &str| build.flags.contains(&format!("-DGGML_{name}=OFF"));
        assert!(
            FEATURES.iter().all(|(name, _)| on(name)) && AMX.iter().all(|name| off(name)) && off("NATIVE")
        );

        // One missing part of AVX-512 drops the option that needs all of them.
        let cpu = ["avx", "avx2", "avx512f", "avx512cd", "avx512vl", "avx512dq", "amx_tile"];
        let build = decide(&cpu, false);
        for (name, state) in [("AVX2", "ON"), ("AVX512", "OFF"), ("FMA", "OFF"), ("NATIVE", "OFF")] {
            assert!(build.flags.contains(&format!("-DGGML_{name}={state}")), "{name}: {:?}", build.flags);
        }
    }
}
