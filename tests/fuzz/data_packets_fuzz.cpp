// What a data cache and its readers say to each other: packets either way, and listings.

#include <algorithm>
#include <cstring>

#include "libfabricshm/proto/data_messages.hpp"
#include "libfabricshm/shm/data_layout.hpp"
#include "libfabricshm/shm/data_listing.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace fabricshm;
using namespace fabricshm::proto;

constexpr std::uint64_t kLines = 1000;

void run_packet(fuzz::Data data) {
    const auto message = decode_data_message(data);
    if (!message.ok()) return;
    const auto again = encode(*message);
    FUZZ_REQUIRE(again.ok() && std::equal(again->begin(), again->end(), data.begin(), data.end()));
    const auto plan = data_fixed<DataPlanRequest>(message->payload);
    if (plan && check(*plan).ok()) FUZZ_REQUIRE(plan->rank < plan->world);
}

void run_listing(fuzz::Data data) {
    // As a mapping begins.
    std::vector<std::uint64_t> words(data.size() / 8 + 1);
    std::memcpy(words.data(), data.data(), data.size());
    const auto bytes = std::as_bytes(std::span(words)).first(data.size());
    const auto view = ListingView::check(bytes, kLines);
    if (!view.ok()) return;
    for (std::uint64_t i = 0; i < view->size(); ++i) {
        const DataEntry& entry = view->entry(i);
        FUZZ_REQUIRE(view->find(view->name(i)) == i);
        FUZZ_REQUIRE(entry.first_line == kNoLine ||
                     entry.first_line + data_chunks(entry.bytes) <= kLines);
    }
}

void run(fuzz::Data data) {
    run_packet(data);
    if (!data.empty()) run_listing(data);
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> all;
    const std::string payloads[] = {
        data_payload(DataListRequest{kDataListRecursive, 0}, "/images"),
        data_payload(DataFetchRequest{7, 3, kDataAhead, 0}),
        data_payload(DataPlanRequest{1, 2, 0, 0, 0, 2, kDataDistributedSampler, 0}), "/images/x"};
    for (const auto& payload : payloads) {
        DataMessage message;
        message.type = DataType::kList;
        message.request_id = 9;
        message.payload = payload;
        all.push_back(encode(message).value());
    }
    std::vector<ListedFile> files(3);
    files[0] = {"a", false, 10, 3, {1, 2, 3, 4}, 7, 5};
    files[1] = {"b/c", false, 2 * kDataChunkBytes + 1, 97, {}, 8, 0};
    files[2] = {"d", true, 0, kNoLine, {}, 0, 0};
    all.push_back(build_listing({1, 2, kListingRecursive}, files));
    all.push_back(build_listing({1, 2, 0}, {}));
    return all;
}

const fuzz::Registered kTarget({"data_packets", run, seeds});

}  // namespace
