#include "fabricd/ctl/doctor/memory_checks.hpp"

#include <algorithm>
#include <cctype>
#include <set>

#include "libfabricshm/machine/huge_pages.hpp"
#include "libfabricshm/machine/memory_budget.hpp"

namespace fabricd::doctor {

using fabricshm::format_bytes;
using fabricshm::kGiB;
using fabricshm::kKiB;
using fabricshm::kMiB;
using fabricshm::memory_info;

namespace {

constexpr const char* kTransparent = "/sys/kernel/mm/transparent_hugepage/";
constexpr const char* kSharedFolder = "/dev/shm";
// Containers have 64 MiB unless more is asked for; a data loader with a few workers needs more.
constexpr Bytes kSharedLeast = kGiB;
constexpr std::size_t kNamedLeftovers = 8;

bool is_dax(const HostFacts& host) {
    const std::string& backend =
        host.status ? host.status->pool.backend : host.config.config.pool.backend;
    return backend == "dax";
}

/// The file that decides about shared memory: since Linux 6.11 the one of the page size, unless
/// that refers to the general one.
std::string shared_setting(const HostFacts& host) {
    const std::string folder = kTransparent;
    const Bytes size = host.files.number(folder + "hpage_pmd_size").value_or(2 * kMiB);
    const std::string own =
        folder + "hugepages-" + std::to_string(size / kKiB) + "kB/shmem_enabled";
    const auto text = host.files.text(own);
    const bool is_general = !text || chosen_word(*text) == "inherit";
    return is_general ? folder + "shmem_enabled" : own;
}

std::string reserved_folder(Bytes page) {
    return "/sys/kernel/mm/hugepages/hugepages-" + std::to_string(page / kKiB) + "kB";
}

Finding missing_pages(Bytes page, std::uint64_t total, Bytes free, Bytes missing) {
    const std::uint64_t wanted = (missing - free + page - 1) / page;
    return {Grade::kProblem,
            "pool.huge_pages is reserved and " + format_bytes(missing) + " are needed, " +
                format_bytes(free) + " of pages of " + format_bytes(page) + " are free",
            write_to(reserved_folder(page) + "/nr_hugepages", std::to_string(total + wanted))};
}

/// The process of a file that PyTorch's data loaders leave when they are killed: "torch_4711_...".
/// Nothing of any other name: what another program made is not ours to judge.
std::optional<std::string> process_in(const std::string& name) {
    const std::string prefix = "torch_";
    if (name.rfind(prefix, 0) != 0) return std::nullopt;
    const auto end = name.find('_', prefix.size());
    if (end == std::string::npos || end == prefix.size() || end > prefix.size() + 10) {
        return std::nullopt;
    }
    const std::string digits = name.substr(prefix.size(), end - prefix.size());
    const bool is_number = std::all_of(digits.begin(), digits.end(),
                                       [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!is_number) return std::nullopt;
    return digits;
}

/// Only files of this user (root: of all): other users' processes may be hidden from it.
std::set<std::string> ended_processes(const HostFacts& host) {
    std::set<std::string> ended;
    for (const auto& name : host.files.names(kSharedFolder)) {
        const auto process = process_in(name);
        if (!process || host.files.exists("/proc/" + *process)) continue;
        const auto owner = owner_of(host.files, std::string(kSharedFolder) + "/" + name);
        if (owner && (host.user.uid == 0 || owner->uid == host.user.uid)) ended.insert(*process);
    }
    return ended;
}

Finding leftovers(const std::set<std::string>& ended, const std::string& size) {
    // Of the numbers alone: a name in /dev/shm is any user's choice, and no part of a command.
    std::string command = "rm";
    std::size_t named = 0;
    for (const auto& process : ended) {
        if (++named > kNamedLeftovers) break;
        command += std::string(" ") + kSharedFolder + "/torch_" + process + "_*";
    }
    return {Grade::kNote,
            size + "; files of " + std::to_string(ended.size()) +
                " PyTorch processes that do not run here (a container may share the folder)",
            command};
}

}  // namespace

Finding arena_huge_pages(const HostFacts& host) {
    if (is_dax(host)) return {Grade::kOk, "a dax pool has the pages of its device"};
    const std::string path = shared_setting(host);
    const auto text = host.files.text(path);
    const std::string word = chosen_word(text.value_or(""));
    if (word.empty()) return unknown("can't read " + path);
    const Bytes size = fabricshm::transparent_huge_page_bytes(host.files);
    if (size != 0) return {Grade::kOk, "arenas may have pages of " + format_bytes(size)};
    if (host.config.config.pool.huge_pages != "transparent") {
        return {Grade::kOk, "none that are transparent, and pool.huge_pages is " +
                                host.config.config.pool.huge_pages};
    }
    return {Grade::kWarning, "arenas have pages of 4 KiB: shmem_enabled is " + word,
            write_to(path, "advise")};
}

Finding program_huge_pages(const HostFacts& host) {
    const std::string path = std::string(kTransparent) + "enabled";
    const auto text = host.files.text(path);
    const std::string word = chosen_word(text.value_or(""));
    if (word.empty()) return unknown("can't read " + path);
    if (word != "never") return {Grade::kOk, "memory of programs: " + word};
    return {Grade::kNote, "memory of programs outside of arenas has pages of 4 KiB",
            write_to(path, "madvise")};
}

Finding reserved_huge_pages(const HostFacts& host) {
    const auto& pool = host.config.config.pool;
    const Bytes page = pool.reserved_page_bytes;
    const auto total = host.files.number(reserved_folder(page) + "/nr_hugepages");
    const Bytes free = fabricshm::free_reserved_pages(host.files, page, -1);
    if (pool.huge_pages == "reserved" && !is_dax(host)) {
        if (!total) {
            return {Grade::kProblem,
                    "pool.huge_pages is reserved, and this kernel has no pages of " +
                        format_bytes(page) + " (pool.reserved_page_bytes)"};
        }
        // A pool whose size is the daemon's choice takes half of what is free: one page at least.
        const Bytes missing = host.pool_capacity() != 0 ? host.pool_missing() : 2 * page;
        if (free < missing) return missing_pages(page, *total, free, missing);
        return {Grade::kOk, format_bytes(free) + " of reserved pages are free"};
    }
    if (!total) return unknown("can't read " + reserved_folder(page) + "/nr_hugepages");
    if (*total == 0) return {Grade::kOk, "none are reserved, and none are needed"};
    if (free < *total * page) {
        return {Grade::kOk, format_bytes(*total * page) + " are reserved, " + format_bytes(free) +
                                " are free; the pool does not use them"};
    }
    return {Grade::kNote,
            format_bytes(free) + " are reserved and not used (pool.huge_pages is " +
                pool.huge_pages + ")",
            write_to(reserved_folder(page) + "/nr_hugepages", "0")};
}

Finding numa_balancing(const HostFacts& host) {
    const std::string path = "/proc/sys/kernel/numa_balancing";
    int nodes = 0;
    for (const auto& name : host.files.names("/sys/devices/system/node")) {
        const bool is_node = name.rfind("node", 0) == 0 && name.size() > 4 &&
                             std::isdigit(static_cast<unsigned char>(name[4])) != 0;
        nodes += is_node ? 1 : 0;
    }
    const auto value = host.files.number(path);
    if (!value) {
        return nodes == 1 ? Finding{Grade::kOk, "one memory node"} : unknown("can't read " + path);
    }
    if (*value == 0) return {Grade::kOk, "off"};
    if (nodes == 0) return unknown("on, and the memory nodes can't be read");
    if (nodes == 1) return {Grade::kOk, "on, with one memory node: it has nothing to move"};
    return {Grade::kWarning,
            "on, with " + std::to_string(nodes) +
                " memory nodes: it unmaps pages of arenas to see which node uses them",
            "sudo sysctl kernel.numa_balancing=0"};
}

Finding pool_size(const HostFacts& host) {
    if (is_dax(host)) return {Grade::kOk, "a dax pool takes none of the host's memory"};
    const auto machine = memory_info(host.files, "MemAvailable");
    if (!machine) return unknown("can't read MemAvailable of /proc/meminfo");
    const Bytes available = fabricshm::available_memory(host.files, host.process());
    const Bytes capacity = host.pool_capacity();
    if (capacity == 0) {
        return {Grade::kOk, "half of the " + format_bytes(available) + " that are available"};
    }
    const Bytes missing = host.pool_missing();
    const std::string figures = format_bytes(capacity) + ", of which " + format_bytes(missing) +
                                " are not taken yet; " + format_bytes(available) + " are available";
    if (missing <= available) return {Grade::kOk, figures};
    // A daemon refuses to start with more than there is; one that runs may have begun with enough.
    // Half of what there is, as a daemon chooses by itself: the ranks need memory, too.
    const Bytes fits = (capacity - missing + available) / 2 / kMiB;
    return {host.status ? Grade::kWarning : Grade::kProblem, figures + " (pool.capacity)",
            "fabricd --pool-capacity=" + std::to_string(std::max<Bytes>(fits, 2)) + "MiB"};
}

Finding memory_limit(const HostFacts& host) {
    const std::string process = host.process();
    const auto limit = fabricshm::tightest_memory_limit(host.files, process);
    const std::string subject = host.status ? "the daemon" : "this shell";
    if (!limit) return unknown("can't see the control groups of /proc/" + process + "/cgroup");
    if (limit->folder.empty()) {
        return {Grade::kOk, "no control group limits the memory of " + subject};
    }
    const std::string figures =
        format_bytes(limit->bytes) + " for " + subject + " (" + limit->folder + ")";
    const Bytes capacity = host.pool_capacity();
    if (is_dax(host) || capacity == 0 || limit->bytes >= capacity) return {Grade::kOk, figures};
    Finding finding{Grade::kProblem, figures + ", less than the pool of " + format_bytes(capacity)};
    // Only of a unit of systemd there is a command that lasts; of a container it is its maker's.
    const std::string unit = limit->folder.substr(limit->folder.rfind('/') + 1);
    const bool is_unit = unit == "fabricd.service";
    if (is_unit) finding.command = "sudo systemctl set-property fabricd.service MemoryMax=infinity";
    return finding;
}

Finding overcommit(const HostFacts& host) {
    const std::string path = "/proc/sys/vm/overcommit_memory";
    const auto mode = host.files.number(path);
    if (!mode) return unknown("can't read " + path);
    if (*mode != 2) return {Grade::kOk, "vm.overcommit_memory is " + std::to_string(*mode)};
    const auto limit = memory_info(host.files, "CommitLimit");
    const auto taken = memory_info(host.files, "Committed_AS");
    if (!limit || !taken) return unknown("strict, and can't read CommitLimit of /proc/meminfo");
    const Bytes left = *limit - std::min(*limit, *taken);
    const std::string figures =
        "strict (vm.overcommit_memory is 2): " + format_bytes(left) + " are left to commit";
    const std::string command = "sudo sysctl vm.overcommit_memory=0";
    if (is_dax(host) || host.pool_missing() <= left) return {Grade::kNote, figures, command};
    return {Grade::kProblem,
            figures + ", the pool may still take " + format_bytes(host.pool_missing()), command};
}

Finding swap(const HostFacts& host) {
    const auto total = memory_info(host.files, "SwapTotal");
    const auto free = memory_info(host.files, "SwapFree");
    if (!total || !free) return unknown("can't read SwapTotal of /proc/meminfo");
    if (*total == 0) return {Grade::kOk, "none"};
    return {Grade::kNote,
            format_bytes(*total - std::min(*total, *free)) + " of " + format_bytes(*total) +
                " are in use: pages of arenas may be swapped out when memory is short",
            "sudo sysctl vm.swappiness=1"};
}

Finding shared_memory(const HostFacts& host) {
    if (!host.shared_memory) return unknown("can't read the size of /dev/shm");
    const Space& space = *host.shared_memory;
    const std::string size = format_bytes(space.available) + " of " + format_bytes(space.total) +
                             " are free for data loaders (arenas need none of it)";
    if (space.total < kSharedLeast) {
        return {Grade::kWarning, size, "sudo mount -o remount,size=50% /dev/shm"};
    }
    const auto ended = ended_processes(host);
    if (!ended.empty()) return leftovers(ended, size);
    if (space.available < space.total / 10) {
        return {Grade::kWarning, size, "ls -lS /dev/shm"};
    }
    return {Grade::kOk, size};
}

}  // namespace fabricd::doctor
