// fabricd, `fabric-data serve` over a folder, and a mount of it: what is read is what the folder
// has, while the mount's server and the service are killed and files are replaced.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <random>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/data_serve_process.hpp"
#include "tests/support/mounted.hpp"
#include "tests/support/program.hpp"
#include "tests/support/skip.hpp"

using namespace test_support;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kFiles = 60;

bool can_mount() {
    static const std::string kWhy = why_no_mount();
    if (!kWhy.empty()) skip(kWhy.c_str());
    return kWhy.empty();
}

std::string name_of(int file) {
    return (file % 2 == 0 ? "even/f" : "odd/f") + std::to_string(file);
}

// Begins with its version. Some are of two chunks.
std::string content_at(int file, std::uint64_t version) {
    const std::uint64_t bytes =
        file % 6 == 1 ? 4'500'000 : 20'000 + 100 * static_cast<unsigned>(file);
    std::string content = content_of(version * 1000 + static_cast<std::uint64_t>(file), 0, bytes);
    std::memcpy(content.data(), &version, sizeof version);
    return content;
}

struct Scene {
    TemporaryDirectory folder{"/dev/shm"};
    Daemon daemon;
    std::string silo = folder.file("silo");
    std::string socket = folder.file("data.sock");
    std::string file = folder.file("data.toml");
    std::unique_ptr<DataServeProcess> service;
    std::unique_ptr<Mounted> mount;

    explicit Scene(const std::string& memory) {
        std::filesystem::create_directories(silo + "/even");
        std::filesystem::create_directories(silo + "/odd");
        std::ofstream(file) << "[cache]\nmemory = \"" << memory
                            << "\"\nsilo_timeout = \"20s\"\n[[silo]]\nat = \"/set\"\nfrom = \""
                            << silo << "\"\nrefresh = \"100ms\"\n";
        for (int i = 0; i < kFiles; ++i) write_file(silo + "/" + name_of(i), content_at(i, 1));
        service =
            std::make_unique<DataServeProcess>(FABRIC_DATA_PATH, file, socket, daemon.socket());
        mount = mount_with("30s");
    }
    std::unique_ptr<Mounted> mount_with(const std::string& timeout) const {
        return std::make_unique<Mounted>(
            "",
            std::vector<std::string>{"--path", "/set", "--socket", socket, "--refresh", "50ms",
                                     "--timeout", timeout},
            std::vector<std::pair<std::string, std::string>>{{"FABRIC_SOCKET", daemon.socket()}});
    }
    std::string path(int number) const { return mount->path() + "/" + name_of(number); }
};

struct Seen {
    std::atomic<bool> ends;
    std::atomic<int> whole;
    std::atomic<int> stale;
    std::atomic<int> wrong;
    std::atomic<int> errors;
    std::atomic<int> last_error;
    std::atomic<std::int64_t> longest_ns;
};

struct SharedSeen {
    void* const memory =
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Seen& seen = *new (memory) Seen{};
    ~SharedSeen() { ::munmap(memory, 4096); }
};

// The whole file, or -errno. `cold`: the kernel keeps none of it.
std::string read_whole(const std::string& path, bool cold, int& error) {
    error = 0;
    std::string bytes;
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) error = errno;
    if (file < 0) return bytes;
    std::string piece(100'000, '\0');
    ssize_t got = 0;
    while ((got = ::read(file, piece.data(), piece.size())) > 0) {
        bytes.append(piece, 0, static_cast<std::size_t>(got));
    }
    if (got < 0) error = errno;
    if (cold) ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
    return bytes;
}

std::uint64_t version_in(const std::string& bytes) {
    std::uint64_t version = 0;
    if (bytes.size() >= sizeof version) std::memcpy(&version, bytes.data(), sizeof version);
    return version;
}

int read_on(const Scene& scene, std::uint64_t seed, Seen& seen) {
    std::mt19937_64 random(seed);
    while (!seen.ends) {
        const int number = static_cast<int>(random() % kFiles);
        int error = 0;
        const auto began = Clock::now();
        const std::string bytes = read_whole(scene.path(number), random() % 2 == 0, error);
        const std::int64_t took = (Clock::now() - began) / 1ns;
        std::int64_t longest = seen.longest_ns;
        while (took > longest && !seen.longest_ns.compare_exchange_weak(longest, took)) {
        }
        if (error == ESTALE) {
            ++seen.stale;
        } else if (error != 0) {
            seen.last_error = error;
            ++seen.errors;
        } else if (bytes == content_at(number, version_in(bytes))) {
            ++seen.whole;
        } else {
            ++seen.wrong;
        }
    }
    return 0;
}

}  // namespace

TEST_SUITE("mount.cache") {
    TEST_CASE("the mount has the silo's files, and what is in the pool without the service") {
        if (!can_mount()) return;
        Scene scene("96MiB");
        REQUIRE(scene.service->is_up());
        REQUIRE_MESSAGE(scene.mount->is_mounted(), scene.mount->log());
        // For what is to end in an error alone.
        const auto brief = scene.mount_with("500ms");
        REQUIRE_MESSAGE(brief->is_mounted(), brief->log());
        int error = 0;
        for (int i = 0; i < kFiles - 1; ++i) {  // the last one is not fetched
            CHECK(read_whole(scene.path(i), true, error) == content_at(i, 1));
            CHECK(error == 0);
            struct stat here {
            }, there{};
            CHECK(::stat(scene.path(i).c_str(), &here) == 0);
            CHECK(::stat((scene.silo + "/" + name_of(i)).c_str(), &there) == 0);
            CHECK(here.st_size == there.st_size);
        }
        int names = 0;
        for (const auto& entry :
             std::filesystem::recursive_directory_iterator(scene.mount->path())) {
            names += entry.is_regular_file() ? 1 : 0;
        }
        CHECK(names == kFiles);
        struct stat known {};
        CHECK(::stat((brief->path() + "/" + name_of(kFiles - 1)).c_str(), &known) == 0);
        CHECK(read_whole(scene.mount->path() + "/even/none", false, error).empty());
        CHECK(error == ENOENT);
        // What is in the pool is read without the service.
        scene.service->kill();
        for (int i = 0; i < kFiles - 1; ++i) {
            CHECK(read_whole(scene.path(i), true, error) == content_at(i, 1));
        }
        CHECK(read_whole(brief->path() + "/" + name_of(kFiles - 1), true, error).empty());
        CHECK(error == EIO);
        CHECK_MESSAGE(brief->log().find(name_of(kFiles - 1) + ": ") != std::string::npos,
                      brief->log());
        scene.service->start();
        CHECK(read_whole(scene.path(kFiles - 1), true, error) == content_at(kFiles - 1, 1));
        CHECK(brief->end() == 0);
        CHECK(scene.mount->end() == 0);
        CHECK_FALSE(scene.mount->is_mounted());
    }

    TEST_CASE("a file is no folder that could be mounted") {
        if (!can_mount()) return;
        const Scene scene("96MiB");
        REQUIRE(scene.service->is_up());
        const TemporaryDirectory at;
        const auto refused = run_program({FABRIC_MOUNT_PATH, at.path(), "--path",
                                          "/set/" + name_of(0), "--socket", scene.socket},
                                         {{"FABRIC_SOCKET", scene.daemon.socket()}});
        CHECK(refused.code == 1);
        CHECK(refused.error.find("/set/" + name_of(0) + " is a file") != std::string::npos);
        CHECK(std::count(refused.error.begin(), refused.error.end(), '\n') == 1);
    }

    TEST_CASE("kills of the mount's server and of the service lose no read") {
        if (!can_mount()) return;
        // Smaller than the files, 45 MB: they are fetched again and again.
        Scene scene("32MiB");
        REQUIRE(scene.service->is_up());
        REQUIRE_MESSAGE(scene.mount->is_mounted(), scene.mount->log());
        SharedSeen shared;
        Seen& seen = shared.seen;
        std::vector<Child> readers;
        for (std::uint64_t i = 0; i < 3; ++i) {
            readers.emplace_back([&, i] { return read_on(scene, 5 + i, seen); });
        }
        int kills = 0;
        // For six seconds, or until there were as many kills and reads as are to be seen.
        const auto until = Clock::now() + 6s, limit = until + 60s;
        const auto goes_on = [&] {
            const bool has_all = kills >= 8 && seen.whole > 50;
            return Clock::now() < until || (!has_all && Clock::now() < limit);
        };
        for (int turn = 1; goes_on(); ++turn) {
            // Each server has answered before it is killed, however long it takes to start.
            const int before = seen.whole;
            ::poll(nullptr, 0, 250);
            while (seen.whole == before && Clock::now() < limit) ::poll(nullptr, 0, 10);
            kills += scene.mount->kill_server() ? 1 : 0;
            if (turn % 6 == 0) {
                scene.service->kill();
                scene.service->start();
            }
        }
        seen.ends = true;
        for (auto& reader : readers) CHECK(reader.wait() == 0);
        std::printf("%d kills, %d files read, longest %.1f ms, %d ESTALE\n", kills,
                    seen.whole.load(), static_cast<double>(seen.longest_ns) * 1e-6,
                    seen.stale.load());
        CHECK(kills >= 8);
        CHECK(seen.whole > 50);
        CHECK(seen.wrong == 0);
        CHECK(seen.stale == 0);
        CHECK_MESSAGE(seen.errors == 0, "errno ", seen.last_error.load(), "\n", scene.mount->log());
    }

    TEST_CASE("files that are replaced are read as one version, and the new one is found") {
        if (!can_mount()) return;
        Scene scene("96MiB");
        REQUIRE(scene.service->is_up());
        REQUIRE_MESSAGE(scene.mount->is_mounted(), scene.mount->log());
        SharedSeen shared;
        Seen& seen = shared.seen;
        std::vector<Child> readers;
        for (std::uint64_t i = 0; i < 2; ++i) {
            readers.emplace_back([&, i] { return read_on(scene, 5 + i, seen); });
        }
        std::uint64_t version = 1;
        for (int turn = 0; turn < 60; ++turn) {
            if (turn % 20 == 0) ++version;
            replace_file(scene.silo + "/" + name_of(turn), content_at(turn, version));
            if (turn % 15 == 7) scene.mount->kill_server();
            ::poll(nullptr, 0, 40);
        }
        const auto limit = Clock::now() + 60s;
        while (seen.whole <= 20 && Clock::now() < limit) ::poll(nullptr, 0, 1);
        seen.ends = true;
        for (auto& reader : readers) CHECK(reader.wait() == 0);
        std::printf("%d files read of one version, %d ESTALE\n", seen.whole.load(),
                    seen.stale.load());
        CHECK(seen.wrong == 0);
        CHECK_MESSAGE(seen.errors == 0, "errno ", seen.last_error.load(), "\n", scene.mount->log());
        CHECK(seen.whole > 20);
        for (int i = 0; i < kFiles; ++i) {
            const std::uint64_t last = 2 + static_cast<std::uint64_t>(i) / 20;
            const auto limit = Clock::now() + 20s;
            std::string bytes;
            int error = 0;
            while (version_in(bytes) != last && Clock::now() < limit) {
                bytes = read_whole(scene.path(i), false, error);
            }
            CHECK(bytes == content_at(i, last));
        }
    }
}
