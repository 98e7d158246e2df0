#include "libfabricshm/collective/tuner.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

using namespace fabricshm;

namespace {

struct TemporaryFolder {
    TemporaryFolder() {
        char pattern[] = "/tmp/fabric-tuner-XXXXXX";
        path = ::mkdtemp(pattern);
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path); }
    std::string path;
};

std::string text_of_file(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

TEST_SUITE("collective.tuner") {
    TEST_CASE("probes are timed by real ranks, in the arena and outside") {
        TuneOptions options;
        options.world = 3;
        options.sample = std::chrono::milliseconds(1);
        const auto times = time_probes(options, machine_tuning(3),
                                       {{8, true}, {64 * kKiB, true}, {64 * kKiB, false}});
        REQUIRE(times.ok());
        REQUIRE(times->size() == 3);
        for (const double nanoseconds : *times) CHECK(nanoseconds > 0);
    }

    TEST_CASE("a whole tuning stays within its ranges and is reported step by step") {
        TuneOptions options;
        options.world = 2;
        options.rounds = 1;
        options.sample = std::chrono::microseconds(50);
        int lines = 0;
        options.progress = [&](const std::string&) { ++lines; };
        const auto tuning = measure_tuning(options);
        REQUIRE(tuning.ok());
        CHECK(lines == 6);
        CHECK(parse_tuning(format_tuning(*tuning, 2), 2, {}).value() == *tuning);
    }

    TEST_CASE("saving replaces the lines of its own world size and keeps the others") {
        const TemporaryFolder folder;
        const std::string path = folder.path + "/deep/tuning.conf";
        Tuning tuning;
        tuning.spins = 11;
        REQUIRE(save_tuning(path, tuning, 2).ok());
        tuning.spins = 22;
        REQUIRE(save_tuning(path, tuning, 4).ok());
        tuning.spins = 33;
        REQUIRE(save_tuning(path, tuning, 2).ok());
        const std::string text = text_of_file(path);
        CHECK(parse_tuning(text, 2, {}).value().spins == 33);
        CHECK(parse_tuning(text, 4, {}).value().spins == 22);
        CHECK(text.find("2.spins = 11") == std::string::npos);
    }

    TEST_CASE("a place that cannot be written is an error") {
        CHECK_FALSE(save_tuning("/proc/none/tuning.conf", {}, 2).ok());
        CHECK_FALSE(check_tuning_file("/proc/none/tuning.conf").ok());
    }

    TEST_CASE("a device or a pipe is not replaced by a file") {
        const TemporaryFolder folder;
        const std::string pipe = folder.path + "/pipe";
        REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
        CHECK(check_tuning_file(pipe).error().code == Errc::kInvalid);
        CHECK(save_tuning(pipe, {}, 2).error().code == Errc::kInvalid);
        CHECK(std::filesystem::is_fifo(pipe));
        CHECK(save_tuning("/dev/full", {}, 2).error().code == Errc::kInvalid);
        const std::string fine = folder.path + "/deep/tuning.conf";
        CHECK(check_tuning_file(fine).ok());
        CHECK_FALSE(std::filesystem::exists(fine));
        CHECK_FALSE(std::filesystem::exists(fine + ".new"));
    }
}
