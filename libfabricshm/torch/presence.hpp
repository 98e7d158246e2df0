// Presence: which process each rank of a process group to be is, and whether it still runs.

#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "libfabricshm/os/process.hpp"

namespace fabricshm::torch_backend {

/// Ranks that meet in a store, before there is a group that would hear of a death. Used by one
/// thread.
class Presence {
  public:
    using StorePtr = c10::intrusive_ptr<c10d::Store>;

    /// `prefix`: of keys that no other group has.
    Presence(StorePtr store, std::string prefix)
        : store_(std::move(store)), prefix_(std::move(prefix)) {}

    /// Says which process `rank` is: this one.
    void announce(int rank);

    /// Whether the process of `rank` has ended, as far as that is known here: it is one of another
    /// host or container, or has not said which it is, otherwise. Asks the store until it has.
    bool has_ended(int rank);

    /// Whether `rank` has said which process it is.
    bool has_come(int rank);

    /// The same as has_ended(), of a rank whose store has failed: for a moment, since connections
    /// end before their process does.
    bool ends_soon(int rank);

  private:
    std::optional<ProcessIdentity> process_of(int rank);

    StorePtr store_;
    std::string prefix_;
    std::map<int, std::optional<ProcessIdentity>> known_;  // without value: not of this host
};

/// Waits until all `keys` are in the store; false: not by `deadline`. Calls `look`, which may
/// raise, before each pause and at most ten times a second. Asks and does not use the store's own
/// wait: some stores of PyTorch can't be used any more after one that ran out.
bool await_keys(c10d::Store& store, const std::vector<std::string>& keys,
                std::chrono::steady_clock::time_point deadline, const std::function<void()>& look);

}  // namespace fabricshm::torch_backend
