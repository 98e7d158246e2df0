// Pictures as JSON that goes into more of it. docs/fabricctl.md has the fields.

#pragma once

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/picture.hpp"

namespace fabricd {

/// An object whose keys are those of `fabricctl VIEW --json`.
Json json_of(const Picture& picture, View view);

/// One element of these lists, for all views but regions; of a StatusView what "status" is.
template <typename Item>
Json row_json(const Item& item);

}  // namespace fabricd
