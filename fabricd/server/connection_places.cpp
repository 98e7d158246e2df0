#include "fabricd/server/connection_places.hpp"

namespace fabricd {

bool ConnectionPlaces::has_room(std::uint32_t uid) const {
    const bool is_preferred = uid == 0 || uid == own_;
    if (all_ >= limits_.all + (is_preferred ? limits_.reserved : 0)) return false;
    const auto found = by_user_.find(uid);
    if (found == by_user_.end()) return true;
    const Held& held = found->second;
    return held.all < limits_.per_user && held.half_open < limits_.half_open_per_user;
}

void ConnectionPlaces::take(std::uint32_t uid) {
    Held& held = by_user_[uid];
    ++held.all;
    ++held.half_open;
    ++all_;
}

void ConnectionPlaces::greeted(std::uint32_t uid) {
    --by_user_.at(uid).half_open;
}

void ConnectionPlaces::give_back(std::uint32_t uid, bool was_greeted) {
    const auto found = by_user_.find(uid);
    Held& held = found->second;
    if (!was_greeted) --held.half_open;
    --all_;
    // Users come and go; what is kept of them is for those that are here.
    if (--held.all == 0) by_user_.erase(found);
}

}  // namespace fabricd
