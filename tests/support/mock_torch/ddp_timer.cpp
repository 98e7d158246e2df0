// What DistributedDataParallel times its phases by on a CUDA device. Ours has no times to report.

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace mock_torch {

namespace {

class NoTimer final : public c10d::Timer {
  public:
    explicit NoTimer(c10::Device) {}
    void record(Event) override {}
    c10::optional<int64_t> measureDifference(Event, Event) override { return c10::nullopt; }
};

}  // namespace

}  // namespace mock_torch

namespace c10d {

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, mock_torch::NoTimer)

}  // namespace c10d
