#include "libfabricshm/machine/node_pages.hpp"

#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>

#include "libfabricshm/machine/memory_budget.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace fabricshm {

namespace {

constexpr int kNodes = 1024;
constexpr int kWordBits = 8 * sizeof(unsigned long);

// The old pages go first: a policy decides where a page is made, not where it stays.
int renew(std::byte* data, Bytes bytes) noexcept {
    if (::madvise(data, bytes, MADV_REMOVE) != 0) return errno;
    // Now, as an error: a store that finds no memory would be a signal.
    return ::madvise(data, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
}

}  // namespace

bool has_memory(int node) noexcept {
    if (node < 0 || node >= kNodes) return false;
    unsigned long mask[kNodes / kWordBits] = {};
    // One more than there are bits: the kernel takes one off.
    if (::get_mempolicy(nullptr, mask, kNodes + 1, nullptr, MPOL_F_MEMS_ALLOWED) != 0) {
        return node == 0;
    }
    return (mask[node / kWordBits] >> (node % kWordBits) & 1) != 0;
}

Result<void> place_on_node(std::byte* data, Bytes bytes, int node) noexcept {
    if (node < 0 || node >= kNodes) return Error{Errc::kInvalid, 0, "place on node"};
    const Bytes length = round_up(bytes, static_cast<Bytes>(::sysconf(_SC_PAGESIZE)));
    unsigned long mask[kNodes / kWordBits] = {};
    mask[node / kWordBits] = 1ul << (node % kWordBits);
    // One more than there are bits: the kernel takes one off.
    if (::mbind(data, length, MPOL_BIND, mask, kNodes + 1, 0) != 0) {
        if (errno == EINVAL) return Error{Errc::kInvalid, 0, "place on node"};
        return error_from_errno(errno, "place on node");
    }
    const int failed = renew(data, length);
    if (failed == 0) return {};
    // Back to wherever there is room: the arena's pages stay committed.
    ::mbind(data, length, MPOL_DEFAULT, nullptr, 0, 0);
    ::madvise(data, length, MADV_POPULATE_WRITE);
    if (failed == EINVAL || failed == EOPNOTSUPP)
        return Error{Errc::kUnsupported, 0, "place on node"};
    return error_from_errno(failed, "place on node");
}

std::vector<int> nodes_of_ranks(const HostFiles& files) {
    const std::string folder = "/sys/devices/system/node";
    std::vector<int> nodes;
    for (const std::string& name : files.names(folder)) {
        int node = 0;
        const char* end = name.data() + name.size();
        if (!name.starts_with("node")) continue;
        if (std::from_chars(name.data() + 4, end, node).ptr != end) continue;
        const bool runs = !files.text(folder + "/" + name + "/cpulist").value_or("").empty();
        if (runs && total_memory_of_node(files, node).value_or(0) != 0) nodes.push_back(node);
    }
    std::ranges::sort(nodes);
    return nodes;
}

Result<void> spread_over(std::byte* data, Bytes bytes, std::span<const int> nodes) noexcept {
    unsigned long mask[kNodes / kWordBits] = {};
    for (const int node : nodes) {
        if (node < 0 || node >= kNodes) return Error{Errc::kInvalid, 0, "spread over nodes"};
        mask[node / kWordBits] |= 1ul << (node % kWordBits);
    }
    // One more than there are bits: the kernel takes one off.
    if (::mbind(data, bytes, MPOL_INTERLEAVE, mask, kNodes + 1, 0) == 0) return {};
    if (errno == EINVAL) return Error{Errc::kInvalid, 0, "spread over nodes"};
    return error_from_errno(errno, "spread over nodes");
}

}  // namespace fabricshm
