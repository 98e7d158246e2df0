// What was sampled, as text and as JSON: the live part of `fabricctl top`.

#pragma once

#include <cstdint>
#include <map>
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

/// Samples per second of all live members of each group: what a rank's part is a share of.
using GroupRates = std::map<std::uint64_t, double>;
GroupRates rates_of_groups(const Sample& sample);

/// The elements of the lists above. `rates` are those of the whole sample.
Json training_json(const SessionSample& session, const GroupRates& rates);
Json load_json(const DeviceSample& device);
Json path_json(const PathSample& path);

/// Append the same as text, see RowText.
void append_training(std::string& text, const SessionSample& session, const GroupRates& rates);
void append_path(std::string& text, const PathSample& path);

}  // namespace fabricd
