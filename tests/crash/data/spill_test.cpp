// A process that is killed while it writes chunks or names: what its successor finds is right, or
// it is not there.

#include "fabricd/data/spill/spill.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>

#include "fabricd/data/spill/spill_reader.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "tests/support/children.hpp"
#include "tests/support/chunk_content.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::kKiB;
using fabricshm::kMiB;
using test_support::Child;
using test_support::content_of;
using test_support::TemporaryDirectory;

namespace {

constexpr const char* kPoints[] = {
    "catalogue.begun",  "catalogue.written", "catalogue.committed",
    "spill.files_made", "spill.slot_taken",  "spill.write",
    "spill.written",    "catalogue.renamed", "catalogue.log_removed"};
constexpr Bytes kBudget = 64 * kMiB;
constexpr unsigned kFiles = 40;
constexpr unsigned kVersions = 3;

struct Host {
    std::unique_ptr<CatalogueThread> catalogue;
    std::unique_ptr<Spill> spill;

    bool open(const std::string& folder) {
        CatalogueContent content;
        auto started = CatalogueThread::start(folder + "/catalogue", content);
        if (!started.ok()) return false;
        catalogue = std::move(*started);
        auto opened = Spill::open(folder, kBudget, *catalogue, std::move(content));
        if (!opened.ok()) return false;
        spill = std::move(*opened);
        return true;
    }
};

struct File {
    std::string path;
    FileVersion version;
    Bytes bytes;
};

// The size follows from the name, too. Some have two chunks.
File file_of(unsigned number, unsigned version) {
    File file{"/images/" + std::to_string(number), {{version, number, 0, 0}}, 0};
    const Bytes bytes = 1 + (number * 7919U + version * 104'729U) % (200 * kKiB);
    file.bytes = number % 5 == 0 ? kSlotBytes + bytes : bytes;
    return file;
}

// Stores, forgets and flushes until it is killed, or for a while. Opens `flushed` at each flush.
int play(const std::string& folder, const std::string& fault, unsigned seed,
         test_support::Gate* flushed = nullptr) {
    fabricshm::fault::arm(fault.c_str());
    Host host;
    if (!host.open(folder)) return 1;
    std::mt19937 random(seed);
    for (int step = 0; step < 70; ++step) {
        const File file = file_of(random() % kFiles, random() % kVersions);
        const auto number = file.bytes > kSlotBytes ? static_cast<std::uint32_t>(random() % 2) : 0U;
        const Bytes begin = number * kSlotBytes;
        const auto bytes =
            content_of(file.path, file.version, begin, std::min(kSlotBytes, file.bytes - begin));
        host.spill->store({file.path, file.version, number}, file.bytes, bytes,
                          fabricshm::crc32c(bytes.data(), bytes.size()), random() % 4 == 0);
        if (random() % 8 == 0) {
            if (!host.spill->flush(Clock::now() + 30s)) return 2;
            if (flushed != nullptr) flushed->open();
        }
        if (random() % 10 == 0) host.spill->forget(file.path, file.version);
        if (random() % 30 == 0) host.spill->release_kept();
    }
    return 0;
}

struct Found {
    int right = 0;
    int wrong = 0;
    std::uint64_t corrupt = 0;
};

Found look_at_all(const std::string& folder) {
    Found found;
    Host host;
    REQUIRE(host.open(folder));
    SpillReader reader(*host.spill, {});
    std::vector<std::byte> into(kSlotBytes);
    for (unsigned one = 0; one < kFiles * kVersions; ++one) {
        const File file = file_of(one / kVersions, one % kVersions);
        for (std::uint32_t number = 0; number * kSlotBytes < file.bytes; ++number) {
            const Bytes begin = number * kSlotBytes;
            const Bytes bytes = std::min(kSlotBytes, file.bytes - begin);
            if (!reader.start({{file.path, file.version, number}, bytes, into.data(), bytes, 0}))
                continue;
            const auto taken = reader.wait(Clock::now() + 30s);
            REQUIRE(taken.size() == 1);
            if (!taken[0].whole) continue;
            const auto right = content_of(file.path, file.version, begin, bytes);
            const bool is_right = std::equal(right.begin(), right.end(), into.begin());
            ++(is_right ? found.right : found.wrong);
        }
    }
    found.corrupt = host.spill->status().corrupt;
    return found;
}

void break_catalogue(const std::string& folder) {
    std::ofstream(folder + "/catalogue", std::ios::trunc) << "no database, as long as a header of "
                                                             "one would be if it were one at all";
}

}  // namespace

TEST_SUITE("crash.data.spill") {
    TEST_CASE("a process that dies at any point leaves chunks that are right or not there") {
        int right = 0;
        for (const std::string point : kPoints) {
            CAPTURE(point);
            const bool is_broken = point == "catalogue.renamed" || point == "catalogue.log_removed";
            const TemporaryDirectory folder("/dev/shm");
            // What an earlier life has left.
            REQUIRE(Child([&] { return play(folder.path(), "", 1); }).wait() == 0);
            for (const int passage : {1, 4}) {
                if (is_broken && passage > 1) break;
                if (point == "spill.files_made" && passage > 1) break;
                CAPTURE(passage);
                if (is_broken) break_catalogue(folder.path());
                const std::string fault = point + ":kill:" + std::to_string(passage);
                const auto seed = static_cast<unsigned>(10 + passage);
                Child child([&] { return play(folder.path(), fault, seed); });
                CHECK(child.wait() == 128 + SIGKILL);
                const Found found = look_at_all(folder.path());
                CHECK(found.wrong == 0);
                right += found.right;
                // Its successor goes on.
                CHECK(Child([&] { return play(folder.path(), "", seed + 1); }).wait() == 0);
                CHECK(look_at_all(folder.path()).right > 0);
            }
        }
        CHECK(right > 100);
    }

    TEST_CASE("a process that dies at any time leaves chunks that are right or not there") {
        const TemporaryDirectory folder("/dev/shm");
        std::mt19937 random(3);
        int right = 0;
        for (unsigned life = 0; life < 12; ++life) {
            CAPTURE(life);
            test_support::Gate flushed;
            constexpr int kFlushes = 4;
            Child child([&] {
                const int code = play(folder.path(), "", life, &flushed);
                for (int i = 0; i < kFlushes; ++i) flushed.open();
                return code;
            });
            // On a slow machine it would not have stored anything in any of its lives.
            CHECK(flushed.wait(static_cast<int>(life) % kFlushes));
            ::usleep(1000 * (5 + random() % 150));
            child.kill();
            const Found found = look_at_all(folder.path());
            CHECK(found.wrong == 0);
            right += found.right;
        }
        CHECK(right > 50);
    }
}
