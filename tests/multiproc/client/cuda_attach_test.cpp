// Ranks that attach one arena to a GPU at the same time, next to a process that allocates there.
// The driver is the mock.

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <atomic>
#include <new>
#include <string>

#include <fabricshm/cuda.h>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/mock_gpu/job_ranks.hpp"

using mock_gpu::has_kernels;
using mock_gpu::with_gpu;
using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kBytes = 192 * kMiB;
constexpr std::uint64_t kRegion = 5 * kMiB;
constexpr int kRanks = 4;

// Of all processes of a test.
class Shared {
  public:
    Shared()
        : words_(new (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                             0)) Words) {}
    ~Shared() { ::munmap(words_, 4096); }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

    struct Words {
        std::atomic<int> attached{0};
        std::atomic<int> allocated{0};
    };
    Words& operator*() const { return *words_; }
    Words* operator->() const { return words_; }

  private:
    Words* words_;
};

// Up to two regions at a time, until all have attached and then once more.
int allocate_and_free(const Job& job, Shared& shared) {
    for (bool last = false; !last;) {
        last = shared->attached == kRanks;
        fabricshm_region one{};
        fabricshm_region two{};
        if (fabricshm_region_create(job.arena, kRegion, &one) != 0) return failed(20);
        if (fabricshm_region_create(job.arena, kRegion, &two) != 0) return failed(21);
        if (fabricshm_region_free(job.arena, one.id) != 0) return failed(22);
        if (fabricshm_region_free(job.arena, two.id) != 0) return failed(23);
        shared->allocated += 2;
    }
    return 0;
}

bool has_line(const std::string& log, const std::string& words) {
    return log.find(words) != std::string::npos;
}

int count_of(const std::string& log, const std::string& words) {
    int count = 0;
    for (auto at = log.find(words); at != std::string::npos; at = log.find(words, at + 1)) ++count;
    return count;
}

// Bytes that a region of this arena can have, in whole mebibytes.
std::uint64_t largest_region(const Job& job, std::uint64_t most) {
    for (std::uint64_t bytes = most; bytes != 0; bytes -= kMiB) {
        fabricshm_region region{};
        if (fabricshm_region_create(job.arena, bytes, &region) != 0) continue;
        fabricshm_region_free(job.arena, region.id);
        return bytes;
    }
    return 0;
}

}  // namespace

TEST_SUITE("multiproc.client.cuda_attach") {
    TEST_CASE("ranks attach at the same time, and a process that allocates hears nothing of it") {
        if (!has_kernels()) return;
        const Daemon daemon;
        Shared shared;
        Gate ready;
        Gate start;
        std::vector<Child> children;
        for (int rank = 0; rank < kRanks; ++rank) {
            children.emplace_back([&]() -> int {
                with_gpu();
                const Job job(daemon.socket(), kBytes);
                ready.open();
                if (!job.ok || !start.wait()) return failed(1);
                const int attached = fabricshm_cuda_attach(job.arena, 0);
                ++shared->attached;
                if (attached != 0) return failed(2);
                // What is attached can be used at once, by all of them.
                return fabricshm_alloc(job.arena, kMiB) != nullptr ? 0 : failed(3);
            });
        }
        children.emplace_back([&]() -> int {
            const Job job(daemon.socket(), kBytes);
            ready.open();
            if (!job.ok || !start.wait()) return failed(1);
            return allocate_and_free(job, shared);
        });
        REQUIRE(ready.wait(kRanks + 1));
        for (int i = 0; i <= kRanks; ++i) start.open();
        for (Child& child : children) CHECK(child.wait() == 0);
        CHECK(shared->allocated > 0);
        const std::string log = daemon.log();
        CHECK_FALSE(has_line(log, "refused"));
        CHECK_FALSE(has_line(log, "can't grow"));
    }

    TEST_CASE("ranks that join at once, without a word between them, find room for their stages") {
        if (!has_kernels()) return;
        const Daemon daemon;
        const auto codes = test_support::run_children(kRanks, [&](int rank) -> int {
            with_gpu();
            const Job job(daemon.socket(), kBytes);
            if (!job.ok) return failed(1);
            fabricshm_group* group = mock_gpu::join(job, rank, kRanks);
            if (group == nullptr) return failed(2);
            if (fabricshm_cuda_attach(job.arena, 0) != 0) return failed(3);
            const fabricshm_cuda_options options = {sizeof options, 8 * kMiB, mock_gpu::kTimeoutMs};
            if (fabricshm_cuda_join(group, &options) != 0) return failed(4);
            return fabricshm_cuda_leave(group) == 0 ? 0 : failed(5);
        });
        for (const int code : codes) CHECK(code == 0);
        CHECK_FALSE(has_line(daemon.log(), "refused"));
    }

    TEST_CASE("of an arena beyond the pool what there is gets committed, and the rest pinned") {
        if (!has_kernels()) return;
        const Daemon daemon({"--pool-capacity=128MiB"});
        Child child([&]() -> int {
            with_gpu();
            // Takes 32 MiB of the pool.
            const Job other(daemon.socket(), 32 * kMiB, "other");
            if (!other.ok || largest_region(other, 32 * kMiB) == 0) return failed(1);
            const Job job(daemon.socket(), 128 * kMiB);
            if (!job.ok) return failed(2);
            if (fabricshm_cuda_attach(job.arena, 0) != 0) return failed(3);
            // All else of the pool, and not a region of it is taken.
            if (largest_region(job, 128 * kMiB) != 96 * kMiB) return failed(4);
            return 0;
        });
        CHECK(child.wait() == 0);
        CHECK(has_line(daemon.log(), "committed"));
    }

    TEST_CASE("attaching commits no more than the quota of the user, which has one line of log") {
        if (!has_kernels()) return;
        const Daemon daemon({"--limits-user-quota=128MiB"});
        Child child([&]() -> int {
            with_gpu();
            const Job other(daemon.socket(), 16 * kMiB, "other");
            const Job job(daemon.socket(), 128 * kMiB);
            if (!other.ok || !job.ok) return failed(1);
            if (fabricshm_cuda_attach(job.arena, 0) != 0) return failed(2);
            return largest_region(job, 112 * kMiB) == 112 * kMiB ? 0 : failed(3);
        });
        CHECK(child.wait() == 0);
        CHECK(count_of(daemon.log(), "quota") <= 2);
    }

    TEST_CASE("an arena that is attached again and again is committed once") {
        if (!has_kernels()) return;
        const Daemon daemon;
        Child child([&]() -> int {
            with_gpu();
            const Job job(daemon.socket(), kBytes);
            if (!job.ok) return failed(1);
            for (int i = 0; i < 3; ++i) {
                if (fabricshm_cuda_attach(job.arena, 0) != 0) return failed(2);
                if (fabricshm_cuda_detach(job.arena) != 0) return failed(3);
            }
            return largest_region(job, kBytes) == kBytes ? 0 : failed(4);
        });
        CHECK(child.wait() == 0);
    }
}
