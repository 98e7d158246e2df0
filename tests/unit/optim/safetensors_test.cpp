// Headers of safetensors files; what they look like to another reader is tested in Python
// (python.optim.snapshots).

#include "libfabricshm/optim/safetensors.hpp"

#include <doctest/doctest.h>

#include <string>

#include "libfabricshm/base/reason.hpp"

using namespace fabricshm;

namespace {

StoredHeader sample() {
    StoredHeader header;
    header.metadata = {{"fabricshm.version", "1"}, {"text", "a \"quoted\" \\ line\n\x01"}};
    header.tensors = {{"w", "F32", {2, 3}, 0, 24}, {"scale \"one\"", "F32", {}, 24, 28}};
    return header;
}

std::string json_of(const std::string& file) {
    std::uint64_t length = 0;
    for (int i = 7; i >= 0; --i) {
        length = length << 8 | static_cast<unsigned char>(file[static_cast<std::size_t>(i)]);
    }
    REQUIRE(length + 8 == file.size());
    return file.substr(8);
}

}  // namespace

TEST_SUITE("optim.safetensors") {
    TEST_CASE("what was formatted is parsed again") {
        const std::string file = format_header(sample());
        CHECK(file.size() % kHeaderUnit == 0);
        const auto parsed = parse_header(json_of(file));
        REQUIRE(parsed.ok());
        CHECK(parsed->metadata.at("text") == sample().metadata.at("text"));
        REQUIRE(parsed->tensors.size() == 2);
        CHECK(parsed->tensors[0].name == "w");
        CHECK(parsed->tensors[0].shape == std::vector<std::int64_t>{2, 3});
        CHECK(parsed->tensors[1].name == "scale \"one\"");
        CHECK(parsed->tensors[1].shape.empty());
        CHECK(parsed->tensors[1].end == 28);
    }

    TEST_CASE("any byte of ours that changes is noticed") {
        const std::string json = json_of(format_header(sample()));
        for (std::size_t at = 0; at < json.size(); ++at) {
            CAPTURE(at);
            for (const char flip : {'\x01', '\x20'}) {
                std::string bad = json;
                bad[at] = static_cast<char>(bad[at] ^ flip);
                CHECK_FALSE(parse_header(bad).ok());
            }
        }
    }

    TEST_CASE("headers of other writers are read, without a checksum") {
        const auto parsed =
            parse_header(R"( { "a" : {"shape":[ 2 ], "data_offsets":[4,12], "dtype":"F32"},)"
                         "\n\t"
                         R"("\u0062":{"dtype":"I8","shape":[],"data_offsets":[0,4]} } )");
        REQUIRE(parsed.ok());
        REQUIRE(parsed->tensors.size() == 2);
        CHECK(parsed->tensors[0].name == "b");
        CHECK(parsed->tensors[0].dtype == "I8");
        CHECK(parsed->tensors[1].begin == 4);
    }

    TEST_CASE("what is no header is an error, not more") {
        for (const char* text :
             {"", "{", "[]", "{}x", "{\"a\"", "{\"a\":1}", "{\"a\":{\"dtype\":\"F32\"}}",
              "{\"a\":{\"data_offsets\":[8,4]}}", "{\"a\":{\"data_offsets\":[4,8]}}",
              "{\"a\":{\"data_offsets\":[0,99999999999999999999]}}",
              "{\"a\":{\"data_offsets\":[0,-4]}}", "{\"a\":{\"data_offsets\":[0,4],\"x\":1}}",
              "{\"\\u00e4\":{\"data_offsets\":[0,4]}}", "{\"a\":{\"data_offsets\":[0,4]},}",
              "{\"a\n\":{\"data_offsets\":[0,4]}}",
              "{\"a\":{\"data_offsets\":[0,4]},\"b\":{\"data_offsets\":[0,4]}}"}) {
            CAPTURE(text);
            CHECK_FALSE(parse_header(text).ok());
        }
        CHECK(parse_header("{}").ok());
    }
}
