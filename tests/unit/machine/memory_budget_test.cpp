#include "libfabricshm/machine/memory_budget.hpp"

#include <doctest/doctest.h>

#include "libfabricshm/machine/huge_pages.hpp"
#include "tests/unit/machine/host_tree.hpp"

using namespace fabricshm;

namespace {

constexpr const char* kMeminfo =
    "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n";

}  // namespace

TEST_SUITE("machine.memory_budget") {
    TEST_CASE("without control groups it is what the machine has available") {
        HostTree tree;
        tree.write("proc/meminfo", kMeminfo);
        CHECK(available_memory(tree.files()) == 8 * kGiB);
    }

    TEST_CASE("a limit of version 2 anywhere up the tree binds, page cache does not count") {
        HostTree tree;
        tree.write("proc/meminfo", kMeminfo);
        tree.write("proc/self/cgroup", "0::/user.slice/job.scope\n");
        const std::string groups = "sys/fs/cgroup/user.slice";
        tree.write(groups + "/memory.max", "4294967296");
        tree.write(groups + "/memory.current", "2147483648");
        tree.write(groups + "/memory.stat", "anon 5\ninactive_file 1073741824\n");
        tree.write(groups + "/job.scope/memory.max", "max");
        tree.write(groups + "/job.scope/memory.current", "1");
        CHECK(available_memory(tree.files()) == 3 * kGiB);
    }

    TEST_CASE("the tightest limit up the tree is named with its group, of any process") {
        HostTree tree;
        tree.write("proc/self/cgroup", "0::/");
        tree.write("proc/77/cgroup", "0::/system.slice/fabricd.service");
        CHECK_FALSE(tightest_memory_limit(tree.files()));  // nothing of the groups can be seen
        tree.write("sys/fs/cgroup/cgroup.procs", "1");
        REQUIRE(tightest_memory_limit(tree.files()));
        CHECK(tightest_memory_limit(tree.files())->folder.empty());
        tree.write("sys/fs/cgroup/system.slice/memory.max", "4294967296");
        tree.write("sys/fs/cgroup/system.slice/fabricd.service/memory.max", "8589934592");
        const auto limit = tightest_memory_limit(tree.files(), "77");
        REQUIRE(limit);
        CHECK(limit->folder == "/sys/fs/cgroup/system.slice");
        CHECK(limit->bytes == 4 * kGiB);
        CHECK_FALSE(tightest_memory_limit(tree.files(), "78"));
    }

    TEST_CASE("a limit of version 1 binds, and its huge number means none") {
        HostTree tree;
        tree.write("proc/meminfo", kMeminfo);
        tree.write("proc/self/cgroup", "5:cpu:/x\n4:memory:/a/b\n");
        tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
        tree.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1");
        CHECK(available_memory(tree.files()) == 8 * kGiB);
        tree.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824");
        tree.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "2147483648");
        CHECK(available_memory(tree.files()) == 0);
    }

    TEST_CASE("a node gives its free pages and the inactive page cache") {
        HostTree tree;
        tree.write("sys/devices/system/node/node1/meminfo",
                   "Node 1 MemFree:  1024 kB\nNode 1 Inactive(file): 512 kB\n");
        CHECK(available_memory_of_node(tree.files(), 1) == 1536 * kKiB);
        CHECK_FALSE(available_memory_of_node(tree.files(), 2));
    }
}

TEST_SUITE("machine.memory_budget huge pages") {
    TEST_CASE("transparent ones are there when shared memory may have them") {
        HostTree tree;
        const std::string folder = "sys/kernel/mm/transparent_hugepage/";
        CHECK(transparent_huge_page_bytes(tree.files()) == 0);
        tree.write(folder + "hpage_pmd_size", "2097152");
        tree.write(folder + "shmem_enabled", "always within_size [advise] never deny force");
        CHECK(transparent_huge_page_bytes(tree.files()) == 2 * kMiB);
        tree.write(folder + "shmem_enabled", "always within_size advise [never] deny force");
        CHECK(transparent_huge_page_bytes(tree.files()) == 0);
        tree.write(folder + "hugepages-2048kB/shmem_enabled", "always [inherit] advise never");
        CHECK(transparent_huge_page_bytes(tree.files()) == 0);
        tree.write(folder + "hugepages-2048kB/shmem_enabled", "always inherit [advise] never");
        CHECK(transparent_huge_page_bytes(tree.files()) == 2 * kMiB);
    }

    TEST_CASE("reserved ones are counted per size and node") {
        HostTree tree;
        tree.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7");
        tree.write("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "3");
        CHECK(free_reserved_pages(tree.files(), 2 * kMiB, -1) == 14 * kMiB);
        CHECK(free_reserved_pages(tree.files(), 2 * kMiB, 1) == 6 * kMiB);
        CHECK(free_reserved_pages(tree.files(), kGiB, -1) == 0);
    }

    TEST_CASE("a plan without any says so once and goes on with small pages") {
        HostTree tree;
        MemfdPlan plan;
        CHECK(plan_huge_pages(plan, HugePages::kTransparent, 2 * kMiB, tree.files()).ok());
        CHECK(plan.huge_page_bytes == 0);
        CHECK(plan_huge_pages(plan, HugePages::kReserved, 2 * kMiB, tree.files()).error().code ==
              Errc::kUnsupported);
    }
}
