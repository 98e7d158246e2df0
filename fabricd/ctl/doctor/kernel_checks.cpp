#include "fabricd/ctl/doctor/kernel_checks.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <sstream>
#include <utility>

#include "fabricd/server/descriptor_plan.hpp"

namespace fabricd::doctor {

using fabricshm::format_bytes;
using fabricshm::kMiB;

namespace {

using Version = std::pair<int, int>;

/// What a kernel has from this version on, and what holds before it.
struct Ability {
    Version since;
    const char* missing;
};
constexpr Version kLeast{5, 3};      // pidfd_open(): the daemon sees the end of a session by it
constexpr Version kPopulate{5, 14};  // MADV_POPULATE_WRITE
constexpr Ability kAbilities[] = {
    {{5, 14}, "arenas have pages of 4 KiB (5.14)"},
    {{6, 3}, "no MFD_NOEXEC_SEAL (6.3)"},
    {{6, 5}, "no SO_PEERPIDFD (6.5)"},
    {{6, 16}, "no SO_PASSRIGHTS (6.16)"},
};

// What a daemon has open before the first session comes, about.
constexpr long kOpenAtStart = 64;
constexpr const char* kFilesLimit = "/etc/security/limits.d/90-fabricd.conf";

/// A row of /proc/PID/limits: "Max open files  1024  524288  files". Nothing when it can't be read;
/// `unlimited` is the largest number.
struct ProcessLimit {
    std::uint64_t soft = 0;
    std::uint64_t hard = 0;
};
std::optional<std::uint64_t> limit_value(const std::string& word) {
    if (word == "unlimited") return ~std::uint64_t{0};
    const bool digits = !word.empty() && word.size() < 20 &&
                        word.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) return std::nullopt;
    return std::stoull(word);
}

std::optional<ProcessLimit> limit_of(const HostFacts& host, const std::string& process,
                                     const std::string& name) {
    const std::string text = host.files.text("/proc/" + process + "/limits").value_or("");
    const auto at = text.find(name);
    if (at == std::string::npos) return std::nullopt;
    std::istringstream words(text.substr(at + name.size()));
    std::string soft_word, hard_word;
    words >> soft_word >> hard_word;
    const auto soft = limit_value(soft_word);
    const auto hard = limit_value(hard_word);
    if (!soft || !hard) return std::nullopt;
    return ProcessLimit{*soft, *hard};
}

std::string limit_text(std::uint64_t bytes) {
    return bytes == ~std::uint64_t{0} ? "unlimited" : format_bytes(bytes);
}

bool has_word(const std::string& line, const std::string& word) {
    return (" " + line + " ").find(" " + word + " ") != std::string::npos;
}

/// The flags of the first processor; "" when /proc/cpuinfo has no such line.
std::string processor_flags(const HostFacts& host) {
    std::istringstream lines(host.files.text("/proc/cpuinfo").value_or(""));
    for (std::string line; std::getline(lines, line);) {
        if (line.rfind("flags", 0) != 0) continue;
        return line.substr(std::min(line.size(), line.find(':') + 1));
    }
    return "";
}

bool is_processor(const std::string& name) {
    return name.size() > 3 && name.rfind("cpu", 0) == 0 &&
           std::all_of(name.begin() + 3, name.end(),
                       [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

Finding kernel_version(const HostFacts& host) {
    const std::string release = host.files.text("/proc/sys/kernel/osrelease").value_or("");
    Version version{};
    if (std::sscanf(release.c_str(), "%d.%d", &version.first, &version.second) != 2) {
        return unknown("can't read /proc/sys/kernel/osrelease");
    }
    const std::string name = "Linux " + release;
    if (version < kLeast) {
        return {Grade::kProblem, name + ": fabricd needs 5.3 (pidfd_open)",
                "sudo apt install linux-image-amd64"};
    }
    std::string missing;
    for (const Ability& ability : kAbilities) {
        if (version < ability.since)
            missing += (missing.empty() ? ": " : ", ") + std::string(ability.missing);
    }
    if (version < kPopulate) {
        return {Grade::kWarning, name + missing, "sudo apt install linux-image-amd64"};
    }
    return {Grade::kOk, name + missing};
}

// fabricd does without; the library writes snapshots by it, and otherwise one write after the
// other.
Finding io_uring(const HostFacts& host) {
    const std::string path = "/proc/sys/kernel/io_uring_disabled";
    const auto value = host.files.number(path);
    if (!value) return unknown("can't read " + path + " (it is there from Linux 6.6 on)");
    if (*value == 0) return {Grade::kOk, "allowed"};
    const std::string by = *value == 1 ? "for users outside of a group" : "for all users";
    return {Grade::kNote,
            "forbidden " + by + " (kernel.io_uring_disabled is " + std::to_string(*value) +
                "); snapshots of parameters are then written more slowly",
            "sudo sysctl kernel.io_uring_disabled=0"};
}

Finding ptrace_scope(const HostFacts& host) {
    const std::string path = "/proc/sys/kernel/yama/ptrace_scope";
    const auto value = host.files.number(path);
    if (!value && !host.files.exists("/proc/sys/kernel/yama")) {
        return host.files.exists("/proc/sys/kernel")
                   ? Finding{Grade::kOk, "no Yama: a user may debug all of its own processes"}
                   : unknown("can't read /proc/sys/kernel");
    }
    if (!value) return unknown("can't read " + path);
    if (*value == 0) return {Grade::kOk, "a user may debug all of its own processes"};
    // 3 stays until the next boot: no command changes it.
    return {
        Grade::kNote,
        "kernel.yama.ptrace_scope is " + std::to_string(*value) +
            ": gdb -p and copies between processes (CMA of MPI) need root; fabricd needs neither",
        *value < 3 ? "sudo sysctl kernel.yama.ptrace_scope=0" : ""};
}

Finding open_files(const HostFacts& host) {
    const auto limit = limit_of(host, host.process(), "Max open files");
    if (!limit) return unknown("can't read /proc/" + host.process() + "/limits");
    // The daemon raises its soft limit to the hard one.
    const long hard = static_cast<long>(std::min<std::uint64_t>(limit->hard, 1U << 30));
    const Limits& limits = host.config.config.limits;
    const int wanted = limits.max_sessions + limits.reserved_sessions;
    const int possible = connections_for(hard, kOpenAtStart, wanted);
    const std::string subject = host.status ? "the daemon" : "a daemon started here";
    const std::string figures = std::to_string(hard) + " for " + subject + ", enough for " +
                                std::to_string(possible) + " of " + std::to_string(wanted) +
                                " sessions";
    if (possible >= wanted) return {Grade::kOk, figures};
    // The limits of a unit are its own; those of PAM are for what a login starts.
    const std::string groups = host.files.text("/proc/" + host.process() + "/cgroup").value_or("");
    const bool is_unit = groups.find("/fabricd.service") != std::string::npos;
    return {Grade::kWarning,
            figures + (is_unit ? " (LimitNOFILE" : " (nofile") + ", limits.sessions)",
            is_unit ? "sudo systemctl edit fabricd" : write_to(kFilesLimit, "'* - nofile 65536'")};
}

// Neither fabricd nor the library locks memory. The drivers of RDMA cards do it in the program's
// name, for what NCCL and MPI register.
Finding locked_memory(const HostFacts& host) {
    const auto limit = limit_of(host, "self", "Max locked memory");
    if (!limit) return unknown("can't read /proc/self/limits");
    const auto cards = host.files.names("/sys/class/infiniband");
    if (limit->soft == ~std::uint64_t{0}) return {Grade::kOk, "unlimited"};
    if (cards.empty()) {
        return {Grade::kOk,
                limit_text(limit->soft) + "; fabricd locks none, and there is no RDMA card"};
    }
    return {Grade::kWarning,
            limit_text(limit->soft) + ", and " + std::to_string(cards.size()) +
                " RDMA cards: what NCCL and MPI register with them is locked",
            write_to("/etc/security/limits.d/90-memlock.conf", "'* - memlock unlimited'")};
}

// As kernels/cpu/dispatch.cpp chooses.
Finding vector_units(const HostFacts& host) {
    const std::string flags = processor_flags(host);
    if (flags.empty()) return unknown("can't read the flags in /proc/cpuinfo");
    const bool avx2 = has_word(flags, "avx2") && has_word(flags, "f16c");
    const bool avx512 = avx2 && has_word(flags, "avx512f") && has_word(flags, "avx512bw") &&
                        has_word(flags, "avx512dq") && has_word(flags, "avx512vl");
    if (avx512) return {Grade::kOk, "AVX-512"};
    if (avx2) return {Grade::kOk, "AVX2"};
    return {Grade::kNote,
            "no AVX2: sums are made element by element (a virtual machine may hide it: CPU model)"};
}

Finding cpu_governor(const HostFacts& host) {
    const std::string folder = "/sys/devices/system/cpu/";
    std::size_t known = 0, slow = 0;
    for (const auto& name : host.files.names(folder)) {
        if (!is_processor(name)) continue;
        const auto governor = host.files.text(folder + name + "/cpufreq/scaling_governor");
        const auto driver = host.files.text(folder + name + "/cpufreq/scaling_driver").value_or("");
        if (!governor) continue;
        ++known;
        // With these drivers the hardware chooses, and powersave is the usual name for that.
        const bool by_hardware = driver == "intel_pstate" || driver == "amd-pstate-epp";
        const bool saves = *governor == "powersave" && !by_hardware;
        slow += saves || *governor == "conservative" ? 1 : 0;
    }
    if (known == 0) return unknown("no processor says how its frequency is chosen");
    if (slow == 0)
        return {Grade::kOk, "none of " + std::to_string(known) + " processors saves power"};
    return {Grade::kWarning,
            std::to_string(slow) + " of " + std::to_string(known) +
                " processors are kept slow (governor powersave or conservative)",
            write_to(folder + "cpu*/cpufreq/scaling_governor", "performance")};
}

}  // namespace fabricd::doctor
