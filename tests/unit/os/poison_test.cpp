#include "libfabricshm/os/poison.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <thread>

#include "libfabricshm/os/mapping.hpp"

using namespace fabricshm;

namespace {

constexpr Bytes kPage = 4096;
constexpr Bytes kBytes = 16 * kPage;

/// A watched mapping full of ones.
struct Memory {
    explicit Memory(bool put_back = true)
        : file(std::make_shared<const Fd>(::memfd_create("test", MFD_CLOEXEC))) {
        REQUIRE(::ftruncate(file->get(), kBytes) == 0);
        mapping = std::move(Mapping::map(*file, 0, kBytes, {})).value();
        std::memset(data(), 1, kBytes);
        watch = std::make_unique<PoisonWatch>(
            data(), kBytes, PoisonWatch::Source{put_back ? file : nullptr, 0, kPage, true});
    }
    std::byte* data() const { return mapping.data(); }
    int read(Bytes at) const { return *reinterpret_cast<volatile char*>(data() + at); }

    std::shared_ptr<const Fd> file;
    Mapping mapping;
    std::unique_ptr<PoisonWatch> watch;
};

// How a process that runs `body` ends: as waitpid() says it.
int end_of(void (*body)(Memory&)) {
    Memory memory;
    const pid_t child = ::fork();
    if (child == 0) {
        body(memory);
        ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
}

// In front of the library's handler would be no test of passing on; this one is there before it.
[[maybe_unused]] const bool g_there_first = [] {
    struct sigaction first {};
    first.sa_handler = [](int) { ::_exit(42); };
    return ::sigaction(SIGBUS, &first, nullptr) == 0;
}();

}  // namespace

TEST_SUITE("os.poison") {
    TEST_CASE("a lost page of a striped mapping is put back from the file that it lies on") {
        constexpr Bytes kStripe = 2 * kPage;
        const auto first = std::make_shared<const Fd>(::memfd_create("first", MFD_CLOEXEC));
        const auto others = std::make_shared<std::vector<Fd>>();
        others->emplace_back(::memfd_create("second", MFD_CLOEXEC));
        REQUIRE(::ftruncate(first->get(), kBytes) == 0);
        REQUIRE(::ftruncate((*others)[0].get(), kBytes) == 0);
        const Stripes stripes{2, kStripe, kPage};
        const auto mapping =
            std::move(Mapping::map(*first, *others, stripes, kPage, kBytes, {})).value();
        for (Bytes page = 0; page < kBytes / kPage; ++page) {
            mapping.data()[page * kPage] = std::byte(page + 1);
        }
        const PoisonWatch watch(mapping.data(), kBytes,
                                {first, kPage, kPage, true, others, stripes});
        for (const Bytes page :
             {Bytes{3}, Bytes{4}}) {  // the end of a stripe, the start of the next
            auto* const place = reinterpret_cast<volatile char*>(mapping.data() + page * kPage);
            const bool is_real = lose_page(mapping.data() + page * kPage);
            {
                const PoisonGuard guard;
                CHECK(*place == 0);
                CHECK(guard.hit());
            }
            // What the file has.
            if (!is_real) CHECK(*place == static_cast<char>(page + 1));
            CHECK(find_lost(mapping.data() + page * kPage, 1) != nullptr);
        }
        CHECK(watch.lost().size() == 2);
        CHECK(watch.lost()[0].offset == 3 * kPage);
        CHECK(watch.lost()[1].offset == 4 * kPage);
    }

    TEST_CASE("a lost page is found once, noted, and never read as data afterwards") {
        const Memory memory;
        lose_page(memory.data() + 3 * kPage);
        CHECK(find_lost(memory.data(), kBytes) == nullptr);  // it was never touched
        {
            const PoisonGuard guard;
            CHECK(memory.read(2 * kPage) == 1);
            CHECK_FALSE(guard.hit());
            CHECK(memory.read(3 * kPage + 5) == 0);
            CHECK(guard.hit());
            CHECK(PoisonGuard::place() == memory.data() + 3 * kPage + 5);
        }
        const auto lost = memory.watch->lost();
        REQUIRE(lost.size() == 1);
        CHECK(lost[0].offset == 3 * kPage);
        CHECK(lost[0].bytes == kPage);
        CHECK(find_lost(memory.data(), 3 * kPage) == nullptr);
        CHECK(find_lost(memory.data(), 3 * kPage + 1) == memory.data() + 3 * kPage);
        CHECK(find_lost(memory.data() + 3 * kPage + 8, 1) == memory.data() + 3 * kPage + 8);
        CHECK(find_lost(memory.data() + 4 * kPage, kPage) == nullptr);
        // The stand-in hurts this mapping only; what the file has is shown again.
        CHECK(memory.read(3 * kPage) == 1);
    }

    TEST_CASE("stores into a lost page go nowhere and are counted too") {
        const Memory memory;
        lose_page(memory.data());
        {
            const PoisonGuard guard;
            std::memset(memory.data(), 7, 2 * kPage);
            CHECK(guard.hit());
        }
        CHECK(memory.read(0) == 1);
        CHECK(memory.read(kPage) == 7);
    }

    TEST_CASE("a guard counts the pages of its own thread alone") {
        const Memory memory;
        lose_page(memory.data());
        const PoisonGuard guard;
        bool theirs = false;
        std::thread([&] {
            const PoisonGuard other;
            (void)memory.read(0);
            theirs = other.hit();
        }).join();
        CHECK(theirs);
        CHECK_FALSE(guard.hit());
    }

    TEST_CASE("without a guard the handler that was there before gets the signal") {
        const int status = end_of([](Memory& memory) {
            lose_page(memory.data());
            (void)memory.read(0);
        });
        CHECK(WEXITSTATUS(status) == 42);
    }

    TEST_CASE("a fault outside of watched memory, or no fault at all, is passed on under a guard") {
        const int elsewhere = end_of([](Memory& memory) {
            memory.watch.reset();
            lose_page(memory.data());
            const PoisonGuard guard;
            (void)memory.read(0);
        });
        CHECK(WEXITSTATUS(elsewhere) == 42);
        const int sent = end_of([](Memory&) {
            const PoisonGuard guard;
            ::raise(SIGBUS);
        });
        CHECK(WEXITSTATUS(sent) == 42);
    }

    TEST_CASE("losses learnt from others count, and too many make all of it lost") {
        const Memory memory;
        memory.watch->learn({kPage, kPage});
        CHECK(find_lost(memory.data(), kBytes) == memory.data() + kPage);
        memory.watch->learn({kPage, kPage});
        CHECK(memory.watch->lost().size() == 1);
        for (Bytes i = 0; i < 40; ++i) memory.watch->learn({64 * i, 1});
        CHECK(find_lost(memory.data() + kBytes - 1, 1) != nullptr);
    }

    TEST_CASE("what is no longer watched is not reported") {
        Memory memory;
        memory.watch->learn({0, kPage});
        memory.watch.reset();
        CHECK(find_lost(memory.data(), kBytes) == nullptr);
    }
}
