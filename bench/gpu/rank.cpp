#include "bench/gpu/rank.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <thread>

#include "libfabricshm/base/reason.hpp"

namespace gpu_bench {

using namespace fabricshm;

namespace {

constexpr Bytes kWordsBytes = 64 * kKiB;

// What the ranks say of their memory, all zero at first; counts are those of all ranks together.
struct Exchange {
    std::atomic<int> come;
    gpu::ExportOffer offers[SharedArena::kMaxWorld];
};
static_assert(SharedArena::kExchangeOffset + sizeof(Exchange) <= kWordsBytes);

Exchange& exchange_of(const SharedArena& arena) {
    return *reinterpret_cast<Exchange*>(arena.base() + SharedArena::kExchangeOffset);
}

// Until all of `world` ranks have come as often as this one.
void meet(Exchange& exchange, int world) {
    const TimePoint deadline = Clock::now() + std::chrono::seconds(60);
    const int mine = exchange.come.fetch_add(1);  // acquire and release: what they said is there
    const int all = (mine / world + 1) * world;
    while (exchange.come.load() < all) {
        if (Clock::now() > deadline) {
            std::fprintf(stderr, "export: a rank did not come\n");
            std::exit(1);
        }
        std::this_thread::yield();
    }
}

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
    std::memset(base_ + kExchangeOffset, 0, sizeof(Exchange));
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

void export_memory(const SharedArena& arena, gpu::DeviceGroup& group, int rank, int world,
                   const void* pointer, Bytes bytes) {
    Exchange& exchange = exchange_of(arena);
    auto made = group.offer(pointer, bytes);
    if (!made.ok()) need(made.error(), "export");
    std::unique_ptr<gpu::DeviceExports> exports = std::move(made).value();
    exchange.offers[rank] = exports->offered();
    meet(exchange, world);
    const auto opened =
        exports->open(std::span(exchange.offers).first(static_cast<std::size_t>(world)));
    if (!opened.ok()) need(opened.error(), "open exported memory");
    if (*opened != (std::uint32_t{1} << world) - 1) {
        std::fprintf(stderr, "export: rank %d reaches the ranks %#x alone\n", rank, *opened);
        std::exit(1);
    }
    meet(exchange, world);
    group.use(std::move(exports));
    meet(exchange, world);
}

void end_export(const SharedArena& arena, gpu::DeviceGroup& group, int world) {
    meet(exchange_of(arena), world);
    group.use(nullptr);
    meet(exchange_of(arena), world);
}

}  // namespace gpu_bench
