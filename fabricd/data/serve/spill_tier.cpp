#include "fabricd/data/serve/spill_tier.hpp"

#include <utility>

#include "fabricd/data/spill/spilled_silo.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

Result<std::unique_ptr<SpillTier>> SpillTier::open(const DataSpec& spec) {
    std::unique_ptr<SpillTier> tier(new SpillTier);
    tier->folder_ = spec.spill;
    const std::string& state = spec.state.empty() ? spec.spill : spec.state;
    const std::string path = state + "/data-catalogue";
    CatalogueContent content;
    auto catalogue = CatalogueThread::start(path, content);
    if (!catalogue.ok()) {
        const std::string reason = fabricshm::explanation_of(catalogue.error());
        return fabricshm::explain(catalogue.error(), "%s: %s", path.c_str(), reason.c_str());
    }
    tier->catalogue_ = std::move(*catalogue);
    if (!spec.spill.empty()) {
        FABRIC_TRY(tier->spill_, Spill::open(spec.spill, spec.spill_bytes, *tier->catalogue_,
                                             std::move(content)));
    }
    return tier;
}

// A plan reads each of its samples once in an epoch, so that what it does not keep in memory is
// worth a place on the disk until its end. What is read without a plan takes its turn.
void SpillTier::store(std::uint64_t file, std::uint32_t chunk, std::span<const std::byte> bytes,
                      std::uint32_t checksum, ChunkKind kind) {
    const KnownFile* const known = files_->find(file);
    if (spill_ == nullptr || known == nullptr) return;
    const bool is_planned = kind == ChunkKind::kPassing || kind == ChunkKind::kKept;
    spill_->store({files_->full_path(*known), known->facts.version, chunk}, known->facts.bytes,
                  bytes, checksum, is_planned);
}

Result<std::unique_ptr<Silo>> SpillTier::open_silo(
    const SiloSpec& spec, std::span<std::byte> memory,
    std::function<Result<std::unique_ptr<Silo>>()> open) {
    SpilledSilo::Parts parts;
    parts.at = spec.at;
    parts.open = std::move(open);
    parts.spill = spill_.get();
    parts.catalogue = catalogue_.get();
    parts.memory = memory;
    FABRIC_TRY(auto silo, SpilledSilo::open(std::move(parts)));
    return std::unique_ptr<Silo>(std::move(silo));
}

bool SpillTier::has(const KnownFile& file, std::uint32_t chunk) const {
    return spill_ != nullptr && spill_->has({files_->full_path(file), file.facts.version, chunk});
}

void SpillTier::release_kept() {
    if (spill_ != nullptr) spill_->release_kept();
}

SecondTierView SpillTier::view() const {
    SecondTierView view;
    view.folder = folder_;
    if (spill_ == nullptr) return view;
    const SpillStatus status = spill_->status();
    view.off = status.off;
    view.room = status.room;
    view.bytes = status.bytes;
    view.chunks = status.chunks;
    view.stored = status.stored;
    view.unsaved = status.unsaved;
    view.refused = status.refused;
    view.found = status.found;
    view.corrupt = status.corrupt;
    view.slots = status.slots;
    view.free_slots = status.free_slots;
    view.kept_slots = status.kept_slots;
    return view;
}

}  // namespace fabricd
