#include "fabricd/data/serve/second_tier.hpp"

#include "libfabricshm/base/reason.hpp"

#ifdef FABRIC_SPILL
#include "fabricd/data/serve/spill_tier.hpp"
#endif

namespace fabricd {

Result<std::unique_ptr<SecondTier>> SecondTier::open(const DataSpec& spec) {
    if (spec.spill.empty() && spec.state.empty()) return std::unique_ptr<SecondTier>();
#ifdef FABRIC_SPILL
    FABRIC_TRY(auto tier, SpillTier::open(spec));
    return std::unique_ptr<SecondTier>(std::move(tier));
#else
    return fabricshm::explain({fabricshm::Errc::kUnsupported, 0, "open spill"},
                              "this build has no spill and no state: it was made without SQLite");
#endif
}

}  // namespace fabricd
