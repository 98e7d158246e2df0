// The header of a safetensors file, as a restore finds it. What is accepted is formatted and read
// again as the same, and its tensors follow each other.

#include "libfabricshm/optim/safetensors.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace fabricshm;

namespace {

bool is_same(const StoredTensor& a, const StoredTensor& b) {
    return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin &&
           a.end == b.end;
}

void run(fuzz::Data input) {
    const auto read = parse_header({reinterpret_cast<const char*>(input.data()), input.size()});
    if (!read.ok()) return;
    Bytes at = 0;
    for (const StoredTensor& tensor : read->tensors) {
        FUZZ_REQUIRE(tensor.begin == at && tensor.begin <= tensor.end);
        at = tensor.end;
    }
    StoredHeader header = *read;
    header.metadata.erase("fabricshm.header_crc32c");
    const std::string file = format_header(header);
    FUZZ_REQUIRE(file.size() % kHeaderUnit == 0);
    const auto again = parse_header(std::string_view(file).substr(8));
    FUZZ_REQUIRE(again.ok() && again->tensors.size() == read->tensors.size());
    // Empty ones begin where their neighbours do: any order of them is right.
    std::size_t found = 0;
    for (const StoredTensor& tensor : read->tensors) {
        for (const StoredTensor& other : again->tensors) {
            if (!is_same(tensor, other)) continue;
            ++found;
            break;
        }
    }
    FUZZ_REQUIRE(found == read->tensors.size());
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> all;
    const auto add = [&](std::string_view json) {
        const auto* bytes = reinterpret_cast<const std::byte*>(json.data());
        all.emplace_back(bytes, bytes + json.size());
    };
    StoredHeader header;
    header.metadata = {{"format", "pt"}, {"a \"b\"", "\n"}};
    header.tensors = {{"w", "F32", {2, 3}, 0, 24}, {"s", "F32", {}, 24, 28}};
    add(std::string_view(format_header(header)).substr(8));
    add(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})");
    add("{}");
    return all;
}

const fuzz::Registered kTarget({"safetensors", run, seeds});

}  // namespace
