// Pictures as JSON that goes into more of it. docs/fabricctl.md has the fields.

#pragma once

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/picture.hpp"

namespace fabricd {

/// An object whose keys are those of `fabricctl VIEW --json`.
Json json_of(const Picture& picture, View view);

}  // namespace fabricd
