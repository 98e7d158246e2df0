// Files that are replaced while they are read through the mount: each read is of one version, and
// the new one is found soon.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/support/mounted.hpp"
#include "tests/support/skip.hpp"

using namespace test_support;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kFiles = 4;
constexpr std::uint64_t kBytes = 300'000;

bool can_mount() {
    static const std::string kWhy = why_no_mount();
    if (!kWhy.empty()) skip(kWhy.c_str());
    return kWhy.empty();
}

// Begins with its version; sizes differ.
std::string content_at(int file, std::uint64_t version) {
    std::string content = content_of(version * kFiles + static_cast<std::uint64_t>(file), 0,
                                     kBytes + version % 7 * 1000);
    std::memcpy(content.data(), &version, sizeof version);
    return content;
}

struct Read {
    int error = 0;
    std::string bytes;
    ino_t inode = 0;
};

Read read_whole(const std::string& path) {
    Read read;
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        read.error = errno;
        return read;
    }
    struct stat status {};
    ::fstat(file, &status);
    read.inode = status.st_ino;
    std::string piece(50'000, '\0');
    ssize_t got = 0;
    while ((got = ::read(file, piece.data(), piece.size())) > 0) {
        read.bytes.append(piece, 0, static_cast<std::size_t>(got));
    }
    if (got < 0) read.error = errno;
    ::close(file);
    return read;
}

std::uint64_t version_in(const Read& read) {
    std::uint64_t version = 0;
    if (read.bytes.size() >= sizeof version)
        std::memcpy(&version, read.bytes.data(), sizeof version);
    return version;
}

std::string path_of(const std::string& folder, int file) {
    return folder + "/sub/f" + std::to_string(file);
}

struct Counts {
    std::atomic<bool> ends{false};
    std::atomic<int> whole{0};
    std::atomic<int> stale{0};
    std::atomic<int> mixed{0};
    std::atomic<int> other{0};
};

void read_on(const std::string& folder, Counts& counts) {
    for (int turn = 0; !counts.ends; ++turn) {
        const int file = turn % kFiles;
        const Read read = read_whole(path_of(folder, file));
        if (read.error == ESTALE) {
            ++counts.stale;
        } else if (read.error != 0) {
            ++counts.other;
        } else if (read.bytes == content_at(file, version_in(read))) {
            ++counts.whole;
        } else {
            ++counts.mixed;
        }
    }
}

}  // namespace

TEST_SUITE("mount.changes") {
    TEST_CASE("a read is of one version or ESTALE while files are replaced and servers killed") {
        if (!can_mount()) return;
        const TemporaryDirectory from("/dev/shm");
        std::filesystem::create_directory(from.file("sub"));
        for (int file = 0; file < kFiles; ++file)
            write_file(path_of(from.path(), file), content_at(file, 1));
        Mounted mounted(from.path(), {"--refresh", "30ms"});
        REQUIRE(mounted.is_mounted());
        Counts counts;
        std::thread readers[] = {std::thread([&] { read_on(mounted.path(), counts); }),
                                 std::thread([&] { read_on(mounted.path(), counts); })};
        std::uint64_t version = 1;
        // For four seconds, or until there was time to read something between the kills.
        const auto until = Clock::now() + 4s, limit = until + 60s;
        const auto goes_on = [&] {
            return Clock::now() < until || (counts.whole <= 20 && Clock::now() < limit);
        };
        for (int turn = 1; goes_on(); ++turn) {
            if (turn % 4 == 0) ++version;
            replace_file(path_of(from.path(), turn % kFiles), content_at(turn % kFiles, version));
            if (turn % 5 == 0) mounted.kill_server();
            ::poll(nullptr, 0, 40);
        }
        for (int file = 0; file < kFiles; ++file) {
            replace_file(path_of(from.path(), file), content_at(file, version + 1));
        }
        ::poll(nullptr, 0, 100);
        counts.ends = true;
        for (auto& reader : readers) reader.join();
        std::printf("%llu versions: %d reads of one, %d ESTALE\n",
                    static_cast<unsigned long long>(version), counts.whole.load(),
                    counts.stale.load());
        CHECK(counts.mixed == 0);
        CHECK(counts.other == 0);
        CHECK(counts.whole > 20);
        // The last version is found.
        for (int file = 0; file < kFiles; ++file) {
            const auto limit = Clock::now() + 20s;
            Read read;
            do {
                read = read_whole(path_of(mounted.path(), file));
            } while (version_in(read) != version + 1 && Clock::now() < limit);
            CHECK(read.bytes == content_at(file, version + 1));
        }
        CHECK(mounted.end() == 0);
    }

    TEST_CASE(
        "a new version is another inode, and what is open stays the old one while it is kept") {
        if (!can_mount()) return;
        const TemporaryDirectory from;
        std::filesystem::create_directory(from.file("sub"));
        write_file(path_of(from.path(), 0), content_at(0, 1));
        Mounted mounted(from.path(), {"--refresh", "30ms"});
        REQUIRE(mounted.is_mounted());
        const std::string path = path_of(mounted.path(), 0);
        const Read first = read_whole(path);
        const int held = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        replace_file(path_of(from.path(), 0), content_at(0, 2));
        Read second;
        const auto limit = Clock::now() + 20s;
        do {
            second = read_whole(path);
        } while (version_in(second) != 2 && Clock::now() < limit);
        CHECK(version_in(second) == 2);
        CHECK(second.inode != first.inode);
        // The kernel's pages of the old inode.
        std::string got(1000, '\0');
        CHECK(::pread(held, got.data(), got.size(), 0) == 1000);
        CHECK(got == content_at(0, 1).substr(0, 1000));
        // What it has no page of is no more.
        ::posix_fadvise(held, 0, 0, POSIX_FADV_DONTNEED);
        CHECK(::pread(held, got.data(), got.size(), 0) == -1);
        CHECK(errno == ESTALE);
        ::close(held);
        // Files that come and go.
        std::filesystem::remove(path_of(from.path(), 0));
        write_file(path_of(from.path(), 1), "new");
        const auto later = Clock::now() + 20s;
        while ((read_whole(path).error != ENOENT ||
                read_whole(path_of(mounted.path(), 1)).bytes != "new") &&
               Clock::now() < later) {
            ::poll(nullptr, 0, 5);
        }
        CHECK(read_whole(path).error == ENOENT);
        CHECK(read_whole(path_of(mounted.path(), 1)).bytes == "new");
        int names = 0;
        for (const auto& entry : std::filesystem::directory_iterator(mounted.path() + "/sub")) {
            CHECK(entry.path().filename() == "f1");
            ++names;
        }
        CHECK(names == 1);
    }
}
