#include "fabricd/slurm/plugin_settings.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "libfabricshm/base/reason.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Errc;

namespace {

// "" when they are good.
std::string problem_of(std::vector<const char*> words, PluginSettings& settings) {
    const auto read = read_settings(words, settings);
    if (read.ok()) return "";
    CHECK(read.error().code == Errc::kInvalid);
    return fabricshm::explanation_of(read.error());
}

std::string problem_of(std::vector<const char*> words) {
    PluginSettings settings;
    return problem_of(std::move(words), settings);
}

}  // namespace

TEST_SUITE("fabricd.slurm.plugin_settings") {
    TEST_CASE("without a word the daemon is the one of the system") {
        PluginSettings settings;
        CHECK(problem_of({}, settings) == "");
        CHECK(settings.socket == "/run/fabricd/attach.sock");
        CHECK(admin_socket_of(settings) == "/run/fabricd/admin.sock");
        CHECK(settings.fabricctl == "/usr/bin/fabricctl");
        CHECK(settings.timeout == 5s);
    }

    TEST_CASE("the words of plugstack.conf replace the defaults") {
        PluginSettings settings;
        CHECK(problem_of({"socket=/a/b=c/attach.sock", "fabricctl=/opt/fabricctl", "timeout=60",
                          "spool=/s"},
                         settings) == "");
        CHECK(settings.spool == "/s");
        CHECK(settings.socket == "/a/b=c/attach.sock");
        CHECK(admin_socket_of(settings) == "/a/b=c/admin.sock");
        CHECK(settings.fabricctl == "/opt/fabricctl");
        CHECK(settings.timeout == 60s);
    }

    TEST_CASE("a wrong word is named") {
        for (const char* word :
             {"sokcet=/a", "socket", "socket=", "socket=attach.sock", "fabricctl=fabricctl",
              "timeout=0", "timeout=61", "timeout=5s", "timeout=", "timeout=-1", "--verbose", ""}) {
            CAPTURE(word);
            CHECK(problem_of({"timeout=7", word}).find("'" + std::string(word) + "'") !=
                  std::string::npos);
        }
    }

    TEST_CASE("a size is bytes with a unit, and never 0") {
        CHECK(read_size("64M").value() == 64ULL << 20);
        CHECK(read_size("48G").value() == 48ULL << 30);
        CHECK(read_size("1.5GiB").value() == 3ULL << 29);
        CHECK(read_size("4096").value() == 4096);
        for (const char* text : {"0", "0G", "", "G", "64X", "-1", "64M M", "nan", "1e30", "1.5",
                                 "1.", "4GB", "1e3", "1e3G", "1.G", ".5G", "1..5G"}) {
            CAPTURE(text);
            const auto size = read_size(text);
            REQUIRE_FALSE(size.ok());
            CHECK(fabricshm::explanation_of(size.error()).find("'" + std::string(text) + "'") == 0);
        }
        CHECK_FALSE(read_size(nullptr).ok());
        CHECK(fabricshm::explanation_of(read_size("4GB").error()).find("as GiB") !=
              std::string::npos);
        CHECK(fabricshm::explanation_of(read_size("1.5").error()).find("no unit") !=
              std::string::npos);
    }

    TEST_CASE("an arena has the number of its job") {
        CHECK(arena_of_job(17) == "slurm-17");
        CHECK(arena_of_job(4294967295U) == "slurm-4294967295");
    }
}
