// Catalogue: what the data cache knows over restarts: names and versions of files, what lies in
// which slot of the spill with its checksum, plans. A file of SQLite; deleting it is always safe.
// docs/data.md.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

/// A file of which chunks are in the spill.
struct CataloguedFile {
    std::uint64_t id = 0;  // never another file's, also when this one is gone
    std::string path;      // in the namespace: "/images/x.jpeg"
    FileFacts facts;
};

/// A slot of the spill: one chunk, or a pack of small ones with an index in the slot itself.
struct CataloguedSlot {
    std::uint32_t slot = 0;
    std::uint64_t sequence = 0;
    std::uint64_t file = 0;      // 0: a pack
    std::uint32_t number = 0;    // of the chunk
    std::uint32_t bytes = 0;     // of the chunk, or of the index
    std::uint32_t checksum = 0;  // CRC-32C of these
    std::uint32_t index_at = 0;  // of a pack
};

/// Part of a folder's listing as its silo gave it: the names behind `after`, up to the last of the
/// entries, or to the folder's end.
struct CataloguedPage {
    std::string folder;  // in the namespace
    std::string after;
    SiloPage page;
};

// What is written. Each of these may be lost: what is read then is older, or not there.
struct DropFile {
    std::uint64_t id = 0;
};
struct DropSlot {
    std::uint32_t slot = 0;
};
struct DropFolder {
    std::string folder;
};
struct PutPlan {
    std::string name;
    std::string plan;  // its bytes are the planner's; "": it is over
};
using CatalogueChange = std::variant<CataloguedFile, CataloguedSlot, CataloguedPage, DropFile,
                                     DropSlot, DropFolder, PutPlan>;

/// Which catalogue it is: random, made with the file.
using CatalogueIdentity = std::array<std::byte, 16>;

/// One thread at a time; on the disk's time.
class Catalogue {
  public:
    /// Makes or opens `path`. A file that is no catalogue of this version is renamed to PATH.bad,
    /// and a new one begun with one line in the log. kBusy: another process has it.
    static Result<std::unique_ptr<Catalogue>> open(const std::string& path);
    /// What open() does with a broken one; for the caller that finds it broken later, and has
    /// closed it.
    static Result<void> rename_bad(const std::string& path, const Error& why);
    ~Catalogue();

    const CatalogueIdentity& identity() const noexcept;
    /// How often it was opened: rises with each.
    std::uint32_t opens() const noexcept;

    /// One transaction: all of them or, when it fails or the process ends in it, none.
    Result<void> write(const std::vector<CatalogueChange>& changes);

    Result<void> read_files(const std::function<void(CataloguedFile&&)>& visit);
    Result<void> read_slots(const std::function<void(const CataloguedSlot&)>& visit);
    /// As Silo::list(), of what was written. kNotFound: the folder has not been listed to its end.
    Result<SiloPage> read_page(const std::string& folder, const std::string& after,
                               std::size_t most);
    /// Of a file of a folder that was listed. kNotFound: there is none.
    Result<FileFacts> look(const std::string& path);
    Result<std::vector<PutPlan>> read_plans();

  private:
    struct Open;  // SQLite's

    explicit Catalogue(std::unique_ptr<Open> open);

    std::unique_ptr<Open> open_;
};

}  // namespace fabricd
