#include "fabricd/data/spill/slot_files.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::kMiB;
using test_support::TemporaryDirectory;

namespace {

std::string refusal(const std::string& folder, Bytes bytes = 8 * kMiB) {
    const auto files = SlotFiles::open(folder, bytes);
    return files.ok() ? "" : fabricshm::explanation_of(files.error());
}

Bytes allocated(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? static_cast<Bytes>(status.st_blocks) * 512 : 0;
}

}  // namespace

TEST_SUITE("data.slot_files") {
    TEST_CASE("the room is allocated when the spill begins, for this user alone") {
        const TemporaryDirectory folder;
        const auto files = SlotFiles::open(folder.path(), 9 * kMiB);
        REQUIRE(files.ok());
        CHECK(files->slots() == 2);
        const std::string path = folder.file("slots-000");
        CHECK(std::filesystem::file_size(path) == 8 * kMiB);
        CHECK(allocated(path) >= 8 * kMiB);
        CHECK((std::filesystem::status(path).permissions() & std::filesystem::perms(0077)) ==
              std::filesystem::perms::none);
        CHECK(files->offset(1) == kSlotBytes);
    }

    TEST_CASE("another budget changes the files, and those of a larger one go") {
        const TemporaryDirectory folder;
        CHECK(refusal(folder.path(), 16 * kMiB).empty());
        std::ofstream(folder.file("slots-001")) << "of before";
        CHECK(refusal(folder.path(), 8 * kMiB).empty());
        CHECK(std::filesystem::file_size(folder.file("slots-000")) == 8 * kMiB);
        CHECK_FALSE(std::filesystem::exists(folder.file("slots-001")));
    }

    TEST_CASE("one process at a time has a spill") {
        const TemporaryDirectory folder;
        {
            const auto files = SlotFiles::open(folder.path(), 8 * kMiB);
            REQUIRE(files.ok());
            CHECK(refusal(folder.path()) == folder.path() + ": another process uses this spill");
        }
        CHECK(refusal(folder.path()).empty());
    }

    TEST_CASE("a folder that can't be used is named with its reason") {
        const TemporaryDirectory folder;
        CHECK(refusal(folder.file("none")) == folder.file("none") + ": No such file or directory");
        std::ofstream(folder.file("file")) << "x";
        CHECK(refusal(folder.file("file")) == folder.file("file") + ": Not a directory");
        std::filesystem::permissions(folder.path(), std::filesystem::perms(0777));
        CHECK(refusal(folder.path()) == folder.path() + " may be written by every user");
        CHECK(spill_problem(folder.path(), 8 * kMiB) ==
              folder.path() + " may be written by every user");
    }

    TEST_CASE("a file that another could change is not used") {
        const TemporaryDirectory folder;
        std::ofstream(folder.file("other")) << "x";
        std::filesystem::create_hard_link(folder.file("other"), folder.file("slots-000"));
        CHECK(refusal(folder.path()) ==
              folder.file("slots-000") + " is no file of this user alone");
        std::filesystem::remove(folder.file("slots-000"));
        std::filesystem::create_symlink("other", folder.file("slots-000"));
        CHECK(refusal(folder.path()) ==
              folder.file("slots-000") + ": Too many levels of symbolic links");
    }

    TEST_CASE("a disk without the room is an error at the start, and nothing is left there") {
        const TemporaryDirectory folder;
        struct statvfs disk {};
        REQUIRE(::statvfs(folder.path().c_str(), &disk) == 0);
        const Bytes all = Bytes{disk.f_blocks} * disk.f_frsize;
        CHECK(spill_problem(folder.path(), 8 * kMiB).empty());
        CHECK(spill_problem(folder.path(), 2 * all)
                  .rfind(folder.path() + ": has not the room for spill_bytes ", 0) == 0);
    }
}
