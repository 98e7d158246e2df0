// Placement: what must hold of any good one, counted over many chunks.

#include "fabricd/data/peers/rendezvous.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

using namespace fabricd;

namespace {

constexpr std::uint32_t kChunks = 20'000;

std::vector<PeerMember> hosts(int count) {
    std::vector<PeerMember> members;
    for (int i = 0; i < count; ++i) members.push_back({"host" + std::to_string(i) + ":7400", ""});
    return members;
}

ChunkName chunk(std::uint32_t i) {
    // Names that are much alike, as those of a set are.
    return {"/images/n0144/img_" + std::to_string(i / 3) + ".jpeg", {{i / 3, 7, 0, 1}}, i % 3};
}

std::vector<std::string> addresses(const ChunkName& name, const std::vector<PeerMember>& members,
                                   unsigned copies) {
    std::vector<std::string> found;
    for (const std::size_t owner : owners_of(name, members, copies)) {
        found.push_back(members[owner].address);
    }
    return found;
}

}  // namespace

TEST_SUITE("data.rendezvous") {
    TEST_CASE("each chunk has as many different owners as asked for, or as there are") {
        const auto members = hosts(5);
        for (std::uint32_t i = 0; i < 300; ++i) {
            for (unsigned copies = 0; copies < 8; ++copies) {
                const auto owners = owners_of(chunk(i), members, copies);
                CHECK(owners.size() == std::min(copies, 5U));
                CHECK(std::set<std::size_t>(owners.begin(), owners.end()).size() == owners.size());
            }
        }
        CHECK(owners_of(chunk(1), {}, 2).empty());
    }

    TEST_CASE("more copies are the same owners and others behind them") {
        const auto members = hosts(6);
        for (std::uint32_t i = 0; i < 300; ++i) {
            auto three = owners_of(chunk(i), members, 3);
            three.pop_back();
            CHECK(three == owners_of(chunk(i), members, 2));
        }
    }

    TEST_CASE("copies are spread evenly, the first and the second alike") {
        for (const int count : {2, 3, 8, 16}) {
            CAPTURE(count);
            const auto members = hosts(count);
            std::map<std::size_t, int> first;
            std::map<std::size_t, int> all;
            for (std::uint32_t i = 0; i < kChunks; ++i) {
                const auto owners = owners_of(chunk(i), members, 2);
                ++first[owners[0]];
                for (const std::size_t owner : owners) ++all[owner];
            }
            const double share = static_cast<double>(kChunks) / count;
            for (int i = 0; i < count; ++i) {
                const auto member = static_cast<std::size_t>(i);
                // Five standard deviations of the binomial at most.
                CHECK(std::abs(first[member] - share) < 5 * std::sqrt(share));
                CHECK(std::abs(all[member] - 2 * share) < 5 * std::sqrt(2 * share));
            }
        }
    }

    TEST_CASE("a host that goes or comes moves only the chunks that it had or gets") {
        const auto eight = hosts(8);
        auto seven = eight;
        seven.erase(seven.begin() + 3);
        int moved = 0;
        for (std::uint32_t i = 0; i < kChunks; ++i) {
            const auto with = addresses(chunk(i), eight, 2);
            const auto without = addresses(chunk(i), seven, 2);
            const bool had = std::find(with.begin(), with.end(), "host3:7400") != with.end();
            if (!had) CHECK(with == without);
            moved += had ? 1 : 0;
            int same = 0;
            for (const auto& owner : with)
                same += std::count(without.begin(), without.end(), owner);
            CHECK(same == (had ? 1 : 2));
        }
        CHECK(std::abs(moved - kChunks / 4.0) < 5 * std::sqrt(kChunks / 4.0));
    }

    TEST_CASE("the order of the members' list means nothing") {
        auto members = hosts(9);
        auto turned = members;
        std::rotate(turned.begin(), turned.begin() + 4, turned.end());
        std::swap(turned[0], turned[7]);
        for (std::uint32_t i = 0; i < 500; ++i) {
            CHECK(addresses(chunk(i), members, 3) == addresses(chunk(i), turned, 3));
        }
    }

    TEST_CASE("hosts of one pool count as one, and share its chunks") {
        auto members = hosts(6);
        for (std::size_t i = 0; i < 3; ++i) members[i].pool = "rack";
        std::map<std::size_t, int> first;
        for (std::uint32_t i = 0; i < kChunks; ++i) {
            const auto owners = owners_of(chunk(i), members, 4);
            REQUIRE(owners.size() == 4);
            const auto of_pool =
                std::count_if(owners.begin(), owners.end(), [](std::size_t at) { return at < 3; });
            CHECK(of_pool == 1);
            ++first[owners[0]];
        }
        const double share = kChunks / 4.0;
        CHECK(std::abs(first[0] + first[1] + first[2] - share) < 5 * std::sqrt(share));
        for (std::size_t i = 0; i < 3; ++i) {
            CHECK(std::abs(first[i] - share / 3) < 5 * std::sqrt(share / 3));
        }
        // A pool that is called as a host is another thing.
        const std::vector<PeerMember> alike = {{"a:1", ""}, {"b:1", "a:1"}};
        CHECK(owners_of(chunk(0), alike, 2).size() == 2);
    }

    TEST_CASE("file, version and number each place a chunk elsewhere") {
        const auto members = hosts(64);
        int same = 0;
        for (std::uint32_t i = 0; i < 1000; ++i) {
            ChunkName name = chunk(i);
            const auto before = owners_of(name, members, 1);
            ChunkName other = name;
            other.version.words[3] ^= 1;
            same += owners_of(other, members, 1) == before ? 1 : 0;
            other = name;
            ++other.number;
            same += owners_of(other, members, 1) == before ? 1 : 0;
        }
        CHECK(same < 100);  // 31 of 2000 by chance
    }
}
