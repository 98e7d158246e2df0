#include "libfabricshm/machine/node_pages.hpp"

#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

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

}  // namespace fabricshm
