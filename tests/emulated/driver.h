// What the two halves of the driver share: memory and modules (driver.cpp), streams and graphs (streams.cpp).
#pragma once

#include <mutex>

#include <cuda.h>

#include "engine.h"

struct CUfunc_st {
    const card::Kernel* kernel;
    int most_shared = 48 * 1024;  // until more is asked for
};

namespace card {

// Nothing that functions of the driver use is destroyed when the process ends: a thread of the host may still be in one then.
extern std::recursive_mutex& lock;

bool is_pinned(const void* at, size_t bytes);
bool is_device(CUdeviceptr at, size_t bytes);
void synchronize_all();

}  // namespace card
