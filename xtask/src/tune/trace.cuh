// Clocks in kernels, for `cargo xtask tune --trace`: when each block of each launch began, came past its wait and ended, and on which multiprocessor.
// xtask puts this at the top of a copy of lib/async.cuh and calls into it from every kernel. One record a
// block and launch, read by runtime/tune.
namespace monomorph {

enum { TRACE_KERNELS = 6, TRACE_LAUNCHES = 96, TRACE_BLOCKS = 544 };

struct TraceRecord {
    unsigned long long began, waited, ended;   // ns of the card's clock
    unsigned multiprocessor, reserved;
};
__device__ TraceRecord trace_records[TRACE_KERNELS][TRACE_LAUNCHES][TRACE_BLOCKS];
// Launches so far. A block is its own only writer, and two launches of one kernel are never under way at a time.
__device__ int trace_launches[TRACE_KERNELS][TRACE_BLOCKS];
__shared__ int trace_kernel, trace_launch;

__device__ __forceinline__ unsigned long long trace_now() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
__device__ __forceinline__ int trace_block() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
// Of thread 0, which alone writes; null where there is no room.
__device__ __forceinline__ TraceRecord* trace_record() {
    return trace_launch < TRACE_LAUNCHES ? &trace_records[trace_kernel][trace_launch][trace_block()] : nullptr;
}
__device__ __forceinline__ void trace_began(int kernel) {
    if (threadIdx.x != 0) return;
    const unsigned long long now = trace_now();
    trace_kernel = kernel;
    trace_launch = trace_block() < TRACE_BLOCKS ? *const_cast<volatile int*>(&trace_launches[kernel][trace_block()]) : TRACE_LAUNCHES;
    if (TraceRecord* record = trace_record()) {
        record->began = now;
        asm volatile("mov.u32 %0, %smid;" : "=r"(record->multiprocessor));
    }
}
__device__ __forceinline__ void trace_waited() {
    if (threadIdx.x != 0) return;
    if (TraceRecord* record = trace_record()) record->waited = trace_now();
}
__device__ __forceinline__ void trace_ended() {
    if (threadIdx.x != 0) return;
    if (TraceRecord* record = trace_record()) {
        record->ended = trace_now();
        trace_launches[trace_kernel][trace_block()] = trace_launch + 1;
    }
}

}  // namespace monomorph

