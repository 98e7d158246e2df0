#include "fabricd/data/peers/chunk_query.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

const std::string kVersion(64, 'a');

}  // namespace

TEST_SUITE("data.chunk_query") {
    TEST_CASE("what is asked for is what is heard, whatever the path") {
        std::string bytes = "/at/";
        for (int i = 1; i < 256; ++i) bytes += static_cast<char>(i);
        for (const std::string& path : {std::string("/a"), bytes, "/a" + std::string(4000, '%')}) {
            const ChunkName name{path, {{1, ~0ULL, 0, 1ULL << 63}}, 4'294'967'295U};
            CHECK(parse_chunk_target(chunk_target(name)) == name);
        }
    }

    TEST_CASE("what asks for no chunk is refused") {
        const std::string good = "/v1/chunk?path=%2Fa&version=" + kVersion + "&number=7";
        CHECK(parse_chunk_target(good).has_value());
        for (const std::string& bad :
             {std::string(), std::string("/"), std::string("/v1/chunk"),
              std::string("/v1/chunk?path=%2Fa"), "/v2" + good.substr(3), good + "&more=1",
              good + "x", "/v1/chunk?path=a&version=" + kVersion + "&number=7",
              "/v1/chunk?path=%zz&version=" + kVersion + "&number=7",
              "/v1/chunk?path=%2Fa&version=" + kVersion + "0&number=7",
              "/v1/chunk?path=%2Fa&version=" + kVersion.substr(1) + "&number=7",
              "/v1/chunk?path=%2Fa&version=" + std::string(64, 'g') + "&number=7",
              "/v1/chunk?path=%2Fa&version=" + kVersion + "&number=",
              "/v1/chunk?path=%2Fa&version=" + kVersion + "&number=-1",
              "/v1/chunk?path=%2Fa&version=" + kVersion + "&number=4294967296",
              "/v1/chunk?path=%2F" + std::string(5000, 'a') + "&version=" + kVersion +
                  "&number=1"}) {
            CAPTURE(bad.substr(0, 120));
            CHECK(!parse_chunk_target(bad));
        }
    }

    TEST_CASE("a checksum is eight digits") {
        for (const std::uint32_t sum : {0U, 1U, 0xdeadbeefU, ~0U}) {
            CHECK(parse_checksum(checksum_text(sum)) == sum);
        }
        for (const char* bad : {"", "1", "000000001", "0000000g", "-0000001", " 0000001"}) {
            CHECK(!parse_checksum(bad));
        }
    }
}
