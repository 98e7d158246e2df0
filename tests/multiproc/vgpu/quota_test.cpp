#include <doctest/doctest.h>

#include <thread>

#include "tests/support/mock_gpu/stage.hpp"

TEST_SUITE_BEGIN("vgpu.quota");

using fabricshm::kMiB;
using mock_gpu::slice;
using mock_gpu::Stage;

namespace {

constexpr auto kOutOfMemory = "2";

std::string bytes(std::uint64_t count) {
    return std::to_string(count);
}

}  // namespace

TEST_CASE("a process gets its quota to the last block, and not one more") {
    Stage stage({slice("half", 16 * kMiB)});
    const auto player = stage.player("half");
    CHECK(player->ask("alloc " + bytes(14 * kMiB)) == "ok 0");
    CHECK(player->ask("alloc " + bytes(2 * kMiB + 1)) == kOutOfMemory);
    CHECK(player->ask("alloc " + bytes(2 * kMiB)) == "ok 1");
    CHECK(player->ask("alloc 1") == kOutOfMemory);
    CHECK(player->ask("free 0") == "ok");
    CHECK(player->ask("alloc 1") == "ok 2");
    CHECK(stage.view("half").used_bytes == 2 * kMiB + 512);
    CHECK(stage.gpu().peak.load() == 16 * kMiB);
}

TEST_CASE("a process without a vGPU is not limited") {
    Stage stage({slice("half", 16 * kMiB)});
    const auto player = stage.player("");
    CHECK(player->ask("alloc " + bytes(64 * kMiB)) == "ok 0");
    CHECK(stage.view("half").used_bytes == 0);
}

TEST_CASE("of two names for one GPU the first counts, also when they name it differently") {
    for (const char* gpu : {"0", "GPU-00112233-4455-6677-8899-aabbccddeeff"}) {
        CAPTURE(gpu);
        auto second = slice("second", 8 * kMiB);
        second.gpu = gpu;
        Stage stage({slice("first", 16 * kMiB), second});
        const auto player = stage.player("first,second");
        CHECK(player->ask("alloc " + bytes(16 * kMiB)) == "ok 0");
        CHECK(player->ask("alloc 1") == kOutOfMemory);
        CHECK(stage.view("first").used_bytes == 16 * kMiB);
        CHECK(stage.view("second").used_bytes == 0);
        const auto other = stage.player("second,first");
        CHECK(other->ask("alloc " + bytes(8 * kMiB + 1)) == kOutOfMemory);
        CHECK(other->ask("alloc " + bytes(8 * kMiB)) == "ok 0");
        CHECK(stage.view("second").used_bytes == 8 * kMiB);
    }
}

TEST_CASE("a process that is killed gives its memory back") {
    Stage stage({slice("half", 16 * kMiB)});
    auto player = stage.player("half");
    CHECK(player->ask("alloc " + bytes(10 * kMiB)) == "ok 0");
    CHECK(stage.view("half").used_bytes == 10 * kMiB);
    player->kill();
    CHECK(stage.settles_at("half", 0));
}

TEST_CASE("64 processes together never pass the quota by a byte") {
    constexpr int kPlayers = 64;
    constexpr std::uint64_t kQuota = 64 * kMiB + 512;
    Stage stage({slice("half", kQuota)});
    std::vector<std::unique_ptr<mock_gpu::Player>> players;
    for (int i = 0; i < kPlayers; ++i) players.push_back(stage.player("half"));
    for (int i = 0; i < kPlayers; ++i) {
        players[static_cast<std::size_t>(i)]->tell("race " + std::to_string(i) + " 60 6000000");
    }
    std::uint64_t refused = 0;
    for (auto& player : players) {
        std::istringstream answer(player->answer());
        std::string word;
        std::uint64_t of_it = 0;
        std::uint64_t wrong = 1;
        answer >> word >> of_it >> wrong;
        CHECK(word == "ok");
        CHECK(wrong == 0);
        refused += of_it;
    }
    CHECK(refused > 0);  // otherwise nothing was tried
    CHECK(stage.gpu().peak.load() <= kQuota);
    CHECK(stage.view("half").peak_bytes <= kQuota);
    // What the driver still holds (a pool's unused memory) and what is counted agree.
    CHECK(stage.view("half").used_bytes == mock_gpu::used_by_all(stage.gpu()));
    players.clear();
    CHECK(stage.settles_at("half", 0));
}

TEST_SUITE_END();
