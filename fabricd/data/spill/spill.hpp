// Spill: the second tier of the data cache: chunks on a local disk that left memory, or that are to
// outlive the service. docs/data.md.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "fabricd/data/catalogue/catalogue_thread.hpp"
#include "fabricd/data/silo/chunk_name.hpp"
#include "fabricd/data/spill/slot_files.hpp"
#include "fabricd/data/spill/slot_map.hpp"
#include "fabricd/data/spill/slot_writer.hpp"
#include "fabricd/data/spill/staging.hpp"

namespace fabricd {

struct SpillStatus {
    std::string off;  // why, for people; "": it is on
    Bytes room = 0;
    Bytes bytes = 0;  // of chunks
    std::size_t chunks = 0;
    std::uint32_t slots = 0;
    std::uint32_t free_slots = 0;
    std::size_t kept_slots = 0;
    std::uint64_t stored = 0;   // chunks, since it was opened
    std::uint64_t unsaved = 0;  // of these, what a restart would not find yet
    std::uint64_t refused = 0;  // not stored: no slot may go, or the disk is behind
    std::uint64_t found = 0;
    std::uint64_t absent = 0;
    std::uint64_t corrupt = 0;  // other bytes than were stored: not given
};

/// All of it from any thread, one store() at a time. After an error of the disk it is off, with one
/// warning: nothing is found and nothing stored, and the cache goes on without.
class Spill {
  public:
    /// Makes or finds the files in `folder`, and again what `content`, which is the catalogue's,
    /// says of them. Reads the indexes of packs: some seconds for a full disk. `catalogue` outlives
    /// it.
    static Result<std::unique_ptr<Spill>> open(const std::string& folder, Bytes bytes,
                                               CatalogueThread& catalogue,
                                               CatalogueContent content);
    /// Writes what was stored.
    ~Spill();
    Spill(const Spill&) = delete;
    Spill& operator=(const Spill&) = delete;

    bool has(const ChunkName& name) const;

    /// Copies a chunk of at most 4 MiB, with the CRC-32C that its bytes have; a thread of the spill
    /// writes it. `file_bytes` is the file's size; `kept`: a plan wants it to stay (SlotMap). True:
    /// it is there. False: it is not stored, since nothing else may go, the disk is behind, or the
    /// file has no such chunk.
    bool store(const ChunkName& name, Bytes file_bytes, std::span<const std::byte> bytes,
               std::uint32_t checksum, bool kept);

    /// Another version of the file is there by now.
    void forget(const std::string& path, const FileVersion& version);
    /// The plan is over.
    void release_kept();

    /// All that was stored is written and catalogued. False: not until `deadline`, or it is off.
    bool flush(TimePoint deadline);

    SpillStatus status() const;

    /// Of SpillReader: a chunk whose slot stays as it is until unpin().
    struct Pinned {
        ChunkKey key;
        ChunkPlace place;
        std::shared_ptr<const StagedSlot> staged;  // not empty: its bytes are here
        int fd = -1;                               // else there
        Bytes offset = 0;
        bool direct = false;
    };
    std::optional<Pinned> pin(const ChunkName& name);
    enum class Verdict { kWhole, kCorrupt };
    void unpin(const Pinned& pinned, Verdict verdict);
    /// The disk failed. Logged once.
    void switch_off(const std::string& reason);

  private:
    struct FileName {
        std::string path;
        FileVersion version;
        bool operator==(const FileName&) const = default;
    };
    struct FileNameHash {
        std::size_t operator()(const FileName& name) const noexcept;
    };
    struct SpilledFile {
        std::uint64_t id = 0;
        Bytes bytes = 0;
        std::uint32_t chunks = 0;  // that are there
        bool catalogued = false;
    };
    using Files = std::unordered_map<FileName, SpilledFile, FileNameHash>;
    // A slot that is filled, in memory; it is written piece by piece.
    struct Pack {
        std::shared_ptr<StagedSlot> staged;
        std::uint32_t slot = 0;
        std::uint64_t sequence = 0;
        Bytes end = 0;      // of what is in it
        Bytes written = 0;  // up to here it is, or will be, on the disk
        std::vector<SlotEntry> entries;
        std::vector<CataloguedFile> files;  // that the catalogue has not yet
        std::uint64_t chunks = 0;           // since the last piece
        TimePoint last_store{};
        bool kept = false;
    };

    Spill(SlotFiles files, std::unique_ptr<StagingRoom> staging, CatalogueThread& catalogue);

    Result<void> restore(CatalogueContent content);
    Result<void> restore_packs(const std::vector<CataloguedSlot>& rows);
    void restore_slot(std::uint32_t slot, std::vector<SlotEntry> entries);
    void drop_useless_files();

    SpilledFile* find_file(const std::string& path, const FileVersion& version);
    SpilledFile& make_file(const ChunkName& name, Bytes bytes);
    void lose_chunks(const std::vector<ChunkKey>& gone);
    void drop_file(std::uint64_t id);

    std::unique_ptr<Pack>& pack_for(Bytes bytes, bool kept);
    bool begin_pack(std::unique_ptr<Pack>& pack, bool kept);
    bool put_in(std::unique_ptr<Pack>& pack, const ChunkName& name, Bytes file_bytes,
                std::span<const std::byte> bytes, std::uint32_t checksum);
    void cut(Pack& pack, bool is_last);
    void close_pack(std::unique_ptr<Pack>& pack);
    void cut_idle(TimePoint now);
    void on_written(SlotPiece& piece, const Result<void>& written);

    const SlotFiles slot_files_;
    CatalogueThread& catalogue_;
    const std::unique_ptr<StagingRoom> staging_;

    // The open packs: of other chunks and of kept ones, and of one chunk alone. Taken before
    // mutex_.
    std::mutex store_mutex_;
    std::array<std::unique_ptr<Pack>, 3> packs_;
    std::uint64_t last_sequence_;

    mutable std::mutex mutex_;
    SlotMap map_;
    Files files_;
    std::unordered_map<std::uint64_t, Files::iterator> files_by_id_;
    std::unordered_map<std::uint32_t, std::shared_ptr<StagedSlot>> staged_;  // by slot
    std::uint64_t last_file_;
    std::vector<CatalogueChange> changes_;  // to be written with the next piece
    SpillStatus counts_;
    // Of `stored`; also the catalogue's, which may count later than this spill lives.
    const std::shared_ptr<std::atomic<std::uint64_t>> saved_;

    std::unique_ptr<SlotWriter> writer_;  // last: its thread uses the rest
};

}  // namespace fabricd
