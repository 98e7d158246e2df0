// CacheSource: the mount of a part of the data cache, by fabricshm/data.h.

#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "fabricd/data/mount/mount_source.hpp"

struct fabricshm_data;

namespace fabricd {

/// A reader as any other: bytes are views of the arena, and what is not there the service fetches.
class CacheSource : public MountSource {
  public:
    /// `path` of the data file's namespace is the mount's root. `socket` "": where it usually is.
    CacheSource(std::string path, std::string socket);

    Result<void> open(TimePoint deadline) override;
    Result<std::shared_ptr<const MountListing>> list(const std::string& path,
                                                     TimePoint deadline) override;

  private:
    Result<std::shared_ptr<fabricshm_data>> data(TimePoint deadline);
    Result<void> check_is_folder(TimePoint deadline);

    const std::string path_;  // without a '/' at its end
    const std::string socket_;
    std::timed_mutex lock_;
    std::shared_ptr<fabricshm_data> data_;
};

}  // namespace fabricd
