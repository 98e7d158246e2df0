// ReaderNotes: what readers wrote into the notes of their pin pages: hits, misses, time that they
// waited, and which lines they viewed.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Where the notes are.
class NotesSource {
  public:
    using Notes = std::span<const std::atomic<std::uint64_t>>;

    NotesSource() = default;
    virtual ~NotesSource() = default;
    NotesSource(const NotesSource&) = delete;
    NotesSource& operator=(const NotesSource&) = delete;

    /// Each reader that there is now, with a number that is never another reader's.
    virtual void each(const std::function<void(std::uint64_t reader, Notes notes)>& visit) = 0;
};

struct ReaderTotals {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t stall_ns = 0;
    std::uint64_t bytes = 0;
    std::uint64_t copies = 0;  // for want of slots
};

/// The control thread's. What a reader wrote is its own affair: sums wrap, lines are checked.
class ReaderNotes {
  public:
    explicit ReaderNotes(NotesSource& source) : source_(source) {}

    /// Calls `viewed` with the lines that readers viewed since the last call, as far as their rings
    /// still have them.
    void read(const std::function<void(std::uint64_t line)>& viewed);

    /// Of all readers that there were.
    ReaderTotals totals() const noexcept { return totals_; }
    /// Of one that there is, since it came or the service began.
    ReaderTotals of(std::uint64_t reader) const {
        const auto found = seen_.find(reader);
        return found == seen_.end() ? ReaderTotals{} : found->second.totals;
    }
    std::size_t readers() const noexcept { return seen_.size(); }

  private:
    struct Seen {
        ReaderTotals totals;
        std::uint64_t position = 0;
        bool is_there = false;
    };
    void add(Seen& seen, NotesSource::Notes notes);

    NotesSource& source_;
    std::unordered_map<std::uint64_t, Seen> seen_;
    ReaderTotals totals_;
};

}  // namespace fabricd
