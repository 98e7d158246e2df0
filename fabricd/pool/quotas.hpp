// Quotas: limits of devices and users that change while the daemon runs. docs/devices.md.

#pragma once

#include <string>
#include <vector>

#include "fabricd/pool/books.hpp"
#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "libfabricshm/shm/directive_page.hpp"

namespace fabricd {

/// Changes the limits that sessions, arenas and regions are counted against. Used by the control
/// thread only.
class Quotas {
  public:
    Quotas(Books& books, JournalGuard& journal) : books_(books), journal_(journal) {}

    /// See Registry::set_quota() and Registry::shift_quotas().
    Result<QuotaState> set(const QuotaOrder& order, TimePoint now);
    Result<void> shift(std::vector<QuotaShift> shifts, TimePoint now);

    fabricshm::QuotaImage of(const std::string& device, std::uint32_t uid, TimePoint now) const;
    /// Rises whenever a limit or a target has changed.
    std::uint64_t changes() const noexcept { return changes_; }
    bool shrink() const noexcept { return next_deadline() != TimePoint::max(); }  // one does
    /// When one that shrinks has to be looked at; TimePoint::max() when none does.
    TimePoint next_deadline() const noexcept;

    /// Ends every shrinking whose time has come.
    void settle(TimePoint now);

    Result<void> write(JournalSink& sink) const;
    /// After the regions are counted.
    void restore(const PoolImage& image, TimePoint now);

  private:
    Books& books_;
    JournalGuard& journal_;
    std::uint64_t changes_ = 0;
};

}  // namespace fabricd
