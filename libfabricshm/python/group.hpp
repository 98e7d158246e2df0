// Group and the operations it runs, as Python sees them.

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <fabricshm/symmetric.h>
#include "libfabricshm/python/handles.hpp"

namespace fabricshm::python {

class Request;

/// What one call is given; the enumerators of fabricshm.h as integers. Arrays are numpy arrays or
/// None.
struct CallArguments {
    int kind = 0;
    int dtype = 0;
    pybind11::object input;
    pybind11::object output;
    std::uint64_t count = 0;
    int op = 0;
    int root = 0;
    int peer = 0;
    int tag = 0;
    int algorithm = 0;
    int trigger = 0;
    std::uint32_t flags = 0;
    std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT;
    std::optional<std::vector<std::uint64_t>> counts;
    std::optional<std::vector<std::uint64_t>> recv_counts;

    /// Borrows the arrays and counts of this object.
    /// They must not be changed while it is used. Raises for an array of the wrong kind.
    fabricshm_call to_call() const;
};

/// The same for a symmetric matrix.
struct SymmetricArguments {
    int method = 0;
    int dtype = 0;
    int algorithm = 0;
    std::uint64_t n = 0;
    pybind11::object input;
    pybind11::object output;
    double max_error = 0;
    std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT;
};

/// One rank's membership. From any Python thread: collectives run one at a time, sends and receives
/// concurrently with them.
class Group {
  public:
    explicit Group(std::shared_ptr<GroupHandle> handle) : handle_(std::move(handle)) {}

    int rank() const { return fabricshm_group_rank(open()->group); }
    int world() const { return fabricshm_group_world(open()->group); }
    int hosts() const { return fabricshm_group_hosts(open()->group); }
    std::uint64_t id() const { return fabricshm_group_id(open()->group); }
    /// Borrowed; raises when the group was left.
    const fabricshm_group* raw() const { return open()->group; }

    /// For what stands on the group and keeps it; raises when the group was left.
    std::shared_ptr<GroupHandle> handle() const { return open(); }

    /// Runs it to its end, without the interpreter's lock.
    void run(const CallArguments& arguments) const;
    /// Starts it; the arrays are kept until it is complete.
    std::shared_ptr<Request> start(const CallArguments& arguments) const;
    /// Sums the ranks' matrices, without the interpreter's lock.
    fabricshm_symmetric_report run_symmetric(const SymmetricArguments& arguments) const;
    /// A new group of the survivors.
    std::shared_ptr<Group> shrink(std::int64_t timeout_ms) const;
    /// Waits until no peer stores into this rank's arrays any more.
    void quiesce(std::int64_t timeout_ms) const;

    /// Idempotent. What was started goes on: its requests hold the group until their end.
    void leave();
    bool left() const { return handle_ == nullptr; }

  private:
    const std::shared_ptr<GroupHandle>& open() const;

    std::shared_ptr<GroupHandle> handle_;
};

}  // namespace fabricshm::python
