// SpillTier: the second tier as a spill and a catalogue.

#pragma once

#include <memory>

#include "fabricd/data/serve/second_tier.hpp"
#include "fabricd/data/spill/spill.hpp"

namespace fabricd {

class SpillTier : public SecondTier {
  public:
    /// Errors as CatalogueThread::start() and Spill::open().
    static Result<std::unique_ptr<SpillTier>> open(const DataSpec& spec);

    void store(std::uint64_t file, std::uint32_t chunk, std::span<const std::byte> bytes,
               std::uint32_t checksum, ChunkKind kind) override;
    void set_files(const FileTable& files) override { files_ = &files; }
    Result<std::unique_ptr<Silo>> open_silo(
        const SiloSpec& spec, std::span<std::byte> memory,
        std::function<Result<std::unique_ptr<Silo>>()> open) override;
    bool has(const KnownFile& file, std::uint32_t chunk) const override;
    void release_kept() override;
    SecondTierView view() const override;

  private:
    SpillTier() = default;

    std::string folder_;
    const FileTable* files_ = nullptr;
    std::unique_ptr<CatalogueThread> catalogue_;
    std::unique_ptr<Spill> spill_;  // empty: names alone
};

}  // namespace fabricd
