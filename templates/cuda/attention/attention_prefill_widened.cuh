// attention_prefill_widened: attention_prefill_wgmma over a narrow cache of which attention_widen has widened
// what is in `widened`. The gathering warpgroup copies tiles of those sequences from there, as it copies
// those of a cache of bf16, and decodes tiles of the others as it does without. Everything else is the same,
// to the bit.
#pragma once

#include "attention/attention_prefill_wgmma.cuh"

namespace monomorph {

template <class C>
__device__ __forceinline__ void attention_prefill_widened(const Step* step, const typename AttentionShape<C>::Operand* q, const typename C::Kv* layer,
                                                          const typename AttentionShape<C>::Operand* widened, float* out, const float* qkv) {
    static_assert(Widening<C>::THERE, "an area of WIDENED_BLOCKS");
    attention_prefill_wgmma<C>(step, q, layer, out, qkv, widened);
}

}  // namespace monomorph
