// Turnstile: one thread at a time, over waits for other processes, and each waits no longer than it
// wants to. (std::timed_mutex is the same, but the thread sanitizer of g++ 12 does not know it.)

#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

class Turnstile {
  public:
    /// Held until it goes.
    class Turn {
      public:
        explicit Turn(Turnstile* held) noexcept : held_(held) {}
        Turn(Turn&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
        Turn& operator=(Turn&&) = delete;
        ~Turn() {
            if (held_ != nullptr) held_->leave();
        }
        /// False: the deadline came first.
        explicit operator bool() const noexcept { return held_ != nullptr; }

      private:
        Turnstile* held_;
    };

    Turn enter(TimePoint deadline) {
        std::unique_lock lock(mutex_);
        if (!free_.wait_until(lock, deadline, [this] { return !is_taken_; })) return Turn(nullptr);
        is_taken_ = true;
        return Turn(this);
    }

  private:
    void leave() noexcept {
        const std::lock_guard lock(mutex_);
        is_taken_ = false;
        free_.notify_one();
    }

    std::mutex mutex_;
    std::condition_variable free_;
    bool is_taken_ = false;
};

}  // namespace fabricshm
