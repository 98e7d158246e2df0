// IncoherentHosts: several emulated hosts over one pool, in one process or in forked ones.

#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "emu/hosts/host_cache.hpp"
#include "emu/hosts/incoherent_host.hpp"
#include "emu/hosts/line_locks.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace emu {

/// Memory of this process for an emulation; forked children share it. Move-only.
class SharedPages {
  public:
    /// Zeros. With `at`, in place of what is mapped there, which stays when this goes.
    explicit SharedPages(Bytes bytes, std::byte* at = nullptr);
    SharedPages(SharedPages&& other) noexcept;
    SharedPages& operator=(SharedPages&&) = delete;
    ~SharedPages();

    std::byte* data() const noexcept { return data_; }

  private:
    std::byte* data_;
    Bytes bytes_;
    bool owned_;
};

/// Hosts that all see the memory at `pool`. Make it before the processes that play the hosts.
/// Processes and threads of one host share its cache, as on a real host.
class IncoherentHosts {
  public:
    /// Borrows `pool`, which only the hosts use from now on.
    IncoherentHosts(std::byte* pool, Bytes bytes, int count, const HostBehaviour& behaviour);

    int count() const noexcept { return static_cast<int>(hosts_.size()); }
    /// Where the ranks of `host` see the pool.
    std::byte* base(int host) const noexcept;
    IncoherentHost& policy(int host) noexcept;

  private:
    struct Host {
        Host(std::byte* pool, Bytes bytes, LineLocks& locks, const HostBehaviour& behaviour);
        SharedPages lines;
        SharedPages known;
        HostCache cache;
        IncoherentHost policy;
    };

    LineLocks locks_;
    std::vector<std::unique_ptr<Host>> hosts_;
};

/// Makes every arena that a process opens that of an emulated host of its own: install it with
/// fabricshm::install_visibility() before the processes are forked.
class HostPerProcess final : public fabricshm::VisibilityProvider {
  public:
    explicit HostPerProcess(const HostBehaviour& behaviour) : behaviour_(behaviour) {}

    fabricshm::Result<std::shared_ptr<fabricshm::VisibilityPolicy>> policy_for(
        const fabricshm::Fd& file, Bytes file_offset, std::byte* base, Bytes bytes) override;

  private:
    const HostBehaviour behaviour_;
    LineLocks locks_;
};

}  // namespace emu
