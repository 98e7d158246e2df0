// WrittenBytes: the bytes of files that jobs write: lines of the cache without a name, and what
// they hold of it until the silo has them.

#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "fabricd/data/blocks/chunk_cache.hpp"
#include "fabricd/data/serve/file_table.hpp"

namespace fabricd {

struct WrittenChunk {
    std::uint64_t line = 0;  // kNoLine: the cache does not have it
    bool is_held = false;
    bool is_counted = false;  // among the bytes on the way
    Bytes bytes = 0;
    std::shared_ptr<const std::vector<std::byte>> own;  // where the line is not to be relied on
};

/// Of one file.
struct WrittenFile {
    Bytes bytes = 0;
    std::vector<std::byte> tail;  // less than a chunk
    std::vector<WrittenChunk> chunks;
};

/// The control thread's. The cache and the table outlive it.
class WrittenBytes {
  public:
    WrittenBytes(ChunkCache& cache, FileTable& files) : cache_(cache), files_(files) {}

    /// The first `bytes` of a memory file behind what there is; `is_full` when a chunk is.
    /// kInvalid: it has fewer.
    Result<void> take(WrittenFile& written, int file, Bytes bytes,
                      const std::function<void()>& is_full) const;
    /// The tail becomes a chunk. False: it is in memory of its own, since the cache has no room for
    /// more that readers can't have.
    bool cut(WrittenFile& written);
    std::span<const std::byte> bytes_of(const WrittenChunk& chunk) const;
    /// The silo has it, or is not to have it.
    void let_go(WrittenChunk& chunk);
    /// The lines without a name become the file's.
    void hand_over(WrittenFile& written, const KnownFile& file);
    /// All of them; with `retires` lines that are no file's go.
    void release(WrittenFile& written, bool retires);

    /// Bytes that silos do not have yet.
    Bytes on_the_way() const noexcept { return on_the_way_; }

  private:
    ChunkCache& cache_;
    FileTable& files_;
    Bytes on_the_way_ = 0;
};

/// Of memory alone: what else a descriptor may be could keep its reader waiting.
bool is_memory_file(int fd);

}  // namespace fabricd
