#include "libfabricshm/base/log_spdlog.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "libfabricshm/base/log.hpp"

using namespace fabricshm;

namespace {

std::string contents(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

TEST_SUITE("fabricd.log_spdlog") {
    TEST_CASE("lines reach the file with their level, and a renamed file is opened again") {
        char folder[] = "/tmp/fabric-log-XXXXXX";
        REQUIRE(::mkdtemp(folder) != nullptr);
        const std::string path = std::string(folder) + "/fabricd.log";
        REQUIRE(install_spdlog(path).ok());
        REQUIRE(set_log_level_by_name("info").ok());
        log(LogLevel::kDebug, "dropped");
        log(LogLevel::kInfo, "first {} %d", 7);
        CHECK(contents(path).find(" info: first {} 7\n") != std::string::npos);
        CHECK(contents(path).find("dropped") == std::string::npos);

        std::filesystem::rename(path, path + ".1");
        log(LogLevel::kInfo, "still in the old file");
        REQUIRE(reopen_spdlog().ok());
        log(LogLevel::kError, "in the new file");
        CHECK(contents(path + ".1").find("still in the old") != std::string::npos);
        CHECK(contents(path).find(" error: in the new file\n") != std::string::npos);
        CHECK(contents(path).find("still") == std::string::npos);
        set_log_sink(nullptr);
        std::filesystem::remove_all(folder);
    }

    TEST_CASE("as text what others wrote begins no line of its own") {
        char folder[] = "/tmp/fabric-log-XXXXXX";
        REQUIRE(::mkdtemp(folder) != nullptr);
        const std::string path = std::string(folder) + "/fabricd.log";
        REQUIRE(install_spdlog(path).ok());
        log(LogLevel::kWarning, "audit: %s", "a\n[info] audit: forged\x1b[2J");
        CHECK(contents(path).ends_with("audit: a?[info] audit: forged?[2J\n"));
        set_log_sink(nullptr);
        std::filesystem::remove_all(folder);
    }

    TEST_CASE("as JSON each line is an object, whatever was logged") {
        char folder[] = "/tmp/fabric-log-XXXXXX";
        REQUIRE(::mkdtemp(folder) != nullptr);
        const std::string path = std::string(folder) + "/fabricd.log";
        REQUIRE(install_spdlog(path, LogFormat::kJson).ok());
        log(LogLevel::kWarning, "label \"%s\" of {} %c", "a\\b", '\n');
        const std::string text = contents(path);
        CHECK(text.starts_with("{\"time\":\"20"));
        CHECK(text.find(
                  ",\"level\":\"warning\",\"text\":\"label \\\"a\\\\b\\\" of {} \\u000a\"}\n") !=
              std::string::npos);
        set_log_sink(nullptr);
        std::filesystem::remove_all(folder);
    }

    TEST_CASE("the newest events are remembered, without those for debugging") {
        REQUIRE(install_spdlog("/dev/null").ok());
        REQUIRE(set_log_level_by_name("debug").ok());
        for (int i = 0; i < 1005; ++i) log(LogLevel::kInfo, "event %d", i);
        log(LogLevel::kDebug, "detail");
        const auto last = recent_events(2);
        REQUIRE(last.size() == 2);
        CHECK(last[0].text == "event 1003");
        CHECK(last[1].text == "event 1004");
        CHECK(last[1].number == last[0].number + 1);
        CHECK(last[1].unix_ms > 1'700'000'000'000);
        CHECK(recent_events(5000).size() == 1000);
        set_log_sink(nullptr);
    }

    TEST_CASE("a file that cannot be opened and a level that does not exist are errors") {
        CHECK_FALSE(install_spdlog("/nowhere/fabricd.log").ok());
        CHECK(set_log_level_by_name("loud").error().code == Errc::kInvalid);
    }
}
