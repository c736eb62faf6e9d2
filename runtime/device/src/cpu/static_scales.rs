//! Static scales of cached keys and values: 1, a checkpoint's, or what a text was found to want.

use monomorph_formats::cached::{Codec, KvFormats, static_scale};
use monomorph_model::KvScales;
use std::sync::atomic::{AtomicU32, Ordering};

/// How the keys, and the values, of each head of each layer of a cache are encoded.
#[derive(Debug)]
pub(super) struct StaticScales {
    heads: usize,
    /// By layer and head, of keys and of values.
    codecs: Box<[[Codec; 2]]>,
    /// Whether keys, and values, have a checkpoint's scales: these are not measured.
    given: [bool; 2],
    /// While they are measured, bits of the largest magnitudes, in the order of `codecs`. Magnitudes stand in
    /// the order of their bits.
    largest: Option<Box<[[AtomicU32; 2]]>>,
}

impl StaticScales {
    /// Scales of 1.
    pub(super) fn new(formats: KvFormats, layers: usize, heads: usize) -> StaticScales {
        let codecs = [formats.keys, formats.values].map(Codec::unscaled);
        StaticScales { heads, codecs: vec![codecs; layers * heads].into(), given: [false; 2], largest: None }
    }

    /// Takes a layer's scales of keys (`side` 0) or values (1), one a head.
    ///
    /// # Errors
    /// When the format does not take one of them.
    pub(super) fn give(&mut self, layer: usize, side: usize, scales: &[f32]) -> Result<(), String> {
        self.given[side] = true;
        let of_layer = &mut self.codecs[layer * self.heads..][..self.heads];
        of_layer.iter_mut().zip(scales).try_for_each(|(codecs, scale)| {
            codecs[side] = Codec::new(codecs[side].format(), *scale)?;
            Ok(())
        })
    }

    /// How keys and values of a head are encoded.
    #[inline(always)]
    pub(super) fn of(&self, layer: usize, head: usize) -> &[Codec; 2] {
        &self.codecs[layer * self.heads + head]
    }

    /// Where the largest magnitudes of a head's keys and values are kept, while they are measured.
    #[inline(always)]
    pub(super) fn measured(&self, layer: usize, head: usize) -> Option<&[AtomicU32; 2]> {
        self.largest.as_ref().map(|it| &it[layer * self.heads + head])
    }

    /// Begins to measure.
    pub(super) fn measure(&mut self) {
        self.largest = Some(self.codecs.iter().map(|_| Default::default()).collect());
    }

    /// Ends measuring: every scale that is no checkpoint's becomes what was measured, and is added to `set`.
    ///
    /// # Errors
    /// When something was not finite.
    pub(super) fn set(&mut self, set: &mut KvScales) -> Result<(), String> {
        let Some(largest) = self.largest.take() else { return Ok(()) };
        for (at, (codecs, largest)) in self.codecs.iter_mut().zip(largest.iter()).enumerate() {
            for (side, (codec, largest)) in codecs.iter_mut().zip(largest).enumerate() {
                let (format, largest) = (codec.format(), f32::from_bits(largest.load(Ordering::Relaxed)));
                if self.given[side] || !format.has_static_scale() {
                    continue;
                }
                let what = ["keys", "values"][side];
                let (layer, head) = (at / self.heads, at % self.heads);
                if !largest.is_finite() {
                    return Err(format!(
                        "{what} of head {head} are not finite in layer {layer} of their kind"
                    ));
                }
                let scale = static_scale(format, largest);
                *codec = Codec::new(format, scale)?;
                set.add(side, scale);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_formats::cached::Cached;

    const FORMATS: KvFormats = KvFormats { keys: Cached::Fp8, values: Cached::Turbo4 };

    fn scales(it: &StaticScales) -> Vec<[f32; 2]> {
        it.codecs.iter().map(|codecs| codecs.map(|codec| codec.scale())).collect()
    }

    #[test]
    fn what_was_measured_becomes_a_scale_unless_a_checkpoint_has_one() {
        let mut it = StaticScales::new(FORMATS, 2, 2);
        assert_eq!(scales(&it), [[1.0; 2]; 4]);
        it.give(1, 0, &[0.3, 0.7]).unwrap();
        assert_eq!(scales(&it), [[1.0; 2], [1.0; 2], [0.3, 1.0], [0.7, 1.0]]);
        let mut set = KvScales::default();
        it.set(&mut set).unwrap();
        assert_eq!(set, KvScales::default(), "nothing was measured");
        it.measure();
        for (head, largest) in [2.0f32, 7.0].into_iter().enumerate() {
            it.measured(1, head).unwrap()[1].store(largest.to_bits(), Ordering::Relaxed);
            it.measured(1, head).unwrap()[0].store(largest.to_bits(), Ordering::Relaxed);
        }
        it.set(&mut set).unwrap();
        let wanted = [2.0, 7.0].map(|largest| static_scale(Cached::Turbo4, largest));
        assert_eq!(scales(&it), [[1.0; 2], [1.0; 2], [0.3, wanted[0]], [0.7, wanted[1]]]);
        // Of the values alone.
        assert_eq!(set.ranges, [None, Some((wanted[0].min(wanted[1]), 1.0))]);
        assert!(it.measured(1, 0).is_none(), "it measures no more");
    }

    #[test]
    fn what_is_not_finite_has_no_scale() {
        let mut it = StaticScales::new(FORMATS, 2, 2);
        for largest in [f32::INFINITY, f32::NAN] {
            it.measure();
            it.measured(1, 1).unwrap()[0].store(largest.to_bits(), Ordering::Relaxed);
            let error = it.set(&mut KvScales::default()).unwrap_err();
            assert_eq!(error, "keys of head 1 are not finite in layer 1 of their kind");
        }
        let error = it.give(0, 1, &[0.3, 1.0]).unwrap_err();
        assert!(error.contains("no power of two"), "{error}");
    }
}
