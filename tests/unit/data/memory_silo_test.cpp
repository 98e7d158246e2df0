// Files that nothing keeps but the cache: their names, and what becomes of them when it has lost
// one.

#include "fabricd/data/silo/memory_silo.hpp"

#include <doctest/doctest.h>

#include "tests/support/silo_bench.hpp"
#include "tests/support/writer_bench.hpp"

using namespace fabricd;
using namespace test_support;
using fabricshm::Clock;
using fabricshm::Errc;

namespace {

struct Scene {
    std::shared_ptr<MadeFiles> files = std::make_shared<MadeFiles>();
    MemorySilo silo{files};
    MemoryWriter writer{files};
    WriterBench steps{writer};

    FetchOutcome fetch(const std::string& path, const FileFacts& facts, bool from_source = false) {
        Fetch fetch;
        fetch.path = path;
        fetch.facts = facts;
        fetch.tag = 7;
        fetch.from_source = from_source;
        silo.start(fetch);
        const auto ended = silo.wait(soon());
        REQUIRE(ended.size() == 1);
        CHECK(ended[0].tag == 7);
        return ended[0].outcome;
    }
    std::vector<std::string> names(const std::string& folder, std::size_t page = 2) {
        std::vector<std::string> all;
        for (const SiloEntry& entry : list_all(silo, folder, page).entries) {
            all.push_back(entry.name + (entry.is_folder ? "/" : ""));
        }
        return all;
    }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_SUITE("data.memory_silo") {
    TEST_CASE("a file is there from its commit on, in folders that are sorted by their own names") {
        Scene scene;
        CHECK(scene.names("").empty());
        REQUIRE(scene.steps.begin(1, "a/x").ok());
        REQUIRE(scene.steps.append(1, "hello").ok());
        CHECK(scene.silo.look("a/x", soon()).error().code == Errc::kNotFound);
        const Written written = scene.steps.commit(1);
        REQUIRE(written.ok());
        CHECK(written.facts.bytes == 5);
        CHECK(scene.silo.look("a/x", soon()).value() == written.facts);
        // "a-" sorts before "a/", and behind "a".
        CHECK(scene.steps.write(2, "a-", "").ok());
        CHECK(scene.steps.write(3, "a/deep/er", "12").ok());
        CHECK(scene.names("") == Names{"a/", "a-"});
        CHECK(scene.names("a", 1) == Names{"deep/", "x"});
        CHECK(scene.silo.list("b", "", 9, soon()).error().code == Errc::kNotFound);
        CHECK(scene.silo.look("a", soon()).error().code == Errc::kNotFound);
    }

    TEST_CASE("a name that is taken stays, and what is no path of a file is refused") {
        Scene scene;
        REQUIRE(scene.steps.write(1, "a/x", "1").ok());
        CHECK(scene.steps.write(2, "a/x", "2").error.code == Errc::kExists);
        CHECK(scene.steps.write(3, "a", "2").error.code == Errc::kExists);
        CHECK(scene.steps.write(4, "a/x/y", "2").error.code == Errc::kExists);
        for (const char* path : {"", "../x", "a//b", "/a"}) {
            CHECK(scene.steps.write(5, path, "2").error.code == Errc::kInvalid);
        }
        // Of two that are written at once the first that is committed.
        REQUIRE(scene.steps.begin(6, "b").ok());
        REQUIRE(scene.steps.begin(7, "b").ok());
        CHECK(scene.steps.commit(7).ok());
        CHECK(scene.steps.commit(6).error.code == Errc::kExists);
        CHECK(scene.steps.abort(6).ok());
    }

    TEST_CASE("a chunk that is asked for is lost, and its file and empty folders go with it") {
        Scene scene;
        const auto past = Clock::now() - MadeFiles::kSettles;
        const FileFacts old{3, {{1, 2, 3, 4}}};
        REQUIRE(scene.files->add("a/b/x", old, past).ok());
        REQUIRE(scene.files->add("a/y", old, past).ok());
        CHECK(scene.fetch("a/b/x", {3, {{1, 2, 3, 5}}}) == FetchOutcome::kChanged);
        CHECK(scene.silo.look("a/b/x", soon()).ok());  // another version was asked for
        CHECK(scene.fetch("a/b/x", old, true) == FetchOutcome::kFailed);
        CHECK(scene.silo.look("a/b/x", soon()).ok());  // a comparison loses nothing
        CHECK(scene.fetch("a/b/x", old) == FetchOutcome::kChanged);
        CHECK(scene.silo.look("a/b/x", soon()).error().code == Errc::kNotFound);
        CHECK(scene.names("a") == Names{"y"});
        CHECK(scene.fetch("a/y", old) == FetchOutcome::kChanged);
        CHECK(scene.names("").empty());
        CHECK(scene.steps.write(1, "a", "1").ok());
    }

    TEST_CASE("a file that was made a moment ago stays: its chunks are on their way") {
        Scene scene;
        const Written written = scene.steps.write(1, "x", "123");
        CHECK(scene.fetch("x", written.facts) == FetchOutcome::kFailed);
        CHECK(scene.silo.look("x", soon()).ok());
        // Once they have come a chunk that is asked for has left, as before.
        scene.files->settle("x", {3, {{1, 2, 3, 4}}});
        CHECK(scene.fetch("x", written.facts) == FetchOutcome::kFailed);  // another version
        const Written settled = scene.steps.write(2, "folder/x", "123");
        scene.files->settle("folder/x", settled.facts);
        CHECK(scene.silo.look("folder/x", soon()).ok());
        CHECK(scene.fetch("folder/x", settled.facts) == FetchOutcome::kChanged);
        CHECK(scene.silo.look("folder/x", soon()).error().code == Errc::kNotFound);
        // What the cache had, and has no more, is gone at once.
        scene.files->lose("x", {3, {{1, 2, 3, 4}}});
        CHECK(scene.silo.look("x", soon()).ok());  // another version
        scene.files->lose("x", written.facts);
        CHECK(scene.silo.look("x", soon()).error().code == Errc::kNotFound);
    }
}
