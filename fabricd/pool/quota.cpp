#include "fabricd/pool/quota.hpp"

#include <algorithm>
#include <string>

namespace fabricd {

namespace {

// Larger than any pool, and not so large that a sum could wrap around.
constexpr Bytes kNoLimit = Bytes{1} << 62;

Bytes shown_limit(Bytes bytes) {
    return bytes == kNoLimit ? 0 : bytes;
}

}  // namespace

Result<void> QuotaTable::take_session(std::uint32_t uid) {
    if (sessions_ >= limits_.max_sessions) return Error{Errc::kNoMemory, 0, "sessions of the host"};
    const auto found = users_.find(uid);
    const int held = found == users_.end() ? 0 : found->second.sessions;
    if (held >= limits_.max_sessions_per_user) {
        return Error{Errc::kNoMemory, 0, "sessions of the user"};
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
        return Error{Errc::kNoMemory, 0, "quota of the job"};
    }
    const auto found = users_.find(uid);
    const Usage usage = found == users_.end() ? Usage{} : found->second;
    if (usage.arenas >= limits_.max_arenas_per_user) {
        return Error{Errc::kNoMemory, 0, "arenas of the user"};
    }
    if (!admits(uid, 0, bytes) || !admits(uid, usage.bytes, committed)) {
        return Error{Errc::kNoMemory, 0, "quota of the user"};
    }
    restore_arena(uid, committed);
    return {};
}

Result<void> QuotaTable::grow_arena(std::uint32_t uid, Bytes bytes) {
    if (!admits(uid, bytes_of(uid), bytes)) return Error{Errc::kNoMemory, 0, "quota of the user"};
    users_[uid].bytes += bytes;
    return {};
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

void QuotaTable::set_quota(std::uint32_t uid, Bytes bytes, TimePoint now, Duration patience) {
    const Bytes before = limits_.user_quota_bytes;
    const auto [own, made] = own_.try_emplace(uid, before == 0 ? kNoLimit : before);
    own->second.set(bytes == 0 ? kNoLimit : bytes, bytes_of(uid), now, patience);
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
        record.patience_ms = quota.patience() / std::chrono::milliseconds(1);
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
