#include "libfabricshm/optim/agreement.hpp"

#include <cstddef>

#include "libfabricshm/base/reason.hpp"

namespace fabricshm {

Result<void> pass_barrier(Group& group, TimePoint deadline) {
    Call call;
    call.kind = Kind::kBarrier;
    call.deadline = deadline;
    return group.run(call);
}

Result<std::vector<std::uint64_t>> gather(Group& group, const std::vector<std::uint64_t>& mine,
                                          TimePoint deadline) {
    std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(group.world()));
    Call call;
    call.kind = Kind::kAllGather;
    call.dtype = kernels::DType::kU64;
    call.count = mine.size();
    call.input = reinterpret_cast<const std::byte*>(mine.data());
    call.output = reinterpret_cast<std::byte*>(all.data());
    call.deadline = deadline;
    FABRIC_TRY_VOID(group.run(call));
    return all;
}

KeptError::KeptError(const Error& error) : error_(error), text_(reason_of(error)) {}

Error KeptError::again() const {
    return text_.empty() ? error_ : explain(error_, "%s", text_.c_str());
}

Error failure_of(int rank, std::uint64_t code, const char* step) {
    if (code > static_cast<std::uint64_t>(Errc::kChanged)) {
        return explain({Errc::kCorrupt, 0, step}, "rank %d: unknown error %llu", rank,
                       static_cast<unsigned long long>(code));
    }
    auto theirs = static_cast<Errc>(code);
    const char* const text = text_of(theirs);
    // What its system said is not known here.
    if (theirs == Errc::kSystem) theirs = Errc::kPeer;
    return explain({theirs, rank, step}, "rank %d: %s", rank, text);
}

Result<void> agree(Group& group, const Result<void>& own, const char* step, TimePoint deadline) {
    const KeptError kept(own.error());
    FABRIC_TRY(const auto all,
               gather(group, {static_cast<std::uint64_t>(own.error().code)}, deadline));
    if (!own.ok()) return kept.again();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (all[rank] != 0) return failure_of(static_cast<int>(rank), all[rank], step);
    }
    return {};
}

}  // namespace fabricshm
