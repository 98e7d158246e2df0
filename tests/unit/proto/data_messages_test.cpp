#include "libfabricshm/proto/data_messages.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace fabricshm;
using namespace fabricshm::proto;

namespace {

DataMessage some_message() {
    DataMessage message;
    message.type = DataType::kList;
    message.request_id = 42;
    message.payload = data_payload(DataListRequest{kDataListRecursive, 0}, "/images");
    return message;
}

Errc refusal(std::vector<std::byte> packet) {
    const auto message = decode_data_message(packet);
    return message.ok() ? Errc::kOk : message.error().code;
}

std::vector<std::byte> with(std::size_t place, unsigned value) {
    auto packet = encode(some_message()).value();
    packet[place] = static_cast<std::byte>(value);
    return packet;
}

}  // namespace

TEST_SUITE("proto.data_messages") {
    TEST_CASE("a packet is read as it was written") {
        const auto packet = encode(some_message());
        REQUIRE(packet.ok());
        const auto message = decode_data_message(*packet);
        REQUIRE(message.ok());
        CHECK(message->type == DataType::kList);
        CHECK_FALSE(message->is_reply);
        CHECK(message->request_id == 42);
        std::string_view path;
        const auto request = data_fixed<DataListRequest>(message->payload, &path);
        REQUIRE(request);
        CHECK(request->flags == kDataListRecursive);
        CHECK(path == "/images");

        DataMessage answer;
        answer.type = DataType::kFetch;
        answer.is_reply = true;
        answer.status = Errc::kTimeout;
        answer.detail = 3;
        answer.payload = "the silo does not answer";
        const auto back = decode_data_message(encode(answer).value());
        REQUIRE(back.ok());
        CHECK(back->is_reply);
        CHECK(back->status == Errc::kTimeout);
        CHECK(back->detail == 3);
        CHECK(back->payload == answer.payload);
    }

    TEST_CASE("packets of another version, of no known type or of another length are refused") {
        CHECK(refusal(encode(some_message()).value()) == Errc::kOk);
        CHECK(refusal(with(0, 0)) == Errc::kCorrupt);
        CHECK(refusal(with(4, 2)) == Errc::kVersion);
        CHECK(refusal(with(6, 0)) == Errc::kCorrupt);
        CHECK(refusal(with(6, 11)) == Errc::kCorrupt);
        CHECK(refusal(with(16, 1)) == Errc::kCorrupt);  // a request with a status
        CHECK(refusal(with(24, 1)) == Errc::kCorrupt);
        CHECK(refusal(with(28, 1)) == Errc::kCorrupt);
        CHECK(refusal({}) == Errc::kCorrupt);
        DataMessage large = some_message();
        large.payload.assign(kDataPayloadMax + 1, 'x');
        CHECK(encode(large).error().code == Errc::kInvalid);
        large.payload.resize(kDataPayloadMax);
        CHECK(encode(large)->size() == kDataPacketMax);
    }

    TEST_CASE("a payload is as long as its structure, and has a text only where one may be") {
        const std::string payload = data_payload(DataFetchRequest{1, 2, kDataAhead, 0});
        CHECK(data_fixed<DataFetchRequest>(payload));
        const std::string with_text = payload + "x";
        CHECK_FALSE(data_fixed<DataFetchRequest>(with_text));
        CHECK_FALSE(data_fixed<DataFetchRequest>(payload.substr(1)));
        std::string_view text;
        CHECK(data_fixed<DataFetchRequest>(with_text, &text));
        CHECK(text == "x");
    }

    TEST_CASE("fields out of their range are refused") {
        CHECK(check(DataListRequest{0, 0}).ok());
        CHECK_FALSE(check(DataListRequest{2, 0}).ok());
        CHECK_FALSE(check(DataListRequest{0, 1}).ok());
        CHECK(check(DataFetchRequest{1, 0, kDataAhead, 0}).ok());
        CHECK_FALSE(check(DataFetchRequest{0, 0, 0, 0}).ok());
        CHECK_FALSE(check(DataFetchRequest{1, 0, 2, 0}).ok());
        CHECK(check(DataPlanRequest{1, 0, 0, 0, 1, 2, kDataDistributedSampler, 3}).ok());
        CHECK_FALSE(check(DataPlanRequest{0, 0, 0, 0, 1, 2, 0, 0}).ok());
        CHECK_FALSE(check(DataPlanRequest{1, 0, 0, 0, 2, 2, 0, 0}).ok());
        CHECK_FALSE(check(DataPlanRequest{1, 0, 0, 0, 0, 0, 0, 0}).ok());
        CHECK_FALSE(check(DataPlanRequest{1, 0, 0, 0, 0, 1, 2, 0}).ok());
        CHECK_FALSE(check(DataPlanRequest{1, 0, 0, 0, 0, 1, 0, 4}).ok());
        DataHelloReply hello{};
        CHECK_FALSE(check(hello).ok());
        hello.arena[0] = 'a';
        CHECK(check(hello).ok());
        std::memset(hello.arena, 'a', sizeof hello.arena);
        CHECK_FALSE(check(hello).ok());
    }

    TEST_CASE("a packet of any bytes is refused, or read back as the same") {
        std::mt19937 random(5);
        const auto whole = encode(some_message()).value();
        for (int turn = 0; turn < 20'000; ++turn) {
            auto packet = whole;
            for (unsigned change = random() % 3; change > 0; --change) {
                packet[random() % packet.size()] = static_cast<std::byte>(random());
            }
            if (random() % 8 == 0) packet.resize(random() % (packet.size() + 1));
            const auto message = decode_data_message(packet);
            if (message.ok()) CHECK(encode(*message).value() == packet);
        }
    }
}
