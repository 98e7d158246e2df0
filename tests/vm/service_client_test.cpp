// Two ranks that work until they are asked to end, while what systemd runs is killed, restarted and
// out of disk: what they compute has to stay right, and what they own has to stay theirs. What they
// got done lies in files, for a script to check. FABRIC_TEST_WORK: a folder. `turns` there grows
// with each collective, `grants` with each region granted and given back; the ranks end when there
// is a file `end`.

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/support/children.hpp"
#include "tests/support/job.hpp"

using namespace test_support;

namespace {

constexpr int kWorld = 2;
constexpr std::size_t kElements = 10'000;
constexpr std::uint64_t kKept = 100'000;
constexpr int kPause = 50'000;  // µs between the turns: the daemon is asked, not loaded

const std::string& work() {
    static const std::string folder = std::getenv("FABRIC_TEST_WORK");
    return folder;
}

void write_count(const char* name, long count) {
    const std::string path = work() + "/" + name;
    std::ofstream(path + ".new") << count << "\n";
    (void)std::rename((path + ".new").c_str(), path.c_str());
}

/// Not wrong of a request: the disk's state refuses it, or its answer was lost with the daemon that
/// had it, and what came of it can't be known.
bool may_be(int code) {
    return code == 0 || code == FABRICSHM_ESYSTEM || code == FABRICSHM_EDAEMON;
}

/// One turn; the step that went wrong, or 0.
int turn(const Job& job, fabricshm_group* group, float* data, long& grants) {
    std::fill_n(data, kElements, 1.0F);
    if (fabricshm_allreduce(group, data, data, kElements, FABRICSHM_F32, FABRICSHM_SUM) != 0) {
        return failed(4);
    }
    if (data[0] != kWorld || data[kElements - 1] != kWorld) return 5;
    fabricshm_region region;
    const int made = fabricshm_region_create(job.arena, 4096, &region);
    if (made != 0) return may_be(made) ? 0 : failed(6);
    if (!may_be(fabricshm_region_free(job.arena, region.id))) return failed(7);
    ++grants;
    return 0;
}

int work_as(int rank) {
    const Job job("/run/fabricd/attach.sock");
    fabricshm_group* group = nullptr;
    fabricshm_region kept;
    if (!job.ok || fabricshm_group_join(job.arena, "vm", rank, kWorld, 60'000, &group) != 0)
        return failed(1);
    if (fabricshm_region_create(job.arena, kKept, &kept) != 0) return failed(2);
    std::memset(kept.base, 0x55 + rank, kKept);
    auto* data = static_cast<float*>(fabricshm_alloc(job.arena, kElements * sizeof(float)));
    if (data == nullptr) return failed(3);
    const std::string end = work() + "/end";
    long turns = 0, grants = 0;
    // Agreed upon: a rank that noticed the end alone would leave the other one in a collective.
    for (float ends = 0; ends == 0; ++turns) {
        if (const int step = turn(job, group, data, grants)) return step;
        if (rank == 0) {
            write_count("turns", turns);
            write_count("grants", grants);
        }
        ends = rank == 0 && ::access(end.c_str(), F_OK) == 0 ? 1.0F : 0.0F;
        if (fabricshm_allreduce(group, &ends, &ends, 1, FABRICSHM_F32, FABRICSHM_MAX) != 0)
            return failed(8);
        ::usleep(kPause);
    }
    // Nothing was granted over what is this rank's.
    const auto* bytes = static_cast<const unsigned char*>(kept.base);
    const bool whole =
        std::all_of(bytes, bytes + kKept, [rank](unsigned char b) { return b == 0x55 + rank; });
    return whole ? 0 : 9;
}

}  // namespace

TEST_SUITE("vm.service") {
    TEST_CASE("two ranks work until they are asked to end") {
        REQUIRE(std::getenv("FABRIC_TEST_WORK") != nullptr);
        Child other([] { return work_as(1); });
        CHECK(work_as(0) == 0);
        CHECK(other.wait() == 0);
    }
}
