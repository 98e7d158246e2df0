// Outstanding: how many transfers of a group are under way, and why the group has ended, if so.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace fabricshm::torch_backend {

/// Why a group has ended, in words for the rank that ended it.
inline constexpr const char* kAbortedGroup = "this rank has aborted the process group";
inline constexpr const char* kShutDownGroup = "this rank has shut down the process group";
inline constexpr const char* kLateGroup =
    "timeout passed while this rank shut down the process group";
inline constexpr const char* kDestroyedGroup = "the process group has been destroyed";

/// Shared by a group and its transfers, which may outlive it. Thread-safe.
class Outstanding : public std::enable_shared_from_this<Outstanding> {
  public:
    /// Counts one transfer, until the last owner drops what is returned.
    std::shared_ptr<void> begin();
    bool none() const;
    /// Waits for that. False: not by `deadline`.
    bool wait_for_none(std::chrono::steady_clock::time_point deadline) const;

    /// This rank ends the group; `why` is a static text. The first reason stays.
    void end(const char* why) noexcept;
    /// Null: it has not ended.
    const char* why_ended() const noexcept { return why_.load(std::memory_order_acquire); }
    /// After a failure, or before a call: raises a RuntimeError of "cannot <what>" if the group has
    /// ended.
    void check(const char* what) const;

  private:
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    int transfers_ = 0;
    // Release and acquire: what failed because of the end is seen after the reason.
    std::atomic<const char*> why_{nullptr};
};

}  // namespace fabricshm::torch_backend
