// A page of the pool that the hardware loses while ranks of CPUs use it in operations of a device
// group, through fabricd and the C ABI.

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include <fabricshm/cuda.h>

#include "libfabricshm/os/poison.hpp"
#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/mock_gpu/job_ranks.hpp"

using test_support::Daemon;
using test_support::failed;
using test_support::Job;
using test_support::run_children;

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kCount = 4 * kPage / sizeof(float);

int run_rank(const std::string& socket, int rank) {
    ::setenv("FABRIC_CUDA", "off", 1);
    const Job job(socket, mock_gpu::kJobBytes);
    if (!job.ok) return failed(1);
    fabricshm_group* group = mock_gpu::join(job, rank, 2);
    if (group == nullptr || mock_gpu::join_on_cpu(group) != 0) return failed(2);
    fabricshm_region region{};
    if (fabricshm_region_create(job.arena, kCount * sizeof(float), &region) != 0) return failed(3);
    auto* values = static_cast<float*>(region.base);
    for (std::uint64_t i = 0; i < kCount; ++i) values[i] = 1;
    const auto sum = [&] {
        return fabricshm_allreduce_on_stream(group, values, values, kCount, FABRICSHM_F32,
                                             FABRICSHM_SUM, nullptr);
    };
    if (sum() != 0 || values[kCount - 1] != 2) return failed(4);
    if (rank == 1) fabricshm::lose_page(reinterpret_cast<std::byte*>(values) + 2 * kPage);
    // Rank 1 reads its input, and rank 0 hears of it: neither takes zeros for data.
    if (sum() != FABRICSHM_EPOISONED) return failed(5);
    if (fabricshm_error_region() == 0) return failed(6);
    if (rank == 1 && fabricshm_error_region() != region.id) return failed(7);
    if (fabricshm_cuda_status(group) != FABRICSHM_EPOISONED) return failed(8);
    return fabricshm_barrier_on_stream(group, nullptr) == FABRICSHM_EPOISONED ? 0 : failed(9);
}

}  // namespace

TEST_SUITE("multiproc.client.cuda_poison") {
    TEST_CASE("a page that is lost under ranks of CPUs is an error that names its region") {
        const Daemon daemon;
        for (const int code :
             run_children(2, [&](int rank) { return run_rank(daemon.socket(), rank); })) {
            CHECK(code == 0);
        }
    }
}
