// The kept inputs of all fuzz targets and the seeds of this build, once each, without libFuzzer.
// Also one change of each input by the targets' own mutators, which no other test runs.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "libfabricshm/base/log.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

constexpr std::size_t kMax = 64 * 1024;

std::vector<std::pair<std::string, fuzz::Buffer>> kept_inputs(const std::string& name) {
    std::vector<std::pair<std::string, fuzz::Buffer>> found;
    const std::filesystem::path folder = std::filesystem::path(FABRIC_CORPUS) / name;
    if (!std::filesystem::is_directory(folder)) return found;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        std::ifstream file(entry.path(), std::ios::binary);
        const std::string bytes{std::istreambuf_iterator<char>(file), {}};
        found.emplace_back(entry.path().string(), fuzz::buffer_of(bytes));
    }
    return found;
}

}  // namespace

TEST_SUITE("fuzz.corpus") {
    TEST_CASE("every kept input and every seed of every parser keeps the parser's rules") {
        fabricshm::set_log_level(fabricshm::LogLevel::kOff);
        REQUIRE(fuzz::targets().size() == FABRIC_FUZZ_TARGETS);
        std::mt19937 random(1);
        const auto change = [&](fuzz::Buffer& bytes, std::size_t) {
            if (!bytes.empty()) bytes[random() % bytes.size()] ^= std::byte{1};
        };
        for (const fuzz::Target& target : fuzz::targets()) {
            auto inputs = kept_inputs(target.name);
            CAPTURE(target.name);
            CHECK(!inputs.empty());
            for (const fuzz::Buffer& seed : target.seeds()) inputs.emplace_back("seed", seed);
            for (auto& [path, input] : inputs) {
                CAPTURE(path);
                target.run(input);
                if (target.mutate == nullptr) continue;
                target.mutate(input, kMax, static_cast<std::uint32_t>(random()), change);
                target.run(input);
            }
        }
    }
}
