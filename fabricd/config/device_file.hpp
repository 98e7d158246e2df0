// The device file: which devices there are, how fast, with how much memory. docs/devices.md.
//
// It is read here and nowhere else: fabricd counts sessions against it, and programs that place
// layers on devices get it as JSON from `fabricctl devices --file`.

#pragma once

#include <string>
#include <vector>

#include "fabricd/config/config.hpp"
#include "fabricd/pool/snapshot.hpp"

namespace fabricd {

/// What a device may be: "cpu", "gpu", ...
const std::vector<std::string>& device_kinds();

/// Reads TOML text. The first mistake ends it with one line that starts with `name`:line; `devices`
/// is untouched then.
ErrorMessage parse_device_file(const std::string& text, const std::string& name,
                               std::vector<DeviceSpec>& devices);

/// parse_device_file() of a file.
ErrorMessage read_device_file(const std::string& path, std::vector<DeviceSpec>& devices);

}  // namespace fabricd
