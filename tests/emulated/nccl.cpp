// libnccl.so.2 of the emulated card: what runtime/device asks of NCCL, between processes of one machine, over loopback.
//
// What is gathered is work of a stream, as on a card: the call returns at once, and a graph may hold it. A rank that is gone is waited for
// for ever, as NCCL's kernels do. Ranks that do not gather the same in the same order are ended.

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "driver.h"

namespace {

enum Result { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
constexpr int FLOAT32 = 7;
constexpr int VERSION = 23007;
constexpr int POLL_MS = 10;

// A line of bytes to a peer and back.
struct Peer {
    int socket = -1;
    size_t sent = 0, got = 0;
};

// What a rank says before its rows.
struct Head {
    unsigned long long number, bytes;
};

struct Communicator {
    int rank, ranks;
    std::vector<Peer> peers;  // by rank; without a socket: this one
    unsigned long long number = 0;
    CUcontext context;

    void all_gather(const unsigned char* from, unsigned char* to, size_t bytes);
};

struct UniqueId {
    char bytes[128];
};

int listening = -1;

sockaddr_in loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET, address.sin_port = htons(port), address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

int listen_anywhere(int* port) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    auto* at = reinterpret_cast<sockaddr*>(&address);
    if (socket < 0 || bind(socket, at, length) != 0 || listen(socket, 16) != 0 || getsockname(socket, at, &length) != 0) return -1;
    *port = ntohs(address.sin_port);
    return socket;
}

int dial(int port) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(port);
    if (socket < 0 || connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return -1;
    return socket;
}

bool write_all(int socket, const void* from, size_t bytes) { return send(socket, from, bytes, MSG_NOSIGNAL) == ssize_t(bytes); }
bool read_all(int socket, void* to, size_t bytes) { return recv(socket, to, bytes, MSG_WAITALL) == ssize_t(bytes); }

// As far as it goes without waiting; `head` goes before `rows`.
template <class Move>
void move(size_t& done, unsigned char* head, unsigned char* rows, size_t bytes, Move step) {
    while (done < sizeof(Head) + bytes) {
        const bool first = done < sizeof(Head);
        unsigned char* at = first ? head + done : rows + (done - sizeof(Head));
        const ssize_t moved = step(at, first ? sizeof(Head) - done : sizeof(Head) + bytes - done);
        if (moved <= 0) return;
        done += moved;
    }
}

// Runs as an operation of a stream.
void Communicator::all_gather(const unsigned char* from, unsigned char* to, size_t bytes) {
    Head own = {number++, bytes};
    std::memmove(to + rank * bytes, from, bytes);
    std::vector<Head> heads(ranks, own);
    for (Peer& peer : peers) peer.sent = peer.got = 0;
    for (;;) {
        std::vector<pollfd> missing;
        bool gone = false;
        for (int i = 0; i < ranks; i++) {
            Peer& peer = peers[i];
            if (peer.socket < 0) continue;
            move(peer.sent, reinterpret_cast<unsigned char*>(&own), to + rank * bytes, bytes,
                 [&](unsigned char* at, size_t count) { return send(peer.socket, at, count, MSG_NOSIGNAL | MSG_DONTWAIT); });
            move(peer.got, reinterpret_cast<unsigned char*>(&heads[i]), to + i * bytes, bytes, [&](unsigned char* at, size_t count) {
                // Not one byte of a rank's rows before it is known how many there are.
                if (peer.got >= sizeof(Head) && (heads[i].number != own.number || heads[i].bytes != bytes))
                    card::fail("rank %d gathers %llu bytes as its %llu, and rank %d %zu as its %llu", i, heads[i].bytes, heads[i].number, rank, bytes, own.number);
                const ssize_t received = recv(peer.socket, at, count, MSG_DONTWAIT);
                gone = gone || received == 0;
                return received;
            });
            const short events = (peer.sent < sizeof(Head) + bytes ? POLLOUT : 0) | (peer.got < sizeof(Head) + bytes ? POLLIN : 0);
            if (events) missing.push_back({peer.socket, events, 0});
        }
        if (missing.empty()) return;
        const int ready = poll(missing.data(), missing.size(), POLL_MS);
        for (const pollfd& it : missing) gone = gone || it.revents & (POLLHUP | POLLERR);
        if (ready <= 0 || gone) card::wait_outside();
    }
}

int check(bool sound) { return sound ? SUCCESS : SYSTEM_ERROR; }

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
    *version = VERSION;
    return SUCCESS;
}

int ncclGetUniqueId(UniqueId* id) {
    int port = 0;
    listening = listen_anywhere(&port);
    std::memset(id, 0, sizeof *id);
    std::memcpy(id->bytes, &port, sizeof port);
    return check(listening >= 0);
}

// All dial rank 0 and say where they listen; each then dials those below it.
int ncclCommInitRank(void** handle, int ranks, UniqueId id, int rank) {
    if (!card::entered) return INVALID_USAGE;
    if (rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    auto* made = new Communicator{rank, ranks, std::vector<Peer>(ranks), 0, card::entered};
    std::vector<int> ports(ranks);
    std::memcpy(&ports[0], id.bytes, sizeof ports[0]);
    if (rank == 0) {
        for (int i = 1; i < ranks; i++) {
            const int socket = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
            int who[2];
            if (socket < 0 || !read_all(socket, who, sizeof who) || who[0] <= 0 || who[0] >= ranks) return SYSTEM_ERROR;
            made->peers[who[0]].socket = socket, ports[who[0]] = who[1];
        }
        for (int i = 1; i < ranks; i++)
            if (!write_all(made->peers[i].socket, ports.data(), ranks * sizeof ports[0])) return SYSTEM_ERROR;
    } else {
        int own[2] = {rank, 0};
        const int mine = listen_anywhere(&own[1]), first = dial(ports[0]);
        if (mine < 0 || first < 0 || !write_all(first, own, sizeof own) || !read_all(first, ports.data(), ranks * sizeof ports[0])) return SYSTEM_ERROR;
        made->peers[0].socket = first;
        for (int i = 1; i < rank; i++) {
            made->peers[i].socket = dial(ports[i]);
            if (made->peers[i].socket < 0 || !write_all(made->peers[i].socket, &rank, sizeof rank)) return SYSTEM_ERROR;
        }
        for (int i = rank + 1; i < ranks; i++) {
            const int socket = accept4(mine, nullptr, nullptr, SOCK_CLOEXEC);
            int who;
            if (socket < 0 || !read_all(socket, &who, sizeof who) || who <= rank || who >= ranks) return SYSTEM_ERROR;
            made->peers[who].socket = socket;
        }
    }
    *handle = made;
    return SUCCESS;
}

int ncclCommGetAsyncError(void*, int* state) {
    *state = SUCCESS;
    return SUCCESS;
}

int ncclAllGather(const void* from, void* to, size_t count, int type, void* handle, CUstream stream) {
    const std::lock_guard<card::Gate> locked(card::gate);
    card::calls++;
    auto* of = static_cast<Communicator*>(handle);
    const CUctx_st& context = *stream->owner.context;
    const size_t bytes = count * sizeof(float);
    if (type != FLOAT32) return INVALID_ARGUMENT;
    if (of->context != stream->owner.context || of->context != card::entered) return INVALID_USAGE;
    if (count == 0) return SUCCESS;
    if (card::owner_of(uintptr_t(from), bytes) != context.device || card::owner_of(uintptr_t(to), of->ranks * bytes) != context.device) return INVALID_ARGUMENT;
    const auto* source = static_cast<const unsigned char*>(from);
    auto* rows = static_cast<unsigned char*>(to);
    card::Operation operation = {[=] { of->all_gather(source, rows, bytes); }, {}, {}};
    if (stream->capture) stream->capture->operations.push_back(std::move(operation));
    else card::tell(*stream, std::move(operation));
    return SUCCESS;
}

const char* ncclGetErrorString(int) { return "an error of the emulated library"; }
const char* ncclGetLastError(void*) { return ""; }

}  // extern "C"
