#include "fabricd/data/spill/slot_writer.hpp"

#include <utility>

#include "libfabricshm/base/fault_point.hpp"

namespace fabricd {

using namespace std::chrono_literals;

namespace {

constexpr auto kIdle = 1s;
constexpr std::size_t kMaxPieces = 4;

}  // namespace

SlotWriter::SlotWriter(const SlotFiles& files, std::span<std::byte> memory, Calls calls)
    : files_(files), calls_(std::move(calls)), writer_(memory), thread_([this] { run(); }) {}

SlotWriter::~SlotWriter() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    has_work_.notify_one();
    thread_.join();
}

void SlotWriter::add(SlotPiece piece) {
    {
        const std::lock_guard lock(mutex_);
        pieces_.push_back(std::move(piece));
        ++added_;
    }
    has_work_.notify_one();
}

bool SlotWriter::wait_done(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const std::uint64_t until = added_;
    return is_done_.wait_until(lock, deadline, [&] { return done_ >= until; });
}

// All of them are on their way at the same time: between two slots the disk does not idle.
Result<void> SlotWriter::write(const std::vector<SlotPiece>& pieces) {
    FAULT_POINT("spill.write");
    for (const SlotPiece& piece : pieces) {
        const std::uint32_t slot = piece.row.slot;
        FABRIC_TRY_VOID(writer_.write(files_.writable(slot), piece.staged->bytes() + piece.begin,
                                      piece.end - piece.begin, files_.offset(slot) + piece.begin));
    }
    FABRIC_TRY_VOID(writer_.finish());
    FAULT_POINT("spill.written");
    return {};
}

void SlotWriter::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        const bool woken =
            has_work_.wait_for(lock, kIdle, [&] { return ends_ || !pieces_.empty(); });
        if (pieces_.empty() && ends_) return;
        if (!woken) {
            lock.unlock();
            calls_.idle();
            lock.lock();
            continue;
        }
        std::vector<SlotPiece> pieces;
        while (!pieces_.empty() && pieces.size() < kMaxPieces) {
            pieces.push_back(std::move(pieces_.front()));
            pieces_.pop_front();
        }
        const std::size_t count = pieces.size();
        lock.unlock();
        const auto written = write(pieces);
        for (SlotPiece& piece : pieces) calls_.done(piece, written);
        pieces.clear();
        lock.lock();
        done_ += count;
        is_done_.notify_all();
    }
}

}  // namespace fabricd
