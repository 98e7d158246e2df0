#include "fabricd/data/mount/folder_source.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;

namespace {

constexpr TimePoint kFar = TimePoint::max();

std::string text_of(const Result<MountBytes>& got) {
    const auto* const begin = reinterpret_cast<const char*>(got->bytes.data());
    return {begin, begin + got->bytes.size()};
}

}  // namespace

TEST_SUITE("mount.folder_source") {
    TEST_CASE("files and folders are listed, links inside followed, and the rest left out") {
        const test_support::TemporaryDirectory folder;
        std::filesystem::create_directories(folder.file("sub"));
        std::ofstream(folder.file("b")) << "content";
        REQUIRE(::symlink("b", folder.file("a-link").c_str()) == 0);
        REQUIRE(::symlink("/etc/passwd", folder.file("out").c_str()) == 0);
        REQUIRE(::mkfifo(folder.file("pipe").c_str(), 0600) == 0);
        FolderSource source(folder.path());
        const auto listing = source.list("", kFar).value();
        REQUIRE(listing->count() == 3);
        CHECK(listing->entry(0)->name == "a-link");
        CHECK(listing->entry(1)->facts.bytes == 7);
        CHECK(listing->entry(2)->facts.is_folder);
        CHECK(listing->find("b") == 1);
        CHECK_FALSE(listing->find("out").has_value());
        std::byte room[4];
        CHECK(text_of(listing->read(0, 3, room, kFar)) == "tent");
        CHECK(text_of(listing->read(1, 5, room, kFar)) == "nt");
        CHECK(text_of(listing->read(1, 100, room, kFar)).empty());
        CHECK(source.list("none", kFar).error().code == Errc::kNotFound);
        CHECK(source.list("b", kFar).error().code == Errc::kNotFound);
        CHECK(source.list("../", kFar).error().code == Errc::kDenied);
    }

    TEST_CASE("a file that was replaced or removed is changed, not another content") {
        const test_support::TemporaryDirectory folder;
        std::ofstream(folder.file("a")) << "old";
        std::ofstream(folder.file("b")) << "old";
        FolderSource source(folder.path());
        const auto listing = source.list("", kFar).value();
        std::ofstream(folder.file("new")) << "newer";
        std::filesystem::rename(folder.file("new"), folder.file("a"));
        std::filesystem::remove(folder.file("b"));
        std::byte room[8];
        CHECK(listing->read(0, 0, room, kFar).error().code == Errc::kChanged);
        CHECK(listing->read(1, 0, room, kFar).error().code == Errc::kChanged);
    }
}
