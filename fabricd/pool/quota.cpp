#include "fabricd/pool/quota.hpp"

#include <algorithm>
#include <string>

#include "fabricd/pool/refusals.hpp"

namespace fabricd {

namespace {

// And not so large that a sum could wrap around.
constexpr Bytes kLargerThanAnyPool = Bytes{1} << 62;

std::string name_of_user(std::uint32_t uid) {
    return "user " + std::to_string(uid);
}

Bytes shown_limit(Bytes bytes) {
    return bytes == kLargerThanAnyPool ? 0 : bytes;
}

}  // namespace

Result<void> QuotaTable::take_session(std::uint32_t uid) {
    const bool is_preferred = uid == 0 || uid == limits_.own_uid;
    const int most = limits_.max_sessions + (is_preferred ? limits_.reserved_sessions : 0);
    if (sessions_ >= most) {
        return refuse_count("sessions of the host", "this host", "sessions", most,
                            "limits.sessions");
    }
    const auto found = users_.find(uid);
    const int held = found == users_.end() ? 0 : found->second.sessions;
    if (held >= limits_.max_sessions_per_user) {
        return refuse_count("sessions of the user", name_of_user(uid), "sessions",
                            limits_.max_sessions_per_user, "limits.sessions_per_user");
    }
    restore_session(uid);
    return {};
}

void QuotaTable::give_session(std::uint32_t uid) noexcept {
    Usage& usage = users_[uid];
    usage.sessions = std::max(0, usage.sessions - 1);
    sessions_ = std::max(0, sessions_ - 1);
    forget_if_idle(uid);
}

Result<void> QuotaTable::take_arena(std::uint32_t uid, Bytes bytes, Bytes committed) {
    if (limits_.max_arena_bytes != 0 && bytes > limits_.max_arena_bytes) {
        return refuse_arena_size("quota of the job", bytes, limits_.max_arena_bytes);
    }
    const auto found = users_.find(uid);
    const Usage usage = found == users_.end() ? Usage{} : found->second;
    if (usage.arenas >= limits_.max_arenas_per_user) {
        return refuse_count("arenas of the user", name_of_user(uid), "arenas",
                            limits_.max_arenas_per_user, "limits.arenas_per_user");
    }
    if (!admits(uid, 0, bytes) || !admits(uid, usage.bytes, committed)) {
        return refuse_user(uid, bytes);
    }
    restore_arena(uid, committed);
    return {};
}

Result<void> QuotaTable::grow_arena(std::uint32_t uid, Bytes bytes) {
    FABRIC_TRY_VOID(check_growth(uid, bytes));
    users_[uid].bytes += bytes;
    return {};
}

Result<void> QuotaTable::check_growth(std::uint32_t uid, Bytes bytes) const {
    if (!admits(uid, bytes_of(uid), bytes)) return refuse_user(uid, bytes);
    return {};
}

Error QuotaTable::refuse_user(std::uint32_t uid, Bytes bytes) const {
    const QuotaState state = quota_of(uid, TimePoint{});
    return refuse_quota("quota of the user", bytes, name_of_user(uid), state.used_bytes,
                        state.target_bytes,
                        "limits.user_quota, or fabricctl quota user:" + std::to_string(uid));
}

bool QuotaTable::admits(std::uint32_t uid, Bytes used, Bytes bytes) const {
    const auto own = own_.find(uid);
    if (own != own_.end()) return own->second.admits(used, bytes);
    const Bytes quota = limits_.user_quota_bytes;
    return quota == 0 || LiveQuota(quota).admits(used, bytes);
}

void QuotaTable::resize_arena(std::uint32_t uid, Bytes from, Bytes to) noexcept {
    Usage& usage = users_[uid];
    usage.bytes = usage.bytes - std::min(usage.bytes, from) + to;
}

void QuotaTable::give_arena(std::uint32_t uid, Bytes bytes) noexcept {
    Usage& usage = users_[uid];
    usage.arenas = std::max(0, usage.arenas - 1);
    usage.bytes -= std::min(usage.bytes, bytes);
    forget_if_idle(uid);
}

void QuotaTable::restore_arena(std::uint32_t uid, Bytes bytes) noexcept {
    ++users_[uid].arenas;
    users_[uid].bytes += bytes;
}

void QuotaTable::set_quota(std::uint32_t uid, Bytes bytes, TimePoint now, Duration grace) {
    const Bytes before = limits_.user_quota_bytes;
    const auto [own, made] = own_.try_emplace(uid, before == 0 ? kLargerThanAnyPool : before);
    own->second.set(bytes == 0 ? kLargerThanAnyPool : bytes, bytes_of(uid), now, grace);
}

QuotaState QuotaTable::quota_of(std::uint32_t uid, TimePoint now) const {
    const auto own = own_.find(uid);
    const LiveQuota common(limits_.user_quota_bytes);
    QuotaState state = (own == own_.end() ? common : own->second).state(bytes_of(uid), now);
    state.quota_bytes = shown_limit(state.quota_bytes);
    state.target_bytes = shown_limit(state.target_bytes);
    return state;
}

std::vector<std::pair<std::uint32_t, Bytes>> QuotaTable::settle(TimePoint now) {
    std::vector<std::pair<std::uint32_t, Bytes>> settled;
    for (auto& [uid, quota] : own_) {
        if (quota.settle(bytes_of(uid), now)) settled.emplace_back(uid, shown_limit(quota.limit()));
    }
    return settled;
}

TimePoint QuotaTable::next_deadline() const noexcept {
    TimePoint next = TimePoint::max();
    for (const auto& [uid, quota] : own_) next = std::min(next, quota.deadline());
    return next;
}

std::vector<QuotaRecord> QuotaTable::changes() const {
    std::vector<QuotaRecord> records;
    for (const auto& [uid, quota] : own_) {
        QuotaRecord record{};
        record.bytes = shown_limit(quota.target());
        record.grace_ms = quota.grace() / std::chrono::milliseconds(1);
        const std::string subject = "user:" + std::to_string(uid);
        subject.copy(record.subject, sizeof record.subject - 1);
        records.push_back(record);
    }
    return records;
}

Bytes QuotaTable::bytes_of(std::uint32_t uid) const noexcept {
    const auto found = users_.find(uid);
    return found == users_.end() ? 0 : found->second.bytes;
}

// Otherwise the table would grow with every user id that was ever seen.
void QuotaTable::forget_if_idle(std::uint32_t uid) noexcept {
    const auto found = users_.find(uid);
    if (found == users_.end()) return;
    if (found->second.sessions == 0 && found->second.arenas == 0) users_.erase(found);
}

}  // namespace fabricd
