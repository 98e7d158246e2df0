#include "fabricd/service/control_places.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "fabricd/pool/region_allocator.hpp"

namespace fabricd {

namespace {

constexpr double kGiga = 1e9;
constexpr double kNever = std::numeric_limits<double>::infinity();

/// How far a measured way may be off what the device file says of its links, as a factor. Ranks
/// measure, and what they report of one job counts for the shards of all.
constexpr double kWayFactor = 10;

std::vector<DeviceView> nodes_of(const Places& places) {
    std::vector<DeviceView> nodes;
    // One that is no longer in the file takes nothing new, and so no shard.
    std::copy_if(places.devices.begin(), places.devices.end(), std::back_inserter(nodes),
                 [](const DeviceView& device) { return device.configured; });
    return nodes;
}

// While a quota shrinks its target is what was decided last.
double quota_of(const DeviceView& device) {
    const auto quota = device.spec.quota_bytes;
    const auto target = device.quota_target_bytes;
    return static_cast<double>(target != 0 ? std::min(quota, target) : quota);
}

// Where it is at home it is there already. With no reader elsewhere: now, for want
// of a better value.
double until_elsewhere(const std::vector<double>& until, std::size_t home) {
    double first = kNever;
    for (std::size_t node = 0; node < until.size(); ++node) {
        if (node != home) first = std::min(first, until[node]);
    }
    return first == kNever ? 0 : first;
}

// Whether a shard's pages are elsewhere when they are next to one device and not to the other. No
// way leads where they are not, and the loop moves nothing there: no read would be faster.
bool lies_elsewhere(const DeviceSpec& from, const DeviceSpec& to) {
    return from.numa_node >= 0 && to.numa_node >= 0 && from.numa_node != to.numa_node;
}

double speed_of(const DeviceSpec& spec) {
    return spec.gflops * spec.share_percent / 100;
}

}  // namespace

void PlaceSource::look(const Sample& sample) {
    now_ns_ = sample.taken_ns;
    faulty_.clear();
    for (const FaultyDevice& device : sample.faulty) {
        if ((device.faults & drains_) != 0) faulty_.insert(device.name);
    }
    for (auto& [key, reads] : reads_) reads.seen = false;
    for (const SessionSample& session : sample.sessions) {
        if (!session.device.empty()) look_at_reads(session, sample.taken_ns);
    }
    std::erase_if(reads_, [](const auto& entry) { return !entry.second.seen; });
    look_at_paths(sample);
}

void PlaceSource::look_at_reads(const SessionSample& session, std::int64_t now_ns) {
    for (const auto& told : session.shards) {
        const auto [place, is_new] =
            reads_.try_emplace({session.session_id, told.arena, told.shard});
        Reads& reads = place->second;
        reads.seen = true;
        reads.device = session.device;
        const std::int64_t gap_ns = now_ns - reads.changed_ns;
        const double seconds = static_cast<double>(gap_ns) * 1e-9;
        if (!is_new && told.bytes > reads.bytes && seconds > 0) {
            reads.gap_ns = gap_ns;
            reads.rate = static_cast<double>(told.bytes - reads.bytes) / seconds;
        } else if (is_new || told.bytes < reads.bytes ||
                   (told.bytes == reads.bytes && now_ns - reads.changed_ns > quiet_ns_)) {
            // What it read before we looked, or again after it fell, has no time to it.
            reads.rate = 0;
        }
        if (is_new || told.bytes != reads.bytes) reads.changed_ns = now_ns;
        reads.bytes = told.bytes;
    }
}

// S211: what timed reads between ranks say about the way between their devices. The slowest pair of
// ranks speaks for the way: a move would not be faster than what it is made of.
void PlaceSource::look_at_paths(const Sample& sample) {
    paths_.clear();
    if (sample.paths.empty()) return;
    std::map<std::pair<std::uint64_t, int>, const std::string*> devices;
    for (const SessionSample& session : sample.sessions) {
        if (!session.member || session.device.empty()) continue;
        devices[{session.image.group_id, session.image.rank}] = &session.device;
    }
    for (const PathSample& path : sample.paths) {
        const auto reader = devices.find({path.group_id, path.from});
        const auto owner = devices.find({path.group_id, path.to});
        if (reader == devices.end() || owner == devices.end()) continue;
        if (!(path.bytes_per_second > 0) || *reader->second == *owner->second) continue;
        const auto [place, is_new] =
            paths_.try_emplace({*owner->second, *reader->second}, path.bytes_per_second);
        if (!is_new) place->second = std::min(place->second, path.bytes_per_second);
    }
}

// S212's time until needed: as long after the last read as that was after the one before. One that
// is read in every look is needed now, and one that was not seen to read does not need it.
double PlaceSource::until_next_s(const Reads& reads) const {
    if (reads.gap_ns == 0) return kNever;
    if (reads.gap_ns <= quiet_ns_) return 0;
    const std::int64_t next_ns = reads.changed_ns + reads.gap_ns;
    return static_cast<double>(std::max<std::int64_t>(next_ns - now_ns_, 0)) * 1e-9;
}

// By the daemon's own accounts, which no session can write, and of all its sessions: also of those
// that make no steps. Nothing for a device that is seen for the first time.
double PlaceSource::denied_since(const DeviceView& device) {
    const auto [before, is_new] = denied_.try_emplace(device.spec.name, device.bytes_denied);
    const std::uint64_t seen = std::exchange(before->second, device.bytes_denied);
    return device.bytes_denied > seen ? static_cast<double>(device.bytes_denied - seen) : 0;
}

void PlaceSource::add_to(Window& window) {
    const Places places = ask_();
    for (const DeviceView& device : nodes_of(places)) {
        const double quota = quota_of(device);
        const auto used = static_cast<double>(device.bytes_used);
        const double speed = speed_of(device.spec);
        // One that computes nothing is no place for anything, which a speed of 0 says.
        const bool is_faulty = faulty_.contains(device.spec.name);
        window.placement.nodes.push_back(
            {device.spec.name, is_faulty ? 0 : speed, std::max(quota - used, 0.0)});
        const double denied = denied_since(device);
        // This one was ordered to shrink, and it holds more than it is to: it is not known
        // yet what it will keep, and so not what there is to divide.
        const bool is_shrinking = quota < static_cast<double>(device.spec.quota_bytes);
        if (is_shrinking) continue;
        QuotaWindow user;
        user.name = device.spec.name;
        user.quota = quota;
        user.used = used;
        user.speed = speed;
        user.priority = device.spec.priority;
        user.promised = static_cast<double>(device.spec.guaranteed_bytes);
        // Asking costs nothing, and may be done again and again: what neither the device nor the
        // arenas of its sessions could hold is no demand.
        const double growth = std::max(static_cast<double>(device.spec.memory_bytes) - quota, 0.0);
        const auto room = static_cast<double>(device.arena_room_bytes);
        user.denied = std::min({denied, growth, room});
        window.pool.devices.push_back(std::move(user));
        window.pool.most.push_back(static_cast<double>(device.spec.memory_bytes));
    }
    add_caches(places, window);
    if (places.shards.empty()) {
        window.placement.nodes.clear();  // nothing to place, nothing to write down
        return;
    }
    add_bandwidth(places, window.placement);
    add_shards(places, window.placement);
}

// What makers say is their own word: a counter that fell starts again, and readers don't wait for
// longer than there was time. What requests lacked is the daemon's own account.
void PlaceSource::add_caches(const Places& places, Window& window) {
    CacheRoomWindow& room = window.room;
    const PoolDemand before = demand_.value_or(places.demand);
    demand_ = places.demand;
    if (places.caches.empty()) {
        caches_.clear();
        return;
    }
    room.length_s = window.length_s;
    room.capacity = static_cast<double>(places.pool.capacity_bytes);
    room.used = static_cast<double>(places.pool.used_bytes);
    room.lacked = static_cast<double>(places.demand.waited - before.waited);
    std::map<std::string, CacheView> seen;
    for (const CacheView& cache : places.caches) {
        const auto known = caches_.find(cache.name);
        const CacheView& was = known != caches_.end() ? known->second : cache;
        const auto rise = [](auto before, auto now) {
            return static_cast<double>(now - std::min(before, now));
        };
        CacheWindow one;
        one.name = cache.name;
        one.size = static_cast<double>(cache.bytes);
        one.quota = static_cast<double>(cache.quota_bytes);
        one.committed = static_cast<double>(cache.bytes_committed);
        one.floor = static_cast<double>(cache.floor_bytes);
        one.readers = static_cast<double>(cache.readers);
        one.stall_s = std::min(rise(was.stall_ns, cache.stall_ns) * 1e-9,
                               window.length_s * std::max(one.readers, 1.0));
        one.refetched = rise(was.bytes_refetched, cache.bytes_refetched);
        one.near =
            std::min(rise(was.bytes_refetched_near, cache.bytes_refetched_near), one.refetched);
        seen[cache.name] = cache;
        room.caches.push_back(std::move(one));
    }
    caches_ = std::move(seen);
}

void PlaceSource::add_bandwidth(const Places& places, PlacementWindow& placement) const {
    const auto nodes = nodes_of(places);
    for (const DeviceView& from : nodes) {
        for (const DeviceView& to : nodes) {
            if (!lies_elsewhere(from.spec, to.spec)) {
                placement.bandwidth.push_back(0);
                continue;
            }
            // Where the way was never measured, it is as fast as the slower of two links.
            double bytes_per_s =
                kGiga * std::min(from.spec.link_gbytes_per_s, to.spec.link_gbytes_per_s);
            const auto measured = paths_.find({from.spec.name, to.spec.name});
            if (measured != paths_.end()) {
                bytes_per_s = std::clamp(measured->second, bytes_per_s / kWayFactor,
                                         bytes_per_s * kWayFactor);
            }
            placement.bandwidth.push_back(bytes_per_s);
        }
    }
}

void PlaceSource::add_shards(const Places& places, PlacementWindow& placement) const {
    const auto node_of = [&](const std::string& device) {
        return static_cast<std::size_t>(
            std::find_if(placement.nodes.begin(), placement.nodes.end(),
                         [&](const NodeWindow& node) { return node.name == device; }) -
            placement.nodes.begin());
    };
    std::map<ShardKey, Demand> demands;
    for (const auto& [key, reads] : reads_) {
        const std::size_t node = node_of(reads.device);
        if (node == placement.nodes.size()) continue;
        Demand& demand = demands[{std::get<1>(key), std::get<2>(key)}];
        demand.rates.resize(placement.nodes.size());
        demand.until.resize(placement.nodes.size(), kNever);
        demand.rates[node] += reads.rate;
        demand.until[node] = std::min(demand.until[node], until_next_s(reads));
    }
    for (const ShardView& view : places.shards) {
        const std::size_t home = node_of(view.home_device);
        // Neither one that is about to go nor one whose memory does not let it move.
        const bool stays = view.state == ShardState::kRetired || view.state == ShardState::kFixed;
        if (home == placement.nodes.size() || stays) continue;
        ShardWindow shard;
        shard.id = view.id;
        shard.name = view.name;
        // As its copy is counted: in whole units.
        shard.bytes = static_cast<double>(fabricshm::round_up(view.bytes, RegionAllocator::kUnit));
        shard.home = static_cast<std::uint32_t>(home);
        shard.moving = is_moving(view.state);
        const auto known = demands.find({view.arena_id, view.id});
        if (known != demands.end()) {
            shard.reads = known->second.rates;
            shard.until_needed_s = until_elsewhere(known->second.until, home);
        }
        shard.reads.resize(placement.nodes.size());
        placement.shards.push_back(std::move(shard));
    }
}

}  // namespace fabricd
