// LockFile: one daemon per socket and per state directory.

#pragma once

#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// Held while the object lives; the kernel lets go of it when the process ends, however it ends.
/// The file is removed by an orderly end and harmless otherwise.
class LockFile {
  public:
    /// kBusy while another process holds it.
    static fabricshm::Result<LockFile> take(const std::string& path);

    LockFile() = default;
    LockFile(LockFile&&) noexcept = default;
    LockFile& operator=(LockFile&& other) noexcept;
    ~LockFile();

  private:
    std::string path_;
    fabricshm::Fd file_;
};

/// Makes `path` and the directories above it that are missing, each with `mode`. kDenied when it
/// belongs to a user that is neither this one nor root: that user could replace what is in it.
fabricshm::Result<void> make_directory(const std::string& path, unsigned mode);

/// kDenied when users besides its owner and its group may write into `path`.
fabricshm::Result<void> check_not_open_to_all(const std::string& path);

}  // namespace fabricd
