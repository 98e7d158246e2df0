#include "libfabricshm/collective/store_policy.hpp"

#include <algorithm>
#include <bit>

namespace fabricshm {

namespace {

// Posts below this fit into the first-level cache together with what else is going on; outputs are
// mostly owned by the core that stores them, so there the question only arises with the size of the
// cache.
constexpr int kSlotsFrom = std::bit_width(StorePolicy::kMinBytes) - 1;
constexpr int kOutputsFrom = 19;  // 512 KiB
constexpr int kMinLog = 13;

// The first trial comes soon, since the first guess is only that; then once in 64 operations, and
// less and less often while the answer stays the same. A trial is four operations, of which the
// first pays for lines that the other way left behind and is not counted.
constexpr std::uint16_t kFirstTrial = 8;
constexpr std::uint16_t kSoon = 64;
constexpr std::uint16_t kSeldom = 1024;
constexpr std::uint8_t kTrials = 4;
constexpr std::uint16_t kWindow = 8;  // ordinary operations that a trial is compared with
static_assert(kFirstTrial % kWindow == 0 && kSoon % kWindow == 0 && kSeldom % kWindow == 0);

// Whether the best of a window is of another machine than the one that was judged. With more ranks
// than cores even the best of eight operations varies by half.
bool moved(Duration now, Duration judged) noexcept {
    return judged != Duration::max() && (now > judged * 2 || now < judged / 2);
}
constexpr std::uint8_t kMovedWindows = 2;  // so many in a row: one may be chance

}  // namespace

int StorePolicy::cell_of(StorePlace place, Kind kind, Bytes bytes) noexcept {
    const int log = std::bit_width(bytes) - 1;
    if (log < (place == StorePlace::kSlots ? kSlotsFrom : kOutputsFrom)) return -1;
    if (static_cast<int>(kind) >= kStoreKinds) return -1;
    const int size_class = std::min(log - kMinLog, kStoreClasses - 1);
    return (static_cast<int>(place) * kStoreKinds + static_cast<int>(kind)) * kStoreClasses +
           size_class;
}

StorePlace StorePolicy::place_of(int cell) noexcept {
    return static_cast<StorePlace>(cell / (kStoreKinds * kStoreClasses));
}

Bytes StorePolicy::least_bytes(int cell) noexcept {
    return Bytes{1} << (cell % kStoreClasses + kMinLog);
}

StorePolicy::StorePolicy() : cells_(kStoreCells) {
    for (Cell& cell : cells_) {
        cell.until_trial = kFirstTrial;
        cell.interval = kSoon;
        cell.window_left = kWindow;
    }
}

bool StorePolicy::past_cache(int cell) const noexcept {
    const Cell& at = cells_[static_cast<std::size_t>(cell)];
    return at.choice != (at.trials_left != 0);
}

void StorePolicy::begin_with(int cell, bool past_cache, bool crowded) noexcept {
    Cell& at = cells_[static_cast<std::size_t>(cell)];
    at.choice = at.first = past_cache;
    at.crowded = crowded;
}

bool StorePolicy::ran(int cell, Duration took) noexcept {
    Cell& at = cells_[static_cast<std::size_t>(cell)];
    if (at.trials_left != 0) {
        if (at.trials_left != kTrials) at.tried = std::min(at.tried, took);
        return --at.trials_left == 0 && end_trial(at);
    }
    at.best = std::min(at.best, took);
    return --at.window_left == 0 && end_window(at);
}

bool StorePolicy::end_window(Cell& at) noexcept {
    at.usual = at.best;
    at.best = Duration::max();
    at.window_left = kWindow;
    at.until_trial = static_cast<std::uint16_t>(at.until_trial - kWindow);
    at.moved_windows =
        static_cast<std::uint8_t>(moved(at.usual, at.judged) ? at.moved_windows + 1 : 0);
    if (at.until_trial != 0 && at.moved_windows < kMovedWindows) return false;
    at.moved_windows = 0;
    at.tried = Duration::max();
    at.trials_left = kTrials;
    return true;
}

// The bests are compared: what makes an operation slower by chance (a late peer, a lost core) is no
// reason. The usual way had more attempts, so a draw is decided for it, as it should be. With more
// ranks than cores the best of rank 0 is now and then that of an operation which the others had
// done most of, so there it takes more to leave what the sizes suggest. Not elsewhere: a
// virtual machine that sees a whole socket's cache, and has a part of it, lost a fifth by that.
bool StorePolicy::end_trial(Cell& at) noexcept {
    const bool doubted = at.crowded && at.choice == at.first;
    const bool better = at.tried < (doubted ? at.usual / 4 * 3 : at.usual / 10 * 9);
    if (better) at.choice = !at.choice;
    at.judged = better ? at.tried : at.usual;
    at.interval = better ? kSoon : std::min<std::uint16_t>(at.interval * 2, kSeldom);
    at.until_trial = at.interval;
    return !better;  // a trial that won goes on as the usual way
}

bool shown_past_cache(const GroupHeader& header, int cell) noexcept {
    const auto bit = static_cast<unsigned>(cell);
    return (header.past_cache[bit / 64].load(std::memory_order_relaxed) >> (bit % 64) & 1) != 0;
}

void show_past_cache(GroupHeader& header, int cell, bool past_cache) noexcept {
    const auto bit = static_cast<unsigned>(cell);
    auto& word = header.past_cache[bit / 64];
    const std::uint64_t mask = std::uint64_t{1} << (bit % 64);
    const std::uint64_t now = word.load(std::memory_order_relaxed);
    // Only rank 0 writes these words: load and store need not be one step.
    word.store(past_cache ? now | mask : now & ~mask, std::memory_order_relaxed);
}

}  // namespace fabricshm
