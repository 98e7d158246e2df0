// The parameters that the ranks of the job share: a step in each round, finished or dropped as a
// whole when a rank dies in it.

#include "tests/support/fault_player.hpp"

#include <utility>

namespace test_support {

namespace {

constexpr std::uint64_t kElements = 5000;

}  // namespace

// What is in the set becomes the model: other ranks may have stepped it before.
int FaultPlayer::open_parameters() {
    const std::int64_t shape[] = {static_cast<std::int64_t>(kElements)};
    const fabricshm_parameter parameter{"w", shape, 1, 0};
    const fabricshm_parameters_spec spec{sizeof spec,   &parameter,    1,         FABRICSHM_SGD,
                                         FABRICSHM_F32, FABRICSHM_F32, kJobRanks, nullptr};
    const int code = timed("open parameters", [&] {
        return fabricshm_parameters_open(group_, "model", &spec, kTimeoutMs, &set_);
    });
    if (code != FABRICSHM_OK) return code;
    fabricshm_parameter_memory w{};
    if (fabricshm_parameter_view(set_, 0, &w) != FABRICSHM_OK) return kWrong;
    model_.assign(w.values, w.values + kElements);
    return FABRICSHM_OK;
}

// Parameters that outlive their rank: those of one that dies become another's.
bool FaultPlayer::leave_model(fabricshm_group* alone) {
    const std::int64_t shape[] = {8};
    const fabricshm_parameter parameter{"w", shape, 1, 0};
    const fabricshm_parameters_spec spec{sizeof spec,   &parameter,    1, FABRICSHM_SGD,
                                         FABRICSHM_F32, FABRICSHM_F32, 1, nullptr};
    const std::string name = "own" + std::to_string(rank_);
    fabricshm_parameters* set = nullptr;
    const bool made = insist("open own parameters", [&] {
        return fabricshm_parameters_open(alone, name.c_str(), &spec, kTimeoutMs, &set);
    });
    fabricshm_parameters_close(set);
    return made;
}

// By SGD at a rate of 1, the mean of the ranks' gradients is taken off.
void FaultPlayer::step_model(std::uint64_t version) {
    const float share = 1.0F / static_cast<float>(members_.size());
    for (std::uint64_t i = 0; i < kElements; ++i) {
        model_[i] -= expected_sum(i, version) * share;
    }
}

int FaultPlayer::train() {
    const std::uint64_t version = ++version_ % 1000;
    // Some ranks may have opened it before one died: all of them, or none, go on with it.
    float have = set_ != nullptr ? 1 : 0;
    const int agreed = fabricshm_allreduce(group_, &have, &have, 1, FABRICSHM_F32, FABRICSHM_MIN);
    if (agreed != FABRICSHM_OK) return agreed;
    if (have == 0) {
        fabricshm_parameters_close(std::exchange(set_, nullptr));
        if (const int code = open_parameters(); code != FABRICSHM_OK) return code;
    }
    fabricshm_parameter_memory w{};
    if (fabricshm_parameter_view(set_, 0, &w) != FABRICSHM_OK) return kWrong;
    auto* gradient = static_cast<float*>(w.gradient);
    for (std::uint64_t i = 0; i < kElements; ++i) gradient[i] = pattern(rank_, i, version);
    const fabricshm_hyper hyper = fabricshm_hyper_make(1);
    fabricshm_step_call call = fabricshm_step_make(&hyper, 1);
    call.timeout_ms = kTimeoutMs;
    call.skip_nonfinite = 1;
    stepping_ = version;
    const int code = timed("step", [&] { return fabricshm_parameters_step(set_, &call, nullptr); });
    if (code != FABRICSHM_OK) return code;
    stepping_ = 0;
    step_model(version);
    for (std::uint64_t i = 0; i < kElements; ++i) {
        if (w.values[i] == model_[i]) continue;
        report("element %d of the parameters is %g, not %g", static_cast<int>(i),
               static_cast<double>(w.values[i]), static_cast<double>(model_[i]));
        return kWrong;
    }
    // The others may still be comparing when this rank dies: that is no part of the step.
    return FABRICSHM_OK;
}

// With the ranks that are left; `group` has them, members_ those of before.
int FaultPlayer::recover_parameters(fabricshm_group* group) {
    float have = set_ != nullptr ? 1 : 0;
    const int agreed = fabricshm_allreduce(group, &have, &have, 1, FABRICSHM_F32, FABRICSHM_MIN);
    if (agreed != FABRICSHM_OK || have == 0) return agreed;
    int applied = 0;
    const int code = timed(
        "recover", [&] { return fabricshm_parameters_recover(set_, group, kTimeoutMs, &applied); });
    if (code == FABRICSHM_OK && applied == 1) step_model(stepping_);
    stepping_ = 0;
    return code;
}

}  // namespace test_support
