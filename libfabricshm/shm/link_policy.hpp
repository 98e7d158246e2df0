// LinkPolicy: stands behind the seam (visibility.hpp) of an arena whose daemon emulates a machine,
// and makes every touch take as long as it would there. docs/emulator.md.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/link_meter.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricshm {

/// Thread-safe: each thread that works on the arena has a meter of its own; what they share is the
/// link page. `inner` (or nullptr) is another policy of the same mapping, which is served too.
class LinkPolicy final : public VisibilityPolicy {
  public:
    /// On a link page that the policy keeps mapped. kCorrupt and kVersion as read_links(). `pool`:
    /// likewise, of all arenas of the pool, or empty; one of another machine is left alone. `salt`
    /// distinguishes this arena from others there.
    static Result<std::shared_ptr<LinkPolicy>> open(Mapping page,
                                                    std::shared_ptr<VisibilityPolicy> inner,
                                                    Mapping pool = {}, std::uint32_t salt = 0);
    /// On pages that outlive the policy.
    static Result<std::shared_ptr<LinkPolicy>> open(std::byte* page,
                                                    LinkClock& clock = LinkClock::real(),
                                                    std::byte* pool = nullptr,
                                                    std::uint32_t salt = 0);

    void publish(const Access& access) noexcept override;
    void acquire(const Access& access) noexcept override;
    /// False for a machine whose hosts are not coherent, or when `inner` says so.
    bool coherent() const noexcept override { return coherent_; }
    bool one_kernel() const noexcept override {
        return coherent_ && (inner_ == nullptr || inner_->one_kernel());
    }

    void use(Bytes read, Bytes written) noexcept override;
    void step(PoolStep step) noexcept override;
    void take_place(int rank, int world) noexcept override;
    int node(int rank, int world) const noexcept override {
        return LinkMeter::node_of(rank, world, static_cast<int>(image_.node_count));
    }
    const char* machine() const noexcept override { return image_.name; }

  private:
    LinkPolicy(std::byte* page, const LinkImage& image, LinkClock& clock,
               std::shared_ptr<VisibilityPolicy> inner) noexcept;
    void share(std::byte* pool, std::uint32_t salt) noexcept;
    LinkMeter& meter() noexcept;

    Mapping mapping_;  // empty when the page is borrowed
    Mapping pool_mapping_;
    std::byte* page_;
    std::byte* pool_ = nullptr;
    std::uint32_t salt_ = 0;
    const LinkImage image_;
    LinkClock& clock_;
    const std::shared_ptr<VisibilityPolicy> inner_;
    const bool coherent_;
    const std::uint64_t serial_;  // differs from that of a policy that was at its address before
    std::atomic<std::uint64_t> place_{};  // rank and world, for meters that are yet to be made
};

}  // namespace fabricshm
