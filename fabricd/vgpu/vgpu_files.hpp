// The two files of a vGPU: its page of limits and its usage ledger.
//
// Files, not memory files: a daemon that is started again has to find the page its tenants are
// reading and the ledger they are writing. They are the daemon's own user's, of mode 0600; a tenant
// of another user gets descriptors and can't open either again with more rights than those have.

#pragma once

#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/limits_page.hpp"
#include "libfabricshm/shm/usage_ledger.hpp"

namespace fabricd {

/// Both files mapped for the daemon. Move-only.
class VgpuFiles {
  public:
    /// `path`.limits and `path`.usage. What is missing, of another version or of another boot
    /// (nobody of then is alive) is made anew; a tenant that still maps such a file keeps it.
    static fabricshm::Result<VgpuFiles> open(const std::string& path, std::uint64_t boot);

    VgpuFiles() = default;
    VgpuFiles(VgpuFiles&&) noexcept = default;
    VgpuFiles& operator=(VgpuFiles&&) noexcept = default;

    fabricshm::LimitsPage& page() const noexcept;
    fabricshm::LedgerFile& ledger() const noexcept;

    /// New descriptors to be given away.
    fabricshm::Result<fabricshm::Fd> limits_for_tenant() const;
    fabricshm::Result<fabricshm::Fd> ledger_for_tenant() const;

  private:
    std::string path_;
    fabricshm::Fd ledger_file_;
    fabricshm::Fd limits_read_only_;
    fabricshm::Mapping limits_;
    fabricshm::Mapping ledger_;
};

}  // namespace fabricd
