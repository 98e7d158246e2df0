// A device group in one process's memory, for tests: its block, buffers of its ranks in a pool and
// in memory of their own, and ranks that run at the same time as grids on the CPU.

#pragma once

#include <new>
#include <span>

#include "kernels/cuda/collective_body.hpp"
#include "tests/support/cpu_grid.hpp"

namespace test_support {

/// Calls add(rank) for each rank in the order in which the ring adds up element `i` of `count`:
/// from the rank whose chunk it is, on. Chunks are the shares of direct.
template <class Add>
void in_ring_order(std::size_t i, std::size_t count, int world, Add add) {
    int first = 0;
    while (kernels::cuda::share_of_rank(count, first, world).end <= i) ++first;
    for (int r = 0; r < world; ++r) add((first + r) % world);
}

/// Memory that starts at a multiple of 4096 bytes, all zeros.
class ZeroedPages {
  public:
    explicit ZeroedPages(std::size_t bytes)
        : start_(static_cast<unsigned char*>(::operator new(bytes, std::align_val_t(4096)))),
          bytes_(bytes) {
        std::memset(start_, 0, bytes);
    }
    ~ZeroedPages() { ::operator delete(start_, std::align_val_t(4096)); }
    ZeroedPages(const ZeroedPages&) = delete;
    ZeroedPages& operator=(const ZeroedPages&) = delete;
    unsigned char* data() const { return start_; }
    std::size_t size() const { return bytes_; }

  private:
    unsigned char* start_;
    std::size_t bytes_;
};

/// A buffer of one rank.
struct GroupBuffer {
    unsigned char* data = nullptr;
    kernels::cuda::Place place = kernels::cuda::kPrivatePlace;

    Address address() const { return address_of(data); }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data);
    }
};

class DeviceGroup {
  public:
    static constexpr std::uint32_t kEpoch = 7;
    static constexpr std::size_t kPoolBytes = 1 << 20;

    explicit DeviceGroup(int world, std::uint32_t first_sequence = 0)
        : world_(world),
          pool_(kPoolBytes),
          own_(kPoolBytes),
          states_(8192 * kernels::cuda::kMaxRanks) {
        auto& header = *reinterpret_cast<kernels::cuda::DeviceGroupHeader*>(pool_.data());
        header.magic = kernels::cuda::kDeviceGroupMagic;
        header.version = kernels::cuda::kDeviceGroupVersion;
        header.world = static_cast<std::uint32_t>(world);
        header.epoch = kEpoch;
        for (int rank = 0; rank < world; ++rank) {
            words(rank).arrived = words(rank).done =
                kernels::cuda::make_turn(kEpoch, first_sequence);
        }
        used_ = own_used_ = 8192;
    }

    kernels::cuda::DeviceGroupHeader& header() const {
        return *reinterpret_cast<kernels::cuda::DeviceGroupHeader*>(pool_.data());
    }
    kernels::cuda::DeviceRankWords& words(int rank) const {
        return reinterpret_cast<kernels::cuda::DeviceRankWords*>(
            pool_.data() + sizeof(kernels::cuda::DeviceGroupHeader))[rank];
    }
    kernels::cuda::StatusWords& status(int rank) const {
        return *reinterpret_cast<kernels::cuda::StatusWords*>(state(rank) + 4096);
    }
    kernels::cuda::Outcome outcome(int rank) const {
        return kernels::cuda::outcome_of(status(rank).report);
    }

    /// `bytes` of the pool, `misalignment` bytes past a line.
    GroupBuffer in_pool(std::size_t bytes, std::size_t misalignment = 0) {
        const std::size_t at = take(used_, bytes, misalignment);
        return {pool_.data() + at, kernels::cuda::make_place(kernels::cuda::Space::kPool, at)};
    }
    /// Of a rank's own memory: exported to its peers, or private.
    GroupBuffer in_own(std::size_t bytes, bool exported) {
        const std::size_t at = take(own_used_, bytes, 0);
        const auto place = kernels::cuda::make_place(kernels::cuda::Space::kDevice, at);
        return {own_.data() + at, exported ? place : kernels::cuda::kPrivatePlace};
    }
    void free_buffers() { used_ = own_used_ = 8192; }

    kernels::cuda::GroupArgs args(int rank) const {
        kernels::cuda::GroupArgs args = {};
        args.block = address_of(pool_.data());
        args.grid = address_of(state(rank));
        args.status = address_of(&status(rank));
        args.timeout_ns = timeout_ns;
        args.rank = rank;
        args.world = world_;
        args.epoch = kEpoch;
        args.pool = {address_of(pool_.data()), kPoolBytes};
        for (int r = 0; r < world_; ++r) args.device[r] = {address_of(own_.data()), kPoolBytes};
        return args;
    }

    /// Runs body(grid, rank) as one grid for each rank of `shapes`, at the same time; `meanwhile`
    /// in this thread. Whether each rank's grid came to its end.
    template <class Body, class Meanwhile>
    std::vector<bool> run(std::span<const GridShape> shapes, Body body, Meanwhile meanwhile) {
        std::vector<std::thread> threads;
        std::vector<std::atomic<bool>> lived(shapes.size());
        for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
            lived[rank].store(true, std::memory_order_relaxed);
            start_grid(shapes[rank], clock, threads, &lived[rank],
                       [=](ThreadGrid& grid) { body(grid, static_cast<int>(rank)); });
        }
        meanwhile();
        for (std::thread& thread : threads) thread.join();
        std::vector<bool> all;
        for (const auto& one : lived) all.push_back(one.load(std::memory_order_relaxed));
        return all;
    }
    template <class Body>
    std::vector<bool> run(std::span<const GridShape> shapes, Body body) {
        return run(shapes, body, [] {});
    }

    FakeClock clock;
    std::uint64_t timeout_ns = std::uint64_t{1} << 62;

  private:
    static std::size_t take(std::size_t& used, std::size_t bytes, std::size_t misalignment) {
        const std::size_t at = used + misalignment;
        used = (at + bytes + 127) / 128 * 128;
        if (used > kPoolBytes) std::abort();
        return at;
    }
    unsigned char* state(int rank) const { return states_.data() + 8192 * rank; }

    int world_;
    ZeroedPages pool_, own_, states_;
    std::size_t used_, own_used_;
};

}  // namespace test_support
