#include "fabricd/data/peers/rendezvous.hpp"

#include <algorithm>
#include <string_view>

namespace fabricd {

namespace {

// The finaliser of SplitMix64: each bit of the result depends on each of `word`.
std::uint64_t mixed(std::uint64_t word) noexcept {
    word ^= word >> 30;
    word *= 0xbf58476d1ce4e5b9U;
    word ^= word >> 27;
    word *= 0x94d049bb133111ebU;
    return word ^ (word >> 31);
}

// FNV-1a, which all hosts have to agree about: never std::hash.
std::uint64_t hash_of(std::string_view text) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const char letter : text) {
        hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
    }
    return mixed(hash);
}

std::uint64_t hash_of(const ChunkName& chunk) noexcept {
    std::uint64_t hash = hash_of(chunk.path);
    for (const std::uint64_t word : chunk.version.words) hash = mixed(hash + word);
    return mixed(hash + chunk.number);
}

struct Weight {
    std::uint64_t of_pool;
    std::uint64_t of_member;
    std::size_t member;
};

}  // namespace

std::vector<std::size_t> owners_of(const ChunkName& chunk, std::span<const PeerMember> members,
                                   unsigned copies) {
    const std::uint64_t key = hash_of(chunk);
    std::vector<Weight> weights;
    weights.reserve(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
        const PeerMember& member = members[i];
        const std::string_view pool = member.pool.empty() ? member.address : member.pool;
        // A pool and a host that are called alike stay apart.
        const std::uint64_t kind = member.pool.empty() ? 0 : 1;
        weights.push_back(
            {mixed(key + hash_of(pool) + kind), mixed(key ^ hash_of(member.address)), i});
    }
    std::sort(weights.begin(), weights.end(), [&](const Weight& a, const Weight& b) {
        if (a.of_pool != b.of_pool) return a.of_pool > b.of_pool;
        if (a.of_member != b.of_member) return a.of_member > b.of_member;
        return members[a.member].address < members[b.member].address;
    });
    std::vector<std::size_t> owners;
    const Weight* before = nullptr;
    for (const Weight& weight : weights) {
        if (owners.size() == copies) break;
        const bool is_same_pool = before != nullptr && before->of_pool == weight.of_pool;
        if (!is_same_pool) owners.push_back(weight.member);
        before = &weight;
    }
    return owners;
}

}  // namespace fabricd
