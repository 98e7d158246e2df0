// The two files of a vGPU: its page of limits and its usage ledger.
//
// Files, not memory files: a daemon that is started again has to find the page its tenants are
// reading and the ledger they are writing. They are the daemon's own user's, of mode 0600; a tenant
// of another user gets descriptors and can't open either again with more rights than those have.
//
// A process that may write a file may also cut it short, and then a mapping of it is a SIGBUS. So
// the daemon touches a ledger only inside of read(). It may also make the file longer, or have
// blocks set aside behind its end, until the disk is full: the daemon watches for that and takes
// them away.

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/os/poison.hpp"
#include "libfabricshm/shm/limits_page.hpp"
#include "libfabricshm/shm/usage_ledger.hpp"

namespace fabricd {

/// Both files mapped for the daemon. Move-only.
class VgpuFiles {
  public:
    /// `path`.limits and `path`.usage. What is missing, of another version or of another boot (no
    /// process of then is alive) is made again; a tenant that still maps such a file keeps it.
    static fabricshm::Result<VgpuFiles> open(const std::string& path, std::uint64_t boot);

    VgpuFiles() = default;
    VgpuFiles(VgpuFiles&&) noexcept = default;
    VgpuFiles& operator=(VgpuFiles&&) noexcept = default;

    /// Nothing more is granted to the vGPU whose files these are: the configuration has it no more.
    /// What its processes hold stays theirs. False: there is no such page.
    static bool retire(const std::string& path);

    fabricshm::LimitsPage& page() const noexcept;

    /// To make a UsageLedger of; not to be touched but inside of read().
    fabricshm::LedgerFile& ledger() const noexcept;

    /// What `use()` makes of the ledger; nothing once a process has cut the file short, since what
    /// was read then is no answer. That stays so until the files are opened again.
    template <typename Use>
    auto read(Use use) const -> std::optional<decltype(use())> {
        if (is_cut()) return std::nullopt;
        std::optional<decltype(use())> answer;
        {
            const fabricshm::PoisonGuard guard;
            answer = use();
        }
        // Asked of the watch and not of the guard: another thread may have touched the lost page
        // first, and this one read the zeros that replaced it.
        if (is_cut()) answer.reset();
        return answer;
    }
    bool is_cut() const { return !watch_->lost().empty(); }

    /// Takes away what a process has added behind the ledger's end. True when there was something.
    bool trim() const;
    /// Has the inotify descriptor report every change of the ledger's file by a system call; what
    /// is stored through a mapping can't make it longer. False: the kernel has no watch left.
    bool report_to(int inotify) const;

    /// New descriptors to be given away.
    fabricshm::Result<fabricshm::Fd> limits_for_tenant() const;
    fabricshm::Result<fabricshm::Fd> ledger_for_tenant() const;

  private:
    std::string path_;
    fabricshm::Fd ledger_file_;
    fabricshm::Fd limits_read_only_;
    fabricshm::Mapping limits_;
    fabricshm::Mapping ledger_;
    std::unique_ptr<fabricshm::PoisonWatch> watch_;  // of the ledger; goes before it
};

}  // namespace fabricd
