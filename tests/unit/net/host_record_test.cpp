#include "fabricd/net/host_record.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

using namespace fabricd;

namespace {

const HostRecord kHost{7, 0xfedcba9876543210, 12, 13, "emu, 64 GiB", "10.0.0.7:4000", 5000};
const FenceRecord kFence{true, "b", "command", 5, 6};

}  // namespace

TEST_SUITE("net.host_record") {
    TEST_CASE("records come back as they were written") {
        CHECK(decode_host(encode(kHost)) == kHost);
        CHECK(decode_fence(encode(kFence)) == kFence);
        CHECK(decode_host(encode(HostRecord{})) == HostRecord{});
    }

    TEST_CASE("a text with line breaks can't add a field") {
        HostRecord host = kHost;
        host.pool = "x\nincarnation=99";
        const auto back = decode_host(encode(host));
        REQUIRE(back);
        CHECK(back->pool == "x?incarnation=99");
        CHECK(back->incarnation == 7);
    }

    TEST_CASE("fields of a later version are passed over, and a later version itself is not read") {
        CHECK(decode_host(encode(kHost) + "weather=fine\n") == kHost);
        CHECK_FALSE(decode_host("fabricd-host 2\n" + encode(kHost).substr(15)));
    }

    TEST_CASE("what is cut off, doubled or no number is no record") {
        const std::string text = encode(kHost);
        for (std::size_t length = 0; length < text.size(); ++length) {
            CHECK_FALSE(decode_host(text.substr(0, length)));
        }
        CHECK_FALSE(decode_host(text + "boot=1\n"));
        CHECK_FALSE(decode_fence("fabricd-fence 1\nstate=maybe\nby=a\nhow=b\nmachine=0\nboot=0\n"));
        CHECK_FALSE(decode_fence(encode(kHost)));
        CHECK_FALSE(decode_host(text + std::string(5000, 'x') + "=\n"));
    }

    TEST_CASE("an incarnation that leaves no room above it is none") {
        HostRecord host = kHost;
        host.incarnation = kMaxIncarnation;
        CHECK(decode_host(encode(host)) == host);
        host.incarnation = kMaxIncarnation + 1;
        CHECK_FALSE(decode_host(encode(host)));
        Incarnation number = 5;
        CHECK(read_incarnation("4611686018427387904", number));
        CHECK(number == kMaxIncarnation);
        for (const char* bad : {"", "0", "-1", "+1", " 1", "1 ", "4611686018427387905", "1e3",
                                "18446744073709551615", "18446744073709551616"}) {
            CAPTURE(bad);
            CHECK_FALSE(read_incarnation(bad, number));
        }
        CHECK(number == kMaxIncarnation);
    }

    TEST_CASE("any bytes are safe to read, and what is read is written again the same") {
        std::mt19937 random(1);
        for (int round = 0; round < 20000; ++round) {
            std::string text = encode(kHost);
            for (int change = 0; change < 1 + round % 3; ++change) {
                text[random() % text.size()] = static_cast<char>(random());
            }
            if (const auto host = decode_host(text)) CHECK(decode_host(encode(*host)) == host);
        }
    }

    TEST_CASE("names of hosts are parts of keys") {
        CHECK(is_host_name("node-7.rack_2"));
        CHECK(is_host_name(std::string(63, 'a')));
        for (const char* bad : {"", ".", "-x", "a/b", "a b", "a\n", "\xc3\xa4"}) {
            CHECK_FALSE(is_host_name(bad));
        }
        CHECK_FALSE(is_host_name(std::string(64, 'a')));
    }
}
