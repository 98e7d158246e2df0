// One case of a collective: runs it on a rank and compares the result with one computed alone.

#pragma once

#include "libfabricshm/collective/call.hpp"
#include "tests/support/ranks.hpp"

namespace test_support {

/// kSharedInPlace: one output for all ranks, in which the last rank has its input, too.
enum class Placement {
    kArena,
    kPrivate,
    kMixed,
    kInPlace,
    kPrivateInPlace,
    kSharedResult,
    kSharedInPlace
};

constexpr bool shares_output(Placement placement) {
    return placement == Placement::kSharedResult || placement == Placement::kSharedInPlace;
}

struct CollectiveCase {
    fabricshm::Kind kind = fabricshm::Kind::kAllreduce;
    kernels::DType dtype = kernels::DType::kF32;
    kernels::ReduceOp op = kernels::ReduceOp::kSum;
    fabricshm::Algorithm algorithm = fabricshm::Algorithm::kAuto;
    fabricshm::Trigger trigger = fabricshm::Trigger::kAsync;
    Placement placement = Placement::kArena;
    std::uint64_t count = 1;
    bool uneven = false;   // parts of different sizes, some empty
    bool started = false;  // by start() and wait() instead of run()
    int root = 0;
    std::uint64_t salt = 0;  // other values for the same case: what an earlier one left is wrong
    fabricshm::Duration timeout = std::chrono::seconds(60);
};

/// False, with the reason on stderr, when the result is not the expected one. Values are small
/// integers, so that every order of summation gives the same bits.
bool run_case(RankContext& context, const CollectiveCase& wanted);

}  // namespace test_support
