#include "libfabricshm/optim/gather.hpp"

namespace fabricshm {

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

}  // namespace fabricshm
