// libcuda.so.1 of the emulated card: what runtime/device asks of the driver, and nothing else. A function that
// is not here is a missing symbol; a value that is not known here is CUDA_ERROR_NOT_SUPPORTED.
//
// Built for CARD_DEVICES cards of one kind: CARD_NAME, CARD_MAJOR, CARD_MINOR, CARD_MEMORY (bytes), CARD_SHARED
// (a block's most), and CARD_PATIENCE (milliseconds without a word of the host after which kernels that only
// poll are stuck).

#include "driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>

namespace card {

Gate& gate = *new Gate();
unsigned long calls;
thread_local CUcontext entered;

namespace {

bool initialised;
auto& contexts = *new std::vector<CUctx_st>();

void crashed(int, siginfo_t* information, void*) {
    const int owner = owner_of(uintptr_t(information->si_addr), 1);
    if (owner >= 0) {
        std::fprintf(stderr, "emulated card: %s%p is memory of device %d, which may not be touched from here: its rights to peers are those of "
                     "cuCtxEnablePeerAccess\n", place().c_str(), information->si_addr, owner);
    } else {
        std::fprintf(stderr, "emulated card: %sno memory at %p\n", place().c_str(), information->si_addr);
    }
    _exit(86);
}

bool is_alive(const Owner& owner) { return owner.context->retained > 0 && owner.context->life == owner.life; }

}  // namespace

CUresult refuse(CUresult error, const char* format, ...) {
    char words[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "emulated card: %s\n", words);
    std::fflush(stderr);
    return error;
}

CUresult inside(const char* call) {
    if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!entered) return refuse(CUDA_ERROR_INVALID_CONTEXT, "%s: the thread has entered no context (cuCtxSetCurrent)", call);
    if (entered->retained == 0) return refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED, "%s: the thread's context, of device %d, was released", call, entered->device);
    return entered->fault;
}

CUresult usable(const char* call, const char* what, const Owner& owner) {
    if (!is_alive(owner)) return refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED, "%s: the context of the %s, of device %d, was released", call, what, owner.context->device);
    return owner.context->fault;
}

CUresult together(const char* call, const char* one, const Owner& first, const char* other, const Owner& second) {
    EXPECT(usable(call, one, first));
    EXPECT(usable(call, other, second));
    if (first.context == second.context) return CUDA_SUCCESS;
    return refuse(CUDA_ERROR_INVALID_HANDLE, "%s: the %s is device %d's and the %s device %d's", call, one, first.context->device, other, second.context->device);
}

bool may_reach(const CUctx_st& context, int device) { return context.device == device || context.reaches[device]; }

}  // namespace card

using namespace card;

struct CUmod_st {
    Owner owner;
    void* handle;
    std::map<std::string, CUfunc_st> functions;
};

namespace {

// Bytes of an ELF image, whose length the caller does not pass.
size_t image_bytes(const Elf64_Ehdr& header) {
    size_t end = header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(reinterpret_cast<const unsigned char*>(&header) + header.e_shoff);
    for (int i = 0; i < header.e_shnum; i++)
        if (sections[i].sh_type != SHT_NOBITS) end = std::max<size_t>(end, sections[i].sh_offset + sections[i].sh_size);
    return end;
}

bool is_context(CUcontext handle) { return handle >= contexts.data() && handle < contexts.data() + contexts.size(); }
bool is_number(int device) { return device >= 0 && device < CARD_DEVICES; }

}  // namespace

#define INITIALISED \
    LOCKED;         \
    if (!initialised) return CUDA_ERROR_NOT_INITIALIZED
#define OF_A_DEVICE(device) \
    INITIALISED;            \
    if (!is_number(device)) return CUDA_ERROR_INVALID_DEVICE
#define INSIDE \
    LOCKED;    \
    EXPECT(inside(__func__))

extern "C" {

CUresult cuInit(unsigned flags) {
    LOCKED;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    struct sigaction action = {};
    action.sa_sigaction = crashed;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
    if (!initialised) {
        for (int device = 0; device < CARD_DEVICES; device++) contexts.push_back({device});
        if (CARD_DEVICES > 1) take_turns();
    }
    initialised = true;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
    switch (error) {
        case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; return CUDA_SUCCESS;
        case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return CUDA_SUCCESS;
        case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return CUDA_SUCCESS;
        case CUDA_ERROR_NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; return CUDA_SUCCESS;
        case CUDA_ERROR_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return CUDA_SUCCESS;
        case CUDA_ERROR_INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; return CUDA_SUCCESS;
        case CUDA_ERROR_INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; return CUDA_SUCCESS;
        case CUDA_ERROR_CONTEXT_IS_DESTROYED: *name = "CUDA_ERROR_CONTEXT_IS_DESTROYED"; return CUDA_SUCCESS;
        case CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED: *name = "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"; return CUDA_SUCCESS;
        case CUDA_ERROR_PEER_ACCESS_NOT_ENABLED: *name = "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"; return CUDA_SUCCESS;
        case CUDA_ERROR_NOT_PERMITTED: *name = "CUDA_ERROR_NOT_PERMITTED"; return CUDA_SUCCESS;
        case CUDA_ERROR_NOT_READY: *name = "CUDA_ERROR_NOT_READY"; return CUDA_SUCCESS;
        case CUDA_ERROR_LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; return CUDA_SUCCESS;
        case CUDA_ERROR_NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; return CUDA_SUCCESS;
        case CUDA_ERROR_INVALID_IMAGE: *name = "CUDA_ERROR_INVALID_IMAGE"; return CUDA_SUCCESS;
        default: *name = "another error"; return CUDA_SUCCESS;
    }
}

CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "from the emulated card";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
    INITIALISED;
    *count = CARD_DEVICES;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int number) {
    OF_A_DEVICE(number);
    *device = number;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    OF_A_DEVICE(device);
    std::snprintf(name, length, "%s", CARD_NAME);
    return CUDA_SUCCESS;
}

// The zeros of a UUID end in the device's number.
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    OF_A_DEVICE(device);
    *uuid = {};
    uuid->bytes[15] = static_cast<char>(device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    OF_A_DEVICE(device);
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = CARD_MAJOR; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = CARD_MINOR; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_INTEGRATED: *value = 0; return CUDA_SUCCESS;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
    OF_A_DEVICE(device);
    contexts[device].retained++;
    *handle = &contexts[device];
    return CUDA_SUCCESS;
}

// With the last user go the context's memory, streams, modules and rights.
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    OF_A_DEVICE(device);
    CUctx_st& context = contexts[device];
    if (context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (context.retained == 1) {
        synchronize(&context);
        give_back_all(device);
        context.life++, context.fault = CUDA_SUCCESS, context.runs_graphs = false;
        std::fill(std::begin(context.reaches), std::end(context.reaches), false);
        for (CUctx_st& other : contexts) other.reaches[device] = false;
    }
    context.retained--;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle) {
    LOCKED;
    // What stack the thread has for signals is too small for words.
    thread_local unsigned char* stack = nullptr;
    if (!stack) {
        stack = new unsigned char[1 << 16];
        stack_t alternative = {};
        alternative.ss_sp = stack, alternative.ss_size = 1 << 16;
        sigaltstack(&alternative, nullptr);
    }
    if (handle && (!is_context(handle) || handle->retained == 0)) return CUDA_ERROR_INVALID_CONTEXT;
    entered = handle;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
    *handle = entered;
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    OF_A_DEVICE(device);
    if (!is_number(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

// The thread's context is given the right to the peer's memory, in this direction only.
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    INSIDE;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_context(peer) || peer->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (peer == entered) return refuse(CUDA_ERROR_INVALID_DEVICE, "%s: device %d is not its own peer", __func__, peer->device);
    if (entered->reaches[peer->device]) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    entered->reaches[peer->device] = true;
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    INSIDE;
    if (!is_context(peer)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!entered->reaches[peer->device]) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    entered->reaches[peer->device] = false;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
    INSIDE;
    *free = CARD_MEMORY - claimed_of(entered->device), *total = CARD_MEMORY;
    return CUDA_SUCCESS;
}

// A card may wait for all of its work before it claims memory or locks some of the host's, and that work for
// another device, whose host thread is not asked. So it is refused here while another device has kernels to
// run.
CUresult others_rest(const char* call) {
    const auto launches = [](const Operation& operation) { return !operation.launches.empty(); };
    for (const Stream& stream : streams) {
        const CUctx_st& context = *stream->owner.context;
        const bool works = stream->state == CUstream_st::POLLING || std::any_of(stream->waiting.begin(), stream->waiting.end(), launches);
        if (&context == entered || !context.runs_graphs || !works) continue;
        return refuse(CUDA_ERROR_NOT_PERMITTED, "%s: device %d claims memory while device %d works, and may wait for it", call, entered->device,
                      context.device);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* at, size_t bytes) {
    INSIDE;
    EXPECT(others_rest(__func__));
    void* start = nullptr;
    const CUresult result = claim(bytes, entered->device, &start);
    *at = CUdeviceptr(start);
    return result;
}

CUresult cuMemFree(CUdeviceptr at) {
    INITIALISED;
    const int device = owner_of(at, 1);
    if (device < 0) return CUDA_ERROR_INVALID_VALUE;
    EXPECT(synchronize(&contexts[device]));
    return give_back(at, device);
}

CUresult cuMemHostAlloc(void** at, size_t bytes, unsigned flags) {
    INSIDE;
    EXPECT(others_rest(__func__));
    if (flags & ~unsigned(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)) return CUDA_ERROR_NOT_SUPPORTED;
    return claim(bytes, HOST, at);
}

CUresult cuMemFreeHost(void* at) {
    INITIALISED;
    EXPECT(synchronize(nullptr));
    return give_back(uintptr_t(at), HOST);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* device, void* host, unsigned flags) {
    INITIALISED;
    if (flags != 0 || owner_of(uintptr_t(host), 1) != HOST) return CUDA_ERROR_INVALID_VALUE;
    *device = CUdeviceptr(host);
    return CUDA_SUCCESS;
}

// An image is the module's text compiled for this processor: a shared object, linked against this library.
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    INSIDE;
    const auto& header = *static_cast<const Elf64_Ehdr*>(image);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != EM_X86_64) return CUDA_ERROR_INVALID_IMAGE;
    const int file = memfd_create("module", MFD_CLOEXEC);
    const size_t bytes = image_bytes(header);
    if (file < 0 || write(file, image, bytes) != ssize_t(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) std::fprintf(stderr, "emulated card: %s\n", dlerror());
    // The file stays open: another module's would have its name, and pass for it.
    if (!handle) return CUDA_ERROR_INVALID_IMAGE;
    *module = new CUmod_st{{entered, entered->life}, handle, {}};
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    LOCKED;
    EXPECT(usable(__func__, "module", module->owner));
    const auto* kernel = static_cast<const Kernel*>(dlsym(module->handle, (std::string("emulated_") + name).c_str()));
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    CUfunc_st& entry = module->functions[name];
    entry.kernel = kernel, entry.owner = module->owner;
    *function = &entry;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
    INITIALISED;
    if (index >= size_t(function->kernel->parameters)) return CUDA_ERROR_INVALID_VALUE;
    *offset = function->kernel->offsets[index], *size = function->kernel->sizes[index];
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    INITIALISED;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            if (value < 0 || value > CARD_SHARED) return CUDA_ERROR_INVALID_VALUE;
            function->most_shared = value;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

}  // extern "C"
