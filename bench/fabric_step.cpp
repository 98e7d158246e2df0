#include "bench/fabric_step.hpp"

#include "bench/driver.hpp"

// This file is also built with older libraries, which are measured next to this one.
#if __has_include(<fabricshm/optim.h>)
#include <fabricshm/optim.h>

namespace bench {

namespace {

constexpr const char* kName = "step";

void need(int result, const char* step) {
    if (result == FABRICSHM_OK) return;
    die(std::string(step) + ": " + fabricshm_error_name(result) + ": " + fabricshm_error_text());
}

class SharedStep final : public FabricStep {
  public:
    SharedStep(fabricshm_arena* arena, fabricshm_group* group,
               const std::vector<std::vector<std::int64_t>>& shapes, bool clip)
        : arena_(arena), group_(group), clip_(clip) {
        std::vector<std::string> names;
        for (std::size_t i = 0; i < shapes.size(); ++i) names.push_back("p" + std::to_string(i));
        std::vector<fabricshm_parameter> parameters;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
            parameters.push_back({names[i].c_str(), shapes[i].data(),
                                  static_cast<std::int32_t>(shapes[i].size()), 0});
        }
        const fabricshm_parameters_spec spec = {sizeof spec,
                                                parameters.data(),
                                                parameters.size(),
                                                FABRICSHM_ADAMW,
                                                FABRICSHM_F32,
                                                FABRICSHM_F32,
                                                0,
                                                nullptr};
        need(fabricshm_parameters_open(group, kName, &spec, 60'000, &set_), "make the parameters");
        count_ = parameters.size();
        hyper_ = fabricshm_hyper_make(AdamWOptions{}.learning_rate);
        hyper_.weight_decay = AdamWOptions{}.weight_decay;
    }

    ~SharedStep() override {
        fabricshm_parameters_close(set_);
        need(fabricshm_barrier(group_), "barrier");
        if (fabricshm_group_rank(group_) == 0)
            need(fabricshm_parameters_free(arena_, kName), "free the parameters");
        // The next set has the same name.
        need(fabricshm_barrier(group_), "barrier");
    }

    SharedStep(const SharedStep&) = delete;
    SharedStep& operator=(const SharedStep&) = delete;

    std::vector<StepTensor> tensors() const override {
        std::vector<StepTensor> all;
        for (std::uint64_t i = 0; i < count_; ++i) {
            fabricshm_parameter_memory at{};
            need(fabricshm_parameter_view(set_, i, &at), "look at a parameter");
            all.push_back(
                {static_cast<float*>(at.gradient), at.values, at.state[0], at.state[1], at.count});
        }
        return all;
    }

    void run() override {
        fabricshm_step_call call = fabricshm_step_make(&hyper_, 1);
        if (clip_) call.clip_norm = 1e30;
        need(fabricshm_parameters_step(set_, &call, nullptr), "step");
    }

  private:
    fabricshm_arena* arena_;
    fabricshm_group* group_;
    bool clip_;
    std::uint64_t count_ = 0;
    fabricshm_parameters* set_ = nullptr;
    fabricshm_hyper hyper_{};
};

}  // namespace

std::unique_ptr<FabricStep> make_fabric_step(fabricshm_arena* arena, fabricshm_group* group,
                                             const std::vector<std::vector<std::int64_t>>& shapes,
                                             bool clip) {
    return std::make_unique<SharedStep>(arena, group, shapes, clip);
}

}  // namespace bench

#else

namespace bench {

std::unique_ptr<FabricStep> make_fabric_step(fabricshm_arena*, fabricshm_group*,
                                             const std::vector<std::vector<std::int64_t>>&, bool) {
    return nullptr;
}

}  // namespace bench

#endif
