// optim.hpp: C++20 owners over optim.h. Header only; the rules are those of optim.h, the types
// those of fabricshm.hpp.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fabricshm/optim.h>
#include <fabricshm/fabricshm.hpp>

namespace fabricshm::api {

/// A tensor of the model, by name, shape and the number of the hyperparameters that move it.
struct ParameterShape {
    std::string name;
    std::vector<std::int64_t> shape;
    std::uint32_t options = 0;
};

/// Parameters and optimiser state that exist once for all ranks of a group. Keeps the group; the
/// set itself stays in the arena when this goes.
class Parameters {
  public:
    struct Options {
        fabricshm_optimiser optimiser = FABRICSHM_ADAMW;
        fabricshm_dtype gradients = FABRICSHM_F32;
        fabricshm_dtype copy = FABRICSHM_F32;  // F32: none
        int slots = 0;                         // 0: the ranks of the group
        std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT;
        const Arena* arena = nullptr;  // nullptr: the group's; the set keeps it open
    };

    /// By all ranks: makes the set `name`, or finds it as another group has left it.
    static Expected<Parameters> open(const Group& group, std::string_view name,
                                     std::span<const ParameterShape> shapes,
                                     const Options& options) {
        std::vector<fabricshm_parameter> parameters;
        for (const ParameterShape& shape : shapes) {
            parameters.push_back({shape.name.c_str(), shape.shape.data(),
                                  static_cast<std::int32_t>(shape.shape.size()), shape.options});
        }
        const fabricshm_parameters_spec spec{
            sizeof spec,       parameters.data(),
            parameters.size(), options.optimiser,
            options.gradients, options.copy,
            options.slots,     options.arena != nullptr ? options.arena->get() : nullptr};
        fabricshm_parameters* set = nullptr;
        const int code = fabricshm_parameters_open(group.get(), std::string(name).c_str(), &spec,
                                                   options.timeout_ms, &set);
        if (code < 0) return detail::last_error(code);
        std::optional<Arena> arena;
        if (options.arena != nullptr) arena = *options.arena;
        return Parameters(group, std::move(arena), set, options.gradients);
    }
    static Expected<Parameters> open(const Group& group, std::string_view name,
                                     std::span<const ParameterShape> shapes) {
        return open(group, name, shapes, Options{});
    }

    fabricshm_parameters* get() const noexcept { return state_->set; }
    std::uint64_t steps() const noexcept { return fabricshm_parameters_steps(get()); }
    /// Whose ranks step it; another one after recover().
    const Group& group() const noexcept { return state_->group; }

    /// Of parameter `index`: its values, of all ranks; empty when there is none of that number.
    std::span<float> values(std::size_t index) const {
        const fabricshm_parameter_memory memory = view(index);
        return {memory.values, memory.count};
    }
    /// This rank's gradient; empty when T is not its type.
    template <typename T>
    std::span<T> gradient(std::size_t index) const {
        const fabricshm_parameter_memory memory = view(index);
        if (kDTypeOf<T> != state_->gradients) return {};
        return {static_cast<T*>(memory.gradient), memory.count};
    }
    fabricshm_parameter_memory view(std::size_t index) const {
        fabricshm_parameter_memory memory{};
        (void)fabricshm_parameter_view(get(), index, &memory);
        return memory;
    }

    /// By all ranks; fabricshm_step_make() gives the usual call.
    Expected<fabricshm_step_report> step(const fabricshm_step_call& call) {
        fabricshm_step_report report{};
        report.struct_size = sizeof report;
        const int code = fabricshm_parameters_step(get(), &call, &report);
        if (code < 0) return detail::last_error(code);
        return report;
    }
    /// All parameters by the same hyperparameters.
    Expected<fabricshm_step_report> step(const fabricshm_hyper& hyper) {
        return step(fabricshm_step_make(&hyper, 1));
    }

    // Ranks that step each for itself: docs/parameter_server.md of the project.

    /// By this rank alone: its own gradient moves the parameters.
    Expected<fabricshm_step_report> push(const fabricshm_step_call& call) {
        fabricshm_step_report report{};
        report.struct_size = sizeof report;
        const int code = fabricshm_parameters_push(get(), &call, &report);
        if (code < 0) return detail::last_error(code);
        return report;
    }
    /// Copies parameter i to values[i].
    Status pull(std::span<float* const> values,
                std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        return detail::status_of(
            fabricshm_parameters_pull(get(), values.data(), values.size(), timeout_ms));
    }
    /// The version that begins, once no rank is more than `staleness` behind it.
    Expected<std::uint64_t> advance(std::uint64_t staleness,
                                    std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        std::uint64_t version = 0;
        const int code = fabricshm_parameters_advance(get(), staleness, timeout_ms, &version);
        if (code < 0) return detail::last_error(code);
        return version;
    }
    /// By all ranks: ends it.
    Status finish(std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        return detail::status_of(fabricshm_parameters_finish(get(), timeout_ms));
    }

    Status share(std::span<const double> shares) {
        return detail::status_of(
            fabricshm_parameters_share(get(), shares.data(), static_cast<int>(shares.size())));
    }

    /// After a failure, by all ranks of `survivors`, which a shrink has made: true when the step
    /// that failed has happened.
    Expected<bool> recover(const Group& survivors,
                           std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        int applied = 0;
        const int code = fabricshm_parameters_recover(get(), survivors.get(), timeout_ms, &applied);
        if (code < 0) return detail::last_error(code);
        state_->group = survivors;
        return applied == 1;
    }

    /// By all ranks, between two steps: begins to write a snapshot while steps go on.
    /// fabricshm_snapshot_make() gives the usual call.
    Status snapshot_begin(const fabricshm_snapshot_call& call) {
        return detail::status_of(fabricshm_parameters_snapshot_begin(get(), &call));
    }
    /// By all ranks: it is on the disk.
    Expected<fabricshm_snapshot_report> snapshot_wait(
        std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        fabricshm_snapshot_report report{};
        report.struct_size = sizeof report;
        const int code = fabricshm_parameters_snapshot_wait(get(), timeout_ms, &report);
        if (code < 0) return detail::last_error(code);
        return report;
    }
    /// By all ranks: the set becomes what the snapshot in `path` holds; its number of steps.
    Expected<std::uint64_t> restore(const std::string& path,
                                    std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        std::uint64_t step = 0;
        const int code = fabricshm_parameters_restore(get(), path.c_str(), timeout_ms, &step);
        if (code < 0) return detail::last_error(code);
        return step;
    }

  private:
    struct State {
        Group group;
        std::optional<Arena> arena;
        fabricshm_parameters* set;
        fabricshm_dtype gradients;
        State(const Group& of, std::optional<Arena> in, fabricshm_parameters* opened,
              fabricshm_dtype type)
            : group(of), arena(std::move(in)), set(opened), gradients(type) {}
        // Before its group, which goes with the members.
        ~State() { fabricshm_parameters_close(set); }
        State(const State&) = delete;
        State& operator=(const State&) = delete;
    };
    Parameters(const Group& group, std::optional<Arena> arena, fabricshm_parameters* set,
               fabricshm_dtype gradients)
        : state_(std::make_shared<State>(group, std::move(arena), set, gradients)) {}

    std::shared_ptr<State> state_;
};

}  // namespace fabricshm::api
