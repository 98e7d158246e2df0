#include "fabricd/data/catalogue/catalogue.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "fabricd/data/catalogue/sqlite.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;
using test_support::TemporaryDirectory;

namespace {

std::unique_ptr<Catalogue> open_in(const TemporaryDirectory& folder) {
    auto opened = Catalogue::open(folder.file("catalogue"));
    REQUIRE(opened.ok());
    return std::move(*opened);
}

CataloguedFile file(std::uint64_t id, const std::string& path, Bytes bytes = 10) {
    return {id, path, {bytes, {{bytes, id, 3, 0}}}};
}

std::vector<CataloguedFile> files_of(Catalogue& catalogue) {
    std::vector<CataloguedFile> files;
    REQUIRE(catalogue.read_files([&](CataloguedFile&& one) { files.push_back(one); }).ok());
    return files;
}

std::vector<CataloguedSlot> slots_of(Catalogue& catalogue) {
    std::vector<CataloguedSlot> slots;
    REQUIRE(catalogue.read_slots([&](const CataloguedSlot& one) { slots.push_back(one); }).ok());
    return slots;
}

CataloguedPage page(const std::string& after, const std::vector<std::string>& names, bool is_last,
                    Bytes bytes = 5) {
    CataloguedPage listed{"/images", after, {}};
    for (const auto& name : names) {
        listed.page.entries.push_back({name, false, {bytes, {{bytes, 1, 0, 0}}}});
    }
    listed.page.is_last = is_last;
    return listed;
}

std::vector<std::string> names_of(const SiloPage& listed) {
    std::vector<std::string> names;
    for (const auto& entry : listed.entries) names.push_back(entry.name);
    return names;
}

using Names = std::vector<std::string>;

// Of a database that no catalogue has open.
void change(const TemporaryDirectory& folder, const char* text) {
    auto database = SqlDatabase::open(folder.file("catalogue"));
    REQUIRE(database.ok());
    REQUIRE(database->run(text).ok());
}

}  // namespace

TEST_SUITE("data.catalogue") {
    TEST_CASE("what is written is read after a restart") {
        const TemporaryDirectory folder("/dev/shm");
        const CataloguedFile one = file(0x1'0000'0001, "/images/a");
        const CataloguedFile other = file(2, std::string("/images/\xff '\"b"), Bytes{1} << 40);
        const CataloguedSlot slot{3, 0xffff'ffff'ff, 2, 7, 4096, 0xffffffff, 8192};
        CatalogueIdentity identity{};
        {
            auto catalogue = open_in(folder);
            identity = catalogue->identity();
            CHECK(catalogue->opens() == 1);
            REQUIRE(catalogue->write({one, other, slot, PutPlan{"job 7", "bytes"}}).ok());
        }
        auto catalogue = open_in(folder);
        CHECK(catalogue->identity() == identity);
        CHECK(catalogue->opens() == 2);
        const auto files = files_of(*catalogue);
        REQUIRE(files.size() == 2);
        CHECK(files[0].path == other.path);
        CHECK(files[0].facts == other.facts);
        CHECK(files[1].id == one.id);
        CHECK(files[1].facts == one.facts);
        const auto slots = slots_of(*catalogue);
        REQUIRE(slots.size() == 1);
        CHECK(slots[0].sequence == slot.sequence);
        CHECK(slots[0].checksum == slot.checksum);
        CHECK(slots[0].index_at == slot.index_at);
        const auto plans = catalogue->read_plans();
        REQUIRE(plans.ok());
        REQUIRE(plans->size() == 1);
        CHECK((*plans)[0].plan == "bytes");
        REQUIRE(catalogue->write({DropFile{2}, DropSlot{3}, PutPlan{"job 7", ""}}).ok());
        CHECK(files_of(*catalogue).size() == 1);
        CHECK(slots_of(*catalogue).empty());
        CHECK(catalogue->read_plans()->empty());
    }

    TEST_CASE("a folder is read as it was last listed, page by page") {
        const TemporaryDirectory folder("/dev/shm");
        auto catalogue = open_in(folder);
        CHECK(catalogue->read_page("/images", "", 10).error().code == Errc::kNotFound);
        REQUIRE(catalogue->write({page("", {"a", "b"}, false)}).ok());
        // Not to its end yet: less than there is is not shown.
        CHECK(catalogue->read_page("/images", "", 10).error().code == Errc::kNotFound);
        REQUIRE(catalogue->write({page("b", {"c", "d"}, true)}).ok());
        auto read = catalogue->read_page("/images", "", 3);
        REQUIRE(read.ok());
        CHECK(names_of(*read) == Names{"a", "b", "c"});
        CHECK_FALSE(read->is_last);
        read = catalogue->read_page("/images", "c", 3);
        CHECK(names_of(*read) == Names{"d"});
        CHECK(read->is_last);
        CHECK(catalogue->look("/images/c")->bytes == 5);
        CHECK(catalogue->look("/images/x").error().code == Errc::kNotFound);
        CHECK(catalogue->look("/other/c").error().code == Errc::kNotFound);

        // Listed again: b is gone, c has grown; what comes behind is as it was.
        REQUIRE(catalogue->write({page("", {"a", "c"}, false, 6)}).ok());
        read = catalogue->read_page("/images", "", 10);
        CHECK(names_of(*read) == Names{"a", "c", "d"});
        CHECK(catalogue->look("/images/c")->bytes == 6);
        REQUIRE(catalogue->write({page("c", {}, true)}).ok());
        CHECK(names_of(*catalogue->read_page("/images", "", 10)) == Names{"a", "c"});
        REQUIRE(catalogue->write({DropFolder{"/images"}, DropFolder{"/none"}}).ok());
        CHECK(catalogue->read_page("/images", "", 10).error().code == Errc::kNotFound);
    }

    // Against a model: the folder as the last listing of each part had it.
    TEST_CASE("listings that overlap leave what the last of each part said") {
        const TemporaryDirectory folder("/dev/shm");
        auto catalogue = open_in(folder);
        std::mt19937 random(3);
        std::map<std::string, Bytes> model;
        REQUIRE(catalogue->write({page("", {}, true)}).ok());
        for (int step = 0; step < 300; ++step) {
            std::set<std::string> names;
            const std::string after(random() % 3, static_cast<char>('a' + random() % 8));
            for (unsigned i = random() % 6; i > 0; --i) {
                const std::string name(1 + random() % 3, static_cast<char>('a' + random() % 8));
                if (name > after) names.insert(name);
            }
            const bool is_last = random() % 4 == 0;
            const Bytes bytes = 1 + random() % 1000;
            REQUIRE(
                catalogue->write({page(after, {names.begin(), names.end()}, is_last, bytes)}).ok());
            std::erase_if(model, [&](const auto& known) {
                return known.first > after &&
                       (is_last || (!names.empty() && known.first <= *names.rbegin()));
            });
            for (const auto& name : names) model[name] = bytes;
            const auto read = catalogue->read_page("/images", "", 1000);
            REQUIRE(read.ok());
            REQUIRE(read->entries.size() == model.size());
            auto known = model.begin();
            for (const auto& entry : read->entries) {
                REQUIRE(entry.name == known->first);
                REQUIRE(entry.facts.bytes == known->second);
                ++known;
            }
        }
    }

    TEST_CASE("one process at a time has a catalogue, and the other one does not rename it") {
        const TemporaryDirectory folder("/dev/shm");
        const auto catalogue = open_in(folder);
        CHECK(Catalogue::open(folder.file("catalogue")).error().code == Errc::kBusy);
        CHECK_FALSE(std::filesystem::exists(folder.file("catalogue.bad")));
    }

    TEST_CASE("what is no catalogue is renamed, and a new one is begun") {
        const std::pair<const char*, std::string> contents[] = {
            {"text",
             "this is no database, and long enough to have a header of one hundred bytes "
             "if it were one, which it is not"},
            {"cut", "SQLite format 3"},
        };
        for (const auto& [name, text] : contents) {
            CAPTURE(name);
            const TemporaryDirectory folder("/dev/shm");
            std::ofstream(folder.file("catalogue")) << text;
            auto catalogue = open_in(folder);
            CHECK(catalogue->opens() == 1);
            CHECK(std::filesystem::file_size(folder.file("catalogue.bad")) == text.size());
            CHECK(catalogue->write({file(1, "/a/b")}).ok());
        }
    }

    TEST_CASE("another program's database and another version are renamed") {
        for (const char* text :
             {"PRAGMA application_id=7", "PRAGMA user_version=2", "DELETE FROM catalogue",
              "INSERT INTO catalogue SELECT * FROM catalogue", "DROP TABLE names",
              "UPDATE catalogue SET identity='short'", "UPDATE catalogue SET opens=4294967295",
              "ALTER TABLE files DROP COLUMN version"}) {
            CAPTURE(text);
            const TemporaryDirectory folder("/dev/shm");
            REQUIRE(open_in(folder)->write({file(1, "/a/b")}).ok());
            change(folder, text);
            auto catalogue = open_in(folder);
            CHECK(std::filesystem::exists(folder.file("catalogue.bad")));
            CHECK(files_of(*catalogue).empty());
        }
    }

    TEST_CASE("rows that no catalogue has are left out") {
        const TemporaryDirectory folder("/dev/shm");
        REQUIRE(open_in(folder)
                    ->write({file(1, "/a/b"), CataloguedSlot{1, 1, 1, 0, 5, 0, 0},
                             page("", {"a", "b", "c", "d"}, true)})
                    .ok());
        change(folder,
               "INSERT INTO files VALUES(-1, '/a/c', 1, x''), (2, 'a', 1, x''),"
               " (3, '/a/d', -1, x''), (4, '/a/e', 1, x'00'), (5, '/a/f', 1, zeroblob(1000));"
               "INSERT INTO slots VALUES(-1,0,0,0,0,0,0), (9,0,0,-1,0,0,0), (10,0,0,0,0,1<<32,0);"
               "UPDATE names SET name=x'2e2e' WHERE name=x'62';"
               "UPDATE names SET version='x' WHERE name=x'63';");
        auto catalogue = open_in(folder);
        CHECK_FALSE(std::filesystem::exists(folder.file("catalogue.bad")));
        CHECK(files_of(*catalogue).size() == 1);
        CHECK(slots_of(*catalogue).size() == 1);
        const auto read = catalogue->read_page("/images", "", 10);
        REQUIRE(read.ok());
        CHECK(names_of(*read) == Names{"a", "d"});
        CHECK(read->left_out == 2);
    }
}
