#include "fabricd/data/serve/spill_tier.hpp"

#include <cerrno>
#include <utility>

#include "fabricd/data/spill/spilled_silo.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

namespace {

// That the disk is full, or fails, or files may not be as large (RLIMIT_FSIZE): what is on it may
// be found again at another start. A folder that is not there, or not ours, is a mistake.
bool is_of_disk(const Error& error) {
    return error.code == fabricshm::Errc::kSystem &&
           (error.detail == ENOSPC || error.detail == EDQUOT || error.detail == EIO ||
            error.detail == EFBIG);
}

}  // namespace

Result<std::unique_ptr<SpillTier>> SpillTier::open(const DataSpec& spec) {
    std::unique_ptr<SpillTier> tier(new SpillTier);
    tier->folder_ = spec.spill;
    const auto opened = tier->open_disk(spec);
    if (opened.ok()) return tier;
    if (!is_of_disk(opened.error())) return opened.error();
    tier->off_ = fabricshm::explanation_of(opened.error());
    fabricshm::log(fabricshm::LogLevel::kWarning,
                   "%s is off until the next start, the cache goes on without: %s",
                   spec.spill.empty() ? "the catalogue" : "the spill", tier->off_.c_str());
    return tier;
}

Result<void> SpillTier::open_disk(const DataSpec& spec) {
    const std::string& state = spec.state.empty() ? spec.spill : spec.state;
    const std::string path = state + "/data-catalogue";
    CatalogueContent content;
    auto catalogue = CatalogueThread::start(path, content);
    if (!catalogue.ok()) {
        const bool is_taken = catalogue.error().code == fabricshm::Errc::kBusy;
        const std::string reason =
            is_taken ? "another service has it" : fabricshm::explanation_of(catalogue.error());
        return fabricshm::explain(catalogue.error(), "%s: %s", path.c_str(), reason.c_str());
    }
    catalogue_ = std::move(*catalogue);
    plans_ = std::move(content.plans);
    if (spec.spill.empty()) return {};
    FABRIC_TRY(spill_, Spill::open(spec.spill, spec.spill_bytes, *catalogue_, std::move(content)));
    return {};
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
    if (catalogue_ == nullptr) return open();
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

void SpillTier::forget(const KnownFile& file) {
    if (spill_ != nullptr) spill_->forget(files_->full_path(file), file.facts.version);
}

void SpillTier::release_kept() {
    if (spill_ != nullptr) spill_->release_kept();
}

std::vector<std::pair<std::string, std::string>> SpillTier::take_plans() {
    std::vector<std::pair<std::string, std::string>> taken;
    for (PutPlan& one : std::exchange(plans_, {})) {
        taken.emplace_back(std::move(one.name), std::move(one.plan));
    }
    return taken;
}

void SpillTier::put_plan(const std::string& name, const std::string& plan) {
    if (catalogue_ != nullptr) catalogue_->add(PutPlan{name, plan});
}

SecondTierView SpillTier::view() const {
    SecondTierView view;
    view.folder = folder_;
    view.off = off_;
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
