// The mount of a folder against the folder: names, facts and bytes, and what is not there.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "tests/support/mounted.hpp"
#include "tests/support/program.hpp"
#include "tests/support/skip.hpp"

using namespace test_support;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kLarge = (9U << 20) + 12'345;

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

bool can_mount() {
    static const std::string kWhy = why_no_mount();
    if (!kWhy.empty()) skip(kWhy.c_str());
    return kWhy.empty();
}

std::set<std::string> names_in(const std::string& path) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path)) names.insert(entry.path().filename());
    return names;
}

// A name for each byte that can be in one, and the longest.
std::vector<std::string> names_of_all_bytes() {
    std::vector<std::string> names;
    for (int byte = 1; byte < 256; ++byte) {
        if (byte != '/') names.push_back("n" + std::string(1, static_cast<char>(byte)) + "x");
    }
    names.emplace_back(255, 'l');
    return names;
}

}  // namespace

TEST_SUITE("mount.files") {
    TEST_CASE("every file has its bytes, size and time, whatever its name and size") {
        if (!can_mount()) return;
        const TemporaryDirectory from;
        fs::create_directories(from.file("deep/er/still"));
        std::uint64_t seed = 0;
        std::vector<std::string> paths;
        for (const std::string& name : names_of_all_bytes()) paths.push_back(name);
        for (const char* name : {"deep/a", "deep/er/still/b", "empty", "one", "page", "large"}) {
            paths.emplace_back(name);
        }
        const auto bytes_for = [](const std::string& path) -> std::uint64_t {
            if (path == "empty") return 0;
            if (path == "one") return 1;
            if (path == "page") return 4096;
            return path == "large" ? kLarge : 100 + path.size();
        };
        for (const std::string& path : paths) {
            write_file(from.path() + "/" + path, content_of(++seed, 0, bytes_for(path)));
        }
        Mounted mounted(from.path());
        REQUIRE(mounted.is_mounted());
        seed = 0;
        for (const std::string& path : paths) {
            CAPTURE(path);
            const std::string shown = mounted.path() + "/" + path;
            CHECK(bytes_of(shown) == content_of(++seed, 0, bytes_for(path)));
            struct stat there {
            }, here{};
            REQUIRE(::stat((from.path() + "/" + path).c_str(), &there) == 0);
            REQUIRE(::stat(shown.c_str(), &here) == 0);
            CHECK(here.st_size == there.st_size);
            CHECK(here.st_mtim.tv_sec == there.st_mtim.tv_sec);
            CHECK(here.st_mtim.tv_nsec == there.st_mtim.tv_nsec);
            CHECK(here.st_mode == (S_IFREG | 0444U));
        }
        CHECK(names_in(mounted.path()) == names_in(from.path()));
        CHECK(names_in(mounted.path() + "/deep/er") == std::set<std::string>{"still"});
        CHECK(mounted.end() == 0);
        CHECK_FALSE(mounted.is_mounted());
    }

    TEST_CASE("reads at any place and mappings have the file's bytes") {
        if (!can_mount()) return;
        const TemporaryDirectory from;
        write_file(from.file("large"), content_of(7, 0, kLarge));
        Mounted mounted(from.path());
        REQUIRE(mounted.is_mounted());
        const int file = ::open((mounted.path() + "/large").c_str(), O_RDONLY);
        REQUIRE(file >= 0);
        std::mt19937_64 random(1);
        std::string got;
        int wrong = 0;
        for (int i = 0; i < 400; ++i) {
            const std::uint64_t at = random() % (kLarge + 5000);
            got.resize(1 + random() % (i % 20 == 0 ? 6U << 20 : 9000));
            const ssize_t read = ::pread(file, got.data(), got.size(), static_cast<off_t>(at));
            const std::uint64_t left = at < kLarge ? kLarge - at : 0;
            const std::uint64_t wanted = std::min<std::uint64_t>(got.size(), left);
            if (read < 0 || static_cast<std::uint64_t>(read) != wanted) ++wrong;
            got.resize(wanted);
            if (got != content_of(7, at, wanted)) ++wrong;
            if (i % 50 == 0) ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        }
        CHECK(wrong == 0);
        void* const memory = ::mmap(nullptr, kLarge, PROT_READ, MAP_SHARED, file, 0);
        REQUIRE(memory != MAP_FAILED);
        CHECK(std::string(static_cast<const char*>(memory), kLarge) == content_of(7, 0, kLarge));
        ::munmap(memory, kLarge);
        // Past the kernel's pages.
        const int direct = ::open((mounted.path() + "/large").c_str(), O_RDONLY | O_DIRECT);
        REQUIRE(direct >= 0);
        std::string room(1 << 20, '\0');
        CHECK(::pread(direct, room.data(), room.size(), 8192) == 1 << 20);
        CHECK(room == content_of(7, 8192, 1 << 20));
        ::close(direct);
        ::close(file);
    }

    TEST_CASE("a folder of 10,000 files is walked once and whole, with its files' numbers") {
        if (!can_mount()) return;
        const TemporaryDirectory from("/dev/shm");
        for (int i = 0; i < 10'000; ++i) write_file(from.path() + "/f" + std::to_string(i), "x");
        Mounted mounted(from.path());
        REQUIRE(mounted.is_mounted());
        for (int turn = 0; turn < 2; ++turn) {  // from the server, and from the kernel's pages
            std::vector<std::string> names;
            for (const auto& entry : fs::directory_iterator(mounted.path())) {
                names.push_back(entry.path().filename());
            }
            CHECK(names.size() == 10'000);
            CHECK(std::set<std::string>(names.begin(), names.end()).size() == 10'000);
        }
        std::set<ino_t> numbers;
        for (int i = 0; i < 10'000; i += 100) {
            struct stat status {};
            CHECK(::stat((mounted.path() + "/f" + std::to_string(i)).c_str(), &status) == 0);
            numbers.insert(status.st_ino);
        }
        CHECK(numbers.size() == 100);
    }

    TEST_CASE("writing, other attributes, and names that are not there are errors") {
        if (!can_mount()) return;
        const TemporaryDirectory from;
        write_file(from.file("a"), "abc");
        write_file(from.file("secret"), "abc");
        Mounted mounted(from.path());
        REQUIRE(mounted.is_mounted());
        const std::string file = mounted.path() + "/a";
        const auto error_of = [](int result) { return result < 0 ? errno : 0; };
        CHECK(error_of(::open(file.c_str(), O_WRONLY)) == EROFS);
        CHECK(error_of(::open((mounted.path() + "/new").c_str(), O_CREAT | O_WRONLY, 0600)) ==
              EROFS);
        CHECK(error_of(::unlink(file.c_str())) == EROFS);
        CHECK(error_of(::open((mounted.path() + "/none").c_str(), O_RDONLY)) == ENOENT);
        CHECK(error_of(::open((file + "/below").c_str(), O_RDONLY)) == ENOTDIR);
        CHECK(error_of(static_cast<int>(::getxattr(file.c_str(), "user.x", nullptr, 0))) ==
              EOPNOTSUPP);
        // A later listing has it.
        write_file(from.file("later"), "here");
        std::string got;
        for (int i = 0; i < 100 && got.empty(); ++i) {
            ::usleep(50'000);
            got = bytes_of(mounted.path() + "/later");
        }
        CHECK(got == "here");
    }

    TEST_CASE("a start that fails says why, and leaves no mount") {
        if (!can_mount()) return;
        const TemporaryDirectory folder;
        fs::create_directory(folder.file("at"));
        const auto mount = [&](const std::vector<std::string>& words) {
            std::vector<std::string> all{FABRIC_MOUNT_PATH};
            all.insert(all.end(), words.begin(), words.end());
            return run_program(all);
        };
        const auto none = mount({folder.file("at"), "--from-folder", folder.file("none")});
        CHECK(none.code == 1);
        CHECK(none.error.find("fabric-mount: ") == 0);
        CHECK(bytes_of("/proc/self/mountinfo").find(folder.file("at")) == std::string::npos);
        CHECK(mount({folder.file("nowhere"), "--from-folder", folder.path()}).code == 1);
        fs::create_directory(folder.file("full"));
        write_file(folder.file("full/mine"), "hidden by a mount");
        const auto full = mount({folder.file("full"), "--from-folder", folder.file("at")});
        CHECK(full.code == 1);
        CHECK(full.error.find(folder.file("full") + " is not empty") != std::string::npos);
        CHECK(std::count(full.error.begin(), full.error.end(), '\n') == 1);
        CHECK(bytes_of(folder.file("full/mine")) == "hidden by a mount");
        CHECK(mount({folder.file("full"), "--from-folder", folder.file("at"), "--nonempty"}).code ==
              0);
        CHECK(bytes_of(folder.file("full/mine")).empty());
        CHECK(run_program({"/usr/bin/umount", folder.file("full")}).code == 0);
        CHECK(mount({folder.file("at"), "--threads", "0"}).code == 2);
        CHECK(mount({folder.file("at"), "--timeout", "soon"}).code == 2);
        CHECK(mount({folder.file("at"), "--path", "images"}).code == 2);
        CHECK(mount({}).code == 2);
        CHECK(mount({folder.file("at"), "--none"}).code == 2);
        const auto doctor =
            mount({"doctor", folder.file("at"), "--socket", folder.file("no.sock")});
        CHECK(doctor.code == 1);
        CHECK(doctor.out.find("is not mounted") != std::string::npos);
        CHECK(doctor.out.find("no data service") != std::string::npos);
    }

    TEST_CASE(
        "a mount in the background returns when files can be read, and ends with an unmount") {
        if (!can_mount()) return;
        const TemporaryDirectory folder;
        fs::create_directory(folder.file("at"));
        const TemporaryDirectory from;
        write_file(from.file("file"), "here");
        const auto begun =
            run_program({FABRIC_MOUNT_PATH, folder.file("at"), "--from-folder", from.path()});
        CHECK(begun.code == 0);
        CHECK(begun.error == "");
        CHECK(bytes_of(folder.file("at/file")) == "here");
        const auto again =
            run_program({FABRIC_MOUNT_PATH, folder.file("at"), "--from-folder", from.path()});
        CHECK(again.code == 1);
        CHECK(again.error.find("mounted already") != std::string::npos);
        CHECK(run_program({"/usr/bin/umount", folder.file("at")}).code == 0);
        CHECK(bytes_of(folder.file("at/file")).empty());
    }
}
