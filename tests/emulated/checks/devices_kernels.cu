// Kernels of devices.cpp. An exchange is that of the library made small: each value is its own flag, and there
// are two inboxes in turn.
#include "core/async.cuh"
#include "core/peer.cuh"

using namespace monomorph;

// Adds what both devices have, device 0's first. `limit` 0: waits for ever.
extern "C" __global__ void __launch_bounds__(64)
exchange(int device, float4* values, float4* inbox, float4* peer, unsigned* report, unsigned long long limit) {
    wait_for_predecessors();
    const int at = blockIdx.x * 64 + threadIdx.x;
    const float4 mine = values[at];
    store_peer(peer + at, mine);
    float4 theirs = load_peer(inbox + at);
    for (const unsigned long long begin = clock_ns(); !arrived(theirs); theirs = load_peer(inbox + at))
        if (limit != 0 && clock_ns() - begin > limit) fail(report);
    const float4 first = device == 0 ? mine : theirs, second = device == 0 ? theirs : mine;
    values[at] = make_float4(first.x + second.x, first.y + second.y, first.z + second.z, first.w + second.w);
    const float none = not_yet();
    store_peer(inbox + at, make_float4(none, none, none, none));
}

// The same, and all threads of a block ask together.
extern "C" __global__ void __launch_bounds__(64) exchange_together(float4* values, float4* inbox, float4* peer) {
    const int at = blockIdx.x * 64 + threadIdx.x;
    store_peer(peer + at, values[at]);
    float4 theirs;
    do theirs = load_peer(inbox + at);
    while (!__all_sync(0xffffffffu, arrived(theirs)));
    values[at].x += theirs.x;
    const float none = not_yet();
    store_peer(inbox + at, make_float4(none, none, none, none));
}

extern "C" __global__ void __launch_bounds__(64) shift(float4* values, float term) {
    wait_for_predecessors();
    float4& value = values[blockIdx.x * 64 + threadIdx.x];
    value = make_float4(value.x + term, value.y + term, value.z + term, value.w + term);
}

extern "C" __global__ void __launch_bounds__(64) scale(float4* values, float factor) {
    wait_for_predecessors();
    float4& value = values[blockIdx.x * 64 + threadIdx.x];
    value = make_float4(value.x * factor, value.y * factor, value.z * factor, value.w * factor);
}
