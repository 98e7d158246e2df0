#include "fabricd/data/serve/written_bytes.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/shm/data_layout.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::kDataChunkBytes;
using fabricshm::kNoLine;

bool is_memory_file(int fd) {
    return fd >= 0 && ::fcntl(fd, F_GET_SEALS) >= 0;
}

Result<void> WrittenBytes::take(WrittenFile& written, int file, Bytes bytes,
                                const std::function<void()>& is_full) const {
    for (Bytes done = 0; done < bytes;) {
        const Bytes at = written.tail.size();
        const Bytes more = std::min(bytes - done, kDataChunkBytes - at);
        written.tail.resize(at + more);
        Bytes got = 0;
        while (got < more) {
            const ssize_t count = ::pread(file, written.tail.data() + at + got, more - got,
                                          static_cast<off_t>(done + got));
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) {
                return explain({Errc::kInvalid, 0, "write file"},
                               "the memory file has fewer bytes than the request says");
            }
            got += static_cast<Bytes>(count);
        }
        done += more;
        if (written.tail.size() == kDataChunkBytes) is_full();
    }
    return {};
}

bool WrittenBytes::cut(WrittenFile& written) {
    WrittenChunk chunk;
    chunk.line = kNoLine;
    chunk.bytes = written.tail.size();
    const auto bytes = static_cast<std::uint32_t>(chunk.bytes);
    if (const auto line = cache_.add_file(files_.take_id(), chunk.bytes)) {
        const auto room = cache_.begin(*line, bytes, ChunkKind::kTried, true);
        if (room) {
            std::memcpy(room->into, written.tail.data(), chunk.bytes);
            cache_.finish(*line, fabricshm::crc32c(written.tail.data(), chunk.bytes));
            chunk.line = *line;
        } else {
            cache_.retire(*line, 1);
        }
    }
    written.bytes += chunk.bytes;
    on_the_way_ += chunk.bytes;
    chunk.is_counted = true;
    // Held memory is what readers can't have: a quarter of it at most.
    chunk.is_held = chunk.line != kNoLine && on_the_way_ <= cache_.capacity() / 4;
    const bool is_held = chunk.is_held;
    if (is_held) {
        cache_.hold(chunk.line);
        written.tail.clear();
    } else {
        chunk.own = std::make_shared<const std::vector<std::byte>>(std::move(written.tail));
        written.tail = {};
    }
    written.chunks.push_back(std::move(chunk));
    return is_held;
}

std::span<const std::byte> WrittenBytes::bytes_of(const WrittenChunk& chunk) const {
    if (chunk.own != nullptr) return *chunk.own;
    return {cache_.bytes_of(chunk.line).data(), chunk.bytes};
}

void WrittenBytes::let_go(WrittenChunk& chunk) {
    if (chunk.is_held) cache_.let_go(chunk.line);
    if (chunk.is_counted) on_the_way_ -= chunk.bytes;
    chunk.is_held = chunk.is_counted = false;
    chunk.own = nullptr;
}

void WrittenBytes::hand_over(WrittenFile& written, const KnownFile& file) {
    for (std::size_t i = 0; i < written.chunks.size(); ++i) {
        WrittenChunk& chunk = written.chunks[i];
        if (chunk.line == kNoLine) continue;
        const std::uint64_t line = file.first_line + i;
        // Evicted meanwhile, or a listing was faster and a reader has fetched it.
        const bool is_free = cache_.state(line) == DataLineState::kEmpty;
        if (is_free && cache_.state(chunk.line) == DataLineState::kReady) {
            cache_.hand_over(chunk.line, line);
        } else {
            let_go(chunk);
            cache_.retire(chunk.line, 1);
        }
        chunk.line = line;
    }
}

void WrittenBytes::release(WrittenFile& written, bool retires) {
    for (WrittenChunk& chunk : written.chunks) {
        let_go(chunk);
        if (chunk.line != kNoLine && retires) cache_.retire(chunk.line, 1);
    }
}

}  // namespace fabricd
