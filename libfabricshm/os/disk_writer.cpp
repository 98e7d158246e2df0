#include "libfabricshm/os/disk_writer.hpp"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/os/pinned_memory.hpp"

namespace fabricshm {

namespace {

constexpr unsigned kInFlight = 16;
// What a disk is busy with for long enough that the next write is there before it ends.
constexpr Bytes kWriteBytes = kMiB;

constexpr const char* kStep = "write to disk";

}  // namespace

Result<void> write_all(int fd, const std::byte* data, Bytes bytes, Bytes offset) noexcept {
    while (bytes > 0) {
        const ssize_t written = ::pwrite(fd, data, bytes, static_cast<off_t>(offset));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return error_of_disk(errno, kStep);
        if (written == 0) return error_of_disk(EIO, kStep);
        data += written;
        bytes -= static_cast<Bytes>(written);
        offset += static_cast<Bytes>(written);
    }
    return {};
}

Result<DiskFile> DiskFile::open(const std::string& path, unsigned mode) {
    DiskFile file;
    constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC;
    file.buffered_ = Fd(::open(path.c_str(), kFlags, mode));
    if (!file.buffered_) return error_of_disk(errno, "open a file to write");
    // tmpfs and some others have none.
    file.direct_ = Fd(::open(path.c_str(), kFlags | O_DIRECT, mode));
    return file;
}

Result<void> DiskFile::sync() const noexcept {
    if (::fsync(buffered_.get()) != 0) return error_of_disk(errno, "fsync");
    return {};
}

struct DiskWriter::Ring {
    struct Write {
        int fd = -1;
        const std::byte* data = nullptr;
        Bytes bytes = 0;
        Bytes offset = 0;
    };
    io_uring ring{};
    std::array<Write, kInFlight> writes;
    std::vector<unsigned> idle;  // indices of `writes`
    unsigned submitted = 0;
};

DiskWriter::DiskWriter(std::span<std::byte> memory, bool uring) : memory_(memory) {
    if (!uring) return;
    auto ring = std::make_unique<Ring>();
    // Forbidden by a seccomp filter or by kernel.io_uring_disabled, or not in this kernel.
    if (::io_uring_queue_init(kInFlight, &ring->ring, 0) != 0) return;
    for (unsigned i = 0; i < kInFlight; ++i) ring->idle.push_back(i);
    ring_ = std::move(ring);
    path_.registered = pin_memory(ring_->ring, memory);
}

DiskWriter::~DiskWriter() {
    if (!ring_) return;
    reap(true);
    ::io_uring_queue_exit(&ring_->ring);
}

// One completion, or all that are out. A write that came back short goes on by itself.
void DiskWriter::reap(bool all) noexcept {
    while (ring_->submitted > 0) {
        io_uring_cqe* cqe = nullptr;
        const int waited = ::io_uring_wait_cqe(&ring_->ring, &cqe);
        if (waited == -EINTR) continue;
        // Nothing else can come of a ring that was set up: the arguments are its own.
        FABRIC_CHECK(waited == 0);
        const auto index = static_cast<unsigned>(cqe->user_data);
        const int result = cqe->res;
        ::io_uring_cqe_seen(&ring_->ring, cqe);
        --ring_->submitted;
        const Ring::Write& write = ring_->writes[index];
        if (result < 0 && result != -EINTR && result != -EAGAIN) {
            if (error_ == 0) error_ = -result;
        } else if (const Bytes done = result < 0 ? 0 : static_cast<Bytes>(result);
                   done < write.bytes) {
            // What is left may be no whole blocks; the kernel says so where that matters.
            const auto rest =
                write_all(write.fd, write.data + done, write.bytes - done, write.offset + done);
            if (!rest.ok() && error_ == 0) error_ = rest.error().detail;
        }
        ring_->idle.push_back(index);
        if (!all) return;
    }
}

Result<void> DiskWriter::submit(int fd, const std::byte* data, Bytes bytes, Bytes offset) {
    if (!ring_) return write_all(fd, data, bytes, offset);
    if (ring_->idle.empty()) reap(false);
    if (error_ != 0) return error_of_disk(error_, kStep);
    const unsigned index = ring_->idle.back();
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_->ring);
    // As many entries as there are writes, and each is submitted at once.
    FABRIC_CHECK(sqe != nullptr);
    ring_->writes[index] = {fd, data, bytes, offset};
    const auto length = static_cast<unsigned>(bytes);
    const auto place = static_cast<Bytes>(data - memory_.data());
    if (path_.registered) {
        ::io_uring_prep_write_fixed(sqe, fd, data, length, offset,
                                    static_cast<int>(place / kPinBytes));
    } else {
        ::io_uring_prep_write(sqe, fd, data, length, offset);
    }
    sqe->user_data = index;
    int sent = ::io_uring_submit(&ring_->ring);
    while (sent == -EINTR || sent == -EAGAIN || sent == -EBUSY) {
        if (ring_->submitted > 0) reap(false);
        sent = ::io_uring_submit(&ring_->ring);
    }
    if (sent < 0) {
        if (error_ == 0) error_ = -sent;
        return error_of_disk(-sent, kStep);
    }
    ring_->idle.erase(std::ranges::find(ring_->idle, index));
    ++ring_->submitted;
    path_.uring = true;
    return {};
}

// Whole blocks, in pieces that don't cross what is pinned at once.
Result<void> DiskWriter::write_direct(const DiskFile& file, const std::byte* data, Bytes bytes,
                                      Bytes offset) {
    const int fd = file.direct() >= 0 ? file.direct() : file.buffered();
    while (bytes > 0) {
        const auto place = static_cast<Bytes>(data - memory_.data());
        const Bytes now = std::min({bytes, kWriteBytes, kPinBytes - place % kPinBytes});
        FABRIC_TRY_VOID(submit(fd, data, now, offset));
        data += now;
        offset += now;
        bytes -= now;
    }
    path_.direct = file.direct() >= 0;
    return {};
}

Result<void> DiskWriter::write(const DiskFile& file, const std::byte* data, Bytes bytes,
                               Bytes offset) {
    FABRIC_CHECK((reinterpret_cast<std::uintptr_t>(data) - offset) % kDiskBlock == 0);
    const Bytes first = round_up(offset, kDiskBlock);
    const Bytes last = (offset + bytes) / kDiskBlock * kDiskBlock;
    if (last <= first) return write_all(file.buffered(), data, bytes, offset);
    const Bytes head = first - offset;
    // The blocks at the ends are shared with other ranks' bytes: the page cache joins them, and no
    // direct write touches them.
    FABRIC_TRY_VOID(write_all(file.buffered(), data, head, offset));
    FABRIC_TRY_VOID(write_direct(file, data + head, last - first, first));
    return write_all(file.buffered(), data + (last - offset), offset + bytes - last, last);
}

Result<void> DiskWriter::finish() noexcept {
    if (ring_) reap(true);
    if (error_ != 0) return error_of_disk(error_, kStep);
    return {};
}

}  // namespace fabricshm
