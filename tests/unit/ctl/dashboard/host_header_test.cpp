#include "fabricd/ctl/dashboard/host_header.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>

using namespace fabricd;

namespace {

TEST_SUITE("ctl.dashboard.host_header") {
    TEST_CASE("a name has a port behind it or nothing") {
        const std::pair<const char*, const char*> known[] = {
            {"127.0.0.1", "127.0.0.1"},
            {"127.0.0.1:8765", "127.0.0.1"},
            {"localhost:1", "localhost"},
            {"localhost:65535", "localhost"},
            {"a.b-c.example:00443", "a.b-c.example"},
            {"[::1]", "[::1]"},
            {"[::1]:8765", "[::1]"},
            {"[0:0:0:0:0:0:0:1]:80", "[0:0:0:0:0:0:0:1]"},
            {"[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]"},
        };
        for (const auto& [header, name] : known) {
            CAPTURE(header);
            const auto found = name_of_host(header);
            REQUIRE(found.has_value());
            CHECK(*found == name);
        }
    }

    TEST_CASE("what is neither is no name, however it begins") {
        for (const char* odd : {"",
                                ":",
                                ":80",
                                "127.0.0.1:",
                                "127.0.0.1:abc",
                                "127.0.0.1:80a",
                                "127.0.0.1:a80",
                                "127.0.0.1:0",
                                "127.0.0.1:00000",
                                "127.0.0.1:65536",
                                "127.0.0.1:99999",
                                "127.0.0.1:000080",
                                "127.0.0.1:-1",
                                "127.0.0.1:+80",
                                "127.0.0.1: 80",
                                "127.0.0.1:80 ",
                                "127.0.0.1:0x50",
                                "127.0.0.1:80:80",
                                "127.0.0.1::80",
                                "127.0.0.1:80/",
                                "127.0.0.1:80?x",
                                "127.0.0.1:80#x",
                                "127.0.0.1:1@evil.example",
                                "127.0.0.1:@evil.example",
                                "127.0.0.1:80,evil.example",
                                "127.0.0.1:80\tevil.example",
                                "127.0.0.1:\xD9\xA1",  // an Arabic digit
                                "::1",
                                "::1:80",
                                "[",
                                "[]:",
                                "[::1",
                                "[::1:80",
                                "[::1]80",
                                "[::1]:",
                                "[::1]:abc",
                                "[::1]:65536",
                                "[::1]:80]",
                                "[::1].evil.example",
                                "[::1]@evil.example",
                                "[::1]:1@evil.example",
                                "[::1]:80:80",
                                "[::1] :80",
                                "[::1]]:80",
                                "[[::1]]:80"}) {
            CAPTURE(odd);
            CHECK_FALSE(name_of_host(odd).has_value());
        }
        CHECK_FALSE(name_of_host(std::string_view("127.0.0.1:80\0", 13)).has_value());
    }

    TEST_CASE("what could be another name is not shortened to one") {
        // A name of its own each, which is not the loopback's.
        for (const char* strange : {"127.0.0.1@evil.example",
                                    "evil.example@127.0.0.1",
                                    "127.0.0.1.",
                                    "127.0.0.1.evil",
                                    " 127.0.0.1",
                                    "127.0.0.1 ",
                                    "127.0.0.1/",
                                    "127.1",
                                    "2130706433",
                                    "0x7f000001",
                                    "127.0.0.1,evil",
                                    "localhost.",
                                    "localhost.evil",
                                    "[::1%25lo]",
                                    "[::1%lo]:80",
                                    "[::]",
                                    "[::2]:80",
                                    "[0:0:0:0:0:0:0:1]",
                                    "[::0001]",
                                    "[127.0.0.1]",
                                    "[localhost]",
                                    "[::ffff:127.0.0.1]",
                                    "[v1.x]"}) {
            CAPTURE(strange);
            const auto name = name_of_host(strange);
            REQUIRE(name.has_value());
            for (const char* loopback : {"127.0.0.1", "localhost", "[::1]"}) {
                CHECK_FALSE(is_same_host_name(*name, loopback));
            }
        }
        CHECK(is_same_host_name("LocalHost", "localhost"));
        CHECK_FALSE(is_same_host_name("localhos", "localhost"));
    }
}

}  // namespace
