// The player's shards: one of its own that moves, and those of the others, which it reads.

#include <string>

#include "tests/support/fault_player.hpp"

namespace test_support {

namespace {

constexpr std::int64_t kElements = 16 * 1024;

}  // namespace

bool FaultPlayer::make_shard() {
    const std::string name = "s" + std::to_string(rank_);
    return insist("make shard",
                  [&] {
                      return fabricshm_shard_create(arena_, name.c_str(), FABRICSHM_F32, 1,
                                                    &kElements, &shards_[own_index()]);
                  }) &&
           write_shard(1) && move_shard();
}

bool FaultPlayer::write_shard(std::uint64_t version) {
    fabricshm_shard* shard = shards_[own_index()];
    fabricshm_shard_view view{};
    std::uint64_t published = 0;
    if (fabricshm_shard_write(shard, &view) != FABRICSHM_OK) {
        return report("write shard: %s", fabricshm_error_text());
    }
    auto* elements = static_cast<float*>(view.data);
    for (std::uint64_t i = 0; i < kElements; ++i) elements[i] = pattern(rank_, i, version);
    if (fabricshm_shard_publish(shard, &published) != FABRICSHM_OK || published != version) {
        return report("publish shard: %s", fabricshm_error_text());
    }
    return read_shard(rank_, shard, version);
}

// One whole version, this one or (of a peer that is a step ahead) a later one. A rank that has died
// takes its shard along: that has to be reported.
bool FaultPlayer::read_shard(int peer, fabricshm_shard* shard, std::uint64_t version) {
    for (;;) {
        fabricshm_shard_view view{};
        const int code = timed(
            "read shard", [&] { return fabricshm_shard_read(shard, version, kTimeoutMs, &view); });
        if (code == FABRICSHM_ENOENT && peer != rank_) {
            return until("a dead rank is known", [&] { return is_dead(peer); });
        }
        // An owner that was killed while it wrote is found out at its reader's deadline at worst.
        if (code == FABRICSHM_ETIMEOUT && is_dead(peer)) return true;
        if (code != FABRICSHM_OK) return report("read shard: %s", fabricshm_error_text());
        const auto* elements = static_cast<const float*>(view.data);
        bool same = true;
        for (std::uint64_t i = 0; i < kElements; ++i) {
            same = same && elements[i] == pattern(peer, i, view.version);
        }
        const int ended = fabricshm_shard_release(shard, &view);
        if (ended == FABRICSHM_EBUSY) continue;  // its owner wrote meanwhile
        if (ended != FABRICSHM_OK) return report("end of read: %s", fabricshm_error_text());
        return same || report("torn or stale shard of rank %d", peer);
    }
}

bool FaultPlayer::read_shards() {
    for (int peer = 0; peer < kJobRanks; ++peer) {
        if (peer == rank_ || is_dead(peer)) continue;
        const std::string name = "s" + std::to_string(peer);
        fabricshm_shard*& shard = shards_[static_cast<std::size_t>(peer)];
        const int code = timed("open shard", [&] {
            return fabricshm_shard_open(arena_, name.c_str(), kTimeoutMs, &shard);
        });
        if (code == FABRICSHM_ETIMEOUT && is_dead(peer)) continue;
        if (code == FABRICSHM_EDAEMON) {
            --peer;  // it is started again
            continue;
        }
        if (code != FABRICSHM_OK) return report("open shard: %s", fabricshm_error_text());
        if (!read_shard(peer, shard, 1)) return false;
    }
    return true;
}

// Begun; how it ends is the daemon's affair, which may die of it. The content stays the same.
bool FaultPlayer::move_shard() {
    const bool begun = until("its shard may move", [&] {
        const int code = fabricshm_shard_move(shards_[own_index()], "here", 0);
        return code != FABRICSHM_EBUSY && code != FABRICSHM_EDAEMON;
    });
    return begun && read_shard(rank_, shards_[own_index()], 1);
}

// After the restart of the daemon.
bool FaultPlayer::change_shard() {
    if (!write_shard(2) || !move_shard()) return false;
    for (int peer = 0; peer < kJobRanks; ++peer) {
        fabricshm_shard* shard = shards_[static_cast<std::size_t>(peer)];
        if (shard == nullptr || peer == rank_ || is_dead(peer)) continue;
        if (!read_shard(peer, shard, 2)) return false;
    }
    return true;
}

}  // namespace test_support
