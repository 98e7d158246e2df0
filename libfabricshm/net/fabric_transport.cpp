#include "libfabricshm/net/fabric_transport.hpp"

#include <netinet/in.h>
#include <rdma/fi_errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <span>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/net/provider.hpp"
#include "libfabricshm/os/random.hpp"

namespace fabricshm::net {

namespace {

bool failed(int code, const char* step, TransportError& error) {
    if (code == 0) return false;
    error.code = Errc::kSystem;
    std::snprintf(error.text, sizeof error.text, "libfabric: %s: %s", step, fi_strerror(-code));
    return true;
}

template <typename Object>
int keep(int code, Object*& made, Held<Object>& held) {
    if (code == 0) held.reset(made);
    return code;
}

// nullptr when there is no room.
std::byte* map_shared(int file, Bytes bytes, std::byte*& mapped) noexcept {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    mapped = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
    return mapped;
}

}  // namespace

std::unique_ptr<FabricTransport> FabricTransport::open(const TransportSpec& spec,
                                                       TransportError& error) {
    std::unique_ptr<FabricTransport> made(new FabricTransport());
    made->info_.reset(
        choose_provider(spec.address, spec.provider == nullptr ? "" : spec.provider, error));
    if (made->info_ == nullptr || !made->open_endpoint(error) || !made->open_doors(spec, error)) {
        return nullptr;
    }
    return made;
}

FabricTransport::~FabricTransport() {
    // The endpoint first: nothing may come in while what it writes to goes.
    endpoint_.reset();
    peers_.clear();
    lent_.clear();
    if (memory_ != nullptr) ::munmap(memory_, memory_bytes_);
    if (written_ != nullptr) ::munmap(written_, memory_bytes_);
}

bool FabricTransport::open_endpoint(TransportError& error) {
    fid_fabric* fabric = nullptr;
    fid_domain* domain = nullptr;
    fid_av* names = nullptr;
    fid_cq* events = nullptr;
    fid_ep* endpoint = nullptr;
    fi_av_attr names_attr{};
    names_attr.type = FI_AV_TABLE;
    fi_cq_attr events_attr{};
    events_attr.format = FI_CQ_FORMAT_DATA;
    events_attr.wait_obj = FI_WAIT_UNSPEC;
    if (failed(keep(fi_fabric(info_->fabric_attr, &fabric, nullptr), fabric, fabric_),
               "open fabric", error) ||
        failed(keep(fi_domain(fabric, info_.get(), &domain, nullptr), domain, domain_),
               "open domain", error) ||
        failed(keep(fi_av_open(domain, &names_attr, &names, nullptr), names, names_),
               "open address table", error) ||
        failed(keep(fi_cq_open(domain, &events_attr, &events, nullptr), events, events_),
               "open completion queue", error) ||
        failed(keep(fi_endpoint(domain, info_.get(), &endpoint, nullptr), endpoint, endpoint_),
               "open endpoint", error) ||
        failed(fi_ep_bind(endpoint, &names->fid, 0), "bind address table", error) ||
        failed(fi_ep_bind(endpoint, &events->fid, FI_TRANSMIT | FI_RECV), "bind queue", error) ||
        failed(fi_enable(endpoint), "enable endpoint", error)) {
        return false;
    }
    std::size_t bytes = address_.name.size();
    if (failed(fi_getname(&endpoint->fid, address_.name.data(), &bytes), "name of endpoint",
               error)) {
        return false;
    }
    address_.bytes = static_cast<std::uint32_t>(bytes);
    return true;
}

int FabricTransport::register_memory(void* base, Bytes bytes, std::uint64_t access,
                                     Held<fid_mr>& region) {
    std::uint64_t key = 0;
    // The kernel's random numbers: over TCP a key that can be guessed is an open door.
    if (!fill_random(std::as_writable_bytes(std::span(&key, 1))).ok()) return -FI_EIO;
    fid_mr* made = nullptr;
    return keep(fi_mr_reg(domain_.get(), base, bytes, access, 0, key, 0, &made, nullptr), made,
                region);
}

bool FabricTransport::open_doors(const TransportSpec& spec, TransportError& error) {
    peers_ = std::vector<Peer>(static_cast<std::size_t>(spec.world));
    Bytes doors = 0;
    for (int peer = 0; peer < spec.world; ++peer) doors += spec.remote[peer] ? 1 : 0;
    door_bytes_ = round_up(spec.door_bytes, kPageBytes);
    memory_bytes_ = doors * door_bytes_;
    if (memory_bytes_ == 0) return true;
    if (lend(note_.data(), note_.size()) != Errc::kOk) {
        return !failed(-FI_ENOMEM, "register memory", error);
    }
    // Seen twice: as the provider writes it, and as it is read. See fence().
    const int file = ::memfd_create("fabricshm-net", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(memory_bytes_)) != 0) {
        if (file >= 0) ::close(file);
        return !failed(-FI_ENOMEM, "memory for what comes in", error);
    }
    std::byte* next_written = map_shared(file, memory_bytes_, written_);
    std::byte* next = map_shared(file, memory_bytes_, memory_);
    ::close(file);
    if (next == nullptr || next_written == nullptr) {
        return !failed(-FI_ENOMEM, "memory for what comes in", error);
    }
    for (int rank = 0; rank < spec.world; ++rank) {
        if (!spec.remote[rank]) continue;
        Peer& peer = at(rank);
        peer.memory = next;
        peer.written = next_written;
        next += door_bytes_;
        next_written += door_bytes_;
        // A region for each peer, so that one can be closed and the others stay.
        if (failed(register_memory(peer.written, door_bytes_, FI_REMOTE_WRITE, peer.region),
                   "register memory", error)) {
            return false;
        }
        if (needs(FI_MR_ENDPOINT) &&
            (failed(fi_mr_bind(peer.region.get(), &endpoint_->fid, 0), "bind memory", error) ||
             failed(fi_mr_enable(peer.region.get()), "enable memory", error))) {
            return false;
        }
        peer.mine.base = needs(FI_MR_VIRT_ADDR) ? reinterpret_cast<std::uint64_t>(peer.written) : 0;
        peer.mine.key = fi_mr_key(peer.region.get());
    }
    return true;
}

Errc FabricTransport::lend(std::byte* base, Bytes bytes) noexcept {
    if (!needs_lent()) return Errc::kOk;
    Lent lent{base, bytes, nullptr};
    if (register_memory(base, bytes, FI_WRITE, lent.region) != 0) return Errc::kSystem;
    lent_.push_back(std::move(lent));
    return Errc::kOk;
}

void* FabricTransport::description_of(const std::byte* from) const noexcept {
    for (const Lent& lent : lent_) {
        if (from >= lent.base && from < lent.base + lent.bytes)
            return fi_mr_desc(lent.region.get());
    }
    return nullptr;
}

Errc FabricTransport::know(int peer, const Address& address, const Door& door) noexcept {
    at(peer).theirs = door;
    if (address.bytes > address.name.size()) return Errc::kCorrupt;
    static_assert(sizeof address.name <= sizeof(sockaddr_storage));
    std::memcpy(&at(peer).listens, address.name.data(), address.bytes);
    const int inserted =
        fi_av_insert(names_.get(), address.name.data(), 1, &at(peer).address, 0, nullptr);
    return inserted == 1 ? Errc::kOk : Errc::kInvalid;
}

Errc FabricTransport::write(int peer, const std::byte* from, Bytes bytes, Bytes offset,
                            std::uint32_t word, std::atomic<int>* pending) noexcept {
    Peer& to = at(peer);
    // Providers do not all refuse an address that they were never given.
    if (to.lost || to.address == FI_ADDR_UNSPEC) return Errc::kPeer;
    if (free_.empty()) free_.push_back(&writes_.emplace_back());
    Write* write = free_.back();
    write->peer = peer;
    write->pending = pending;
    if (bytes == 0) {
        // A provider may drop writes of nothing.
        from = note_.data();
        bytes = sizeof(std::uint64_t);
        offset = 0;
    }
    const ssize_t code =
        fi_writedata(endpoint_.get(), from, bytes, description_of(from), word, to.address,
                     to.theirs.base + offset, to.theirs.key, &write->context);
    if (code == -FI_EAGAIN) return Errc::kBusy;
    if (code != 0) {
        to.lost = true;
        return Errc::kPeer;
    }
    free_.pop_back();
    // Relaxed: a count. What it guards is the provider's, which orders itself.
    if (pending != nullptr) pending->fetch_add(1, std::memory_order_relaxed);
    return Errc::kOk;
}

void FabricTransport::finish(Write* write) noexcept {
    // Release: the caller may change the bytes once it reads the lower count.
    if (write->pending != nullptr) write->pending->fetch_sub(1, std::memory_order_release);
    free_.push_back(write);
}

// 1 when it is an event for the caller.
int FabricTransport::read_error(Event& event) noexcept {
    fi_cq_err_entry entry{};
    if (fi_cq_readerr(events_.get(), &entry, 0) <= 0) return 0;
    // Not ours: an error of the receiving side has no context. Its peer will be noticed by writing.
    if (entry.op_context == nullptr) return 0;
    auto* write = static_cast<Write*>(entry.op_context);
    const int peer = write->peer;
    finish(write);
    at(peer).lost = true;
    event = {Event::What::kLost, 0, peer, entry.err};
    return 1;
}

int FabricTransport::poll(Event* events, int capacity, int wait_ms) noexcept {
    constexpr int kMost = 32;
    fi_cq_data_entry entries[kMost];
    const auto most = static_cast<std::size_t>(capacity < kMost ? capacity : kMost);
    const ssize_t count = wait_ms == 0
                              ? fi_cq_read(events_.get(), entries, most)
                              : fi_cq_sread(events_.get(), entries, most, nullptr, wait_ms);
    if (count == -FI_EAVAIL) return read_error(events[0]);
    int made = 0;
    for (ssize_t i = 0; i < count; ++i) {
        if ((entries[i].flags & FI_REMOTE_CQ_DATA) != 0) {
            events[made++] = {Event::What::kArrived, static_cast<std::uint32_t>(entries[i].data),
                              -1, 0};
        } else if (entries[i].op_context != nullptr) {
            finish(static_cast<Write*>(entries[i].op_context));
        }
    }
    return made;
}

Presence FabricTransport::presence(int peer) noexcept {
    // Its endpoint's name is the address at which it takes connections.
    const bool is_ip =
        info_->addr_format == FI_SOCKADDR_IN || info_->addr_format == FI_SOCKADDR_IN6;
    if (!is_ip || !uses_tcp(provider())) return Presence::kUnknown;
    Peer& it = at(peer);
    const bool is_v4 = info_->addr_format == FI_SOCKADDR_IN;
    const socklen_t bytes = is_v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    switch (it.probe.ask(reinterpret_cast<const sockaddr*>(&it.listens), bytes)) {
        case ListenerProbe::Answer::kListens:
            return Presence::kThere;
        case ListenerProbe::Answer::kRefused:
            return Presence::kGone;
        case ListenerProbe::Answer::kNone:
            break;
    }
    return Presence::kNoAnswer;
}

void FabricTransport::fence(int peer) noexcept {
    const std::lock_guard lock(fencing_);
    Peer& it = at(peer);
    if (it.region == nullptr) return;
    it.region.reset();
    // A write whose first bytes were here already goes on into memory that its provider has looked
    // up before (seen with tcp;ofi_rxm: one in four cuts). From here on that is other memory.
    void* other = ::mmap(it.written, door_bytes_, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    // Going on without it would let the write land.
    FABRIC_CHECK(other == it.written);
}

void FabricTransport::wake() noexcept {
    fi_cq_signal(events_.get());
}

}  // namespace fabricshm::net

extern "C" __attribute__((visibility("default"))) fabricshm::net::Transport*
fabricshm_net_transport(int version, const fabricshm::net::TransportSpec* spec,
                        fabricshm::net::TransportError* error) {
    using namespace fabricshm;
    if (version != net::kTransportVersion) {
        error->code = Errc::kVersion;
        std::snprintf(error->text, sizeof error->text,
                      "libfabricshm_net.so has version %d, libfabricshm.so wants %d",
                      net::kTransportVersion, version);
        return nullptr;
    }
    try {
        return net::FabricTransport::open(*spec, *error).release();
    } catch (...) {
        error->code = Errc::kNoMemory;
        std::snprintf(error->text, sizeof error->text, "memory of this process");
        return nullptr;
    }
}
