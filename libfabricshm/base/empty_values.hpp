// Empty values on a command line: `--output "$FILE"` with a FILE that is not set. What was meant is
// not known, and a default would be written to, or shown, in its place.

#pragma once

#include <string>

namespace fabricshm {

/// "" for a value, else why it is none. For parsers of our own.
inline std::string wrong_with_empty(const std::string& value) {
    return value.empty() ? "the value is empty" : "";
}

/// Has every option and argument of `app` and of its commands refuse an empty value, with its name.
/// Call it when all of them are added. `App` is CLI::App, which this layer does not know.
template <typename App>
void refuse_empty_values(App& app) {
    for (auto* option : app.get_options()) {
        // Flags take no value.
        if (option->get_items_expected_max() != 0) option->check(wrong_with_empty);
    }
    for (App* command : app.get_subcommands({})) refuse_empty_values(*command);
}

}  // namespace fabricshm
