#include "fabricd/control/loop/page_actuator.hpp"

#include <cmath>
#include <limits>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

using fabricshm::DirectiveImage;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

constexpr double kMaxUnits = std::numeric_limits<std::uint32_t>::max();

}  // namespace

Result<DirectiveImage> image_of(const Directive& directive) {
    DirectiveImage image{};
    const auto most = static_cast<std::size_t>(fabricshm::kPeersMax);
    if (directive.sessions.size() > most || directive.shares.size() > most ||
        directive.units.size() > most) {
        return Error{Errc::kUnsupported, 0, "direct a job of more than 256 ranks"};
    }
    // All of it each time: a page holds one image, and a trainer that missed one misses nothing.
    image.serial = directive.serial;
    image.decision = directive.decision;
    image.group_id = directive.group;
    image.world = directive.world;
    image.sync_interval = directive.sync_interval;
    for (std::size_t i = 0; i < directive.shares.size(); ++i) {
        image.batch_share[i] = directive.shares[i];
    }
    for (std::size_t i = 0; i < directive.units.size(); ++i) {
        // Ranks say how many there are, and could say more than a word of the page holds.
        const bool fits = directive.units[i] >= 0 && directive.units[i] <= kMaxUnits;
        if (!fits) return Error{Errc::kInvalid, 0, "direct more units than a page holds"};
        image.work_units[i] = static_cast<std::uint32_t>(std::lround(directive.units[i]));
    }
    return image;
}

Result<void> PageActuator::direct(const Directive& directive) {
    // By rank or not at all, as the loop keeps them.
    const std::size_t ranks = directive.sessions.size();
    FABRIC_CHECK(directive.shares.empty() || directive.shares.size() == ranks);
    FABRIC_CHECK(directive.units.empty() || directive.units.size() == ranks);
    FABRIC_TRY(const DirectiveImage image, image_of(directive));
    if (directive.sessions.empty()) return Error{Errc::kInvalid, 0, "direct a job"};
    // Rank 0 last: when it acts, the others' pages say the same already.
    for (std::size_t rank = directive.sessions.size() - 1; rank > 0; --rank) {
        (void)pages_.direct(directive.sessions[rank], image);
    }
    return pages_.direct(directive.sessions.front(), image);
}

}  // namespace fabricd
