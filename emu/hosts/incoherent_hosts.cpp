#include "emu/hosts/incoherent_hosts.hpp"

#include <sys/mman.h>

#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/os/mapping.hpp"

namespace emu {

using fabricshm::Fd;
using fabricshm::Mapping;
using fabricshm::Result;
using fabricshm::VisibilityPolicy;

namespace {

// The second view of an arena: the pool itself. The first becomes the host's cache.
struct ArenaHost final : VisibilityPolicy {
    ArenaHost(Mapping second, std::byte* base, Bytes bytes, LineLocks& locks,
              const HostBehaviour& behaviour)
        : pool(std::move(second)),
          lines(bytes, base),
          known(bytes),
          cache(pool.data(), lines.data(), known.data(), bytes, locks),
          host(cache, behaviour) {}

    void publish(const fabricshm::Access& access) noexcept override { host.publish(access); }
    void acquire(const fabricshm::Access& access) noexcept override { host.acquire(access); }
    bool coherent() const noexcept override { return false; }

    Mapping pool;
    SharedPages lines;
    SharedPages known;
    HostCache cache;
    IncoherentHost host;
};

}  // namespace

SharedPages::SharedPages(Bytes bytes, std::byte* at)
    : bytes_(fabricshm::round_up(bytes, 4096)), owned_(at == nullptr) {
    const int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0);
    void* memory = ::mmap(at, bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
    FABRIC_CHECK(memory != MAP_FAILED);  // addresses only: pages come when they are touched
    data_ = static_cast<std::byte*>(memory);
}

SharedPages::SharedPages(SharedPages&& other) noexcept
    : data_(other.data_), bytes_(other.bytes_), owned_(std::exchange(other.owned_, false)) {}

SharedPages::~SharedPages() {
    if (owned_) ::munmap(data_, bytes_);
}

IncoherentHosts::Host::Host(std::byte* pool, Bytes bytes, LineLocks& locks,
                            const HostBehaviour& behaviour)
    : lines(bytes),
      known(bytes),
      cache(pool, lines.data(), known.data(), bytes, locks),
      policy(cache, behaviour) {}

IncoherentHosts::IncoherentHosts(std::byte* pool, Bytes bytes, int count,
                                 const HostBehaviour& behaviour) {
    for (int host = 0; host < count; ++host) {
        HostBehaviour own = behaviour;
        own.seed += static_cast<std::uint64_t>(host) << 32;  // hosts do not stumble in step
        hosts_.push_back(std::make_unique<Host>(pool, bytes, locks_, own));
    }
}

std::byte* IncoherentHosts::base(int host) const noexcept {
    return hosts_[static_cast<std::size_t>(host)]->lines.data();
}

IncoherentHost& IncoherentHosts::policy(int host) noexcept {
    return hosts_[static_cast<std::size_t>(host)]->policy;
}

Result<std::shared_ptr<VisibilityPolicy>> HostPerProcess::policy_for(const Fd& file,
                                                                     Bytes file_offset,
                                                                     std::byte* base, Bytes bytes) {
    FABRIC_TRY(Mapping pool, Mapping::map(file, file_offset, bytes, {}));
    return std::shared_ptr<VisibilityPolicy>(
        std::make_shared<ArenaHost>(std::move(pool), base, bytes, locks_, behaviour_));
}

}  // namespace emu
