// A process that writes a file into a folder is killed at each of its fault points. The file is
// there whole or not at all, and nothing else is after the next start has cleared.

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "fabricd/data/silo/folder_writer.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "tests/support/children.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/writer_bench.hpp"

using namespace fabricd;
using namespace test_support;
using fabricshm::Errc;
using fabricshm::kMiB;

namespace {

constexpr const char* kPath = "there/new/file";

std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::size_t files_below(const std::string& root) {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
        count += entry.is_regular_file() ? 1 : 0;
    }
    return count;
}

struct Point {
    const char* fault;
    bool is_named;  // by then
    bool of_links_alone = false;
};
constexpr Point kPoints[] = {{"data.write.begun", false},
                             {"data.write.appended", false},
                             {"data.write.appended:kill:2", false},
                             {"data.write.synced", false},
                             {"data.write.foldered", false},
                             {"data.write.two_names", true, true},
                             {"data.write.named", true}};

void kill_at(const Point& point, FolderNaming naming) {
    const TemporaryDirectory folder;
    std::filesystem::create_directories(folder.file("there"));
    const std::string text(9 * kMiB, 'x');
    Child victim([&] {
        fabricshm::fault::arm(point.fault);
        const auto writer = FolderWriter::open(folder.path(), naming).value();
        WriterBench(*writer).write(1, kPath, text);
        return 0;
    });
    CHECK(victim.wait() == 128 + SIGKILL);
    const auto writer = FolderWriter::open(folder.path(), naming).value();
    CHECK(writer->clear({kPath, WriterBench::token_of(1)}, soon()).ok());
    CHECK(files_below(folder.path()) == (point.is_named ? 1 : 0));
    if (point.is_named) CHECK(text_of(folder.file(kPath)) == text);
    const Written again = WriterBench(*writer).write(1, kPath, text);
    CHECK(again.error.code == (point.is_named ? Errc::kExists : Errc::kOk));
    CHECK(text_of(folder.file(kPath)) == text);
    CHECK(files_below(folder.path()) == 1);
}

}  // namespace

TEST_SUITE("crash.data.killed_writer") {
    TEST_CASE("after a death at any point the file is there whole or not at all") {
        for (const auto naming :
             {FolderNaming::kNameless, FolderNaming::kRename, FolderNaming::kLink}) {
            CAPTURE(static_cast<int>(naming));
            for (const Point& point : kPoints) {
                if (point.of_links_alone && naming != FolderNaming::kLink) continue;
                CAPTURE(std::string(point.fault));
                kill_at(point, naming);
            }
        }
    }
}
