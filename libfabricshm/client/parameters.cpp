#include "libfabricshm/client/parameters.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/tensor.hpp"
#include "libfabricshm/include/fabricshm/fabricshm.h"
#include "libfabricshm/optim/agreement.hpp"
#include "libfabricshm/os/random.hpp"

namespace fabricshm {

namespace {

// A tensor's elements begin behind its header; the arrays of a set on pages.
std::byte* memory_of(const TensorView& view) noexcept {
    const auto place = reinterpret_cast<std::uintptr_t>(view.data);
    return view.data + (round_up(place, kPageBytes) - place);
}

struct Memory {
    std::byte* data = nullptr;
    Bytes bytes = 0;
};

Result<Memory> make_or_find(Arena& arena, const std::string& name, const ParameterSpec& spec,
                            bool makes, TimePoint deadline) {
    if (makes) {
        const std::array shape{static_cast<std::int64_t>(parameter_bytes(spec))};
        const auto made = create_tensor(arena, name, FABRICSHM_U8, shape);
        if (made.ok()) {
            std::byte* const memory = memory_of(*made);
            ParameterSet::format(memory, spec);
            FAULT_POINT("parameters.formatted");
            FABRIC_TRY_VOID(make_lasting(arena, *made));
            return Memory{memory, ParameterLayout::of(spec).total};
        }
        if (made.error().code != Errc::kExists) return made.error();
    }
    FABRIC_TRY(const TensorView view, open_tensor(arena, name, deadline));
    std::byte* const memory = memory_of(view);
    const auto before = static_cast<Bytes>(memory - view.data);
    return Memory{memory, view.bytes > before ? view.bytes - before : 0};
}

// Of the ranks' best of some steps, in nanoseconds; the same on all.
Result<double> slowest_step(Group& group, ParameterSet& set, TimePoint deadline) {
    constexpr int kSteps = 5;
    Duration least = Duration::max();
    StepCall call;
    call.hyper.resize(1);
    call.deadline = deadline;
    for (int step = 0; step < kSteps; ++step) {
        FABRIC_TRY(const StepReport report, set.step(call));
        least = std::min(least, report.waited + report.computed);
    }
    const auto mine = static_cast<std::uint64_t>(least / std::chrono::nanoseconds(1));
    FABRIC_TRY(const auto all, gather(group, {mine}, deadline));
    // What another process says is input: a number that no step takes is cut.
    return std::min(static_cast<double>(*std::ranges::max_element(all)), 1e12);
}

// Memory of one node's own is out of the others' reach: on a real machine, and so here.
Result<void> check_nodes(const ParameterPlace& place, TimePoint deadline) {
    const VisibilityPolicy* const machine = place.home.policy();
    if (machine == nullptr || place.arena.policy() != nullptr) return {};
    const int node = machine->node(place.group.rank(), place.group.world());
    FABRIC_TRY(const auto nodes, gather(place.group, {static_cast<std::uint64_t>(node)}, deadline));
    for (const std::uint64_t other : nodes) {
        if (other == nodes[0]) continue;
        return explain(
            {Errc::kUnsupported, 0, "open parameters"},
            "the ranks run on different nodes of the emulated machine, and arena '%s' is "
            "in one node's own memory",
            place.arena.name().c_str());
    }
    return {};
}

}  // namespace

Bytes parameter_bytes(const ParameterSpec& spec) {
    return ParameterLayout::of(spec).total + kPageBytes;
}

Result<std::unique_ptr<ParameterSet>> open_parameters(const ParameterPlace& place,
                                                      const std::string& name, ParameterSpec spec,
                                                      const Result<void>& own, TimePoint deadline) {
    Group& group = place.group;
    Arena& arena = place.arena;
    if (spec.slots == 0) spec.slots = group.world();
    FABRIC_TRY_VOID(check_spec(spec));
    FABRIC_TRY_VOID(check_nodes(place, deadline));
    Result<Memory> memory = Error{Errc::kInternal, 0, "open parameters"};
    constexpr const char* kStep = "open parameters";
    const auto outcome = [&] { return memory.ok() ? Result<void>() : memory.error(); };
    // Rank 0 first: the others find what it has made and formatted.
    FABRIC_TRY_VOID(agree(group, own, kStep, deadline));
    if (group.rank() == 0) memory = make_or_find(arena, name, spec, true, deadline);
    FABRIC_TRY_VOID(agree(group, group.rank() == 0 ? outcome() : Result<void>(), kStep, deadline));
    if (group.rank() != 0) memory = make_or_find(arena, name, spec, false, deadline);
    if (memory.ok()) {
        const auto fits =
            ParameterSet::check(arena.visibility(), memory->data, memory->bytes, spec);
        if (!fits.ok()) memory = fits.error();
    }
    FABRIC_TRY_VOID(agree(group, outcome(), kStep, deadline));
    return ParameterSet::attach(group, arena.visibility(), memory->data, memory->bytes,
                                std::move(spec), deadline);
}

Result<Duration> estimate_step(const ParameterPlace& place, const ParameterSpec& spec,
                               TimePoint deadline) {
    // Larger than the second-level caches, so that it is memory that is measured.
    constexpr std::int64_t kElements = 1 << 21;
    FABRIC_TRY_VOID(check_spec(spec));
    ParameterSpec small = spec;
    small.parameters = {{"probe", {kElements}, 0}};
    small.slots = place.group.world();
    // Of no other group, nor of this one before a death in the middle: what that left behind stays
    // as long as the arena.
    std::uint64_t own = 0;
    (void)fill_random(std::as_writable_bytes(std::span(&own, 1)));
    FABRIC_TRY(const auto numbers, gather(place.group, {own}, deadline));
    const std::string name = "estimate:" + std::to_string(numbers[0]);
    auto set = open_parameters(place, name, small, {}, deadline);
    if (!set.ok()) return set.error();
    const auto slowest = slowest_step(place.group, **set, deadline);
    set->reset();
    // All have closed it, or some have it open still after a failure: then it stays, as long as the
    // arena.
    if (slowest.ok()) FABRIC_TRY_VOID(pass_barrier(place.group, deadline));
    if (place.group.rank() == 0) (void)free_parameters(place.arena, name);
    if (!slowest.ok()) return slowest.error();
    const double share =
        static_cast<double>(ParameterLayout::of(spec).elements) / static_cast<double>(kElements);
    return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(*slowest * share, 1e18)));
}

Result<void> free_parameters(Arena& arena, const std::string& name) {
    // Not waited for to be made; but what this process said before has to leave it first.
    auto found = open_tensor(arena, name, Clock::now() + std::chrono::milliseconds(500));
    if (!found.ok() && found.error().code == Errc::kTimeout) {
        return Error{Errc::kNotFound, 0, "free parameters"};
    }
    FABRIC_TRY(const TensorView view, std::move(found));
    const std::byte* const memory = memory_of(view);
    const auto before = static_cast<Bytes>(memory - view.data);
    FABRIC_TRY_VOID(check_closed(memory, view.bytes > before ? view.bytes - before : 0));
    return free_lasting(arena, view);
}

}  // namespace fabricshm
