#include "fabricd/data/catalogue/catalogue_thread.hpp"

#include <doctest/doctest.h>

#include <filesystem>

#include "fabricd/data/catalogue/sqlite.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using test_support::TemporaryDirectory;

namespace {

TimePoint soon() {
    return Clock::now() + 20s;
}

std::unique_ptr<CatalogueThread> start_in(const TemporaryDirectory& folder,
                                          CatalogueContent& content) {
    auto started = CatalogueThread::start(folder.file("catalogue"), content);
    REQUIRE(started.ok());
    return std::move(*started);
}

CataloguedFile file(std::uint64_t id) {
    return {id, "/images/" + std::to_string(id), {10, {{10, id, 0, 0}}}};
}

CataloguedPage page(const std::string& name) {
    return {"/images", "", {{{name, false, {4, {{4, 1, 0, 0}}}}}, true, 0, "", 0, ""}};
}

}  // namespace

TEST_SUITE("data.catalogue_thread") {
    TEST_CASE("what was added is there after a restart, also without a flush") {
        const TemporaryDirectory folder("/dev/shm");
        CatalogueContent content;
        {
            const auto thread = start_in(folder, content);
            CHECK(content.files.empty());
            for (std::uint64_t id = 1; id <= 1000; ++id) CHECK(thread->add(file(id), soon()));
            CHECK(thread->add(CataloguedSlot{2, 1, 3, 0, 10, 5, 0}));
            CHECK(thread->add(PutPlan{"job", "plan"}));
        }
        const auto thread = start_in(folder, content);
        CHECK(content.files.size() == 1000);
        CHECK(content.slots.size() == 1);
        CHECK(content.plans.size() == 1);
        CHECK(thread->opens() == 2);
    }

    TEST_CASE("a question sees what was added before it") {
        const TemporaryDirectory folder("/dev/shm");
        CatalogueContent content;
        const auto thread = start_in(folder, content);
        CHECK(thread->read_page("/images", "", 5, soon()).error().code == Errc::kNotFound);
        CHECK(thread->add(page("a")));
        const auto read = thread->read_page("/images", "", 5, soon());
        REQUIRE(read.ok());
        CHECK(read->entries.at(0).name == "a");
        CHECK(thread->add(page("b")));
        CHECK(thread->look("/images/b", soon()).ok());
        CHECK(thread->look("/images/a", soon()).error().code == Errc::kNotFound);
        CHECK(thread->flush(soon()));
    }

    TEST_CASE("more than the disk can take is dropped and counted, and no caller waits") {
        const TemporaryDirectory folder("/dev/shm");
        CatalogueContent content;
        const auto thread = start_in(folder, content);
        std::uint64_t dropped = 0;
        for (std::uint64_t id = 1; id <= 200'000 && dropped == 0; ++id) {
            dropped += thread->add(file(id)) ? 0U : 1U;
        }
        CHECK(dropped == 1);
        CHECK(thread->dropped() == 1);
        CHECK(thread->flush(soon()));
        CHECK(thread->add(file(1)));
    }

    TEST_CASE("a catalogue that breaks is off until the next start, which begins a new one") {
        const TemporaryDirectory folder("/dev/shm");
        CatalogueContent content;
        {
            REQUIRE(Catalogue::open(folder.file("catalogue")).ok());
            auto database = SqlDatabase::open(folder.file("catalogue"));
            REQUIRE(database.ok());
            // Each change of a plan then breaks a rule of the table.
            REQUIRE(
                database->run("DROP TABLE plans; CREATE TABLE plans(name CHECK(0), plan);").ok());
        }
        {
            const auto thread = start_in(folder, content);
            CHECK(thread->add(PutPlan{"job", "plan"}));
            CHECK_FALSE(thread->flush(soon()));
            CHECK(thread->is_off());
            CHECK_FALSE(thread->add(file(1)));
            CHECK(thread->look("/images/b", soon()).error().code == Errc::kClosed);
        }
        CHECK(std::filesystem::exists(folder.file("catalogue.bad")));
        const auto thread = start_in(folder, content);
        CHECK(thread->add(PutPlan{"job", "plan"}));
        CHECK(thread->flush(soon()));
    }
}
