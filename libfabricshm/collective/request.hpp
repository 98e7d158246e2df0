// The result of an operation that runs elsewhere: set once, waited for, called back.

#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/collective/group.hpp"

namespace fabricshm {

/// A Request that its maker completes. Thread-safe.
class PendingRequest final : public Request {
  public:
    bool done() const noexcept override;
    Result<void> wait() override;
    int peer() const noexcept override;
    void on_complete(std::function<void(Result<void>)> callback) override;

    /// Sets the result; the first one counts. Callbacks run on this thread, without the lock. What
    /// this thread explained of an error goes to the threads that ask for the result.
    void complete(Result<void> result, int peer = -1);

  private:
    Result<void> explained() const;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<Result<void>> result_;
    std::vector<std::function<void(Result<void>)>> callbacks_;  // in the order given
    int peer_ = -1;
    std::string reason_;
};

}  // namespace fabricshm
