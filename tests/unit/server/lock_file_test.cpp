#include "fabricd/server/lock_file.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;
using test_support::TemporaryDirectory;

TEST_SUITE("server.lock_file") {
    TEST_CASE("a lock is held once and goes with its file") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("lock");
        {
            const LockFile lock = LockFile::take(path).value();
            CHECK(LockFile::take(path).error().code == Errc::kBusy);
        }
        CHECK_FALSE(std::filesystem::exists(path));
        CHECK(LockFile::take(path).ok());
    }

    TEST_CASE("a file that a killed holder left is taken over") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("lock");
        std::ofstream(path) << "left behind";
        CHECK(LockFile::take(path).ok());
    }

    TEST_CASE(
        "missing directories are made for the owner alone, a file in their place is refused") {
        const TemporaryDirectory directory;
        REQUIRE(make_directory(directory.file("a/b/c"), 0700).ok());
        struct stat status {};
        REQUIRE(::stat(directory.file("a/b").c_str(), &status) == 0);
        CHECK((status.st_mode & 0777) == 0700);
        CHECK(make_directory(directory.file("a/b/c"), 0700).ok());
        std::ofstream(directory.file("file")) << "x";
        CHECK_FALSE(make_directory(directory.file("file"), 0700).ok());
        CHECK_FALSE(make_directory(directory.file("file/below"), 0700).ok());
    }

    TEST_CASE("a folder that all users may write is refused, sticky or not") {
        const TemporaryDirectory directory;
        for (const mode_t mode : {0777, 01777, 0702}) {
            REQUIRE(::chmod(directory.path().c_str(), mode) == 0);
            CHECK(check_not_open_to_all(directory.path()).error().code == Errc::kDenied);
        }
        REQUIRE(::chmod(directory.path().c_str(), 0770) == 0);
        CHECK(check_not_open_to_all(directory.path()).ok());
        CHECK(check_not_open_to_all(directory.file("none")).error().code == Errc::kNotFound);
    }
}
