// What draft passes read of images.
#pragma once

#include "vision/images.cuh"

namespace monomorph {

// Of the step that a header belongs to, or that of a pass behind it: both find the same block table.
__device__ __forceinline__ const DraftImages& draft_images(const Step* step) {
    return reinterpret_cast<const DraftImages*>(reinterpret_cast<const PositionShifts*>(step->blocks()) - 1)[-1];
}

}  // namespace monomorph
