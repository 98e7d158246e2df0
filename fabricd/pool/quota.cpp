#include "fabricd/pool/quota.hpp"

#include <algorithm>

namespace fabricd {

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

Result<void> QuotaTable::take_arena(std::uint32_t uid, Bytes bytes) {
    if (limits_.max_arena_bytes != 0 && bytes > limits_.max_arena_bytes) {
        return Error{Errc::kNoMemory, 0, "quota of the job"};
    }
    const auto found = users_.find(uid);
    const Usage usage = found == users_.end() ? Usage{} : found->second;
    if (usage.arenas >= limits_.max_arenas_per_user) {
        return Error{Errc::kNoMemory, 0, "arenas of the user"};
    }
    const Bytes quota = limits_.user_quota_bytes;
    if (quota != 0 && (bytes > quota || usage.bytes > quota - bytes)) {
        return Error{Errc::kNoMemory, 0, "quota of the user"};
    }
    restore_arena(uid, bytes);
    return {};
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
