// What was sampled, as text and as JSON: the live part of `fabricctl top`.

#pragma once

#include <string>

#include "fabricd/ctl/json.hpp"
#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// Tables of training, devices and paths; "" for what there is none of.
/// Rates and shares are those of the daemon's sampler; only a rank's part of its group's samples is
/// computed here.
std::string telemetry_text(const Sample& sample);

/// {"number": ..., "training": [...], "devices": [...], "paths": [...]}; what is not known is null.
Json telemetry_json(const Sample& sample);

}  // namespace fabricd
