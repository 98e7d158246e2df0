#include "libfabricshm/collective/apart.hpp"

#include <algorithm>
#include <array>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricshm {

namespace {

struct Output {
    Bytes begin;
    Bytes end;
    std::size_t rank;
};

constexpr Error kOverlap{Errc::kInvalid, 0, "output: overlaps a buffer of another rank"};
constexpr Error kNotShared{Errc::kInvalid, 0, "output: shared, but not the same on all ranks"};

}  // namespace

Result<void> check_apart(std::span<const BufferPlace> ranks) {
    std::array<Output, proto::kWorldMax> outputs;
    FABRIC_CHECK(ranks.size() <= outputs.size());
    std::size_t count = 0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const BufferPlace& place = ranks[rank];
        if (place.output_bytes == 0) continue;
        outputs[count++] = {place.output, place.output + place.output_bytes, rank};
    }
    const auto end = outputs.begin() + static_cast<std::ptrdiff_t>(count);
    std::sort(outputs.begin(), end,
              [](const Output& a, const Output& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < count; ++i) {
        if (outputs[i].begin < outputs[i - 1].end) return kOverlap;
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const Bytes begin = ranks[rank].input;
        const Bytes bytes = ranks[rank].input_bytes;
        if (bytes == 0) continue;
        // The outputs are disjoint and sorted, so their ends are sorted, too: the first that ends
        // behind the input's begin, and those after it that begin before its end.
        auto at =
            std::lower_bound(outputs.begin(), end, begin,
                             [](const Output& output, Bytes place) { return output.end <= place; });
        for (; at != end && at->begin < begin + bytes; ++at) {
            if (at->rank != rank) return kOverlap;
        }
    }
    return {};
}

Result<void> check_shared(std::span<const BufferPlace> ranks) {
    for (const BufferPlace& place : ranks) {
        const bool same =
            place.output == ranks[0].output && place.output_bytes == ranks[0].output_bytes;
        if (!same) return kNotShared;
    }
    return {};
}

}  // namespace fabricshm
