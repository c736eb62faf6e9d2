// libcuda.so.1 of the emulated card: what runtime/device asks of the driver, and nothing else. A function that is not here is a missing
// symbol; a value that is not known here is CUDA_ERROR_NOT_SUPPORTED.
//
// Built for one card: CARD_NAME, CARD_MAJOR, CARD_MINOR, CARD_MEMORY (bytes), CARD_SHARED (a block's most).

#include "driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>

namespace card {

std::recursive_mutex& lock = *new std::recursive_mutex();

namespace {

bool initialised;
size_t claimed;

// Memory of the device and pinned memory of the host, by where it begins.
struct Piece {
    size_t bytes, mapped;
    unsigned char* map;
    bool device;
};
auto& pieces = *new std::map<uintptr_t, Piece>();
constexpr size_t PAGE = 4096;
constexpr unsigned char BEFORE = 0xa5;

// Ends at a guard page, and begins behind another.
CUresult claim(size_t bytes, bool device, void** at) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (device && claimed + bytes > CARD_MEMORY) return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t whole = (bytes + 255) / 256 * 256, pages = (whole + PAGE - 1) / PAGE * PAGE, mapped = pages + 2 * PAGE;
    void* map = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    auto* first = static_cast<unsigned char*>(map) + PAGE;
    if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    unsigned char* start = first + pages - whole;
    std::memset(first, BEFORE, start - first);
    std::memset(start, 0xff, whole);  // no number until it is written
    pieces[uintptr_t(start)] = {bytes, mapped, static_cast<unsigned char*>(map), device};
    if (device) claimed += bytes;
    *at = start;
    return CUDA_SUCCESS;
}

CUresult give_back(uintptr_t at, bool device) {
    const auto found = pieces.find(at);
    if (found == pieces.end() || found->second.device != device) return CUDA_ERROR_INVALID_VALUE;
    const Piece piece = found->second;
    for (unsigned char* p = piece.map + PAGE; p < reinterpret_cast<unsigned char*>(at); p++)
        if (*p != BEFORE) fail("memory before a claim was written");
    if (device) claimed -= piece.bytes;
    pieces.erase(found);
    munmap(piece.map, piece.mapped);
    return CUDA_SUCCESS;
}

void crashed(int, siginfo_t* information, void*) {
    std::fprintf(stderr, "emulated card: %sno memory at %p\n", place().c_str(), information->si_addr);
    _exit(86);
}

}  // namespace

bool is_pinned(const void* at, size_t bytes) {
    const auto next = pieces.upper_bound(uintptr_t(at));
    if (next == pieces.begin()) return false;
    const auto& [start, piece] = *std::prev(next);
    return !piece.device && uintptr_t(at) + bytes <= start + piece.bytes;
}

bool is_device(CUdeviceptr at, size_t bytes) {
    const auto next = pieces.upper_bound(at);
    if (next == pieces.begin()) return false;
    const auto& [start, piece] = *std::prev(next);
    return piece.device && at + bytes <= start + piece.bytes;
}

}  // namespace card

using namespace card;

struct CUmod_st {
    void* handle;
    std::map<std::string, CUfunc_st> functions;
};

namespace {

int context;  // there is one, and its address is its handle

// Bytes of an ELF image, whose length the caller does not pass.
size_t image_bytes(const Elf64_Ehdr& header) {
    size_t end = header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(reinterpret_cast<const unsigned char*>(&header) + header.e_shoff);
    for (int i = 0; i < header.e_shnum; i++)
        if (sections[i].sh_type != SHT_NOBITS) end = std::max<size_t>(end, sections[i].sh_offset + sections[i].sh_size);
    return end;
}

}  // namespace

#define LOCKED std::lock_guard<std::recursive_mutex> locked(lock)
#define INITIALISED         \
    LOCKED;                 \
    if (!initialised) return CUDA_ERROR_NOT_INITIALIZED

extern "C" {

CUresult cuInit(unsigned flags) {
    LOCKED;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    struct sigaction action = {};
    action.sa_sigaction = crashed;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
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
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int number) {
    INITIALISED;
    if (number != 0) return CUDA_ERROR_INVALID_VALUE;
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice) {
    INITIALISED;
    std::snprintf(name, length, "%s", CARD_NAME);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    INITIALISED;
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = CARD_MAJOR; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = CARD_MINOR; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_INTEGRATED: *value = 0; return CUDA_SUCCESS;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice) {
    INITIALISED;
    *handle = reinterpret_cast<CUcontext>(&context);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext handle) {
    // What stack the thread has for signals is too small for words.
    thread_local unsigned char* stack = nullptr;
    if (!stack) {
        stack = new unsigned char[1 << 16];
        stack_t alternative = {};
        alternative.ss_sp = stack, alternative.ss_size = 1 << 16;
        sigaltstack(&alternative, nullptr);
    }
    return handle == reinterpret_cast<CUcontext>(&context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
    INITIALISED;
    *free = CARD_MEMORY - claimed, *total = CARD_MEMORY;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* at, size_t bytes) {
    INITIALISED;
    void* start = nullptr;
    const CUresult result = claim(bytes, true, &start);
    *at = CUdeviceptr(start);
    return result;
}

CUresult cuMemFree(CUdeviceptr at) {
    INITIALISED;
    synchronize_all();
    return give_back(at, true);
}

CUresult cuMemHostAlloc(void** at, size_t bytes, unsigned flags) {
    INITIALISED;
    if (flags & ~unsigned(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)) return CUDA_ERROR_NOT_SUPPORTED;
    return claim(bytes, false, at);
}

CUresult cuMemFreeHost(void* at) {
    INITIALISED;
    synchronize_all();
    return give_back(uintptr_t(at), false);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* device, void* host, unsigned flags) {
    INITIALISED;
    if (flags != 0 || !is_pinned(host, 1)) return CUDA_ERROR_INVALID_VALUE;
    *device = CUdeviceptr(host);
    return CUDA_SUCCESS;
}

// An image is the module's text compiled for this processor: a shared object, linked against this library.
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    INITIALISED;
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
    *module = new CUmod_st{handle, {}};
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    INITIALISED;
    const auto* kernel = static_cast<const Kernel*>(dlsym(module->handle, (std::string("emulated_") + name).c_str()));
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    CUfunc_st& entry = module->functions[name];
    entry.kernel = kernel;
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
