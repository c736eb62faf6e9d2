//! The tensor types of ggml, by number: their sizes, and the formats that they are.

use monomorph_formats::Format;

/// One row of ggml's type table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GgmlType {
    /// ggml's name for the type.
    pub(crate) name: &'static str,
    /// Elements per block.
    pub(crate) elements: usize,
    /// Bytes per block.
    pub(crate) bytes: usize,
    /// Its format, if it is a known one.
    pub(crate) format: Option<Format>,
}

/// The type with this number in a GGUF file.
pub(crate) fn ggml_type(number: u32) -> Option<GgmlType> {
    let (name, elements, bytes) = match number {
        0 => return Some(known("F32", Format::F32)),
        1 => return Some(known("F16", Format::F16)),
        3 => return Some(known("Q4_1", Format::Q4_1)),
        8 => return Some(known("Q8_0", Format::Q8_0)),
        30 => return Some(known("BF16", Format::Bf16)),
        2 => return Some(known("Q4_0", Format::Q4_0)),
        6 => return Some(known("Q5_0", Format::Q5_0)),
        7 => return Some(known("Q5_1", Format::Q5_1)),
        12 => return Some(known("Q4_K", Format::Q4K)),
        13 => return Some(known("Q5_K", Format::Q5K)),
        14 => return Some(known("Q6_K", Format::Q6K)),
        10 => return Some(known("Q2_K", Format::Q2K)),
        11 => return Some(known("Q3_K", Format::Q3K)),
        20 => return Some(known("IQ4_NL", Format::Iq4Nl)),
        23 => return Some(known("IQ4_XS", Format::Iq4Xs)),
        9 => ("Q8_1", 32, 36),
        15 => ("Q8_K", 256, 292),
        16 => ("IQ2_XXS", 256, 66),
        17 => ("IQ2_XS", 256, 74),
        18 => ("IQ3_XXS", 256, 98),
        19 => ("IQ1_S", 256, 50),
        21 => ("IQ3_S", 256, 110),
        22 => ("IQ2_S", 256, 82),
        24 => ("I8", 1, 1),
        25 => ("I16", 1, 2),
        26 => ("I32", 1, 4),
        27 => ("I64", 1, 8),
        28 => ("F64", 1, 8),
        29 => ("IQ1_M", 256, 56),
        34 => ("TQ1_0", 256, 54),
        35 => ("TQ2_0", 256, 66),
        39 => ("MXFP4", 32, 17),
        _ => return None,
    };
    Some(GgmlType { name, elements, bytes, format: None })
}

fn known(name: &'static str, format: Format) -> GgmlType {
    GgmlType { name, elements: format.block_elements(), bytes: format.block_bytes(), format: Some(format) }
}

/// The number of a format in a GGUF file; `None` for codes with companions, which no such file holds.
pub fn ggml_number(format: Format) -> Option<u32> {
    Some(match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::Q4_0 => 2,
        Format::Q4_1 => 3,
        Format::Q5_0 => 6,
        Format::Q5_1 => 7,
        Format::Q8_0 => 8,
        Format::Q2K => 10,
        Format::Q3K => 11,
        Format::Q4K => 12,
        Format::Q5K => 13,
        Format::Q6K => 14,
        Format::Iq4Nl => 20,
        Format::Iq4Xs => 23,
        Format::Bf16 => 30,
        Format::Fp8E4m3 | Format::Nvfp4 => return None,
    })
}
