#include "libfabricshm/client/shard_meters.hpp"

#include <algorithm>
#include <array>
#include <iterator>

namespace fabricshm {

namespace {

// Half of it is gone after 5 calls or 0.5 s: what is hot now comes to the front soon, and the list
// does not change with every read.
constexpr double kKept = 7.0 / 8;

}  // namespace

std::shared_ptr<ShardMeter> ShardMeters::add(std::uint64_t arena, std::uint64_t shard) {
    Entry& entry = meters_[{arena, shard}];
    if (entry.meter == nullptr) entry.meter = std::make_shared<ShardMeter>();
    return entry.meter;
}

// Without allocating: it is called where a handle is destroyed.
void ShardMeters::tell(ShardReads (&reported)[kShardsTold]) noexcept {
    std::array<std::pair<const Key, Entry>*, kShardsTold> hottest;
    std::size_t count = 0;
    for (auto& item : meters_) {
        Entry& entry = item.second;
        // Relaxed: see ShardMeter::count().
        const std::uint64_t bytes = entry.meter->bytes.load(std::memory_order_relaxed);
        entry.heat = entry.heat * kKept + static_cast<double>(bytes - entry.last);
        entry.last = bytes;
        entry.told = false;
        std::size_t place = count;
        while (place > 0 && hottest[place - 1]->second.heat < entry.heat) --place;
        if (place == kShardsTold) continue;
        if (count < kShardsTold) ++count;
        for (std::size_t i = count - 1; i > place; --i) hottest[i] = hottest[i - 1];
        hottest[place] = &item;
    }
    std::fill(std::begin(reported), std::end(reported), ShardReads{});
    for (std::size_t i = 0; i < count; ++i) {
        auto& [key, entry] = *hottest[i];
        entry.told = true;
        reported[i] = {key.first, key.second, entry.meter->reads.load(std::memory_order_relaxed),
                       entry.last};
    }
    // Or a session that makes and frees shards all day would remember each of them.
    std::erase_if(meters_, [](const auto& item) {
        return !item.second.told && item.second.meter.use_count() == 1;
    });
}

}  // namespace fabricshm
