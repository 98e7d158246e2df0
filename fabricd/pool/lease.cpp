#include "fabricd/pool/lease.hpp"

namespace fabricd {

LeaseTable::Grant LeaseTable::grant(SessionId session) {
    // A fresh number, one above the highest ever, unless enough have rested.
    RegionId region{leases_.empty() ? 1 : raw(leases_.rbegin()->first) + 1};
    if (free_.size() > resting_) {
        region = free_.front();
        free_.pop_front();
    }
    Lease& lease = leases_[region];
    lease = Lease{session, lease.epoch + 1, LeaseState::kHeld};
    held_[session].insert(region);
    return {region, lease.epoch};
}

// The entry stays, see lease.hpp: only its owner goes.
bool LeaseTable::release(RegionId region) {
    const auto found = leases_.find(region);
    if (found == leases_.end() || found->second.state == LeaseState::kFree) return false;
    unlist(index_of(found->second.state), found->second.session, region);
    found->second.session = SessionId::kNone;
    found->second.state = LeaseState::kFree;
    free_.push_back(region);
    return true;
}

bool LeaseTable::hand_over(RegionId region, SessionId to) {
    const auto found = leases_.find(region);
    if (found == leases_.end() || found->second.state != LeaseState::kHeld) return false;
    unlist(held_, found->second.session, region);
    found->second.session = to;
    held_[to].insert(region);
    return true;
}

bool LeaseTable::quarantine(RegionId region) {
    // Only what is held: a region that was freed is nobody's to keep back.
    const auto found = leases_.find(region);
    if (found == leases_.end() || found->second.state != LeaseState::kHeld) return false;
    const SessionId session = found->second.session;
    unlist(held_, session, region);
    quarantined_[session].insert(region);
    found->second.state = LeaseState::kQuarantined;
    return true;
}

const Lease* LeaseTable::find(RegionId region) const {
    const auto found = leases_.find(region);
    return found == leases_.end() ? nullptr : &found->second;
}

bool LeaseTable::restore(RegionId region, const Lease& lease) {
    if (region == RegionId::kNone || !leases_.emplace(region, lease).second) return false;
    // In the order of the ids: how long each has rested is not in the journal. At worst one rests
    // shorter than it would have.
    if (lease.state == LeaseState::kFree) {
        free_.push_back(region);
    } else {
        index_of(lease.state)[lease.session].insert(region);
    }
    return true;
}

LeaseTable::BySession& LeaseTable::index_of(LeaseState state) noexcept {
    return state == LeaseState::kHeld ? held_ : quarantined_;
}

const std::set<RegionId>& LeaseTable::listed(const BySession& index, SessionId session) {
    static const std::set<RegionId> none;
    const auto found = index.find(session);
    return found == index.end() ? none : found->second;
}

void LeaseTable::unlist(BySession& index, SessionId session, RegionId region) {
    const auto found = index.find(session);
    found->second.erase(region);
    if (found->second.empty()) index.erase(found);
}

}  // namespace fabricd
