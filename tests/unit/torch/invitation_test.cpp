#include "libfabricshm/torch/invitation.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace fabricshm::torch_backend;

namespace {

const Invitation kWhole{"boot-1", "pid 7 at /run/x", "0 00:01 99", "torch-a", "pg-b", ""};

std::vector<std::uint8_t> bytes_of(const std::string& text) {
    return {text.begin(), text.end()};
}

std::string text_of(const Invitation& invitation) {
    const auto bytes = encode_invitation(invitation);
    return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_SUITE("torch.invitation") {
    TEST_CASE("an invitation is read as it was written, with an error of several lines or none") {
        CHECK(decode_invitation(encode_invitation(kWhole)) == kWhole);
        Invitation failed = kWhole;
        failed.error = "no daemon\nat /run/fabricd/attach.sock";
        CHECK(decode_invitation(encode_invitation(failed)) == failed);
    }

    TEST_CASE("what is cut off before the group's line end is no invitation") {
        const std::string text = text_of(kWhole);
        for (std::size_t length = 0; length < text.size(); ++length) {
            CAPTURE(length);
            CHECK_FALSE(decode_invitation(bytes_of(text.substr(0, length))).has_value());
        }
    }

    TEST_CASE("another version's, and what is no text, is no invitation") {
        CHECK_FALSE(decode_invitation(bytes_of("host\ndaemon\nmemory\narena\ngroup\n")));
        std::string text = text_of(kWhole);
        text[text.find("torch-a")] = '\0';
        CHECK_FALSE(decode_invitation(bytes_of(text)));
        CHECK_FALSE(decode_invitation(bytes_of(text_of(kWhole) + std::string(70'000, 'x'))));
    }

    TEST_CASE("a field cannot bring another line, nor an error control characters") {
        Invitation sly = kWhole;
        sly.arena = "a\nb";
        sly.error = "bell\a\nend";
        const auto read = decode_invitation(encode_invitation(sly));
        REQUIRE(read.has_value());
        CHECK(read->arena == "a b");
        CHECK(read->group == kWhole.group);
        CHECK(read->error == "bell?\nend");
    }
}
