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

/// Appends the same as text, see RowText.
void append_row(std::string& text, const ArenaView& arena);
void append_row(std::string& text, const SessionView& session);
void append_row(std::string& text, const GroupView& group);
void append_row(std::string& text, const ShardView& shard);
void append_row(std::string& text, const WaitingView& waiting);

}  // namespace fabricd
