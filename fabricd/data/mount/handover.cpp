#include "fabricd/data/mount/handover.hpp"

#include <linux/fuse.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "fabricd/data/mount/node_table.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Fd;
using fabricshm::kPageBytes;

namespace {

constexpr Bytes kSlotsAt = kPageBytes;
constexpr Bytes kNodesAt = kSlotsAt + kMountSlots * kSlotBytes;
constexpr Bytes kAllBytes = kNodesAt + kNodeTableBytes;
static_assert(kNodesAt % kPageBytes == 0 && kAllBytes % kPageBytes == 0);

static_assert(sizeof(RequestHead) == sizeof(fuse_in_header));
static_assert(offsetof(RequestHead, unique) == offsetof(fuse_in_header, unique));
static_assert(offsetof(RequestHead, opcode) == offsetof(fuse_in_header, opcode));

}  // namespace

Result<Handover> Handover::make() {
    Handover made;
    made.file_ = Fd(::memfd_create("fabric-mount", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!made.file_) return fabricshm::error_from_errno(errno, "make handover");
    if (::ftruncate(made.file_.get(), static_cast<off_t>(kAllBytes)) != 0) {
        return fabricshm::error_from_errno(errno, "size handover");
    }
    FABRIC_TRY(made.mapping_, fabricshm::Mapping::map(made.file_, 0, kAllBytes, {}));
    return made;
}

Result<Handover> Handover::map(Fd file) {
    const off_t bytes = ::lseek(file.get(), 0, SEEK_END);
    if (bytes != static_cast<off_t>(kAllBytes)) {
        return fabricshm::Error{Errc::kCorrupt, 0, "map handover"};
    }
    Handover mapped;
    FABRIC_TRY(mapped.mapping_, fabricshm::Mapping::map(file, 0, kAllBytes, {}));
    mapped.file_ = std::move(file);
    return mapped;
}

HandoverHead& Handover::head() const noexcept {
    return *std::launder(reinterpret_cast<HandoverHead*>(mapping_.data()));
}

std::span<std::byte> Handover::slot(std::size_t number) const noexcept {
    return {mapping_.data() + kSlotsAt + number * kSlotBytes, kSlotBytes};
}

RequestHead& Handover::request(std::size_t number) const noexcept {
    return *std::launder(reinterpret_cast<RequestHead*>(slot(number).data()));
}

std::span<std::byte> Handover::nodes() const noexcept {
    return {mapping_.data() + kNodesAt, kNodeTableBytes};
}

bool expects_reply(std::uint32_t opcode) noexcept {
    return opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET;
}

void reply_error(const Fd& fuse, std::uint64_t unique, int error) noexcept {
    fuse_out_header reply{};
    reply.len = sizeof reply;
    reply.error = -error;
    reply.unique = unique;
    [[maybe_unused]] const auto written = ::write(fuse.get(), &reply, sizeof reply);
}

}  // namespace fabricd
