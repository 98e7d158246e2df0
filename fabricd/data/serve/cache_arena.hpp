// The published arena as the service's memory: its pins, its readers' notes.

#pragma once

#include <memory>

#include "fabricd/data/serve/data_service.hpp"
#include "libfabricshm/client/published_arena.hpp"

namespace fabricd {

/// The control thread's.
class CacheArena : public PublishedMemory {
  public:
    explicit CacheArena(std::shared_ptr<fabricshm::PublishedArena> arena)
        : arena_(std::move(arena)) {}

    bool search(std::span<const std::uint64_t> lines, std::span<std::uint8_t> pinned) override;
    void each(const std::function<void(std::uint64_t, Notes)>& visit) override;
    std::vector<PinHolder> holders(std::uint64_t line) override;

    std::vector<ReaderProcess> processes() override;
    std::optional<fabricshm::ElasticTarget> target() override { return arena_->target(); }
    void keep(const fabricshm::ElasticTarget& target, Bytes bytes) override {
        arena_->keep(target, bytes);
    }
    void report(const fabricshm::ElasticUse& use) override { arena_->report(use); }

    const fabricshm::PublishedArena& arena() const noexcept { return *arena_; }

  private:
    void sync();

    std::shared_ptr<fabricshm::PublishedArena> arena_;
    fabricshm::TimePoint next_sync_{};
};

}  // namespace fabricd
