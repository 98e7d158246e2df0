// FaultPlayer: groups and collectives, and what is left of them after a death.

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "libfabricshm/base/units.hpp"
#include "tests/support/fault_player.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;

namespace test_support {

namespace {

constexpr Duration kTimeout = 60s;

}  // namespace

bool FaultPlayer::enter() {
    const TimePoint timeout = Clock::now() + kTimeout;
    for (;;) {
        members_.clear();
        for (int rank = 0; rank < kJobRanks; ++rank) {
            if (!is_dead(rank)) members_.push_back(rank);
        }
        const auto place = std::find(members_.begin(), members_.end(), rank_) - members_.begin();
        const std::string name = "world" + std::to_string(members_.size());
        const int code = timed("join group", [&] {
            return fabricshm_group_join(arena_, name.c_str(), static_cast<int>(place),
                                        static_cast<int>(members_.size()), kTimeoutMs, &group_);
        });
        if (code == FABRICSHM_OK) return true;
        // A rank died while the group formed, or one of the others gave up because of that.
        const bool again = code == FABRICSHM_EPEER || code == FABRICSHM_EDAEMON ||
                           code == FABRICSHM_EEXIST || code == FABRICSHM_EBROKEN;
        if (!again || Clock::now() > timeout) {
            return report("join group: %s", fabricshm_error_text());
        }
        if (code == FABRICSHM_EPEER) {
            const auto one_died = [&] {
                return std::any_of(members_.begin(), members_.end(),
                                   [&](int rank) { return is_dead(rank); });
            };
            if (!until("a dead rank is known", one_died)) return false;
        }
        ::usleep(1000);
    }
}

float FaultPlayer::expected_sum(std::uint64_t i, std::uint64_t version) const {
    float sum = 0;
    for (const int rank : members_) sum += pattern(rank, i, version);
    return sum;
}

int FaultPlayer::allreduce(fabricshm_algorithm algorithm, fabricshm_trigger trigger, float* buffer,
                           std::uint64_t count) {
    const std::uint64_t version = ++version_ % 1000;
    for (std::uint64_t i = 0; i < count; ++i) buffer[i] = pattern(rank_, i, version);
    fabricshm_call call = fabricshm_call_make(FABRICSHM_ALLREDUCE, FABRICSHM_F32, FABRICSHM_SUM,
                                              buffer, buffer, count);
    call.algorithm = algorithm;
    call.trigger = trigger;
    call.timeout_ms = kTimeoutMs;
    const int code = timed("allreduce", [&] { return fabricshm_run(group_, &call); });
    for (std::uint64_t i = 0; code == FABRICSHM_OK && i < count; ++i) {
        if (buffer[i] != expected_sum(i, version)) {
            report("a wrong sum at element %d, algorithm %d", static_cast<int>(i), algorithm);
            return kWrong;
        }
    }
    return code;
}

// Of the ranks that are left, in their order; in place.
int FaultPlayer::scan(float* buffer, std::uint64_t count) {
    const std::uint64_t version = ++version_ % 1000;
    for (std::uint64_t i = 0; i < count; ++i) buffer[i] = pattern(rank_, i, version);
    fabricshm_call call =
        fabricshm_call_make(FABRICSHM_SCAN, FABRICSHM_F32, FABRICSHM_SUM, buffer, buffer, count);
    call.timeout_ms = kTimeoutMs;
    const int code = timed("scan", [&] { return fabricshm_run(group_, &call); });
    for (std::uint64_t i = 0; code == FABRICSHM_OK && i < count; ++i) {
        float sum = 0;
        for (const int member : members_) {
            sum += pattern(member, i, version);
            if (member == rank_) break;
        }
        if (buffer[i] == sum) continue;
        report("a wrong sum at element %d of a scan", static_cast<int>(i));
        return kWrong;
    }
    return code;
}

int FaultPlayer::gather() {
    const std::uint64_t version = ++version_ % 1000;
    float* mine = shared_ + static_cast<std::uint64_t>(fabricshm_group_rank(group_)) * kCount;
    for (std::uint64_t i = 0; i < kCount; ++i) mine[i] = pattern(rank_, i, version);
    fabricshm_call call = fabricshm_call_make(FABRICSHM_ALL_GATHER, FABRICSHM_F32, FABRICSHM_SUM,
                                              mine, shared_, kCount);
    call.timeout_ms = kTimeoutMs;
    const int code = timed("gather", [&] { return fabricshm_run(group_, &call); });
    for (std::size_t part = 0; code == FABRICSHM_OK && part < members_.size(); ++part) {
        for (std::uint64_t i = 0; i < kCount; ++i) {
            if (shared_[part * kCount + i] == pattern(members_[part], i, version)) continue;
            report("a stale part of rank %d", members_[part]);
            return kWrong;
        }
    }
    return code;
}

// One output for all, in the memory of the group's first rank, which names its place.
int FaultPlayer::share_output(std::uint64_t count) {
    const std::uint64_t version = ++version_ % 1000;
    float* mine = shared_ + kCount;
    for (std::uint64_t i = 0; i < count; ++i) mine[i] = pattern(rank_, i, version);
    auto* base = static_cast<std::byte*>(fabricshm_arena_base(arena_));
    std::uint64_t offset = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(shared_) - base);
    const int known = fabricshm_broadcast(group_, &offset, 1, FABRICSHM_U64, 0);
    if (known != FABRICSHM_OK) return known;
    auto* output = reinterpret_cast<float*>(base + offset);
    fabricshm_call call =
        fabricshm_call_make(FABRICSHM_ALLREDUCE, FABRICSHM_F32, FABRICSHM_SUM, mine, output, count);
    call.flags = FABRICSHM_SHARED_OUTPUT;
    call.timeout_ms = kTimeoutMs;
    const int code = timed("shared output", [&] { return fabricshm_run(group_, &call); });
    for (std::uint64_t i = 0; code == FABRICSHM_OK && i < count; ++i) {
        if (output[i] == expected_sum(i, version)) continue;
        report("a wrong sum at element %d of the shared output", static_cast<int>(i));
        return kWrong;
    }
    // The first rank goes on to write there.
    return code == FABRICSHM_OK ? fabricshm_barrier(group_) : code;
}

int FaultPlayer::message(int to, int from, const float* sent, float* received,
                         std::uint64_t count) {
    fabricshm_call receive =
        fabricshm_call_make(FABRICSHM_RECV, FABRICSHM_F32, FABRICSHM_SUM, nullptr, received, count);
    receive.peer = from;
    receive.timeout_ms = kTimeoutMs;
    fabricshm_call send =
        fabricshm_call_make(FABRICSHM_SEND, FABRICSHM_F32, FABRICSHM_SUM, sent, nullptr, count);
    send.peer = to;
    send.timeout_ms = kTimeoutMs;
    fabricshm_request* request = nullptr;
    int code = fabricshm_start(group_, &receive, &request);
    if (code != FABRICSHM_OK) return code;
    code = timed("send", [&] { return fabricshm_run(group_, &send); });
    const int waited = timed("receive", [&] { return fabricshm_wait(request); });
    return code != FABRICSHM_OK ? code : waited;
}

// Around the ring, to the next and from the one before.
int FaultPlayer::messages(std::uint64_t count) {
    const int world = static_cast<int>(members_.size());
    if (world < 2) return FABRICSHM_OK;
    const int at = fabricshm_group_rank(group_);
    const int from = (at + world - 1) % world;
    const std::uint64_t version = ++version_ % 1000;
    std::vector<float> sent(count);
    std::vector<float> received(count);
    for (std::uint64_t i = 0; i < count; ++i) sent[i] = pattern(rank_, i, version);
    const int code = message((at + 1) % world, from, sent.data(), received.data(), count);
    for (std::uint64_t i = 0; code == FABRICSHM_OK && i < count; ++i) {
        if (received[i] == pattern(members_[static_cast<std::size_t>(from)], i, version)) continue;
        report("a wrong message");
        return kWrong;
    }
    return code;
}

// The same from the arena to the arena. `late`: nothing is received before all of it was sent, so
// that the senders put it into their stages; else both may copy, and do in some of several.
int FaultPlayer::offered_messages(std::uint64_t count, bool late) {
    static_assert(2 * kWire >= kCount * kJobRanks);
    const int world = static_cast<int>(members_.size());
    if (world < 2) return FABRICSHM_OK;
    const int at = fabricshm_group_rank(group_);
    const int from = (at + world - 1) % world;
    const int to = (at + 1) % world;
    const std::uint64_t version = ++version_ % 1000;
    float* received = shared_ + kWire;
    for (std::uint64_t i = 0; i < count; ++i) shared_[i] = pattern(rank_, i, version);
    int code = FABRICSHM_OK;
    for (int i = 0; !late && i < 6 && code == FABRICSHM_OK; ++i) {
        code = message(to, from, shared_, received, count);
    }
    if (late) {
        auto call = fabricshm_call_make(FABRICSHM_SEND, FABRICSHM_F32, FABRICSHM_SUM, shared_,
                                        received, count);
        call.timeout_ms = kTimeoutMs;
        call.peer = to;
        code = timed("send", [&] { return fabricshm_run(group_, &call); });
        if (code == FABRICSHM_OK) code = fabricshm_barrier(group_);
        call.kind = FABRICSHM_RECV;
        call.peer = from;
        if (code == FABRICSHM_OK) {
            code = timed("receive", [&] { return fabricshm_run(group_, &call); });
        }
    }
    for (std::uint64_t i = 0; code == FABRICSHM_OK && i < count; ++i) {
        if (received[i] == pattern(members_[static_cast<std::size_t>(from)], i, version)) continue;
        report("a wrong message from the arena");
        return kWrong;
    }
    return code;
}

// One call of each engine; the first code that is not 0.
int FaultPlayer::collectives() {
    version_ = 37 * (round_ + 1);  // the same on all ranks, wherever they were interrupted
    std::vector<float> own(kCount);
    const std::vector<std::function<int()>> steps = {
        [&] { return allreduce(FABRICSHM_AUTO, FABRICSHM_ASYNC, own.data(), 2); },
        [&] { return allreduce(FABRICSHM_FLAT, FABRICSHM_ASYNC, own.data(), kCount); },
        [&] { return allreduce(FABRICSHM_DIRECT, FABRICSHM_SYNC, shared_, kCount); },
        [&] { return allreduce(FABRICSHM_RING, FABRICSHM_ASYNC, shared_, kCount); },
        [&] { return allreduce(FABRICSHM_STAGED, FABRICSHM_ASYNC, own.data(), kCount); },
        [&] { return allreduce(FABRICSHM_HOST, FABRICSHM_ASYNC, shared_, kCount); },
        [&] { return scan(own.data(), 2); },
        [&] { return scan(own.data(), kCount); },
        [&] { return scan(shared_, kCount); },
        [&] { return gather(); },
        [&] { return share_output(100); },
        [&] { return share_output(kCount); },
        [&] { return train(); },
        [&] { return messages(10); },
        [&] { return messages(kCount); },
        [&] { return offered_messages(4000, true); },
        [&] { return offered_messages(kWire, false); },
    };
    for (const auto& step : steps) {
        if (const int code = step(); code != FABRICSHM_OK) return code;
    }
    // Several, since the rank that comes first does the work.
    for (int i = 0; i < 6; ++i) {
        const int code = allreduce(FABRICSHM_DIRECT, FABRICSHM_ASYNC, shared_, kCount);
        if (code != FABRICSHM_OK) return code;
    }
    return FABRICSHM_OK;
}

// Collectives, until they went well for all that are alive. The ranks agree on that outside of
// the library: one may have finished its last operation in which another learnt of a death.
bool FaultPlayer::rounds() {
    for (;;) {
        if (round_ >= kJobRounds) return report("its group fails again and again");
        const int code = collectives();
        const bool well = code == FABRICSHM_OK;
        if (!well && code != FABRICSHM_EPEER && code != FABRICSHM_EBROKEN) {
            return report("collectives: %s", fabricshm_error_text());
        }
        const std::size_t round = round_++;
        own().round[round] = well ? 1 : 2;
        bool all_well = well;
        // A rank that failed shrinks at once: that also ends the waits of those that are still
        // inside.
        for (int rank = 0; well && rank < kJobRanks; ++rank) {
            const auto& posted = board_.ranks[static_cast<std::size_t>(rank)].round[round];
            if (!until("all have ended a round", [&] { return posted != 0 || is_dead(rank); })) {
                return false;
            }
            all_well = all_well && posted != 2;
        }
        if (all_well) return true;
        if (!shrink()) return false;
    }
}

bool FaultPlayer::shrink() {
    const auto dead = [&](int rank) { return is_dead(rank); };
    const auto one_died = [&] { return std::any_of(members_.begin(), members_.end(), dead); };
    if (!until("a dead rank is known", one_died)) return false;
    fabricshm_group* smaller = nullptr;
    if (!insist("shrink", [&] { return fabricshm_group_shrink(group_, kTimeoutMs, &smaller); })) {
        return false;
    }
    const int recovered = recover_parameters(smaller);
    fabricshm_group_leave(std::exchange(group_, smaller));
    if (recovered != FABRICSHM_OK) return report("recover: %s", fabricshm_error_text());
    members_.erase(std::remove_if(members_.begin(), members_.end(), dead), members_.end());
    const bool right = fabricshm_group_world(group_) == static_cast<int>(members_.size());
    return right || report("the shrunk group has %d ranks", fabricshm_group_world(group_));
}

}  // namespace test_support
