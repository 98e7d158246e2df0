#include "fabricd/data/serve/names_log.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/temporary_directory.hpp"

using namespace fabricd;

namespace {

NamedFile named(std::uint64_t id, const std::string& path) {
    NamedFile file;
    file.id = id;
    file.first_line = id * 10;
    file.path = path;
    file.facts.bytes = id * 100;
    file.facts.version.words = {id, 2, 3, 4};
    return file;
}

std::vector<NamedFile> read(const std::string& path, std::uint64_t generation = 1,
                            std::uint32_t silos = 5) {
    std::vector<NamedFile> files;
    CHECK(NamesLog::open(path, generation, silos, files).ok());
    return files;
}

std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_SUITE("data.names_log") {
    TEST_CASE("what was added and not removed is found again") {
        const test_support::TemporaryDirectory folder;
        const std::string path = folder.file("names");
        std::vector<NamedFile> none;
        auto log = NamesLog::open(path, 1, 5, none);
        REQUIRE(log.ok());
        CHECK(none.empty());
        log->add(named(1, "/a/one"));
        log->add(named(2, "/a/two"));
        log->remove(1);
        log->add(named(3, "/a/one"));
        REQUIRE(log->flush().ok());
        for (int turn = 0; turn < 2; ++turn) {
            const auto files = read(path);
            REQUIRE(files.size() == 2);
            CHECK(files[0].path == "/a/two");
            CHECK(files[1].id == 3);
            CHECK(files[1].first_line == 30);
            CHECK(files[1].facts == named(3, "").facts);
        }
    }

    TEST_CASE("names of other tables, or of other silos, count for nothing") {
        const test_support::TemporaryDirectory folder;
        const std::string path = folder.file("names");
        std::vector<NamedFile> none;
        auto log = NamesLog::open(path, 1, 5, none);
        log->add(named(1, "/a/one"));
        REQUIRE(log->flush().ok());
        const std::string text = text_of(path);
        CHECK(read(path, 2).empty());
        std::ofstream(path, std::ios::binary) << text;
        CHECK(read(path, 1, 6).empty());
        std::ofstream(path, std::ios::binary) << text;
        CHECK(read(path).size() == 1);
    }

    TEST_CASE("a file that ends anywhere, or has a wrong byte, gives what is whole before") {
        const test_support::TemporaryDirectory folder;
        const std::string path = folder.file("names");
        std::vector<NamedFile> none;
        auto log = NamesLog::open(path, 1, 5, none);
        for (std::uint64_t id = 1; id <= 3; ++id) log->add(named(id, "/a/" + std::to_string(id)));
        REQUIRE(log->flush().ok());
        const std::string text = text_of(path);
        for (std::size_t end = 0; end <= text.size(); end += 5) {
            std::ofstream(path, std::ios::binary) << text.substr(0, end);
            const auto files = read(path);
            for (std::size_t i = 0; i < files.size(); ++i) CHECK(files[i].id == i + 1);
            CHECK(files.size() <= end / 64);
        }
        for (std::size_t place = 24; place < text.size(); place += 7) {
            std::string wrong = text;
            wrong[place] = static_cast<char>(wrong[place] ^ 0x40);
            std::ofstream(path, std::ios::binary) << wrong;
            CHECK(read(path).size() < 3);
        }
    }
}
