#include "fabricd/ctl/doctor/memory_checks.hpp"

#include <doctest/doctest.h>

#include <unistd.h>

#include "tests/unit/ctl/doctor/fake_host.hpp"

using namespace fabricd;
using namespace fabricd::doctor;
using fabricshm::kGiB;
using fabricshm::kMiB;

TEST_SUITE("ctl.doctor.memory_checks") {
    TEST_CASE("arenas without huge pages are a warning with the file that allows them") {
        FakeHost host;
        CHECK(arena_huge_pages(host.facts).grade == Grade::kOk);
        host.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]");
        const Finding off = arena_huge_pages(host.facts);
        CHECK(off.grade == Grade::kWarning);
        CHECK(off.command ==
              "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled");
        host.facts.config.config.pool.huge_pages = "off";
        CHECK(arena_huge_pages(host.facts).grade == Grade::kOk);
        host.remove("sys/kernel/mm/transparent_hugepage");
        CHECK(arena_huge_pages(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("a page size with a setting of its own is mended there") {
        FakeHost host;
        const std::string own = "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
        host.write(own, "always [inherit] never");
        CHECK(arena_huge_pages(host.facts).grade == Grade::kOk);
        host.write(own, "always inherit [never]");
        CHECK(arena_huge_pages(host.facts).command == "echo advise | sudo tee /" + own);
    }

    TEST_CASE("programs without huge pages are a note") {
        FakeHost host;
        CHECK(program_huge_pages(host.facts).grade == Grade::kOk);
        host.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
        CHECK(program_huge_pages(host.facts).grade == Grade::kNote);
        host.remove("sys/kernel/mm/transparent_hugepage/enabled");
        CHECK(program_huge_pages(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("reserved pages have to be enough for the pool that takes them") {
        FakeHost host;
        CHECK(reserved_huge_pages(host.facts).grade == Grade::kOk);
        host.facts.config.config.pool.huge_pages = "reserved";
        host.write(host.pages + "nr_hugepages", "1024");
        host.write(host.pages + "free_hugepages", "1000");
        // 8 GiB are 4096 pages, of which 1000 are free: 3096 more than the 1024 that there are.
        const Finding few = reserved_huge_pages(host.facts);
        CHECK(few.grade == Grade::kProblem);
        CHECK(few.command ==
              "echo 4120 | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
        host.write(host.pages + "free_hugepages", "4096");
        CHECK(reserved_huge_pages(host.facts).grade == Grade::kOk);
        host.remove(host.pages);
        CHECK(reserved_huge_pages(host.facts).grade == Grade::kProblem);
    }

    TEST_CASE("reserved pages that nothing uses are a note, and unreadable ones unknown") {
        FakeHost host;
        host.write(host.pages + "nr_hugepages", "512");
        host.write(host.pages + "free_hugepages", "512");
        CHECK(reserved_huge_pages(host.facts).grade == Grade::kNote);
        host.write(host.pages + "free_hugepages", "100");
        CHECK(reserved_huge_pages(host.facts).grade == Grade::kOk);
        host.remove(host.pages);
        CHECK(reserved_huge_pages(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("NUMA balancing matters with several nodes") {
        FakeHost host;
        CHECK(numa_balancing(host.facts).grade == Grade::kOk);
        host.write("proc/sys/kernel/numa_balancing", "1");
        CHECK(numa_balancing(host.facts).grade == Grade::kWarning);
        host.remove("sys/devices/system/node/node1");
        CHECK(numa_balancing(host.facts).grade == Grade::kOk);
        host.remove("sys/devices/system/node");
        CHECK(numa_balancing(host.facts).grade == Grade::kUnknown);
        host.remove("proc/sys/kernel/numa_balancing");
        CHECK(numa_balancing(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("a pool larger than what is available is a problem, of a running daemon a warning") {
        FakeHost host;
        CHECK(pool_size(host.facts).grade == Grade::kOk);
        host.facts.config.config.pool.capacity = 64 * kGiB;
        const Finding large = pool_size(host.facts);
        CHECK(large.grade == Grade::kProblem);
        CHECK(large.command == "fabricd --pool-capacity=16384MiB");
        host.start_daemon();
        CHECK(pool_size(host.facts).grade == Grade::kOk);
        host.facts.status->pool.capacity_bytes = 64 * kGiB;
        CHECK(pool_size(host.facts).grade == Grade::kWarning);
        host.facts.status->pool.backend = "dax";
        CHECK(pool_size(host.facts).grade == Grade::kOk);
        host.facts.status.reset();
        host.remove("proc/meminfo");
        CHECK(pool_size(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE(
        "a control group smaller than the pool is a problem, of the unit one with a command") {
        FakeHost host;
        host.start_daemon();
        CHECK(memory_limit(host.facts).grade == Grade::kOk);
        const std::string limit = "sys/fs/cgroup/system.slice/fabricd.service/memory.max";
        host.write(limit, std::to_string(4 * kGiB));
        const Finding unit = memory_limit(host.facts);
        CHECK(unit.grade == Grade::kProblem);
        CHECK(unit.command == "sudo systemctl set-property fabricd.service MemoryMax=infinity");
        host.write("sys/fs/cgroup/system.slice/memory.max", std::to_string(2 * kGiB));
        const Finding above = memory_limit(host.facts);
        CHECK(above.text.find("2 GiB") != std::string::npos);
        CHECK(above.command.empty());
        host.write(limit, "max");
        host.write("sys/fs/cgroup/system.slice/memory.max", std::to_string(16 * kGiB));
        CHECK(memory_limit(host.facts).grade == Grade::kOk);
        // In another container the daemon's number is that of another process.
        host.write("proc/77/comm", "bash");
        CHECK(memory_limit(host.facts).grade == Grade::kUnknown);
        host.remove("proc/77");
        CHECK(memory_limit(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("strict overcommit is a note while the pool fits") {
        FakeHost host;
        CHECK(overcommit(host.facts).grade == Grade::kOk);
        host.write("proc/sys/vm/overcommit_memory", "2");
        CHECK(overcommit(host.facts).grade == Grade::kNote);
        host.facts.config.config.pool.capacity = 17 * kGiB;
        CHECK(overcommit(host.facts).grade == Grade::kProblem);
        host.write("proc/meminfo", "MemTotal: 1 kB");
        CHECK(overcommit(host.facts).grade == Grade::kUnknown);
        host.remove("proc/sys/vm");
        CHECK(overcommit(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("swap is a note with its use") {
        FakeHost host;
        CHECK(swap(host.facts).grade == Grade::kOk);
        host.write("proc/meminfo", "SwapTotal:  2097152 kB\nSwapFree:  1048576 kB");
        const Finding used = swap(host.facts);
        CHECK(used.grade == Grade::kNote);
        CHECK(used.text.find("1 GiB of 2 GiB") == 0);
        host.remove("proc/meminfo");
        CHECK(swap(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("a small or full folder of shared memory is a warning") {
        FakeHost host;
        CHECK(shared_memory(host.facts).grade == Grade::kOk);
        host.facts.shared_memory = Space{64 * kMiB, 64 * kMiB};
        CHECK(shared_memory(host.facts).grade == Grade::kWarning);
        host.facts.shared_memory = Space{32 * kGiB, kGiB};
        CHECK(shared_memory(host.facts).grade == Grade::kWarning);
        host.facts.shared_memory.reset();
        CHECK(shared_memory(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("what ended PyTorch processes left is named by their numbers alone") {
        FakeHost host;
        host.facts.user.uid = ::geteuid();
        host.write("dev/shm/torch_4711_12_3", "x");
        host.write("dev/shm/torch_4711_12_4", "x");
        host.write("dev/shm/torch_4712_$(reboot)", "x");
        host.write("dev/shm/torch_77x_1", "x");
        host.write("dev/shm/other_4713_1", "x");
        host.write("dev/shm/torch_88_1", "x");
        host.write("proc/88/stat", "88");
        const Finding left = shared_memory(host.facts);
        CHECK(left.grade == Grade::kNote);
        CHECK(left.command == "rm /dev/shm/torch_4711_* /dev/shm/torch_4712_*");
        // Of another user: its processes may be hidden.
        host.facts.user.uid = ::geteuid() + 1;
        CHECK(shared_memory(host.facts).grade == Grade::kOk);
    }
}
