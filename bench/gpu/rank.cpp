#include "bench/gpu/rank.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "libfabricshm/base/reason.hpp"

namespace gpu_bench {

using namespace fabricshm;

namespace {

constexpr Bytes kWordsBytes = 64 * kKiB;

int look_for_gpu() {
    constexpr int kSkipped = 77;
    const auto driver = gpu::Driver::find();
    if (!driver.ok()) {
        std::printf("skipped: %s\n", explanation_of(driver.error()).c_str());
        return kSkipped;
    }
    if (gpu::embedded_kernels().reduce != nullptr) return 0;
    std::printf("skipped: built without nvcc, so there are no kernels\n");
    return kSkipped;
}

}  // namespace

int probe() {
    const pid_t child = ::fork();
    if (child == 0) {
        const int code = look_for_gpu();
        std::fflush(nullptr);
        ::_exit(code);
    }
    int status = 0;
    const bool ended = ::waitpid(child, &status, 0) == child && WIFEXITED(status);
    return ended ? WEXITSTATUS(status) : 1;
}

Bytes SharedArena::bytes() const noexcept {
    return kWordsBytes + kMaxWorld * (kStageBytes + kBufferBytes);
}

SharedArena::SharedArena() {
    void* made =
        ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) {
        std::perror("memory for the ranks");
        std::exit(1);
    }
    base_ = static_cast<std::byte*>(made);
}

SharedArena::~SharedArena() {
    ::munmap(base_, bytes());
}

void SharedArena::format(int world) {
    gpu::format_device_group(base_ + kBlockOffset, world, 1);
}

Bytes SharedArena::stage_offset(int rank) const noexcept {
    return kWordsBytes + static_cast<Bytes>(rank) * kStageBytes;
}

std::byte* SharedArena::buffer(int rank) const noexcept {
    return base_ + kWordsBytes + kMaxWorld * kStageBytes + static_cast<Bytes>(rank) * kBufferBytes;
}

void need(const Result<void>& result, const char* what) {
    if (result.ok()) return;
    std::fprintf(stderr, "%s: %s\n", what, explanation_of(result.error()).c_str());
    std::exit(1);
}

void need(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
    std::exit(1);
}

std::shared_ptr<gpu::DeviceArena> on_device(const SharedArena& arena, int ordinal) {
    const auto driver = gpu::Driver::find();
    if (!driver.ok()) need(driver.error(), "driver");
    auto context = gpu::DeviceContext::open(*driver.value(), ordinal, gpu::embedded_kernels());
    if (!context.ok()) need(context.error(), "device");
    auto made = gpu::DeviceArena::make(std::move(context).value(), arena.base(), arena.bytes());
    if (!made.ok()) need(made.error(), "register the arena");
    return std::move(made).value();
}

std::unique_ptr<gpu::DeviceGroup> join(const SharedArena& arena,
                                       const std::shared_ptr<gpu::DeviceArena>& device, int rank,
                                       int world, Duration timeout, int ranks_here) {
    gpu::DevicePlace place;
    place.rank = rank;
    place.world = world;
    place.block = SharedArena::kBlockOffset;
    place.stage = arena.stage_offset(rank);
    place.stage_bytes = SharedArena::kStageBytes;
    place.ranks_here = ranks_here != 0 ? ranks_here : world;
    place.timeout = timeout;
    auto made = gpu::DeviceGroup::make(device, place, nullptr);
    if (!made.ok()) need(made.error(), "join");
    return std::move(made).value();
}

}  // namespace gpu_bench
