// JournalGuard: what happens to the pool's state while the journal can't be written (a full disk).

#pragma once

#include <vector>

#include "fabricd/pool/journal.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

/// Grants are refused when they cannot be written down. Releases by the death of a process happen
/// all the same: it is no more to hold on, and a daemon that is started again notices the death
/// again. A release that was not written puts the journal behind: a later grant of the same bytes
/// would make it contradict itself, so there is none until the journal has been rewritten. Used
/// by the control thread only.
class JournalGuard final : public JournalSink {
  public:
    explicit JournalGuard(JournalSink* sink) : sink_(sink) {}

    /// From here on records go there.
    void use(JournalSink* sink) noexcept { sink_ = sink; }

    /// For grants.
    fabricshm::Result<void> append(RecordType type, std::span<const std::byte> payload) override {
        // A grant of bytes whose release is not in the file would make two owners of them there.
        write_pending();
        if (behind_) return refusal();
        FABRIC_CHECK(pending_.empty());
        const auto written = sink_->append(type, payload);
        refused_ = !written.ok();
        if (refused_) errno_ = errno_of(written.error());
        return written;
    }

    /// For releases.
    template <typename Record>
    void note(const Record& record) {
        if (behind_) return;  // the rewrite will say it
        const auto bytes = std::as_bytes(std::span(&record, 1));
        pending_.push_back({Record::kType, {bytes.begin(), bytes.end()}});
        if (batches_ == 0 || pending_.size() >= kMaxBatch) write_pending();
    }

    /// While one lives, releases are collected and written together: what ends a session can be
    /// tens of thousands of them. Until then no request may be answered.
    class Batch {
      public:
        explicit Batch(JournalGuard& guard) : guard_(guard) { ++guard_.batches_; }
        ~Batch() {
            FABRIC_CHECK(guard_.batches_ > 0);
            if (--guard_.batches_ == 0) guard_.write_pending();
        }
        Batch(const Batch&) = delete;
        Batch& operator=(const Batch&) = delete;

      private:
        JournalGuard& guard_;
    };

    /// Nothing is held back: whatever was said to it is in the file, or the journal is behind.
    bool is_written() const noexcept { return pending_.empty() && batches_ == 0; }
    bool behind() const noexcept { return behind_; }
    /// Behind, or the last grant could not be written: a whole rewrite shows whether that is over.
    bool failing() const noexcept { return behind_ || refused_; }
    void caught_up() noexcept {
        // A release that came behind the rewrite would be in the file twice.
        FABRIC_CHECK(is_written());
        behind_ = refused_ = false;
    }
    void fall_behind(const fabricshm::Error& why) noexcept {
        behind_ = true;
        errno_ = errno_of(why);
        pending_.clear();
    }
    /// What a request hears that can't be served for it: the errno of the disk, where it had one.
    fabricshm::Error refusal() const noexcept {
        return {fabricshm::Errc::kSystem, errno_, "journal is behind"};
    }

  private:
    static constexpr std::size_t kMaxBatch = 4096;  // half a MiB

    static int errno_of(const fabricshm::Error& why) noexcept {
        return why.code == fabricshm::Errc::kSystem ? why.detail : 0;
    }

    void write_pending() {
        if (pending_.empty()) return;
        FABRIC_CHECK(!behind_);  // note() collects nothing then, and falling behind drops all
        const auto written = sink_->append_releases(pending_);
        pending_.clear();
        if (written.ok()) return;
        fall_behind(written.error());
        fabricshm::log(fabricshm::LogLevel::kError,
                       "no grants until the journal can be written: %s",
                       describe(written.error()).c_str());
    }

    JournalSink* sink_;
    std::vector<JournalEntry> pending_;
    int batches_ = 0;
    // Set by the first release that could not be written, cleared by a whole rewrite only: a later
    // record that fits again says nothing about the one that is missing.
    bool behind_ = false;
    bool refused_ = false;
    int errno_ = 0;
};

}  // namespace fabricd
