// What the decision journal says, as bytes: numbers as they lie in memory (one host, one
// architecture), texts and lists behind their length. Reading is bounded and takes nothing on
// trust: files get truncated, and people hand them to `fabricctl replay`.

#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/journal/window.hpp"

namespace fabricd {

using RecordBytes = std::vector<std::byte>;

RecordBytes to_record(const Decision& decision);
RecordBytes to_record(const DecisionOutcome& outcome);
RecordBytes to_record(const Window& window);

/// Nothing when the bytes are not exactly such a record.
std::optional<Decision> decision_from(std::span<const std::byte> bytes);
std::optional<DecisionOutcome> outcome_from(std::span<const std::byte> bytes);
std::optional<Window> window_from(std::span<const std::byte> bytes);

}  // namespace fabricd
