#include "libfabricshm/proto/codec.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>

#include "libfabricshm/base/reason.hpp"

using namespace fabricshm;
using namespace fabricshm::proto;

namespace {

constexpr std::size_t kWhole = sizeof(Message);

Errc refusal(const Message& message, std::size_t bytes = kWhole) {
    return check_request(message, bytes).error().code;
}

Message arena_open_request(const char* name) {
    Message message = make_request(Type::kArenaOpen, 1);
    std::strncpy(message.arena_open.name, name, kNameBytes - 1);
    return message;
}

Message tensor_request(std::uint32_t ndim) {
    Message message = make_request(Type::kTensorCreate, 1);
    message.tensor.region.arena_id = 1;
    std::strcpy(message.tensor.name, "weights");
    message.tensor.dtype = 1;
    message.tensor.ndim = ndim;
    for (auto& length : message.tensor.shape) length = 2;
    return message;
}

Message group_request(int rank, int world) {
    Message message = make_request(Type::kGroupJoin, 1);
    message.group.arena_id = 1;
    std::strcpy(message.group.name, "data parallel");
    message.group.rank = rank;
    message.group.world = world;
    return message;
}

Message arena_reply() {
    Message reply = make_reply(arena_open_request("job"));
    reply.arena_open.arena_id = 5;
    reply.arena_open.bytes = 1 << 20;
    reply.arena_open.align = 4096;
    return reply;
}

}  // namespace

TEST_SUITE("proto.codec") {
    TEST_CASE("a well-formed request of every type passes") {
        CHECK(refusal(make_request(Type::kHello, 1)) == Errc::kOk);
        CHECK(refusal(arena_open_request("job")) == Errc::kOk);
        CHECK(refusal(tensor_request(3)) == Errc::kOk);
        CHECK(refusal(group_request(-1, 4)) == Errc::kOk);
        CHECK(refusal(make_request(Type::kBye, 1)) == Errc::kOk);
        Message region = make_request(Type::kRegionCreate, 9);
        region.region = {1, 0, 0, 0, 4096};
        CHECK(refusal(region) == Errc::kOk);
        Message commit = make_request(Type::kArenaCommit, 9);
        commit.arena.arena_id = 1;
        CHECK(refusal(commit) == Errc::kOk);
        commit.arena.arena_id = 0;
        CHECK(refusal(commit) == Errc::kInvalid);
        CHECK(std::string(name_of(Type::kArenaCommit)) == "arena_commit");
    }

    TEST_CASE("the type after the last one is unknown") {
        const auto next = static_cast<std::uint16_t>(kLastType) + 1;
        CHECK(refusal(make_request(static_cast<Type>(next), 1)) == Errc::kCorrupt);
        CHECK(name_of(kLastType) != nullptr);
    }

    TEST_CASE("what is not a message of ours is corrupt, another version has its own error") {
        Message message = arena_open_request("job");
        CHECK(refusal(message, 511) == Errc::kCorrupt);
        CHECK(refusal(message, 3) == Errc::kCorrupt);
        message.header.version = 2;
        CHECK(refusal(message) == Errc::kVersion);
        CHECK(refusal(message, 100) == Errc::kVersion);
        message = arena_open_request("job");
        message.header.magic ^= 1;
        CHECK(refusal(message) == Errc::kCorrupt);
        message = make_request(static_cast<Type>(99), 1);
        CHECK(refusal(message) == Errc::kCorrupt);
        CHECK(refusal(make_request(static_cast<Type>(0), 1)) == Errc::kCorrupt);
        CHECK(refusal(make_reply(arena_open_request("job"))) == Errc::kCorrupt);
        CHECK(refusal(make_request(Type::kBye, 0)) == Errc::kCorrupt);
    }

    TEST_CASE("names end with a zero, are not empty and are printable") {
        CHECK(refusal(arena_open_request("")) == Errc::kInvalid);
        CHECK(refusal(arena_open_request("two\nlines")) == Errc::kInvalid);
        CHECK(refusal(arena_open_request("\x1b[31m")) == Errc::kInvalid);
        Message endless = arena_open_request("x");
        std::memset(endless.arena_open.name, 'x', kNameBytes);
        CHECK(refusal(endless) == Errc::kInvalid);
        CHECK(std::string(check_request(endless, kWhole).error().step) == "arena name");
    }

    TEST_CASE("the device of a hello may be missing, but not be anything else than a name") {
        Message hello = make_request(Type::kHello, 1);
        CHECK(refusal(hello) == Errc::kOk);
        CHECK(set_name(hello.hello.device, "gpu0", "device").ok());
        CHECK(refusal(hello) == Errc::kOk);
        std::memset(hello.hello.device, 'x', kNameBytes);
        CHECK(std::string(check_request(hello, kWhole).error().step) == "device");
    }

    TEST_CASE("shapes that overflow, are negative or have too many dimensions are refused") {
        Message message = tensor_request(9);
        CHECK(refusal(message) == Errc::kInvalid);
        message = tensor_request(8);
        for (auto& length : message.tensor.shape) length = std::int64_t{1} << 32;
        CHECK(refusal(message) == Errc::kInvalid);
        message = tensor_request(1);
        message.tensor.shape[0] = -1;
        CHECK(refusal(message) == Errc::kInvalid);
        message = tensor_request(1);
        message.tensor.dtype = 10;
        CHECK(refusal(message) == Errc::kInvalid);
    }

    TEST_CASE("the bytes of a tensor are counted, with none for a zero and one for a scalar") {
        const std::int64_t shape[] = {3, 4, 5};
        CHECK(tensor_bytes(1, shape).value() == 240);
        CHECK(tensor_bytes(0, {}).value() == 8);
        const std::int64_t empty[] = {3, 0, 5};
        CHECK(tensor_bytes(1, empty).value() == 0);
    }

    TEST_CASE("ranks outside the world and worlds beyond the limit are refused") {
        CHECK(refusal(group_request(4, 4)) == Errc::kInvalid);
        CHECK(refusal(group_request(-2, 4)) == Errc::kInvalid);
        CHECK(refusal(group_request(0, 0)) == Errc::kInvalid);
        CHECK(refusal(group_request(0, kWorldMax + 1)) == Errc::kInvalid);
        Message message = group_request(0, 4);
        message.group.timeout_ms = -1;
        CHECK(refusal(message) == Errc::kInvalid);
    }

    TEST_CASE("unknown flags are refused, not ignored") {
        Message message = arena_open_request("job");
        message.arena_open.flags = 4;
        CHECK(refusal(message) == Errc::kInvalid);
        message.arena_open.flags = 0;
        message.arena_open.bytes = ~0ULL;
        CHECK(refusal(message) == Errc::kInvalid);
    }

    TEST_CASE("a reply repeats id and type, and an error reply carries code and detail") {
        const Message request = group_request(0, 4);
        const Message reply = make_error_reply(request.header, {Errc::kExists, 3, "join"});
        CHECK(reply.header.request_id == request.header.request_id);
        CHECK(type_of(reply.header) == Type::kGroupJoin);
        CHECK(check_reply(reply, kWhole).ok());
        const Error error = error_of(reply.header, "join group");
        CHECK(error.code == Errc::kExists);
        CHECK(error.detail == 3);
    }

    TEST_CASE("an error reply carries its reason, of which only printable text is believed") {
        const Message request = group_request(0, 4);
        const Error full = fabricshm::explain({Errc::kNoMemory, 0, "room"}, "wanted %d", 7);
        Message reply = make_error_reply(request.header, full);
        CHECK(check_reply(reply, kWhole).ok());
        CHECK(describe(error_of(reply, "create region")) == "create region: wanted 7");
        // Without a reason the code's own words, not those of the refusal before.
        const Message plain = make_error_reply(request.header, {Errc::kNoMemory, 0, "waits"});
        CHECK(describe(error_of(plain, "create region")) ==
              "create region: no memory left in the pool or quota");
        std::memset(reply.raw, 0x1b, sizeof reply.raw);
        const std::string tamed = reason_of(error_of(reply, "create region"));
        CHECK(tamed == std::string(fabricshm::kReasonBytes - 1, '?'));
    }

    TEST_CASE("a daemon's reply with fields out of range is corrupt") {
        Message reply = arena_reply();
        CHECK(check_reply(reply, kWhole).ok());
        reply.arena_open.align = 4097;
        CHECK(check_reply(reply, kWhole).error().code == Errc::kCorrupt);
        reply = arena_reply();
        reply.arena_open.file_offset = ~0ULL;
        CHECK(check_reply(reply, kWhole).error().code == Errc::kCorrupt);
        reply = arena_reply();
        reply.header.status = 99;
        CHECK(check_reply(reply, kWhole).error().code == Errc::kCorrupt);
        reply = arena_reply();
        reply.header.type = static_cast<std::uint16_t>(Type::kArenaOpen);
        CHECK(check_reply(reply, kWhole).error().code == Errc::kCorrupt);
    }

    TEST_CASE(
        "a reply of an arena on several devices has stripes that can be mapped, or is corrupt") {
        Message striped = arena_reply();
        ArenaOpen& open = striped.arena_open;
        CHECK(stripes_of(open).is_one_file());
        CHECK(offset_of(open) == open.file_offset);
        open.align = 2 << 20;
        open.bytes = 4 << 20;
        open.file_offset = kNotOneFile;
        open.pool_offset = 6 << 20;
        open.stripe_bytes = 4 << 20;
        open.files = 3;
        REQUIRE(check_reply(striped, kWhole).ok());
        CHECK(offset_of(open) == 6 << 20);
        CHECK(stripes_of(open).files == 3);
        CHECK(stripes_of(open).bytes == 4 << 20);
        CHECK(stripes_of(open).skip == 2 << 20);
        const auto refuses = [&](auto change) {
            Message message = striped;
            change(message.arena_open);
            return !check_reply(message, kWhole).ok();
        };
        CHECK(refuses([](ArenaOpen& reply) { reply.files = 1; }));
        CHECK(refuses([](ArenaOpen& reply) { reply.files = 9; }));
        CHECK(refuses([](ArenaOpen& reply) { reply.stripe_bytes = 0; }));
        CHECK(refuses([](ArenaOpen& reply) { reply.stripe_bytes = 3 << 20; }));
        CHECK(refuses([](ArenaOpen& reply) { reply.stripe_bytes = std::uint64_t{1} << 60; }));
        CHECK(refuses([](ArenaOpen& reply) { reply.pool_offset = 0; }));
        CHECK(refuses([](ArenaOpen& reply) { reply.pool_offset = ~std::uint64_t{0} << 21; }));
        CHECK(refuses([](ArenaOpen& reply) { reply.pool_offset += 4096; }));
    }

    TEST_CASE("random bytes behind a valid header never pass with a field out of range") {
        std::mt19937_64 random(7);
        int passed = 0;
        for (int i = 0; i < 20000; ++i) {
            Message message;
            for (auto& byte : message.raw) byte = static_cast<std::uint8_t>(random());
            message.header = make_request(static_cast<Type>(1 + random() % 22), 1).header;
            if (!check_request(message, kWhole).ok()) continue;
            ++passed;
            const Type type = type_of(message.header);
            const bool has_name = type == Type::kArenaOpen || type == Type::kTensorCreate ||
                                  type == Type::kTensorOpen || type == Type::kGroupJoin ||
                                  type == Type::kShardCreate || type == Type::kShardOpen;
            CHECK_FALSE(has_name);  // 63 random bytes are never a printable name
        }
        CHECK(passed > 0);
    }

    TEST_CASE("labels are made printable instead of being refused") {
        char field[kNameBytes];
        set_label(field, "tr\xc3\xa4iner\n");
        CHECK(text_of(field) == "tr??iner?");
        set_label(field, std::string(200, 'x'));
        CHECK(text_of(field).size() == kNameBytes - 1);
        CHECK(set_name(field, "", "name").error().code == Errc::kInvalid);
        CHECK(set_name(field, std::string(64, 'x'), "name").error().code == Errc::kInvalid);
        CHECK(set_name(field, std::string(63, 'x'), "name").ok());
    }
}
