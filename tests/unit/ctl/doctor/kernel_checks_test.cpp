#include "fabricd/ctl/doctor/kernel_checks.hpp"

#include <doctest/doctest.h>

#include "tests/unit/ctl/doctor/fake_host.hpp"

using namespace fabricd;
using namespace fabricd::doctor;

TEST_SUITE("ctl.doctor.kernel_checks") {
    TEST_CASE("a kernel is judged by what it lacks") {
        FakeHost host;
        CHECK(kernel_version(host.facts).text == "Linux 6.17.0-amd64");
        host.write("proc/sys/kernel/osrelease", "6.1.0-18-amd64");
        const Finding debian = kernel_version(host.facts);
        CHECK(debian.grade == Grade::kOk);
        CHECK(debian.text.find("no SO_PASSRIGHTS (6.16)") != std::string::npos);
        host.write("proc/sys/kernel/osrelease", "5.10.0");
        CHECK(kernel_version(host.facts).grade == Grade::kWarning);
        host.write("proc/sys/kernel/osrelease", "4.19.0");
        CHECK(kernel_version(host.facts).grade == Grade::kProblem);
        host.remove("proc/sys/kernel/osrelease");
        CHECK(kernel_version(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("forbidden io_uring and ptrace are notes: all works without them") {
        FakeHost host;
        CHECK(io_uring(host.facts).grade == Grade::kOk);
        CHECK(ptrace_scope(host.facts).grade == Grade::kOk);
        host.write("proc/sys/kernel/io_uring_disabled", "2");
        host.write("proc/sys/kernel/yama/ptrace_scope", "1");
        CHECK(io_uring(host.facts).command == "sudo sysctl kernel.io_uring_disabled=0");
        CHECK(ptrace_scope(host.facts).command == "sudo sysctl kernel.yama.ptrace_scope=0");
        host.write("proc/sys/kernel/yama/ptrace_scope", "3");
        CHECK(ptrace_scope(host.facts).grade == Grade::kNote);
        CHECK(ptrace_scope(host.facts).command.empty());  // it stays until the next boot
    }

    TEST_CASE("a kernel without Yama forbids nothing, and one that can't be read is unknown") {
        FakeHost host;
        host.remove("proc/sys/kernel/yama/ptrace_scope");
        CHECK(ptrace_scope(host.facts).grade == Grade::kUnknown);
        host.remove("proc/sys/kernel/yama");
        CHECK(ptrace_scope(host.facts).grade == Grade::kOk);
        host.remove("proc/sys/kernel");
        CHECK(ptrace_scope(host.facts).grade == Grade::kUnknown);
        CHECK(io_uring(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("descriptors have to be enough for all sessions, of the daemon that runs") {
        FakeHost host;
        CHECK(open_files(host.facts).grade == Grade::kOk);
        host.start_daemon();
        host.write("proc/77/limits", "Max open files            1024    1024    files");
        const Finding few = open_files(host.facts);
        CHECK(few.grade == Grade::kWarning);
        CHECK(few.text.find("1024 for the daemon") == 0);
        CHECK(few.command == "sudo systemctl edit fabricd");
        host.write("proc/77/cgroup", "0::/user.slice");
        CHECK(open_files(host.facts).command ==
              "echo '* - nofile 65536' | sudo tee /etc/security/limits.d/90-fabricd.conf");
        host.facts.config.config.limits.max_sessions = 16;
        CHECK(open_files(host.facts).grade == Grade::kOk);
        host.write("proc/77/limits", "Max open files            many    1024    files");
        CHECK(open_files(host.facts).grade == Grade::kUnknown);
        host.remove("proc/77");
        CHECK(open_files(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("locked memory matters where there are RDMA cards") {
        FakeHost host;
        CHECK(locked_memory(host.facts).grade == Grade::kOk);
        host.write("sys/class/infiniband/mlx5_0/node_type", "1");
        CHECK(locked_memory(host.facts).grade == Grade::kWarning);
        host.write("proc/self/limits", "Max locked memory   unlimited   unlimited   bytes");
        CHECK(locked_memory(host.facts).grade == Grade::kOk);
        host.remove("proc/self/limits");
        CHECK(locked_memory(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("vector units are read from the flags") {
        FakeHost host;
        CHECK(vector_units(host.facts).text == "AVX-512");
        host.write("proc/cpuinfo", "flags : fpu avx2 f16c avx512f");
        CHECK(vector_units(host.facts).text == "AVX2");
        host.write("proc/cpuinfo", "flags : fpu avx2x avx");
        CHECK(vector_units(host.facts).grade == Grade::kNote);
        host.write("proc/cpuinfo", "Features : asimd");
        CHECK(vector_units(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("powersave is slow but for the drivers that call their own choice so") {
        FakeHost host;
        const std::string folder = "sys/devices/system/cpu/cpu0/cpufreq/";
        CHECK(cpu_governor(host.facts).grade == Grade::kOk);
        host.write(folder + "scaling_governor", "powersave");
        CHECK(cpu_governor(host.facts).grade == Grade::kWarning);
        host.write(folder + "scaling_driver", "intel_pstate");
        CHECK(cpu_governor(host.facts).grade == Grade::kOk);
        host.remove(folder);
        CHECK(cpu_governor(host.facts).grade == Grade::kUnknown);
    }
}
