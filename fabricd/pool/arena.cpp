#include "fabricd/pool/arena.hpp"

#include <algorithm>
#include <cstring>

namespace fabricd {

namespace proto = fabricshm::proto;

std::vector<RegionId> Arena::regions_of(SessionId session) const {
    const std::set<RegionId>& held = leases.held_by(session);
    return {held.begin(), held.end()};
}

// Counted and not asked for again: with hundreds of groups and of dead sessions every leave would
// cost the product of both.
bool Arena::count_danger(Group& group) {
    const bool is_danger = group.is_danger();
    if (is_danger == group.counted) return false;
    group.counted = is_danger;
    for (const SessionId session : group.sessions()) {
        int& count = dangers.groups[session];
        count += is_danger ? 1 : -1;
        if (count == 0) dangers.groups.erase(session);
    }
    return !is_danger;
}

proto::Region Arena::wire(RegionId region) const {
    const Region& found = regions.at(region);
    return {raw(id), raw(region), leases.find(region)->epoch, found.offset, found.bytes};
}

// The owner's pid goes along so that a reader that waits for a version can see that no process will
// publish it any more.
proto::Tensor Arena::wire_tensor(RegionId region, std::int32_t owner_pid) const {
    const TensorInfo& info = *regions.at(region).tensor;
    proto::Tensor tensor{};
    tensor.region = wire(region);
    copy_name(tensor.name, info.name);
    std::copy(std::begin(info.shape), std::end(info.shape), std::begin(tensor.shape));
    tensor.dtype = info.dtype;
    tensor.ndim = info.ndim;
    tensor.owner_pid = owner_pid;
    tensor.flags = info.lasting ? proto::kTensorLasting : 0;
    return tensor;
}

proto::ArenaOpen Arena::wire() const {
    proto::ArenaOpen reply{};
    copy_name(reply.name, name);
    reply.bytes = bytes;
    // What a client needs for its mapping; the descriptor goes with it.
    reply.huge_page_bytes = static_cast<std::uint32_t>(huge_page_bytes);
    reply.arena_id = raw(id);
    reply.file_offset = files.offset;
    reply.align = align;
    reply.link_bytes = link_bytes;
    if (!files.stripes.is_one_file()) {
        reply.file_offset = proto::kNotOneFile;
        reply.pool_offset = files.offset;
        reply.stripe_bytes = files.stripes.bytes;
        reply.files = files.stripes.files;
    }
    return reply;
}

proto::Group wire(const Group& group, int rank) {
    proto::Group reply{};
    reply.arena_id = raw(group.arena);
    reply.group_id = raw(group.id);
    // Ids are never used twice, so they order the groups of a name as an epoch has to.
    reply.epoch = raw(group.id);
    copy_name(reply.name, group.name);
    reply.rank = rank;
    reply.world = group.world();
    reply.block_offset = group.block_offset;
    reply.block_bytes = group.block_bytes;
    return reply;
}

void copy_name(char (&field)[proto::kNameBytes], const std::string& text) noexcept {
    // All of the field, so that no bytes of something else go over the wire or into the journal.
    std::memset(field, 0, sizeof field);
    std::memcpy(field, text.data(), std::min(text.size(), sizeof field - 1));
}

}  // namespace fabricd
