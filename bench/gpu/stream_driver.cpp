// How fast is an allreduce on streams, with a GPU for each rank? The ranks of one process set for
// bench/harness, forked from one process before any of them starts CUDA. Buffers are in the memory
// that the ranks share (arena) or on the rank's device (heap).

#include <memory>
#include <string>
#include <vector>

#include "bench/driver.hpp"
#include "bench/gpu/rank.hpp"
#include "libfabricshm/base/version.hpp"

using namespace fabricshm;
using gpu_bench::need;
using gpu_bench::SharedArena;

namespace {

class StreamContender final : public bench::Contender {
  public:
    StreamContender(const SharedArena& arena, int rank, int world)
        : arena_(arena), rank_(rank), world_(world) {
        need(cudaSetDevice(rank), "device");
        device_ = gpu_bench::on_device(arena, rank);
        group_ = gpu_bench::join(arena, device_, rank, world, std::chrono::seconds(60), 1);
        need(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
        check_private();
    }

    int rank() const override { return rank_; }
    int world() const override { return world_; }
    std::string version() const override { return "fabricshm " FABRIC_VERSION " on streams"; }

    std::string refuses(const bench::Case& wanted) const override {
        if (wanted.collective != bench::Collective::kAllreduce) return "only allreduce";
        if (wanted.place != bench::Place::kIn || wanted.pairs != 1) return "only in place";
        return wanted.bytes > SharedArena::kBufferBytes ? "larger than a buffer" : "";
    }

    void* allocate(bench::Memory memory, std::size_t bytes) override {
        if (memory == bench::Memory::kArena) return arena_.buffer(rank_);
        void* made = nullptr;
        need(cudaMalloc(&made, bytes), "cudaMalloc");
        return made;
    }
    void release(bench::Memory memory, void* block, std::size_t) override {
        if (memory == bench::Memory::kHeap) need(cudaFree(block), "cudaFree");
    }
    void clear(bench::Memory memory, void* block, std::size_t bytes) override {
        if (memory == bench::Memory::kArena) return Contender::clear(memory, block, bytes);
        need(cudaMemset(block, 0, bytes), "clear");
    }

    void prepare(const bench::Case&, const std::vector<bench::Buffers>& pairs) override {
        call_ = allreduce_of(pairs[0].input, pairs[0].input_count);
    }
    void run(std::size_t) override { need(group_->run(call_, stream_), "allreduce"); }
    void finish() override {
        need(group_->wait(stream_, Clock::now() + std::chrono::seconds(60)), "wait");
    }
    void barrier() override {
        need(group_->run({}, stream_), "barrier");
        finish();
    }

  private:
    static gpu::DeviceCall allreduce_of(void* buffer, std::uint64_t count) {
        gpu::DeviceCall call;
        call.kind = kernels::cuda::CollectiveKind::kAllReduce;
        call.count = count;
        call.input = call.output = buffer;
        return call;
    }

    // What the CPU can't look at is checked once, here; what is in the arena by bench::serve().
    void check_private() {
        constexpr std::size_t kCount = (std::size_t{1} << 20) + 5;
        std::vector<float> values(kCount, static_cast<float>(rank_ + 1));
        void* buffer = allocate(bench::Memory::kHeap, kCount * sizeof(float));
        need(cudaMemcpy(buffer, values.data(), kCount * sizeof(float), cudaMemcpyHostToDevice),
             "copy in");
        need(group_->run(allreduce_of(buffer, kCount), stream_), "allreduce");
        finish();
        need(cudaMemcpy(values.data(), buffer, kCount * sizeof(float), cudaMemcpyDeviceToHost),
             "copy out");
        need(cudaFree(buffer), "cudaFree");
        const float sum = static_cast<float>(world_ * (world_ + 1) / 2);
        for (const float value : values) {
            if (value != sum) bench::die("an allreduce of device memory is wrong");
        }
    }

    const SharedArena& arena_;
    int rank_;
    int world_;
    std::shared_ptr<gpu::DeviceArena> device_;
    std::unique_ptr<gpu::DeviceGroup> group_;
    cudaStream_t stream_ = nullptr;
    gpu::DeviceCall call_;
};

}  // namespace

int main(int argc, char** argv) {
    using bench::option;
    const int world = std::stoi(option(argc, argv, "--world"));
    if (world < 2 || world > SharedArena::kMaxWorld) bench::die("--world is 2 to 4");
    SharedArena arena;
    arena.format(world);
    return bench::run_ranks(world, [&](int rank) {
        StreamContender contender(arena, rank, world);
        return bench::serve(contender, option(argc, argv, "--control"),
                            option(argc, argv, "--name"));
    });
}
