#include "fabricd/pool/compaction.hpp"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "fabricd/pool/image.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

// Copying is faster than any clients append. Should it not be, the control thread does the rest.
constexpr int kMaxRounds = 8;

}  // namespace

Result<std::unique_ptr<Compaction>> Compaction::begin(const Journal& journal) {
    FABRIC_TRY(Fd old, journal.file().duplicate());
    std::unique_ptr<Compaction> made(new Compaction(journal));
    made->old_ = std::move(old);
    return made;
}

Compaction::~Compaction() {
    fresh_.discard();
}

Result<void> Compaction::write() {
    FABRIC_CHECK(old_);
    FABRIC_CHECK(end_.records >= written_.records);  // each round goes on where the last one ended
    ++rounds_;
    FAULT_POINT("journal.compact.begin");
    if (written_.records == 0) FABRIC_TRY_VOID(write_whole());
    if (written_.records != end_.records) FABRIC_TRY_VOID(copy_rest(old_, end_));
    FABRIC_TRY_VOID(fresh_.write_out());
    FAULT_POINT("journal.compact.written");
    // Not for the sake of the bytes (see journal.hpp), but so that the rename finds nothing to be
    // written: some file systems do that there, on the control thread.
    if (::fdatasync(fresh_.file().get()) != 0) {
        return fabricshm::error_of_disk(errno, "write new journal");
    }
    return {};
}

Result<void> Compaction::write_whole() {
    Replay replay;
    FABRIC_TRY_VOID(read_records(old_, JournalHead{}, end_, [&](const JournalEntry& record) {
        const bool goes_on = !cancelled_.load(std::memory_order_relaxed);
        return goes_on ? replay.play(record) : Error{Errc::kClosed, 0, "compact journal"};
    }));
    // Not earlier: an older compaction of the same thread removes its file when it goes.
    FABRIC_TRY(fresh_, Journal::make_successor(path_, kSuffix));
    FABRIC_TRY_VOID(write_image(replay.take(), fresh_));
    written_ = end_;
    return {};
}

Result<void> Compaction::copy_rest(const Fd& from, const JournalHead& end) {
    FABRIC_CHECK(fresh_.file());  // write_whole() made it
    FABRIC_TRY_VOID(read_records(from, written_, end, [this](const JournalEntry& record) {
        return fresh_.append(record.type, record.payload);
    }));
    written_ = end;
    return {};
}

bool Compaction::is_near(const Journal& journal) noexcept {
    const bool is_same = journal.incarnation() == incarnation_;
    // One that was not rewritten only grows: what is in the new file is in it.
    FABRIC_CHECK(!is_same || journal.head().bytes >= written_.bytes);
    const bool is_near = journal.head().bytes - written_.bytes <= kMaxRest;
    const bool goes_on = rounds_ < kMaxRounds && is_same;
    if (is_near || !goes_on) return true;
    end_ = journal.head();
    return false;
}

Result<Fd> Compaction::finish(Journal& journal) {
    if (journal.incarnation() != incarnation_) return Error{Errc::kBusy, 0, "compact journal"};
    FABRIC_CHECK(rounds_ > 0);  // write() came before
    if (written_.records != journal.head().records) {
        FABRIC_TRY_VOID(copy_rest(journal.file(), journal.head()));
        FABRIC_TRY_VOID(fresh_.write_out());
    }
    // It lacks nothing: whatever was answered is in what is about to be the journal.
    FABRIC_CHECK(written_.records == journal.head().records);
    FABRIC_CHECK(written_.last == journal.head().last);
    FAULT_POINT("journal.compact.before");
    FABRIC_TRY(Fd old, journal.replace_by(std::exchange(fresh_, Journal(""))));
    FAULT_POINT("journal.compact.after");
    return old;
}

}  // namespace fabricd
