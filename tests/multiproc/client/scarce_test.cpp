// Opening an arena with too few descriptors, or no room for the mapping, on either side: one error,
// and nothing is left behind. Over three devices, for which regular files stand in.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"
#include "tests/support/temporary_directory.hpp"

using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Job;
using test_support::TemporaryDirectory;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kWhole =
    3 * 30 * kMiB;  // all of the pool: 32 MiB less the first block each

std::vector<std::string> devices_in(const TemporaryDirectory& directory) {
    std::string all;
    for (const char* name : {"one", "two", "three"}) {
        std::ofstream(directory.file(name)).close();
        std::filesystem::resize_file(directory.file(name), 32 * kMiB);
        all += (all.empty() ? "" : ",") + directory.file(name);
    }
    return {"--pool-backend=dax", "--pool-dax-devices=" + all, "--pool-capacity=0"};
}

rlimit limit_of(pid_t pid, __rlimit_resource what) {
    rlimit found{};
    ::prlimit(pid, what, nullptr, &found);
    return found;
}

void set_soft(pid_t pid, __rlimit_resource what, rlim_t soft) {
    rlimit changed = limit_of(pid, what);
    changed.rlim_cur = soft;
    ::prlimit(pid, what, &changed, nullptr);
}

rlim_t address_space(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
    rlim_t pages = 0;
    file >> pages;
    return pages * 4096;
}

int open_files(pid_t pid) {
    int count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
        count += entry.path().empty() ? 0 : 1;
    }
    return count;
}

// The limit with which exactly so many can be opened: the lowest free numbers are taken first.
rlim_t limit_for(pid_t pid, int more) {
    std::set<rlim_t> taken;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
        taken.insert(std::stoul(entry.path().filename().string()));
    }
    rlim_t limit = 0;
    for (; more > 0 || taken.count(limit) != 0; ++limit) more -= taken.count(limit) == 0 ? 1 : 0;
    return limit;
}

/// This process has exactly `left` descriptors to spare while it lives.
class FewDescriptors {
  public:
    explicit FewDescriptors(int left) : before_(limit_of(0, RLIMIT_NOFILE).rlim_cur) {
        set_soft(0, RLIMIT_NOFILE, 128);
        for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken_.push_back(fd);
        for (; left > 0; --left) {
            ::close(taken_.back());
            taken_.pop_back();
        }
    }
    ~FewDescriptors() {
        for (const int fd : taken_) ::close(fd);
        set_soft(0, RLIMIT_NOFILE, before_);
    }
    FewDescriptors(const FewDescriptors&) = delete;
    FewDescriptors& operator=(const FewDescriptors&) = delete;

  private:
    const rlim_t before_;
    std::vector<int> taken_;
};

// Whether an open fails at once with `code` and a text that has `words`.
bool is_refused(fabricshm_session* session, const char* name, int code, const char* words) {
    using Clock = std::chrono::steady_clock;
    fabricshm_arena* arena = nullptr;
    const auto began = Clock::now();
    const int got = fabricshm_arena_open(session, name, kWhole, 0, &arena);
    const std::string text = fabricshm_error_text();
    const bool at_once = Clock::now() - began < std::chrono::seconds(20);  // of 60 s until its end
    if (got == code && at_once && text.find(words) != std::string::npos) return true;
    std::fprintf(stderr, "%d instead of %d: %s\n", got, code, text.c_str());
    return false;
}

// All of the pool, so that nothing else of it can be granted.
bool gets_all(fabricshm_session* session, const char* name) {
    fabricshm_arena* arena = nullptr;
    if (fabricshm_arena_open(session, name, kWhole, 0, &arena) != 0) return failed(90) == 0;
    fabricshm_arena_close(arena);
    return true;
}

}  // namespace

TEST_SUITE("multiproc.client.scarce") {
    TEST_CASE("a process without descriptors for all devices has none of the arena, and says so") {
        const TemporaryDirectory directory;
        const Daemon daemon(devices_in(directory));
        Child child([&]() -> int {
            const Job job(daemon.socket(), 2 * kMiB);
            if (!job.ok) return failed(1);
            fabricshm_arena_close(job.arena);
            const int before = open_files(::getpid());
            for (int left = 0; left < 3; ++left) {
                {
                    const FewDescriptors few(left);
                    if (!is_refused(job.session, "whole", FABRICSHM_ESYSTEM, "RLIMIT_NOFILE")) {
                        return failed(2);
                    }
                }
                if (open_files(::getpid()) != before) return failed(3);
                // Of another name: the first is given back.
                if (!gets_all(job.session, "other")) return failed(4);
            }
            const FewDescriptors enough(3);
            return gets_all(job.session, "whole") ? 0 : failed(5);
        });
        CHECK(child.wait() == 0);
        CHECK(daemon.log().find("disconnected") == std::string::npos);
    }

    TEST_CASE("a second handle of an arena is none of its own: want of descriptors ends neither") {
        const TemporaryDirectory directory;
        const Daemon daemon(devices_in(directory));
        Child child([&]() -> int {
            const Job job(daemon.socket(), 4 * kMiB, "job");
            if (!job.ok) return failed(1);
            auto* words = static_cast<char*>(fabricshm_alloc(job.arena, 4096));
            if (words == nullptr) return failed(2);
            {
                const FewDescriptors few(1);
                fabricshm_arena* again = nullptr;
                // It needs none: the files are here.
                if (fabricshm_arena_open(job.session, "job", 0, 0, &again) != 0) return failed(3);
            }
            std::memset(words, 1, 4096);
            return fabricshm_alloc(job.arena, kMiB) != nullptr ? 0 : failed(4);
        });
        CHECK(child.wait() == 0);
    }

    TEST_CASE("a process without room for the mapping has none of the arena, and says so") {
        const TemporaryDirectory directory;
        const Daemon daemon(devices_in(directory));
        Child child([&]() -> int {
            const Job job(daemon.socket(), 2 * kMiB);
            if (!job.ok) return failed(1);
            fabricshm_arena_close(job.arena);
            const int before = open_files(::getpid());
            const rlim_t unlimited = limit_of(0, RLIMIT_AS).rlim_cur;
            set_soft(0, RLIMIT_AS, address_space(::getpid()) + 16 * kMiB);
            const bool refused = is_refused(job.session, "whole", FABRICSHM_ENOMEM, "RLIMIT_AS");
            set_soft(0, RLIMIT_AS, unlimited);
            if (!refused) return failed(2);
            if (open_files(::getpid()) != before) return failed(3);
            return gets_all(job.session, "other") ? 0 : failed(4);
        });
        CHECK(child.wait() == 0);
    }

    TEST_CASE("a daemon without descriptors or room for an arena refuses it, and has none of it") {
        const TemporaryDirectory directory;
        const Daemon daemon(devices_in(directory));
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = daemon.socket().c_str();
        options.timeout_ms = 60'000;
        fabricshm_session* session = nullptr;
        REQUIRE(fabricshm_session_open(&options, &session) == 0);
        // The daemon looks into a file of /proc now and then.
        int files = open_files(daemon.pid());
        for (int i = 0; i < 20; ++i) files = std::min(files, open_files(daemon.pid()));
        // What an arena had goes when its closing has been served, on other threads.
        const auto is_back = [&] {
            const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
            while (std::chrono::steady_clock::now() < deadline) {
                if (open_files(daemon.pid()) <= files) return true;
                ::sched_yield();
            }
            return false;
        };
        const auto refused_with = [&](__rlimit_resource what, rlim_t soft, int code,
                                      const char* words) {
            const rlim_t before = limit_of(daemon.pid(), what).rlim_cur;
            set_soft(daemon.pid(), what, soft);
            const bool refused = is_refused(session, "whole", code, words);
            set_soft(daemon.pid(), what, before);
            return refused && gets_all(session, "other") && is_back();
        };
        REQUIRE(gets_all(session, "first"));
        REQUIRE(is_back());
        for (int left = 0; left < 3; ++left) {
            CHECK(refused_with(RLIMIT_NOFILE, limit_for(daemon.pid(), left), FABRICSHM_ESYSTEM,
                               "fabricd has no free descriptor"));
        }
        CHECK(refused_with(RLIMIT_AS, address_space(daemon.pid()) + 16 * kMiB, FABRICSHM_ENOMEM,
                           "fabricd has no room for another mapping"));
        fabricshm_session_close(session);
    }
}
