// JournalGuard: what happens to the books while the journal can't be written (a full disk).

#pragma once

#include "fabricd/pool/journal.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

/// Grants are refused when they cannot be written down; releases happen all the same, since nobody
/// can be asked to hold on. A release that was not written puts the journal behind: a later grant
/// of the same bytes would make it contradict itself, so there is none until the journal has been
/// written anew. Used by the control thread only.
class JournalGuard final : public JournalSink {
  public:
    explicit JournalGuard(JournalSink* sink) : sink_(sink) {}

    /// For grants.
    fabricshm::Result<void> append(RecordType type, std::span<const std::byte> payload) override {
        // A grant of bytes whose release is not in the file would make two owners of them there.
        if (behind_) return fabricshm::Error{fabricshm::Errc::kSystem, 0, "journal is behind"};
        return sink_->append(type, payload);
    }

    /// For releases.
    template <typename Record>
    void note(const Record& record) noexcept {
        if (behind_) return;  // the rewrite will say it
        const auto written = sink_->add(record);
        if (written.ok()) return;
        behind_ = true;
        fabricshm::log(fabricshm::LogLevel::kError,
                       "no grants until the journal can be written: %s",
                       describe(written.error()).c_str());
    }

    bool behind() const noexcept { return behind_; }
    void caught_up() noexcept { behind_ = false; }

  private:
    JournalSink* sink_;
    // Set by the first release that could not be written, cleared by a whole rewrite only: a later
    // record that fits again says nothing about the one that is missing.
    bool behind_ = false;
};

}  // namespace fabricd
