// Requests at a time over few connections: as a part of a poll() loop, cancelled, and over.

#include "fabricd/data/silo/http_transfers.hpp"

#include <doctest/doctest.h>
#include <poll.h>

#include <set>

#include "tests/support/s3_server.hpp"
#include "tests/support/silo_bench.hpp"

using namespace fabricd;
using namespace test_support;

namespace {

S3Server& server() {
    static S3Server the_one;
    return the_one;
}

TransferRequest part_of(const std::string& path, std::byte* into, Bytes bytes, std::uint64_t tag) {
    TransferRequest request;
    request.url = "http://127.0.0.1:" + std::to_string(server().port()) + "/web/" + path;
    request.into = into;
    request.bytes = bytes;
    request.deadline = soon();
    request.tag = tag;
    return request;
}

std::unique_ptr<HttpTransfers> transfers() {
    server().fault("none", 0);
    return HttpTransfers::make(quick_options().transfers).value();
}

bool becomes_readable(const HttpTransfers& of) {
    pollfd waited{of.descriptor(), POLLIN, 0};
    return ::poll(&waited, 1, 60'000) == 1;
}

}  // namespace

TEST_SUITE("net.http_transfers") {
    TEST_CASE("a poll() loop that never waits gets all answers") {
        constexpr std::size_t kParts = 60;
        constexpr std::size_t kBytes = 5000;
        server().put("data", 1, kBytes);
        const auto of = transfers();
        FetchMemory memory(kParts * kBytes);
        for (std::size_t i = 0; i < kParts; ++i) {
            of->start(part_of("data", memory.at(i * kBytes), kBytes, i));
        }
        std::set<std::uint64_t> ended;
        while (ended.size() < kParts) {
            REQUIRE(becomes_readable(*of));
            for (const TransferAnswer& answer : of->wait(fabricshm::kNoWait)) {
                CHECK(answer.end == HttpEnd::kAnswered);
                CHECK(answer.status == 206);
                CHECK(answer.total == kBytes);
                CHECK(ended.insert(answer.tag).second);
            }
        }
        CHECK(of->under_way() == 0);
        CHECK(server().stats().connections <= 4);
        for (std::size_t i = 0; i < kParts; ++i) {
            CHECK(memory.text(i * kBytes, kBytes) == s3_content("data", 1, kBytes));
        }
    }

    TEST_CASE("a request that was cancelled writes nothing more, and others go on") {
        server().put("data", 1, 5000);
        const auto of = transfers();
        FetchMemory memory(10'000);
        server().fault("stall", 1);
        of->start(part_of("data", memory.at(0), 5000, 1));
        while (memory.text(0, 2500) != s3_content("data", 1, 2500)) {
            REQUIRE(becomes_readable(*of));
            REQUIRE(of->wait(fabricshm::kNoWait).empty());
        }
        of->start(part_of("data", memory.at(5000), 5000, 2));
        of->cancel(1);
        of->cancel(3);
        const auto answers = of->wait(soon());
        REQUIRE(answers.size() == 1);
        CHECK(answers[0].tag == 2);
        CHECK(of->under_way() == 0);
        CHECK(memory.text(2500, 2500) == std::string(2500, '.'));
        CHECK(memory.text(5000, 5000) == s3_content("data", 1, 5000));
        CHECK(of->wait(soon()).empty());
    }

    TEST_CASE("a request whose deadline is past ends at once") {
        const auto of = transfers();
        FetchMemory memory(100);
        server().put("data", 1, 100);
        server().fault("stall", 1);
        TransferRequest request = part_of("data", memory.at(0), 100, 1);
        request.deadline = fabricshm::kNoWait;
        of->start(request);
        const auto answers = of->wait(soon());
        REQUIRE(answers.size() == 1);
        CHECK(answers[0].end == HttpEnd::kDeadline);
    }

    TEST_CASE("a text that is longer than was allowed is no answer") {
        const auto of = transfers();
        server().put("data", 1, 1000);
        for (const Bytes most : {999U, 1000U}) {
            TransferRequest request = part_of("data", nullptr, 0, most);
            request.max_text = most;
            of->start(request);
            const auto answers = of->wait(soon());
            REQUIRE(answers.size() == 1);
            CHECK((answers[0].end == HttpEnd::kAnswered) == (most == 1000));
            if (most == 1000) CHECK(answers[0].text == s3_content("data", 1, 1000));
        }
    }
}
