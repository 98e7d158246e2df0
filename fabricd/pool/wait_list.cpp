#include "fabricd/pool/wait_list.hpp"

namespace fabricd {

namespace {

// Empty sets go, so that the maps hold no more than what is waited for.
template <typename Map, typename Key>
void erase_from(Map& map, const Key& key, WaitId id) {
    const auto found = map.find(key);
    if (found == map.end()) return;
    found->second.erase(id);
    if (found->second.empty()) map.erase(found);
}

template <typename Map, typename Key>
std::vector<WaitId> listed(const Map& map, const Key& key) {
    const auto found = map.find(key);
    if (found == map.end()) return {};
    return {found->second.begin(), found->second.end()};
}

}  // namespace

// Ids rise, and sets keep them in order: the one that asked first is first in every list, which is
// what ranks that ask for no number are numbered by.
WaitId WaitList::add(Wait wait) {
    const WaitId id = ++last_;
    by_key_[wait.key].insert(id);
    by_session_[wait.ticket.session].insert(id);
    by_deadline_.emplace(wait.deadline, id);
    waits_.emplace(id, std::move(wait));
    return id;
}

std::optional<Wait> WaitList::take(WaitId id) {
    const auto found = waits_.find(id);
    if (found == waits_.end()) return std::nullopt;
    // Moved out first: its key and deadline are needed to find it in the other indexes.
    Wait wait = std::move(found->second);
    waits_.erase(found);
    erase_from(by_key_, wait.key, id);
    erase_from(by_session_, wait.ticket.session, id);
    by_deadline_.erase({wait.deadline, id});
    return wait;
}

// A copy, since callers take waits out of the list while they walk over it.
std::vector<WaitId> WaitList::with_key(const WaitKey& key) const {
    return listed(by_key_, key);
}

std::vector<WaitId> WaitList::of(SessionId session) const {
    return listed(by_session_, session);
}

std::size_t WaitList::count_of(SessionId session) const {
    const auto found = by_session_.find(session);
    return found == by_session_.end() ? 0 : found->second.size();
}

std::size_t WaitList::count_keys(WaitKind kind) const {
    std::size_t count = 0;
    for (const auto& [key, waits] : by_key_) count += key.kind == kind ? 1 : 0;
    return count;
}

// The earliest; callers ask again until there is none.
std::optional<WaitId> WaitList::expired(TimePoint now) const {
    if (by_deadline_.empty() || by_deadline_.begin()->first > now) return std::nullopt;
    return by_deadline_.begin()->second;
}

TimePoint WaitList::next_deadline() const {
    return by_deadline_.empty() ? TimePoint::max() : by_deadline_.begin()->first;
}

}  // namespace fabricd
