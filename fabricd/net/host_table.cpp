#include "fabricd/net/host_table.hpp"

#include <algorithm>

#include "fabricd/net/host_lease.hpp"
#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

// Fenced incarnations that are kept, for ranks that ask late. Those that are not fenced are always
// kept.
constexpr std::size_t kMaxFencedLives = 16;

bool is_over(HostState state) noexcept {
    return state == HostState::kLost || state == HostState::kFenced;
}

void change(HostTable& table, const std::string& name, HostLife& life, HostState to, BootTime now,
            HostChanges& changes) {
    FABRIC_CHECK(life.state != HostState::kFenced);  // an end is an end
    changes.push_back({name, life.number, life.state, to, life.how});
    if (to == HostState::kLost || life.state == HostState::kLost) ++table.losses;
    life.state = to;
    life.since = now;
    ++table.version;
}

// A record may say anything; a day is longer than any lease. 0: it does not say.
fabricshm::Duration grace_of(const HostRecord& record) noexcept {
    constexpr std::uint64_t kMaxMs = 24 * 3600 * 1000;
    if (record.ttl_ms == 0) return {};
    const auto ms = static_cast<std::int64_t>(std::min(record.ttl_ms, kMaxMs));
    return grace_after_deletion(std::chrono::milliseconds(ms));
}

void suspect(HostTable& table, const std::string& name, HostLife& life, BootTime now,
             HostChanges& changes) {
    if (is_over(life.state) || life.state == HostState::kSuspect) return;
    life.lost_at = now + std::max(table.grace, life.grace);
    table.first_loss = std::min(table.first_loss, life.lost_at);
    change(table, name, life, HostState::kSuspect, now, changes);
}

void fence(HostTable& table, const std::string& name, HostLife& life, const std::string& by,
           const std::string& how, BootTime now, HostChanges& changes) {
    if (life.state == HostState::kFenced) return;
    life.by = by;
    life.how = how;
    change(table, name, life, HostState::kFenced, now, changes);
}

// A boot alone does not prove it: two machines may have been given one name by mistake.
bool proves_end(const HostRecord& now, const HostLife& before) noexcept {
    return before.machine != 0 && before.machine == now.machine && before.boot != 0 &&
           now.boot != 0 && before.boot != now.boot;
}

void forget_oldest(Host& host) {
    const auto is_fenced = [](const HostLife& life) { return life.state == HostState::kFenced; };
    if (static_cast<std::size_t>(std::ranges::count_if(host.lives, is_fenced)) <= kMaxFencedLives) {
        return;
    }
    host.lives.erase(std::ranges::find_if(host.lives, is_fenced));
}

HostLife* life_of(HostTable& table, std::string_view name, Incarnation incarnation) {
    return const_cast<HostLife*>(find_life(table, name, incarnation));
}

// Of before this daemon was started. In its place by number, so that the newest stays the last.
HostLife& add_lost(HostTable& table, const std::string& name, Incarnation incarnation,
                   const FenceRecord& record, BootTime now) {
    auto& lives = table.hosts[name].lives;
    const auto place = std::ranges::find_if(
        lives, [&](const HostLife& other) { return other.number > incarnation; });
    ++table.version;
    ++table.losses;
    return *lives.insert(place, {.number = incarnation,
                                 .machine = record.machine,
                                 .boot = record.boot,
                                 .state = HostState::kLost,
                                 .since = now});
}

}  // namespace

const char* name_of(HostState state) noexcept {
    switch (state) {
        case HostState::kListed:
            return "listed";
        case HostState::kUp:
            return "up";
        case HostState::kBack:
            return "back";
        case HostState::kSuspect:
            return "suspect";
        case HostState::kLost:
            return "lost";
        case HostState::kFenced:
            return "fenced";
    }
    return "unknown";
}

void list_host(HostTable& table, const std::string& name, BootTime now) {
    Host& host = table.hosts[name];
    if (host.lives.empty()) {
        host.lives.push_back({.state = HostState::kListed, .since = now});
        ++table.version;
    }
}

HostChanges note_record(HostTable& table, const std::string& name, const HostRecord& record,
                        BootTime now) {
    HostChanges changes;
    Host& host = table.hosts[name];
    const Incarnation newest = host.lives.empty() ? 0 : host.lives.back().number;
    if (record.incarnation < newest) return changes;
    if (record.incarnation == newest && !host.lives.empty()) {
        HostLife& life = host.lives.back();
        if (is_over(life.state)) return changes;
        host.record = record;
        if (life.state == HostState::kSuspect) {
            change(table, name, life, HostState::kUp, now, changes);
        }
        return changes;
    }
    for (HostLife& before : host.lives) {
        if (proves_end(record, before)) {
            fence(table, name, before, name, "boot", now, changes);
        } else {
            suspect(table, name, before, now, changes);
        }
    }
    host.record = record;
    host.lives.push_back({.number = record.incarnation,
                          .machine = record.machine,
                          .boot = record.boot,
                          .state = HostState::kUp,
                          .since = now,
                          .grace = grace_of(record)});
    ++table.version;
    changes.push_back({name, record.incarnation, HostState::kUp, HostState::kUp, ""});
    forget_oldest(host);
    return changes;
}

HostChanges note_deletion(HostTable& table, std::string_view name, Incarnation incarnation,
                          BootTime now) {
    HostChanges changes;
    if (HostLife* life = life_of(table, name, incarnation)) {
        suspect(table, std::string(name), *life, now, changes);
    }
    return changes;
}

HostChanges elapse(HostTable& table, BootTime now) {
    HostChanges changes;
    // A daemon asks many times a second, and of a thousand hosts mostly none is a suspect.
    if (now < table.first_loss) return changes;
    for (auto& [name, host] : table.hosts) {
        for (HostLife& life : host.lives) {
            if (life.state == HostState::kSuspect && now >= life.lost_at) {
                change(table, name, life, HostState::kLost, now, changes);
            }
        }
    }
    table.first_loss = next_change(table);
    return changes;
}

void begin_graces_again(HostTable& table, BootTime now) {
    for (auto& [name, host] : table.hosts) {
        for (HostLife& life : host.lives) {
            if (life.state != HostState::kSuspect) continue;
            life.lost_at = now + std::max(table.grace, life.grace);
        }
    }
    table.first_loss = next_change(table);
}

BootTime next_change(const HostTable& table) noexcept {
    BootTime next = BootTime::max();
    for (const auto& [name, host] : table.hosts) {
        for (const HostLife& life : host.lives) {
            if (life.state == HostState::kSuspect) next = std::min(next, life.lost_at);
        }
    }
    return next;
}

HostChanges note_fence(HostTable& table, const std::string& name, Incarnation incarnation,
                       const FenceRecord& record, BootTime now) {
    HostChanges changes;
    HostLife* life = life_of(table, name, incarnation);
    if (life == nullptr) life = &add_lost(table, name, incarnation, record, now);
    if (record.is_fenced) {
        fence(table, name, *life, record.by, record.how, now, changes);
        forget_oldest(table.hosts[name]);
        return changes;
    }
    if (!is_over(life->state)) change(table, name, *life, HostState::kLost, now, changes);
    // Of before this daemon was started: the record that proves its end was there before it.
    const HostRecord newest = table.hosts[name].record;
    if (proves_end(newest, *life)) fence(table, name, *life, name, "boot", now, changes);
    return changes;
}

const HostLife* find_life(const HostTable& table, std::string_view name, Incarnation incarnation) {
    const auto host = table.hosts.find(name);
    if (host == table.hosts.end()) return nullptr;
    const auto& lives = host->second.lives;
    const auto life = std::ranges::find(lives, incarnation, &HostLife::number);
    return life == lives.end() ? nullptr : &*life;
}

const HostLife* newest_life(const HostTable& table, std::string_view name) {
    const auto host = table.hosts.find(name);
    const bool is_there = host != table.hosts.end() && !host->second.lives.empty();
    return is_there ? &host->second.lives.back() : nullptr;
}

HostState state_of(const Host& host) noexcept {
    if (host.lives.empty()) return HostState::kListed;
    const HostState newest = host.lives.back().state;
    const bool is_back =
        newest == HostState::kUp &&
        std::any_of(host.lives.begin(), host.lives.end() - 1,
                    [](const HostLife& life) { return life.state != HostState::kFenced; });
    return is_back ? HostState::kBack : newest;
}

bool may_grant_bytes_of(const HostTable& table, std::string_view name, Incarnation incarnation) {
    const HostLife* life = find_life(table, name, incarnation);
    return life != nullptr && life->state == HostState::kFenced;
}

}  // namespace fabricd
