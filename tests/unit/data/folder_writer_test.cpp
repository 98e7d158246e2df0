// New files of a folder: compared with what std::filesystem and streams say of it.

#include "fabricd/data/silo/folder_writer.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "fabricd/data/silo/folder_silo.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/writer_bench.hpp"

using namespace fabricd;
using namespace test_support;
using fabricshm::Errc;
using fabricshm::kMiB;

namespace {

class Bench {
  public:
    explicit Bench(FolderNaming naming) {
        std::filesystem::create_directories(root());
        writer = FolderWriter::open(root(), naming).value();
    }
    std::string root() const { return folder_.path() + "/silo"; }
    std::string at(const std::string& path) const { return root() + "/" + path; }
    std::string text(const std::string& path) const {
        std::ifstream file(at(path), std::ios::binary);
        std::ostringstream all;
        all << file.rdbuf();
        return all.str();
    }
    /// All names below the root.
    std::vector<std::string> names() const {
        std::vector<std::string> found;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(root())) {
            found.push_back(entry.path().string().substr(root().size() + 1));
        }
        std::sort(found.begin(), found.end());
        return found;
    }

    std::unique_ptr<FolderWriter> writer;

  private:
    TemporaryDirectory folder_;
};

std::string numbers(std::size_t bytes) {
    std::string text(bytes, '\0');
    for (std::size_t at = 0; at < bytes; ++at) text[at] = static_cast<char>(at * 131 + (at >> 9));
    return text;
}

constexpr FolderNaming kNamings[] = {FolderNaming::kNameless, FolderNaming::kRename,
                                     FolderNaming::kLink};
using Names = std::vector<std::string>;

}  // namespace

TEST_SUITE("data.folder_writer") {
    TEST_CASE("what is written in pieces is there whole after the commit, with what look() says") {
        for (const FolderNaming naming : kNamings) {
            CAPTURE(static_cast<int>(naming));
            const Bench bench(naming);
            const auto silo = FolderSilo::open(bench.root(), {}).value();
            WriterBench steps(*bench.writer);
            const std::size_t sizes[] = {0, 1, 5000, 9 * kMiB + 5};
            for (const std::size_t bytes : sizes) {
                CAPTURE(bytes);
                const std::string path = "deep/er/" + std::to_string(bytes);
                const std::string text = numbers(bytes);
                const Written written = steps.write(bytes, path, text, 4 * kMiB);
                CAPTURE(written.reason);
                REQUIRE(written.ok());
                CHECK(written.facts == silo->look(path, soon()).value());
                CHECK(bench.text(path) == text);
            }
            CHECK(list_all(*silo, "deep/er", 10).entries.size() == 4);
            CHECK(bench.names().size() == 6);
        }
    }

    TEST_CASE("before its commit a file has no name that a listing shows, and no folder is made") {
        for (const FolderNaming naming : kNamings) {
            CAPTURE(static_cast<int>(naming));
            const Bench bench(naming);
            std::filesystem::create_directories(bench.at("there"));
            const auto silo = FolderSilo::open(bench.root(), {}).value();
            WriterBench steps(*bench.writer);
            REQUIRE(steps.begin(1, "there/new/file").ok());
            REQUIRE(steps.append(1, "text").ok());
            const SiloPage page = list_all(*silo, "there", 10);
            CHECK(page.entries.empty());
            CHECK(page.left_out == 0);
            const std::string hidden = "there/" + temporary_name(WriterBench::token_of(1));
            CHECK(bench.names() ==
                  (naming == FolderNaming::kNameless ? Names{"there"} : Names{"there", hidden}));
            CHECK(steps.abort(1).ok());
            CHECK(bench.names() == Names{"there"});
        }
    }

    TEST_CASE("a name that is taken is refused, at the begin and at the commit") {
        for (const FolderNaming naming : kNamings) {
            CAPTURE(static_cast<int>(naming));
            const Bench bench(naming);
            std::filesystem::create_directories(bench.at("folder"));
            std::ofstream(bench.at("file")) << "old";
            WriterBench steps(*bench.writer);
            for (const char* path : {"file", "folder", "file/below"}) {
                CAPTURE(std::string(path));
                CHECK(steps.begin(1, path).error.code == Errc::kExists);
                CHECK(steps.append(1, "x").error.code == Errc::kExists);
                CHECK(steps.commit(1).error.code == Errc::kExists);
                CHECK(steps.abort(1).ok());
            }
            REQUIRE(steps.begin(1, "late").ok());
            REQUIRE(steps.begin(2, "late").ok());
            REQUIRE(steps.append(1, "first").ok());
            REQUIRE(steps.append(2, "second").ok());
            REQUIRE(steps.commit(2).ok());
            CHECK(steps.commit(1).error.code == Errc::kExists);
            CHECK(steps.abort(1).ok());
            CHECK(bench.text("late") == "second");
            CHECK(bench.text("file") == "old");
            CHECK(bench.names() == Names{"file", "folder", "late"});
        }
    }

    TEST_CASE("nothing is written outside, whatever links and paths say") {
        const Bench bench(FolderNaming::kNameless);
        std::filesystem::create_directories(bench.root() + "/../outside");
        std::filesystem::create_directory_symlink("../outside", bench.at("out"));
        std::filesystem::create_directory_symlink("nowhere", bench.at("dangling"));
        WriterBench steps(*bench.writer);
        const struct {
            const char* path;
            Errc code;
        } bad[] = {
            {"out/file", Errc::kDenied},      {"dangling/file", Errc::kExists},
            {"dangling", Errc::kExists},      {"", Errc::kInvalid},
            {"../outside/x", Errc::kInvalid}, {"/x", Errc::kInvalid},
            {"a//b", Errc::kInvalid},         {".fabric-write-0123456789abcdef", Errc::kInvalid}};
        for (const auto& one : bad) {
            CAPTURE(std::string(one.path));
            CHECK(steps.write(1, one.path, "text").error.code == one.code);
        }
        // A link that takes the place of a folder between begin and commit.
        REQUIRE(steps.begin(2, "new/file").ok());
        std::filesystem::create_directory_symlink("../outside", bench.at("new"));
        CHECK(!steps.commit(2).ok());
        CHECK(steps.abort(2).ok());
        CHECK(std::filesystem::is_empty(bench.root() + "/../outside"));
    }

    TEST_CASE("what a crash leaves is cleared by path and token, and nothing else is") {
        const Bench bench(FolderNaming::kRename);
        std::filesystem::create_directories(bench.at("a/b"));
        const std::string mine = temporary_name(0x1234);
        const std::string other = temporary_name(0x1235);
        for (const char* folder : {"", "a/", "a/b/"}) {
            std::ofstream(bench.at(folder + mine)) << "left";
            std::ofstream(bench.at(folder + other)) << "of another";
        }
        std::ofstream(bench.at("a/b/file")) << "whole";
        CHECK(bench.writer->clear({"a/b/file", 0x1234}, soon()).ok());
        CHECK(bench.writer->clear({"a/b/gone/file", 0x1234}, soon()).ok());
        CHECK(bench.writer->clear({"../x", 0x1235}, soon()).ok());
        CHECK(bench.names() == Names{other, "a", "a/" + other, "a/b", "a/b/" + other, "a/b/file"});
        CHECK(bench.text("a/b/file") == "whole");
    }

    TEST_CASE("a folder that is not there or may not be written is refused") {
        const Bench bench(FolderNaming::kNameless);
        CHECK(FolderWriter::open(bench.at("gone")).error().code == Errc::kNotFound);
        if (::geteuid() == 0) return;  // may write everywhere
        ::chmod(bench.root().c_str(), 0500);
        CHECK(FolderWriter::open(bench.root()).error().code == Errc::kDenied);
        ::chmod(bench.root().c_str(), 0700);
    }

    TEST_CASE("a writer that goes has written nothing but what was committed") {
        Bench bench(FolderNaming::kNameless);
        WriterBench steps(*bench.writer);
        REQUIRE(steps.write(1, "kept", "text").ok());
        REQUIRE(steps.begin(2, "lost").ok());
        const std::string text(1000, 'x');
        for (std::uint64_t tag = 100; bench.writer->has_room(); ++tag) {
            bench.writer->append(2, reinterpret_cast<const std::byte*>(text.data()), text.size(),
                                 tag);
        }
        bench.writer.reset();
        CHECK(bench.names() == Names{"kept"});
    }
}
