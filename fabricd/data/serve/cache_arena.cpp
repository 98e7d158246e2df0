#include "fabricd/data/serve/cache_arena.hpp"

#include <algorithm>
#include <chrono>

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::PinScan;

namespace {

// The daemon answers at once or is being restarted; nothing leaves until it is back, and readers
// that find all they want are served meanwhile.
constexpr auto kScan = 100ms;
// After a failure: what is asked too often while the daemon is away holds up the readers.
constexpr auto kPause = 500ms;

}  // namespace

bool CacheArena::search(std::span<const std::uint64_t> lines, std::span<std::uint8_t> pinned) {
    const auto now = Clock::now();
    if (now < next_sync_) return false;
    PinScan scan(lines, pinned);
    const auto scanned = arena_->scan_all(scan, now + kScan);
    if (!scanned.ok()) next_sync_ = Clock::now() + kPause;
    return scanned.ok();
}

void CacheArena::sync() {
    const auto now = Clock::now();
    if (now < next_sync_ || arena_->knows_all()) return;
    if (!arena_->sync_pages(now + kScan).ok()) next_sync_ = Clock::now() + kPause;
}

void CacheArena::each(const std::function<void(std::uint64_t, Notes)>& visit) {
    sync();
    for (const auto& reader : arena_->readers()) {
        visit(reader.number, Notes(reader.page->notes));
    }
}

std::vector<ReaderProcess> CacheArena::processes() {
    sync();
    std::vector<ReaderProcess> all;
    for (const auto& reader : arena_->readers()) all.push_back({reader.number, reader.pid});
    return all;
}

std::vector<PinHolder> CacheArena::holders(std::uint64_t line) {
    sync();
    std::vector<PinHolder> holders;
    for (const auto& reader : arena_->readers()) {
        const auto& page = *reader.page;
        const std::uint64_t high = std::min<std::uint64_t>(
            page.high.load(std::memory_order_acquire), fabricshm::kPinSlots);
        std::size_t pins = 0;
        for (std::uint64_t slot = 0; slot < high; ++slot) {
            // Relaxed: for people, of one moment.
            pins += page.slots[slot].load(std::memory_order_relaxed) == line + 1 ? 1 : 0;
        }
        if (pins != 0) holders.push_back({reader.pid, pins});
    }
    return holders;
}

}  // namespace fabricd
