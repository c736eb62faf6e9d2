//! The check that this CPU has the instructions the binary was compiled with.
//!
//! The whole binary is compiled for the target's instruction set, so this module may not lean on anything
//! the compiler could turn into such instructions: `std::is_x86_feature_detected!` is folded to `true` for
//! enabled features, and copies or comparisons of known length may become vector code. Hence raw CPUID,
//! bytes read one at a time, and pieces of the message written one after the other.

use crate::failure::EXIT_WRONG_HARDWARE;
use monomorph_model::HardwareSpec;

/// Exits with code 3 and a message naming what is missing, unless this CPU (and its operating system) has
/// every feature in `hardware.features`. Call it before anything else.
#[inline(never)]
pub fn require_cpu(hardware: &HardwareSpec) {
    let mut missing = false;
    for name in hardware.features {
        if detect::has_feature(name) == Some(true) {
            continue;
        }
        if !missing {
            missing = true;
            say("this server was compiled for the hardware `");
            say(hardware.name);
            say("`, and this CPU lacks:");
        }
        say(" ");
        say(name);
        if detect::has_feature(name).is_none() {
            say(" (which this build cannot check)");
        }
    }
    if missing {
        say("\nbuild it for this machine: cargo xtask build --target cpu/<model>/<quant>\n");
        // SAFETY: `_exit` takes a number and does not return; no destructor is skipped that matters this
        // early.
        unsafe { libc::_exit(EXIT_WRONG_HARDWARE as i32) }
    }
}

/// Writes to standard error without formatting or buffering.
#[inline(never)]
fn say(text: &str) {
    // SAFETY: pointer and length are those of a live string; a failed write is of no further interest.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

#[cfg(target_arch = "x86_64")]
mod detect {
    use core::arch::x86_64::{__cpuid_count, _xgetbv};

    /// Which of CPUID's result registers.
    #[derive(Clone, Copy)]
    pub(super) enum Register {
        A,
        B,
        C,
        D,
    }

    use Register::{A, B, C, D};

    /// What the operating system must save for a feature to be usable: bits of XCR0.
    const NONE: u32 = 0;
    const YMM: u32 = 0b110;
    const ZMM: u32 = 0b1110_0110;
    const TILE: u32 = 0b110_0000_0000_0000_0000;

    /// One feature: name, leaf, sub-leaf, register, bit, and the bits of XCR0 it needs.
    pub(super) type Feature = (&'static str, u32, u32, Register, u8, u32);

    /// Names as `std::is_x86_feature_detected!` takes them.
    pub(super) static FEATURES: &[Feature] = &[
        ("fxsr", 1, 0, D, 24, NONE),
        ("sse", 1, 0, D, 25, NONE),
        ("sse2", 1, 0, D, 26, NONE),
        ("sse3", 1, 0, C, 0, NONE),
        ("pclmulqdq", 1, 0, C, 1, NONE),
        ("ssse3", 1, 0, C, 9, NONE),
        ("fma", 1, 0, C, 12, YMM),
        ("cmpxchg16b", 1, 0, C, 13, NONE),
        ("sse4.1", 1, 0, C, 19, NONE),
        ("sse4.2", 1, 0, C, 20, NONE),
        ("movbe", 1, 0, C, 22, NONE),
        ("popcnt", 1, 0, C, 23, NONE),
        ("aes", 1, 0, C, 25, NONE),
        ("xsave", 1, 0, C, 26, NONE),
        ("avx", 1, 0, C, 28, YMM),
        ("f16c", 1, 0, C, 29, YMM),
        ("rdrand", 1, 0, C, 30, NONE),
        ("bmi1", 7, 0, B, 3, NONE),
        ("avx2", 7, 0, B, 5, YMM),
        ("bmi2", 7, 0, B, 8, NONE),
        ("avx512f", 7, 0, B, 16, ZMM),
        ("avx512dq", 7, 0, B, 17, ZMM),
        ("rdseed", 7, 0, B, 18, NONE),
        ("adx", 7, 0, B, 19, NONE),
        ("avx512ifma", 7, 0, B, 21, ZMM),
        ("avx512cd", 7, 0, B, 28, ZMM),
        ("sha", 7, 0, B, 29, NONE),
        ("avx512bw", 7, 0, B, 30, ZMM),
        ("avx512vl", 7, 0, B, 31, ZMM),
        ("avx512vbmi", 7, 0, C, 1, ZMM),
        ("avx512vbmi2", 7, 0, C, 6, ZMM),
        ("gfni", 7, 0, C, 8, NONE),
        ("vaes", 7, 0, C, 9, YMM),
        ("vpclmulqdq", 7, 0, C, 10, YMM),
        ("avx512vnni", 7, 0, C, 11, ZMM),
        ("avx512bitalg", 7, 0, C, 12, ZMM),
        ("avx512vpopcntdq", 7, 0, C, 14, ZMM),
        ("kl", 7, 0, C, 23, NONE),
        ("avx512vp2intersect", 7, 0, D, 8, ZMM),
        ("amx-bf16", 7, 0, D, 22, TILE),
        ("avx512fp16", 7, 0, D, 23, ZMM),
        ("amx-tile", 7, 0, D, 24, TILE),
        ("amx-int8", 7, 0, D, 25, TILE),
        ("sha512", 7, 1, A, 0, YMM),
        ("sm3", 7, 1, A, 1, YMM),
        ("sm4", 7, 1, A, 2, YMM),
        ("avxvnni", 7, 1, A, 4, YMM),
        ("avx512bf16", 7, 1, A, 5, ZMM),
        ("avxifma", 7, 1, A, 23, YMM),
        ("avxvnniint8", 7, 1, D, 4, YMM),
        ("avxneconvert", 7, 1, D, 5, YMM),
        ("avxvnniint16", 7, 1, D, 10, YMM),
        ("xsaveopt", 0xd, 1, A, 0, NONE),
        ("xsavec", 0xd, 1, A, 1, NONE),
        ("xsaves", 0xd, 1, A, 3, NONE),
        ("widekl", 0x19, 0, B, 2, NONE),
        ("lahfsahf", 0x8000_0001, 0, C, 0, NONE),
        ("lzcnt", 0x8000_0001, 0, C, 5, NONE),
        ("sse4a", 0x8000_0001, 0, C, 6, NONE),
        ("tbm", 0x8000_0001, 0, C, 21, NONE),
    ];

    /// Whether the CPU has a feature and the system saves its registers; `None` for a name not in the table.
    #[inline(never)]
    pub(super) fn has_feature(name: &str) -> Option<bool> {
        for &(known, leaf, subleaf, register, bit, state) in FEATURES {
            if same(known, name) {
                return Some(cpuid_bit(leaf, subleaf, register, bit) && os_saves(state));
            }
        }
        None
    }

    /// Equality of two strings, a byte at a time.
    fn same(a: &str, b: &str) -> bool {
        if a.len() != b.len() {
            return false;
        }
        for at in 0..a.len() {
            // SAFETY: `at` is below the length of both; volatile keeps the loop from becoming vector code.
            let equal = unsafe { a.as_ptr().add(at).read_volatile() == b.as_ptr().add(at).read_volatile() };
            if !equal {
                return false;
            }
        }
        true
    }

    /// One bit of CPUID; false where the CPU has no such leaf.
    fn cpuid_bit(leaf: u32, subleaf: u32, register: Register, bit: u8) -> bool {
        // Leaves beyond the last one answer with the data of another leaf.
        let last = __cpuid_count(leaf & 0x8000_0000, 0).eax;
        if leaf > last || (leaf == 7 && subleaf > __cpuid_count(7, 0).eax) {
            return false;
        }
        let answer = __cpuid_count(leaf, subleaf);
        let value = match register {
            A => answer.eax,
            B => answer.ebx,
            C => answer.ecx,
            D => answer.edx,
        };
        value >> bit & 1 == 1
    }

    /// Whether the system saves these parts of the register file on a switch.
    fn os_saves(state: u32) -> bool {
        state == NONE || (cpuid_bit(1, 0, C, 27) && xcr0() & state == state)
    }

    /// The low half of XCR0.
    #[target_feature(enable = "xsave")]
    fn read_xcr0() -> u32 {
        // SAFETY: register 0 exists wherever OSXSAVE is set, which the caller has checked.
        unsafe { _xgetbv(0) as u32 }
    }

    fn xcr0() -> u32 {
        // SAFETY: only called once OSXSAVE was seen, which implies XSAVE.
        unsafe { read_xcr0() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod detect {
    /// What every CPU of this architecture has; no other feature can be checked here yet, and a target that
    /// asks for one is refused.
    pub(super) fn has_feature(name: &str) -> Option<bool> {
        (name == "neon" && cfg!(target_arch = "aarch64")).then_some(true)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::detect::{FEATURES, has_feature};

    /// Checks every feature that std knows against std (tests are not compiled for the target's CPU).
    macro_rules! agree {
        ($($name:tt),*) => { $(
            assert_eq!(has_feature($name), Some(std::is_x86_feature_detected!($name)), "{}", $name);
        )* };
    }

    #[test]
    fn agrees_with_std() {
        agree!(
            "fxsr",
            "sse",
            "sse2",
            "sse3",
            "pclmulqdq",
            "ssse3",
            "fma",
            "cmpxchg16b",
            "sse4.1",
            "sse4.2",
            "movbe",
            "popcnt",
            "aes",
            "xsave",
            "avx",
            "f16c",
            "rdrand",
            "bmi1",
            "avx2",
            "bmi2",
            "avx512f",
            "avx512dq",
            "rdseed",
            "adx",
            "avx512ifma",
            "avx512cd",
            "sha",
            "avx512bw",
            "avx512vl",
            "avx512vbmi",
            "avx512vbmi2",
            "gfni",
            "vaes",
            "vpclmulqdq",
            "avx512vnni",
            "avx512bitalg",
            "avx512vpopcntdq",
            "avx512vp2intersect",
            "kl",
            "widekl",
            "sha512",
            "sm3",
            "sm4",
            "avxvnni",
            "avx512bf16",
            "avx512fp16",
            "avxifma",
            "avxvnniint8",
            "avxneconvert",
            "avxvnniint16",
            "xsaveopt",
            "xsavec",
            "xsaves",
            "lzcnt",
            "sse4a",
            "tbm"
        );
    }

    #[test]
    fn names_are_unique_and_others_unknown() {
        for (at, feature) in FEATURES.iter().enumerate() {
            assert!(FEATURES[..at].iter().all(|other| other.0 != feature.0), "{} twice", feature.0);
        }
        assert_eq!(has_feature("avx1024"), None);
    }
}
