#include "tests/support/mock_gpu/execute.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/collective_body.hpp"
#include "kernels/cuda/copy_body.hpp"
#include "kernels/cuda/step_body.hpp"
#include "tests/support/cpu_grid.hpp"

namespace mock_gpu {

namespace {

namespace device = kernels::cuda;

// The clock of the host, since the deadlines are the host's.
class OneThread : public test_support::ThreadGrid {
  public:
    OneThread(test_support::BlockState& state, test_support::FakeClock& clock)
        : ThreadGrid(1, 0, 1, state, clock, {}) {}
    unsigned block() const { return 0; }
    std::uint64_t now_ns() const {
        return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                          std::chrono::nanoseconds(1));
    }
};

template <typename Args>
Args read(const void* argument) {
    Args args;
    std::memcpy(&args, argument, sizeof args);
    return args;
}

}  // namespace

void execute_kernel(const char* kernel, unsigned int, const void* argument) {
    test_support::BlockState state(1);
    test_support::FakeClock clock;
    OneThread grid(state, clock);
    if (std::strcmp(kernel, device::kCopyKernel) == 0) {
        device::copy_body(grid, read<device::CopyArgs>(argument));
    } else if (std::strcmp(kernel, device::kCollectiveKernel) == 0) {
        device::collective_body(grid, read<device::CollectiveArgs>(argument), device::SpanWork());
    } else if (std::strcmp(kernel, device::kStepKernel) == 0) {
        device::step_body(grid, read<device::StepArgs>(argument));
    } else {
        std::fprintf(stderr, "mock GPU: there is no kernel %s\n", kernel);
        std::abort();
    }
}

std::size_t argument_size(const char* kernel) {
    if (std::strcmp(kernel, device::kCopyKernel) == 0) return sizeof(device::CopyArgs);
    if (std::strcmp(kernel, device::kCollectiveKernel) == 0) return sizeof(device::CollectiveArgs);
    return sizeof(device::StepArgs);
}

}  // namespace mock_gpu
