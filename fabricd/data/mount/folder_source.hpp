// FolderSource: the mount of a plain folder, to test and measure the mount by itself.

#pragma once

#include <memory>
#include <string>

#include "fabricd/data/mount/mount_source.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// Files and folders; links inside are followed, what leads out is left out. A version is size,
/// times and inode: a file that is replaced by rename(2) is another one, and one that is written in
/// place within the kernel's tick may be taken for the same.
class FolderSource : public MountSource {
  public:
    explicit FolderSource(std::string root) : root_(std::move(root)) {}

    Result<void> open(TimePoint deadline) override;
    Result<std::shared_ptr<const MountListing>> list(const std::string& path,
                                                     TimePoint deadline) override;

  private:
    const std::string root_;
};

}  // namespace fabricd
