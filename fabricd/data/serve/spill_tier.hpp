// SpillTier: the second tier as a spill and a catalogue.

#pragma once

#include <memory>

#include "fabricd/data/serve/second_tier.hpp"
#include "fabricd/data/spill/spill.hpp"

namespace fabricd {

class SpillTier : public SecondTier {
  public:
    /// Errors as CatalogueThread::start() and Spill::open(), but for those of a disk that is full
    /// or fails: without what it has, with one warning.
    static Result<std::unique_ptr<SpillTier>> open(const DataSpec& spec);

    void store(std::uint64_t file, std::uint32_t chunk, std::span<const std::byte> bytes,
               std::uint32_t checksum, ChunkKind kind) override;
    void set_files(const FileTable& files) override { files_ = &files; }
    Result<std::unique_ptr<Silo>> open_silo(
        const SiloSpec& spec, std::span<std::byte> memory,
        std::function<Result<std::unique_ptr<Silo>>()> open) override;
    bool has(const KnownFile& file, std::uint32_t chunk) const override;
    void forget(const KnownFile& file) override;
    void release_kept() override;
    SecondTierView view() const override;
    std::vector<std::pair<std::string, std::string>> take_plans() override;
    void put_plan(const std::string& name, const std::string& plan) override;

  private:
    SpillTier() = default;
    Result<void> open_disk(const DataSpec& spec);

    std::string folder_;
    std::string off_;  // why what is on the disk is not used; "": it is
    const FileTable* files_ = nullptr;
    std::vector<PutPlan> plans_;                  // of before
    std::unique_ptr<CatalogueThread> catalogue_;  // empty: off
    std::unique_ptr<Spill> spill_;                // empty: names alone, or off
};

}  // namespace fabricd
