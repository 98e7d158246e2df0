// MountServer: answers the kernel's requests about the mount. Read-only.
//
// A process that is killed at any place loses no request: each thread reads requests into its slot
// of the handover and marks them as answered behind the reply, and the next server begins with
// those that are not marked. docs/data.md, "The mount".

#pragma once

#include <memory>

#include "fabricd/data/mount/handover.hpp"
#include "fabricd/data/mount/mount_source.hpp"

namespace fabricd {

struct MountOptions {
    unsigned threads = 16;  // requests that are worked on at once; kMountSlots at most
    fabricshm::Duration timeout = std::chrono::seconds(30);  // with a source that does not answer
    fabricshm::Duration refresh = std::chrono::seconds(1);   // how often folders are read again
    unsigned mask = 0;          // permissions that files and folders do not have
    bool answers_open = false;  // for bench/mount_files: as file systems with keep_cache do
};

class MountServer {
  public:
    /// `fuse` is the mount's device, of which the keeper has read the INIT in `handover`. Call
    /// before this process has other threads: it forks.
    static Result<std::unique_ptr<MountServer>> make(fabricshm::Fd fuse, Handover handover,
                                                     std::unique_ptr<MountSource> source,
                                                     const MountOptions& options);
    ~MountServer();

    /// Serves until the mount is no more, and then ends the process with 0. Returns only when it
    /// could not begin. Before it nothing that is in `handover` is looked at or changed but the
    /// table's root, so that another server may go on until then.
    Result<void> run();

  private:
    struct Impl;
    explicit MountServer(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
