// FakeHost: the files of a host on which each check of `fabricctl doctor` is content, to be changed
// by a test one at a time.

#pragma once

#include <sys/stat.h>

#include <string>

#include "fabricd/ctl/doctor/host_facts.hpp"
#include "libfabricshm/base/version.hpp"
#include "tests/unit/machine/host_tree.hpp"

class FakeHost : public HostTree {
  public:
    FakeHost() {
        write("proc/self/cgroup", "0::/user.slice");
        write("sys/fs/cgroup/cgroup.procs", "1");
        write("proc/self/limits",
              "Limit                     Soft Limit           Hard Limit           Units\n"
              "Max open files            1024                 65536                files\n"
              "Max locked memory         8388608              8388608              bytes");
        write("proc/meminfo",
              "MemTotal:       67108864 kB\nMemAvailable:   33554432 kB\n"
              "SwapTotal:             0 kB\nSwapFree:              0 kB\n"
              "CommitLimit:    33554432 kB\nCommitted_AS:   16777216 kB");
        write("proc/cpuinfo",
              "processor\t: 0\nflags\t\t: fpu avx2 f16c avx512f avx512bw avx512dq avx512vl");
        write("proc/sys/kernel/osrelease", "6.17.0-amd64");
        write("proc/sys/kernel/io_uring_disabled", "0");
        write("proc/sys/kernel/yama/ptrace_scope", "0");
        write("proc/sys/kernel/numa_balancing", "0");
        write("proc/sys/vm/overcommit_memory", "0");
        write("sys/devices/system/node/node0/cpulist", "0-7");
        write("sys/devices/system/node/node1/cpulist", "8-15");
        write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance");
        write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq");
        write("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152");
        write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never");
        write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
        write(pages + "nr_hugepages", "0");
        write(pages + "free_hugepages", "0");
        write("sys/bus/pci/devices/0000:00:00.0/vendor", "0x8086");
        write("dev/null", "");
        facts.files = files();
        facts.user = {1000, {1000}};
        facts.shared_memory = fabricd::Space{32 * fabricshm::kGiB, 32 * fabricshm::kGiB};
        facts.config.config.pool.capacity = 8 * fabricshm::kGiB;
        facts.admin = {"/run/fabricd/admin.sock", fabricd::FileOwner{0600, 1000, 1000},
                       fabricshm::Errc::kOk, "", std::chrono::milliseconds(1)};
        facts.attach = {"/run/fabricd/attach.sock", fabricd::FileOwner{0600, 1000, 1000},
                        fabricshm::Errc::kOk, "", std::chrono::milliseconds(1)};
    }

    /// A daemon that runs as process 77, with a pool of 8 GiB of which half is taken.
    void start_daemon() {
        fabricd::StatusView status;
        status.version = FABRIC_VERSION;
        status.pid = 77;
        status.pool = {"emu", "", 8 * fabricshm::kGiB, 4 * fabricshm::kGiB, ""};
        facts.status = status;
        write("proc/77/comm", "fabricd");
        write("proc/77/cgroup", "0::/system.slice/fabricd.service");
        write("proc/77/limits", "Max open files            65536   65536   files");
    }

    void install_unit() {
        write("run/systemd/system/x", "");
        write("lib/systemd/system/fabricd.service", "[Unit]");
        write("sys/fs/cgroup/system.slice/cgroup.procs", "");
    }

    void add_dax(const std::string& name, const std::string& driver, mode_t mode) {
        write("sys/bus/dax/devices/" + name + "/size", "0x4000000000");
        if (!driver.empty())
            link("sys/bus/dax/devices/" + name + "/driver", "../drivers/" + driver);
        if (mode == 0) return;
        write("dev/" + name, "");
        ::chmod(path("dev/" + name).c_str(), mode);
    }

    void add_gpu() {
        write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de");
        write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200");
    }

    void remove(const std::string& file) { std::filesystem::remove_all(path(file)); }

    fabricd::HostFacts facts;
    const std::string pages = "sys/kernel/mm/hugepages/hugepages-2048kB/";
};
