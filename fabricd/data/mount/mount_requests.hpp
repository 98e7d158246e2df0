// MountRequests: what the mount answers to each kind of request.

#pragma once

#include <atomic>
#include <cstdint>

#include "fabricd/data/mount/mount_listings.hpp"
#include "fabricd/data/mount/mount_server.hpp"

struct fuse_lowlevel_ops;

namespace fabricd {

/// Shared by all threads of a server; the session's userdata.
struct MountRequests {
    NodeTable& nodes;
    MountListings& listings;
    MountOptions options;
    std::uint32_t user = 0;  // that files and folders belong to
    std::uint32_t group = 0;
    void (*changed)(void*) = nullptr;  // a version was asked for that is no more
    void* watch = nullptr;
    std::atomic<std::int64_t> next_line_ns{0};  // the log has one line a second
};

/// The table of libfuse's low-level API. Each function answers before it returns.
const fuse_lowlevel_ops& mount_operations() noexcept;

/// The errno that a reader of the mount gets.
int errno_of(fabricshm::Errc code) noexcept;

}  // namespace fabricd
