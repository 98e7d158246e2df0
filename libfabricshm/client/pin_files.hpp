// PinFiles: descriptors of pin pages that a session got, and those of its own that it presents.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "libfabricshm/client/connection.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricshm {

/// Thread-safe.
class PinFiles {
  public:
    /// What came with an answer to a kPinPage. The newest of an arena or a number counts.
    void keep(const proto::PinPageRef& page, bool is_own, Fd descriptor) {
        auto shared = std::make_shared<const Fd>(std::move(descriptor));
        const std::lock_guard lock(mutex_);
        if (is_own) {
            own_[page.arena_id] = {page.number, std::move(shared)};
        } else {
            others_[{page.arena_id, page.number}] = std::move(shared);
        }
    }
    /// The session's own, which it presents after a restart until forget(); nullptr: none.
    std::shared_ptr<const Fd> own(std::uint64_t arena_id) const {
        const std::lock_guard lock(mutex_);
        const auto found = own_.find(arena_id);
        return found != own_.end() ? found->second.descriptor : nullptr;
    }
    OwnPinPages all_own() const {
        const std::lock_guard lock(mutex_);
        return own_;
    }
    /// Another session's, once; nullptr: none.
    std::shared_ptr<const Fd> take(std::uint64_t arena_id, std::uint64_t number) {
        const std::lock_guard lock(mutex_);
        const auto taken = others_.extract({arena_id, number});
        return taken.empty() ? nullptr : taken.mapped();
    }
    void forget(std::uint64_t arena_id) noexcept {
        const std::lock_guard lock(mutex_);
        own_.erase(arena_id);
        std::erase_if(others_, [&](const auto& page) { return page.first.first == arena_id; });
    }
    void clear() noexcept {
        const std::lock_guard lock(mutex_);
        own_.clear();
        others_.clear();
    }

  private:
    mutable std::mutex mutex_;
    OwnPinPages own_;
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::shared_ptr<const Fd>> others_;
};

}  // namespace fabricshm
