#include "tests/support/fault_player.hpp"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/poison.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;

namespace test_support {

namespace {

// How late an answer may be on a machine that does something else: only a wait that does not end by
// its deadline at all takes so long.
constexpr Duration kSlack = 20s;
constexpr Duration kTimeout = 60s;

constexpr std::uint64_t kRegionBytes = 64 * 1024;
constexpr std::uint64_t kLargePage = 2 << 20;
constexpr std::uint64_t kSpareBytes = 2 * kLargePage;  // holds a whole one, wherever it starts

}  // namespace

bool FaultPlayer::report(const char* format, ...) const {
    va_list arguments;
    va_start(arguments, format);
    std::fprintf(stderr, "rank %d: ", rank_);
    std::vfprintf(stderr, format, arguments);
    std::fputc('\n', stderr);
    va_end(arguments);
    return false;
}

int FaultPlayer::timed(const char* step, const std::function<int()>& call) {
    const TimePoint begin = Clock::now();
    const int code = call();
    const auto late = Clock::now() - begin - std::chrono::milliseconds(kTimeoutMs);
    if (late > kSlack) {
        overdue_ = true;
        report("%s came %lld s past its deadline", step,
               static_cast<long long>(late / std::chrono::seconds(1)));
    }
    return code;
}

bool FaultPlayer::insist(const char* step, const std::function<int()>& call) {
    const TimePoint timeout = Clock::now() + kTimeout;
    for (;;) {
        const int code = timed(step, call);
        if (code == FABRICSHM_OK) return true;
        if (code != FABRICSHM_EDAEMON || Clock::now() > timeout) {
            return report("%s: %s", step, fabricshm_error_text());
        }
        ::usleep(2000);
    }
}

bool FaultPlayer::until(const char* what, const std::function<bool()>& reached) {
    const TimePoint timeout = Clock::now() + kTimeout;
    while (!reached()) {
        if (Clock::now() > timeout) return report("waited in vain until %s", what);
        ::usleep(500);
    }
    return true;
}

bool FaultPlayer::attach() {
    fabricshm_session_options options{};
    options.struct_size = sizeof options;
    options.socket = socket_.c_str();
    options.timeout_ms = kTimeoutMs;
    return insist("open session", [&] { return fabricshm_session_open(&options, &session_); }) &&
           insist("open arena",
                  [&] { return fabricshm_arena_open(session_, "job", 48 << 20, 0, &arena_); });
}

void FaultPlayer::claim(std::uint64_t id, std::uint64_t generation, std::uint64_t offset,
                        std::uint64_t bytes) {
    const auto at = static_cast<std::size_t>(own().claims.load());
    own().claim[at] = {id, generation, offset, bytes};
    own().claims.fetch_add(1);
}

bool FaultPlayer::make_region() {
    if (!insist("make region",
                [&] { return fabricshm_region_create(arena_, kRegionBytes, &region_); })) {
        return false;
    }
    claim(region_.id, region_.generation, region_.offset, region_.bytes);
    auto* words = static_cast<std::uint64_t*>(region_.base);
    for (std::uint64_t i = 0; i < kRegionBytes / 8; ++i) words[i] = region_.generation * 1000 + i;
    return true;
}

bool FaultPlayer::region_intact() {
    const auto* words = static_cast<const std::uint64_t*>(region_.base);
    for (std::uint64_t i = 0; i < kRegionBytes / 8; ++i) {
        if (words[i] != region_.generation * 1000 + i) return report("its region was overwritten");
    }
    fabricshm_region again{};
    return insist("open region",
                  [&] { return fabricshm_region_open(arena_, region_.id, &again); }) &&
           (again.generation == region_.generation && again.offset == region_.offset
                ? true
                : report("its region is another one now"));
}

void FaultPlayer::write_tensor(std::uint64_t version) {
    auto* elements = static_cast<float*>(tensor_.data);
    for (std::uint64_t i = 0; i < 1000; ++i) elements[i] = pattern(rank_, i, version);
}

// Also the version after it, whose writer is at work already.
bool FaultPlayer::read_tensor(int peer, const fabricshm_tensor& tensor, std::uint64_t version) {
    const auto* elements = static_cast<const float*>(tensor.data);
    for (std::uint64_t i = 0; i < 1000; ++i) {
        if (elements[i] != pattern(peer, i, version)) {
            return report("stale tensor of rank %d at element %d", peer, static_cast<int>(i));
        }
    }
    return true;
}

bool FaultPlayer::make_data() {
    const std::int64_t shape[] = {1000};
    const std::string name = "t" + std::to_string(rank_);
    const bool made =
        make_region() && insist("make tensor", [&] {
            return fabricshm_tensor_create(arena_, name.c_str(), FABRICSHM_F32, 1, shape, &tensor_);
        });
    if (!made) return false;
    write_tensor(1);
    std::uint64_t version = 0;
    if (fabricshm_tensor_publish(arena_, &tensor_, &version) != FABRICSHM_OK || version != 1) {
        return report("publish: %s", fabricshm_error_text());
    }
    return insist("allocate", [&] {
        shared_ = static_cast<float*>(fabricshm_alloc(arena_, 2 * kWire * sizeof(float)));
        // There is no code; the arena has room, so it is the daemon that was away.
        return shared_ != nullptr ? FABRICSHM_OK : FABRICSHM_EDAEMON;
    });
}

bool FaultPlayer::read_peers() {
    for (int peer = 0; peer < kJobRanks; ++peer) {
        if (peer == rank_ || is_dead(peer)) continue;
        const std::string name = "t" + std::to_string(peer);
        auto& tensor = peers_[static_cast<std::size_t>(peer)];
        std::uint64_t seen = 0;
        const bool found =
            insist(
                "open tensor",
                [&] { return fabricshm_tensor_open(arena_, name.c_str(), kTimeoutMs, &tensor); }) &&
            insist("wait for tensor",
                   [&] { return fabricshm_tensor_wait(arena_, &tensor, 1, kTimeoutMs, &seen); });
        if (!found || !read_tensor(peer, tensor, 1)) return false;
    }
    return true;
}

// After the restart of the daemon: everything is still there, and can be changed.
bool FaultPlayer::change_data() {
    if (!region_intact()) return false;
    write_tensor(2);
    std::uint64_t version = 0;
    if (fabricshm_tensor_publish(arena_, &tensor_, &version) != FABRICSHM_OK || version != 2) {
        return report("publish again: %s", fabricshm_error_text());
    }
    for (int peer = 0; peer < kJobRanks; ++peer) {
        const auto& tensor = peers_[static_cast<std::size_t>(peer)];
        if (tensor.data == nullptr) continue;
        std::uint64_t seen = 0;
        const int code = timed("wait for tensor", [&] {
            return fabricshm_tensor_wait(arena_, &tensor, 2, kTimeoutMs, &seen);
        });
        // A rank that has died takes its tensor along: that has to be reported, and at once.
        const bool gone = code == FABRICSHM_EPEER || code == FABRICSHM_ENOENT;
        if (code != FABRICSHM_OK && !gone) return report("wait: %s", fabricshm_error_text());
        if (gone) {
            if (!until("a dead rank is known", [&] { return is_dead(peer); })) return false;
            continue;
        }
        if (!is_dead(peer) && !read_tensor(peer, tensor, 2)) return is_dead(peer);
    }
    return lose_memory();
}

// A region whose memory the hardware takes away: the next operation on it says so, and all else is
// intact. The group is this rank's own, since a lost page ends the group of the rank that touches
// it.
bool FaultPlayer::lose_memory() {
    fabricshm_region spare{};
    const std::string name = "alone" + std::to_string(rank_);
    fabricshm_group* alone = nullptr;
    const bool there =
        insist("make spare region",
               [&] { return fabricshm_region_create(arena_, kSpareBytes, &spare); }) &&
        insist("join alone", [&] {
            return fabricshm_group_join(arena_, name.c_str(), 0, 1, kTimeoutMs, &alone);
        });
    if (!there || !leave_model(alone)) return false;
    // On a device a whole page of 2 MiB is lost: one that is this region's alone, or another rank's
    // region could be the one that is named.
    void* own_page = spare.base;
    std::size_t room = spare.bytes;
    std::align(kLargePage, kLargePage, own_page, room);
    auto* data = static_cast<float*>(own_page);
    lose_page(static_cast<std::byte*>(own_page) + 8192);
    const int code = timed("allreduce alone", [&] {
        return fabricshm_allreduce(alone, data, data + kRegionBytes / 8, kRegionBytes / 8,
                                   FABRICSHM_F32, FABRICSHM_SUM);
    });
    const std::uint64_t named = fabricshm_error_region();
    fabricshm_group_leave(alone);
    if (code != FABRICSHM_EPOISONED) return report("lost: %s", fabricshm_error_text());
    // 0: the daemon was away; it is notified later.
    if (named != spare.id && named != 0) return report("lost region %d", static_cast<int>(named));
    return spare.offset != region_.offset || report("its region was given away");
}

bool FaultPlayer::give_back() {
    if (!region_intact()) return false;
    if (!read_tensor(rank_, tensor_, 2)) return false;
    fabricshm_group_leave(std::exchange(group_, nullptr));
    fabricshm_free(arena_, shared_);
    own().claims = 0;
    const int freed =
        timed("free region", [&] { return fabricshm_region_free(arena_, region_.id); });
    // Not repeated by the library: after EDAEMON the caller can't know whether it was done.
    if (freed != FABRICSHM_OK && freed != FABRICSHM_EDAEMON) {
        return report("free region: %s", fabricshm_error_text());
    }
    const bool shard_freed =
        insist("free shard", [&] { return fabricshm_shard_free(shards_[own_index()]); });
    for (fabricshm_shard*& shard : shards_) fabricshm_shard_close(std::exchange(shard, nullptr));
    return shard_freed &&
           insist("free tensor", [&] { return fabricshm_tensor_free(arena_, &tensor_); }) &&
           !overdue_;
}

int open_descriptors() {
    int count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
        ++count;
    }
    return count;
}

int play_job(JobBoard& board, const std::string& socket, int rank) {
    const int before = open_descriptors();
    bool well = false;
    {
        FaultPlayer player(board, socket, rank);
        well = player.play();
    }
    const int after = open_descriptors();
    if (well && after != before) {
        std::fprintf(stderr, "rank %d: %d descriptors before, %d after\n", rank, before, after);
        return 2;
    }
    return well ? 0 : 1;
}

}  // namespace test_support
