#include "tests/support/fault_image.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <tuple>

#include "fabricd/pool/lease.hpp"
#include "libfabricshm/base/result.hpp"

namespace test_support {

namespace {

bool is_free(const fabricd::RegionRecord& region) {
    return region.state == static_cast<std::uint32_t>(fabricd::LeaseState::kFree);
}

bool knows(const fabricd::PoolImage& image, const JobClaim& claim) {
    return std::any_of(image.arenas.begin(), image.arenas.end(), [&](const auto& arena) {
        const auto found = arena.second.regions.find(fabricd::RegionId{claim.id});
        if (found == arena.second.regions.end() || is_free(found->second)) return false;
        const fabricd::RegionRecord& region = found->second;
        return region.generation == claim.generation && region.offset == claim.offset &&
               region.bytes == claim.bytes;
    });
}

}  // namespace

fabricd::PoolImage pool_image_in(const std::string& state_dir, std::string& problem) {
    std::ifstream file(state_dir + "/journal", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto contents = fabricd::parse_journal(std::as_bytes(std::span(text)));
    auto image = fabricd::replay(contents);
    if (image.ok()) return std::move(image).value();
    problem = "journal: " + fabricshm::describe(image.error());
    return {};
}

std::vector<std::string> two_owners(const fabricd::PoolImage& image,
                                    const std::vector<JobClaim>& claims) {
    std::vector<std::string> problems;
    for (const auto& [id, arena] : image.arenas) {
        std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces;  // first byte, end
        for (const auto& [region_id, region] : arena.regions) {
            if (is_free(region)) continue;
            pieces.emplace_back(region.offset, region.offset + region.bytes);
        }
        for (const auto& [group_id, group] : arena.groups) {
            const std::uint64_t begin = group.record.block_offset;
            pieces.emplace_back(begin, begin + group.record.block_bytes);
        }
        std::sort(pieces.begin(), pieces.end());
        for (std::size_t i = 1; i < pieces.size(); ++i) {
            if (pieces[i - 1].second <= pieces[i].first) continue;
            problems.push_back("two owners at offset " + std::to_string(pieces[i].first));
        }
    }
    for (const JobClaim& claim : claims) {
        if (knows(image, claim)) continue;
        problems.push_back("region " + std::to_string(claim.id) + " was promised and is not there");
    }
    return problems;
}

}  // namespace test_support
