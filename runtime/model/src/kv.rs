//! Static scales of cached keys and values: what multiplies the codes of a layer's heads.

use crate::name;

/// The tensors of a checkpoint that hold static scales.
#[derive(Clone, Copy, Debug)]
pub struct KvScaleSpec {
    /// Their names, of keys and of values, `{layer}` standing for an index. Each is one number, or one a
    /// head.
    pub names: [&'static str; 2],
}

impl KvScaleSpec {
    /// Whether a tensor of this name holds some.
    pub fn knows(&self, tensor: &str) -> bool {
        self.names.iter().any(|pattern| name::find(pattern, tensor).is_some())
    }
}

/// Static scales that were set by what was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KvScales {
    /// The smallest and the largest of keys, and of values; `None` where none was set.
    pub ranges: [Option<(f32, f32)>; 2],
}

impl KvScales {
    /// Adds one of keys (`side` 0) or values (1).
    pub fn add(&mut self, side: usize, scale: f32) {
        let (least, most) = self.ranges[side].unwrap_or((scale, scale));
        self.ranges[side] = Some((least.min(scale), most.max(scale)));
    }
}

impl std::fmt::Display for KvScales {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set = ["keys", "values"].into_iter().zip(self.ranges).filter_map(|(what, range)| {
            range.map(|(least, most)| format!("{what} 2^{} to 2^{}", least.log2(), most.log2()))
        });
        f.write_str(&set.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_told_of_keys_and_of_values() {
        let mut set = KvScales::default();
        assert_eq!(set.to_string(), "");
        [0.25, 2.0, 0.5].into_iter().for_each(|scale| set.add(1, scale));
        assert_eq!(set.to_string(), "values 2^-2 to 2^1");
        set.add(0, 1.0);
        assert_eq!(set.to_string(), "keys 2^0 to 2^0, values 2^-2 to 2^1");
    }

    #[test]
    fn a_tensor_of_scales_is_one_of_any_layer() {
        let spec = KvScaleSpec { names: ["a.{layer}.k_scale", "a.{layer}.v_scale"] };
        assert!(spec.knows("a.0.k_scale") && spec.knows("a.17.v_scale"));
        assert!(!spec.knows("a.k_scale") && !spec.knows("a.1.q_scale"));
    }
}
