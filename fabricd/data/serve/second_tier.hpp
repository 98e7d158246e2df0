// SecondTier: what the data service has below memory: the spill of a local disk, and names over
// restarts.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fabricd/data/blocks/chunk_cache.hpp"
#include "fabricd/data/data_spec.hpp"
#include "fabricd/data/serve/file_table.hpp"
#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

/// For people and programs that ask.
struct SecondTierView {
    std::string folder;
    std::string off;  // why it is; "": it is on
    Bytes room = 0;
    Bytes bytes = 0;
    std::uint64_t chunks = 0;
    std::uint64_t stored = 0;
    std::uint64_t unsaved = 0;  // of these, what a restart would not find yet
    std::uint64_t refused = 0;
    std::uint64_t found = 0;
    std::uint64_t corrupt = 0;
    std::uint64_t slots = 0;
    std::uint64_t free_slots = 0;
    std::uint64_t kept_slots = 0;
};

/// The control thread's; outlives the silos that it opens.
class SecondTier : public ChunkTier {
  public:
    /// Of a spec with a spill or a folder for state; empty: it has neither. kUnsupported: this
    /// build has none.
    static Result<std::unique_ptr<SecondTier>> open(const DataSpec& spec);

    /// Whose ids store() gets. Borrowed.
    virtual void set_files(const FileTable& files) = 0;
    /// The silo of the spec that `open` opens, now or when it answers, with this tier before it.
    virtual Result<std::unique_ptr<Silo>> open_silo(
        const SiloSpec& spec, std::span<std::byte> memory,
        std::function<Result<std::unique_ptr<Silo>>()> open) = 0;
    virtual bool has(const KnownFile& file, std::uint32_t chunk) const = 0;
    /// Its bytes are wrong: they are not read again.
    virtual void forget(const KnownFile& file) = 0;
    /// No plan is left.
    virtual void release_kept() = 0;
    virtual SecondTierView view() const = 0;

    /// By name, as put_plan() had them in an earlier service. Once.
    virtual std::vector<std::pair<std::string, std::string>> take_plans() = 0;
    /// "": it is over. Never waits; what is not written for want of room is older after a restart.
    virtual void put_plan(const std::string& name, const std::string& plan) = 0;
};

}  // namespace fabricd
