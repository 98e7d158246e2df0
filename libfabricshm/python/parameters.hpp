// Parameter sets for Python: memory as arrays of bytes, steps without the interpreter's lock.
// _parameters.py adds names and types.

#pragma once

#include <fabricshm/optim.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "libfabricshm/python/arena.hpp"
#include "libfabricshm/python/arrays.hpp"
#include "libfabricshm/python/group.hpp"
#include "libfabricshm/python/handles.hpp"

namespace fabricshm::python {

/// Keeps the group that it is stepped by, and the arena that it lies in.
struct ParametersHandle : Owned {
    ParametersHandle(std::shared_ptr<GroupHandle> of, std::shared_ptr<ArenaHandle> in,
                     fabricshm_parameters* opened)
        : group(std::move(of)), arena(std::move(in)), set(opened) {}
    ~ParametersHandle() {
        if (mine()) fabricshm_parameters_close(set);
    }
    ParametersHandle(const ParametersHandle&) = delete;
    ParametersHandle& operator=(const ParametersHandle&) = delete;

    std::shared_ptr<GroupHandle> group;
    std::shared_ptr<ArenaHandle> arena;
    fabricshm_parameters* set;
};

/// Name, shape and options of each parameter.
using ParameterList =
    std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::uint32_t>>;

/// One call at a time, as the set itself.
class Parameters {
  public:
    static Parameters open(const Group& group, const std::string& name, const ParameterList& spec,
                           int optimiser, int gradients, int copy, int slots, const Arena* arena,
                           std::int64_t timeout_ms);
    /// Nanoseconds of a step; `arena` of None: the group's.
    static std::uint64_t estimate(const Group& group, const ParameterList& spec, int optimiser,
                                  int gradients, int copy, const Arena* arena,
                                  std::int64_t timeout_ms);
    static std::uint64_t bytes(const ParameterList& spec, int optimiser, int gradients, int copy,
                               int slots);

    /// Values, copy (or None), gradient, and a list of the states, each as bytes.
    pybind11::tuple view(std::uint64_t index) const;
    fabricshm_step_report step(const std::vector<fabricshm_hyper>& hyper, double weight,
                               double scale, double clip_norm, bool skip_nonfinite,
                               std::int64_t timeout_ms) const;
    /// By this rank alone; advance() returns the version.
    fabricshm_step_report push(const std::vector<fabricshm_hyper>& hyper, double weight,
                               double scale, std::int64_t timeout_ms) const;
    void pull(const std::vector<std::uintptr_t>& values, std::int64_t timeout_ms) const;
    std::uint64_t advance(std::uint64_t staleness, std::int64_t timeout_ms) const;
    void finish(std::int64_t timeout_ms) const;
    void share(const std::vector<double>& shares) const;
    /// Whether the step that failed was applied.
    bool recover(const Group& group, std::int64_t timeout_ms) const;
    void set_steps(std::uint64_t steps) const;
    void snapshot_begin(const std::string& directory, std::uint32_t keep, std::uint64_t file_bytes,
                        bool plain_writes, std::int64_t timeout_ms) const;
    fabricshm_snapshot_report snapshot_wait(std::int64_t timeout_ms) const;
    bool snapshot_over() const { return fabricshm_parameters_snapshot_over(held()->set) != 0; }
    std::uint64_t restore(const std::string& path, std::int64_t timeout_ms) const;
    std::uint64_t steps() const { return fabricshm_parameters_steps(held()->set); }
    void close() { handle_.reset(); }

  private:
    Parameters(std::shared_ptr<ParametersHandle> handle, std::size_t gradient_bytes)
        : handle_(std::move(handle)), gradient_bytes_(gradient_bytes) {}
    std::shared_ptr<ParametersHandle> held() const;

    std::shared_ptr<ParametersHandle> handle_;
    std::size_t gradient_bytes_;  // of an element
};

/// Ends the set `name` of the arena for all.
void free_parameters(const Arena& arena, const std::string& name);

/// The path of the newest snapshot in a directory.
std::string latest_snapshot(const std::string& directory);

}  // namespace fabricshm::python
