#include "fabricd/server/requests.hpp"

#include <doctest/doctest.h>

#include "tests/support/registry_host.hpp"

using namespace test_support;
using fabricshm::Errc;
using proto::Message;
using proto::Type;

namespace {

struct Fixture {
    std::optional<Message> serve(const Message& request, fabricshm::Fd descriptor = {}) {
        return fabricd::serve(*host.registry, who, request, std::move(descriptor), kNow);
    }
    RegistryHost host;
    SessionId who = host.session(kAlice);
    ArenaId arena = host.arena(who);
};

Message region_request(Type type, ArenaId arena, std::uint64_t region, Bytes bytes) {
    Message request = proto::make_request(type, 42);
    request.region = {raw(arena), region, 0, 0, bytes};
    return request;
}

}  // namespace

TEST_SUITE("server.requests") {
    TEST_CASE("a reply repeats the id and the type of its request") {
        Fixture fixture;
        const auto reply =
            fixture.serve(region_request(Type::kRegionCreate, fixture.arena, 0, 4096));
        REQUIRE(reply.has_value());
        CHECK(reply->header.request_id == 42);
        CHECK(proto::type_of(reply->header) == Type::kRegionCreate);
        CHECK(reply->header.status == 0);
        CHECK(reply->region.bytes == 4096);
        CHECK(reply->region.region_id != 0);
    }

    TEST_CASE("a refusal says why and has no body") {
        Fixture fixture;
        const auto reply = fixture.serve(region_request(Type::kRegionFree, fixture.arena, 999, 0));
        REQUIRE(reply.has_value());
        CHECK(proto::error_of(reply->header, "free").code == Errc::kNotFound);
        CHECK(reply->region.region_id == 0);
    }

    TEST_CASE("a join that is refused names its group and its arena, as its line of the log does") {
        Fixture fixture;
        Message request = proto::make_request(Type::kGroupJoin, 44);
        request.group.arena_id = raw(fixture.host.arena(fixture.who, "wide", 1 << 24));
        copy_name(request.group.name, "ring");
        request.group.world = 2;
        request.group.timeout_ms = 1000;
        REQUIRE_FALSE(fixture.serve(request).has_value());
        const auto names_both = [&] {
            const auto reply = fixture.serve(request);
            const std::string line = describe(proto::error_of(reply.value(), "answer"));
            return line.find("'ring'") != std::string::npos &&
                   line.find("'wide'") != std::string::npos;
        };
        SUBCASE("of a rank that has joined") {
            CHECK(names_both());
        }
        SUBCASE("of another size") {
            request.group.world = 3;
            request.group.rank = 2;
            CHECK(names_both());
        }
        SUBCASE("of a group that is complete") {
            request.group.rank = 1;
            REQUIRE_FALSE(fixture.serve(request).has_value());
            CHECK(names_both());
        }
    }

    TEST_CASE("what has to wait is answered later, with the id of the request") {
        Fixture fixture;
        Message request = proto::make_request(Type::kTensorOpen, 43);
        request.tensor = RegistryHost::tensor_body(fixture.arena, "later", 1000);
        CHECK_FALSE(fixture.serve(request).has_value());
        REQUIRE(fixture.host.tensor(fixture.who, fixture.arena, "later").ok());
        const auto answers = fixture.host.registry->take_answers();
        REQUIRE(answers.size() == 1);
        const Message reply = reply_of(answers[0]);
        CHECK(reply.header.request_id == 43);
        CHECK(proto::text_of(reply.tensor.name) == "later");
        CHECK(reply.tensor.region.region_id != 0);
    }

    TEST_CASE("a deferred refusal is a refusal") {
        const Answer answer{{SessionId{1}, 44}, Type::kGroupJoin, {Errc::kTimeout, 3, "join"}, {}};
        const Message reply = reply_of(answer);
        CHECK(reply.header.request_id == 44);
        CHECK(proto::error_of(reply.header, "join").code == Errc::kTimeout);
        CHECK(reply.header.detail == 3);
    }

    TEST_CASE("an arena is not adopted without its descriptor") {
        Fixture fixture;
        Message request = proto::make_request(Type::kArenaAdopt, 45);
        request.arena.arena_id = raw(fixture.arena);
        const auto reply = fixture.serve(request);
        REQUIRE(reply.has_value());
        CHECK(proto::error_of(reply->header, "adopt").code == Errc::kInvalid);
    }

    TEST_CASE("greetings are not for the registry") {
        Fixture fixture;
        for (const Type type : {Type::kHello, Type::kBye}) {
            const auto reply = fixture.serve(proto::make_request(type, 46));
            REQUIRE(reply.has_value());
            CHECK(proto::error_of(reply->header, "hello").code == Errc::kInvalid);
        }
    }
}
