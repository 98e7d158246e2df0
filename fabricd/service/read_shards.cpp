#include "fabricd/service/read_shards.hpp"

#include <algorithm>

namespace fabricd {

void ReadShards::look(const Sample& sample) {
    ++look_;
    std::vector<Told> now;
    now.reserve(told_.size());
    std::size_t from = 0;
    for (const SessionSample& session : sample.sessions) {
        // A session on no device is at no place that a shard could move to.
        if (session.device.empty()) continue;
        while (from < told_.size() && told_[from].session < session.session_id) ++from;
        for (const auto& told : session.shards) {
            now.push_back(
                {session.session_id, {ArenaId{told.arena}, RegionId{told.shard}}, told.bytes});
            if (has_risen(now.back(), from)) seen_[now.back().shard] = look_;
        }
    }
    told_ = std::move(now);
    std::erase_if(seen_, [&](const auto& entry) { return look_ - entry.second > keep_; });
    left_out_ = seen_.size() - std::min(seen_.size(), most_);
    if (left_out_ > 0) drop_beyond_max();
}

// `from`: where the session's part of the last look begins. It reports a few shards only.
bool ReadShards::has_risen(const Told& now, std::size_t from) const {
    for (; from < told_.size() && told_[from].session == now.session; ++from) {
        if (told_[from].shard == now.shard) return now.bytes != told_[from].bytes;
    }
    return now.bytes > 0;
}

// Of those that are read alike the lower ids stay: the same ones in each window, since the loop
// knows nothing of a shard that it sees now and then.
void ReadShards::drop_beyond_max() {
    std::vector<std::pair<std::int64_t, ShardId>> oldest_last;
    oldest_last.reserve(seen_.size());
    for (const auto& [id, seen] : seen_)
        oldest_last.emplace_back((look_ - seen) / (pause_ + 1), id);
    std::sort(oldest_last.begin(), oldest_last.end());
    for (std::size_t i = most_; i < oldest_last.size(); ++i) seen_.erase(oldest_last[i].second);
}

void ReadShards::keep_moving(const Places& places) {
    for (const ShardView& shard : places.shards) {
        if (!is_moving(shard.state)) continue;
        const auto known = seen_.find({ArenaId{shard.arena_id}, RegionId{shard.id}});
        if (known != seen_.end()) known->second = look_;
    }
}

std::vector<ShardId> ReadShards::ids() const {
    std::vector<ShardId> ids;
    ids.reserve(seen_.size());
    for (const auto& [id, seen] : seen_) ids.push_back(id);
    return ids;
}

}  // namespace fabricd
